"""AMP's Algorithm 1: every (pp, dp, tmp) and micro-batch size, a placement by rule, the optimal layer assignment for it.

pp, dp and tmp are the degrees of pipeline, data and tensor parallelism, mbs the micro-batch size; pipe_ast and estimate are the
paper's functions.

    for each (pp, dp, tmp) and mbs    p = placement()       in the order of the nodes, see `placements`          Section 3.6
                                      a = pipe_ast(p)       least Eq. 5 of the slowest pipeline, stage by stage  Section 3.5
                                      cost = estimate()     Eq. 4, for this placement's own devices and links    Section 3.4
    run the `top` strategies of least cost and take the fastest                                                  `amp`

Of several pipelines, pipe_ast takes a stage's slowest times and transfers. It does not consider gradient synchronisation, so
with one micro-batch a pipeline, where Eq. 5 has no use for balance, a stage may get most of the parameters. Nothing here
considers memory: strategies that do not fit are candidates like others, but marked, and never the answer. Shares of the batch
are even, or as even as they can be where an instance allows others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.problem import Solution, SolutionRecord, evaluate, load_solution, solution_dict
from trainplan.solvers.assignment.amp_dp import amp_cuts
from trainplan.solvers.assignment.even_stages import balanced_cuts
from trainplan.solvers.assignment.sweep import assign
from trainplan.solvers.cluster.placements import node_order
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.core.solve import solve

ASSIGNMENTS = ("exact", "amp-dp", "uniform-layers", "uniform-parameters")
LAYER_TIMES = ("device", "average")
TOP = 10


@dataclass(frozen=True)
class Candidate:
    """A strategy for training on a cluster of unequal devices that a planner proposes, with its estimated costs. solution:
    degrees of parallelism, placement, cuts and shares of the batch. time_ns: the estimated time of a step. fits: whether every
    device has enough memory. peak_bytes: the largest peak of any device."""

    solution: Solution
    time_ns: int
    fits: bool
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """A dict of JSON values: the strategy's fields as in its file format (pp, dp, tmp, mbs, placement, cuts, shares), and
        time_ns, fits and peak_bytes."""
        costs = {"time_ns": self.time_ns, "fits": self.fits, "peak_bytes": self.peak_bytes}
        return {**solution_dict(self.solution), **costs}


def amp(instance: Instance, search: Search) -> Outcome:
    """The method `amp`: AMP's Algorithm 1 for a cluster of unequal devices; the outcome has the best strategy found that fits
    the memory. The outcome has no lower bound. The outcome's statistics list the `top` strategies of least cost, best first,
    including those that do not fit.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported.

    Options of the search: `top`, the number of strategies in that list; `assignment`, how layers are assigned to stages:
    optimally by a fast method (exact) or by the paper's own table (amp-dp), or by the uniform rules of Table 5 (equal numbers
    of layers or of parameters); `layer_times`, the times of the devices that hold a stage (device), or, as in the published
    code, the average of all devices."""
    names = search.options.get("assignment") or ASSIGNMENTS[0], search.options.get("layer_times") or LAYER_TIMES[0]
    planned = []
    for degrees in instance.degrees():
        if search.out_of_time():
            break
        planned.append(estimated(instance, assigned(instance, degrees, node_order(instance), *names)))
        report(instance, search, planned[-1])
    ranked = by_time(planned)[: search.options.get("top") or TOP]
    return outcome(instance, search, ranked, len(planned))


def assigned(
    instance: Instance,
    degrees: Degrees,
    placement: Sequence[int],
    assignment: str = ASSIGNMENTS[0],
    layer_times: str = LAYER_TIMES[0],
) -> Solution:
    """Complete a strategy for a cluster: assign the layers to pipeline stages for given degrees of parallelism and a given
    placement (AMP's function pipe_ast).

    instance: a model's layers, a cluster of unequal devices, and the batch size. degrees: pipeline, data and tensor
    parallelism, and the micro-batch size. placement: the device of every rank. assignment: `exact` and `amp-dp` minimise the
    time of the slowest pipeline (Eq. 5 of AMP). `uniform-layers` gives all stages equal numbers of Transformer layers, as
    Megatron does (Tables 6, 8 and 10); Transformer layers are recognised by their two or more all-reduces; if there are no such
    layers, all layers count. `uniform-parameters` gives all stages about equal numbers of parameters, measured by the bytes of
    gradients. layer_times: the layers' times on the devices that hold a stage (`device`), or their `average` over all devices.
    """
    shares = instance.even_shares(degrees.dp, degrees.mbs)
    assert shares is not None
    if degrees.pp == 1:
        cuts: tuple[int, ...] = ()
    elif assignment == "uniform-layers":
        counted = (instance.reductions >= 2).astype(np.int64)
        cuts = balanced_cuts(counted if counted.any() else counted + 1, degrees.pp)
    elif assignment == "uniform-parameters":
        cuts = balanced_cuts(instance.shards[degrees.tmp].gradient_bytes, degrees.pp)
    else:
        placed = instance.placed(degrees, placement)
        layer_ns, transfer_ns = placed.layer_ns.max(axis=1), placed.transfer_ns.max(axis=1)
        if layer_times == "average":
            mean = np.rint(placed.layer_ns.mean(axis=(0, 1))).astype(np.int64)
            layer_ns = np.tile(mean, (degrees.pp, 1))
        method = amp_cuts if assignment == "amp-dp" else assign
        answer = method(layer_ns, transfer_ns, max(shares))
        assert answer is not None
        cuts = answer[1]
    return Solution(degrees, tuple(placement), tuple(map(int, cuts)), shares)


def estimated(instance: Instance, solution: Solution) -> Candidate:
    """Estimate a strategy for a cluster (AMP's function estimate): a candidate with its step time in ns by Eq. 4 of AMP, and
    its memory. solution: the strategy.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    costs = evaluate(instance, solution)
    return Candidate(solution, costs.time_ns, costs.fits, costs.peak_bytes)


def by_time(listed: Iterable[Candidate]) -> list[Candidate]:
    """The candidates (strategies with estimated costs) sorted by their estimated step time, the fastest first. listed: the
    candidates in any order."""
    return sorted(listed, key=lambda candidate: candidate.time_ns)


def alternatives(instance: Instance, result: Result, top: int, seed: int) -> list[tuple[Solution, int]]:
    """The fastest strategies that fit the memory, at most `top` of them, each with its estimated time in ns, fastest first:
    taken from the candidates that the result lists and from a run of AMP's Algorithm 1. result: a method's result on this
    instance. seed: decides the random choices in that run.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    return best_candidates(instance, [result, solve(instance, "amp", seed=seed, top=top)], top)


def best_candidates(instance: Instance, results: Iterable[Result], top: int) -> list[tuple[Solution, int]]:
    """The fastest strategies that fit the memory, at most `top` of them, each with its time in ns, fastest first, among the
    solutions of several methods' results and the candidates that their statistics list. results: the methods' results on this
    instance.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    times: dict[Solution, int] = {}
    for result in results:
        for candidate in result.statistics.get("candidates", []):
            if candidate["fits"] or not instance.within_memory:
                solution = load_solution({name: candidate[name] for name in SolutionRecord.model_fields})
                times[solution] = candidate["time_ns"]
        if result.solution is not None and result.objective is not None:
            times[load_solution(result.solution)] = result.objective
    return sorted(times.items(), key=lambda item: item[1])[:top]


def report(instance: Instance, search: Search, candidate: Candidate) -> None:
    """Report a candidate's strategy to the search if it is the best so far and fits (or the instance has no memory limit).

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported."""
    if (candidate.fits or not instance.within_memory) and search.betters(candidate.time_ns):
        search.report(candidate.solution)


def outcome(instance: Instance, search: Search, listed: Sequence[Candidate], count: int, **statistics: Any) -> Outcome:
    """Build the outcome of a planner that gives no lower bound; its solution is the best strategy reported to the search.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported. listed: candidates, the best first, for the statistics. count: the
    number of strategies estimated. statistics: further numbers by name. A message says if time ran out, or why there is no
    strategy."""
    facts = {"estimated": count, "candidates": [candidate.to_dict() for candidate in listed], **statistics}
    if search.out_of_time():
        return Outcome(message=f"time ran out after {count} strategies", statistics=facts)
    message = None
    if not count:
        message = "no degrees share out the devices and the batch"
    elif search.objective is None:
        message = f"none of {count} strategies fits; the planner is blind to memory, so that proves nothing"
    return Outcome(message=message, statistics=facts)
