"""Quick facts about cluster-strategy, in milliseconds: a lower bound in closed form, and strategies on devices in their
order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase, on_one_link
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.placement_costs import end_ranks, group_sync_ns
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.solvers.assignment.even_stages import balanced_cuts
from trainplan.solvers.cluster.bounds import even_stages_ns
from trainplan.solvers.cluster.placements import node_order

SOURCE = "every layer at its fastest, stages and shares as even as they can be"
TRIED = 4  # strategies that fit


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns on the step time of all strategies, ignoring memory, and the text that says why it holds. It is the
    least of the closed-form bounds `even_stages_ns` over all degrees of parallelism.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    return min((bound for bound, _ in _bounded(instance)), default=0), SOURCE


def _bounded(instance: Instance) -> Iterator[tuple[int, Degrees]]:
    """Yield for every possible choice of degrees of parallelism a pair: a lower bound in ns on the step time of all strategies
    with these degrees, and the degrees. The gradients of a table shared by embedding and head are assumed to be reduced over
    the best of all links.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    size, tied = instance.tied_bytes if instance.devices > 1 else 0, dict[int, int]()
    best = on_one_link(instance, lambda _: True, ~np.eye(instance.devices, dtype=bool)) if size else instance
    for degrees in instance.degrees():
        ranks = end_ranks(degrees)
        if ranks not in tied:
            tied[ranks] = group_sync_ns(best, range(ranks), size) if size else 0
        yield even_stages_ns(DegreeCase(instance, degrees), tied[ranks]), degrees


def first_plan(instance: Instance) -> Solution | None:
    """A quick strategy (degrees of parallelism, placement of devices, cuts, shares of the batch) that fits the memory, None if
    none is found: devices in order, stages of even time; degrees of parallelism are tried by rising lower bound, and the best
    of the first few strategies that fit is returned.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    bounded = sorted(_bounded(instance))
    best: tuple[int, Solution] | None = None
    tried = 0
    for bound, degrees in bounded:
        if tried == TRIED or (best is not None and bound >= best[0]):
            break
        solution = _even(instance, degrees)
        placed = instance.placed(degrees, solution.placement)
        if instance.within_memory and (placed.peak_bytes(solution.cuts, solution.shares) > placed.limits_bytes).any():
            continue
        tried += 1
        time = placed.time_ns(solution.cuts, solution.shares)
        if best is None or time < best[0]:
            best = time, solution
    return best[1] if best is not None else None


def _even(instance: Instance, degrees: Degrees) -> Solution:
    """A simple strategy with given degrees of parallelism: devices on ranks in their order, stages that take even times on the
    fastest devices, and the batch shared evenly among the pipelines.

    instance: a model's layers, a cluster of unequal devices, and the batch size. degrees: pipeline, data and tensor
    parallelism, and the micro-batch size."""
    fastest = instance.tables[degrees.tmp, degrees.mbs].layer_ns[instance.class_kinds].min(axis=0)
    shares = instance.even_shares(degrees.dp, degrees.mbs)
    assert shares is not None
    return Solution(degrees, node_order(instance), balanced_cuts(fastest, degrees.pp), shares)
