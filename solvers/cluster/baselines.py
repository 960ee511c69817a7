"""The baselines that AMP is compared with: Megatron's heuristic (Section 4.1), and strategies at random (Section 4.5)."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.solvers.cluster.amp import TOP, assigned, estimated, outcome, report
from trainplan.solvers.cluster.placements import node_order, smallest_node
from trainplan.solvers.core.search import Outcome, Search

DRAWS = 50


def megatron(instance: Instance, search: Search) -> Outcome:
    """The method `megatron`, Megatron's heuristic: for each micro-batch size the degrees of tensor (tmp) and pipeline (pp)
    parallelism with the smallest product tmp x pp that fit the memory, with tmp at most the number of devices of the smallest
    node. (The paper says "smaller than", which would leave no degree for nodes of one device.)

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported.

    Several choices of degrees may tie for one micro-batch size; of all strategies found, the fastest by our estimate is the
    answer. Candidates in the outcome's statistics are listed in the order of the paper's Tables 6 and 8, by micro-batch size
    and tmp; then, up to `top`, come those with the next larger tmp x pp of each micro-batch size. Strategies that do not fit
    the memory are left out, as in the paper, unless the instance has no memory limit. Options of the search: `top`;
    `assignment`: uniform-layers or uniform-parameters (how layers are assigned to stages: equal numbers of layers, or of
    parameters)."""
    rule = search.options.get("assignment") or "uniform-layers"
    largest, count, ranked = smallest_node(instance), 0, []
    possible = sorted(
        (degrees for degrees in instance.degrees() if degrees.tmp <= largest),
        key=lambda degrees: (degrees.mbs, degrees.tmp * degrees.pp, degrees.tmp),
    )
    for _, group in groupby(possible, key=lambda degrees: degrees.mbs):
        index = 0
        for _, equal in groupby(group, key=lambda degrees: degrees.tmp * degrees.pp):
            if search.out_of_time():
                break
            tied = []
            for degrees in equal:
                if not search.out_of_time():
                    tied.append(estimated(instance, assigned(instance, degrees, node_order(instance), rule)))
            count += len(tied)
            usable = [candidate for candidate in tied if candidate.fits or not instance.within_memory]
            for candidate in usable:
                ranked.append((index, candidate))
                if index == 0:
                    report(instance, search, candidate)
            index += bool(usable)
    ranked.sort(key=lambda item: item[0])
    listed = [candidate for _, candidate in ranked][: search.options.get("top") or TOP]
    return outcome(instance, search, listed, count)


def random(instance: Instance, search: Search) -> Outcome:
    """The method `random`, AMP's baseline RS: the best of a number of strategies whose degrees of parallelism, micro-batch
    size, placement and cuts are drawn uniformly at random by the search's seed; without a proof.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported. The search's option `iterations`: the number of draws (50). All
    degrees with all their micro-batch sizes are one population. Candidates in the outcome's statistics are listed as drawn; the
    answer is the best by our estimate, which does not influence the draws."""
    generator = np.random.default_rng(search.seed)
    population, drawn = list(instance.degrees()), []
    for _ in range(search.options.get("iterations") or DRAWS):
        if search.out_of_time() or not population:
            break
        drawn.append(estimated(instance, _drawn(instance, population[generator.integers(len(population))], generator)))
        report(instance, search, drawn[-1])
    return outcome(instance, search, drawn, len(drawn))


def _drawn(instance: Instance, degrees: Degrees, generator: np.random.Generator) -> Solution:
    """A random strategy with given degrees of parallelism: the placement of devices and the cuts between stages are drawn
    uniformly; the batch is shared evenly among the pipelines.

    instance: a model's layers, a cluster of unequal devices, and the batch size. degrees: pipeline, data and tensor
    parallelism, and the micro-batch size. generator: the source of random choices."""
    shares = instance.even_shares(degrees.dp, degrees.mbs)
    assert shares is not None
    cuts = np.sort(generator.permutation(instance.layers - 1)[: degrees.pp - 1]) + 1
    return Solution(degrees, tuple(generator.permutation(instance.devices).tolist()), tuple(cuts.tolist()), shares)
