"""Solve pipeline-partition exactly: branch and bound over the stages, the last one first, with bounds by paths.

    bound        the least that any partition needs by the paths of `spans`
    beam         the suffixes of least bounds, a stage more at a time, simulated when they are whole; at first none whose bound
        is above the least
    paths        all suffixes that may be part of a partition better than the best so far; of two that begin at one sub-layer,
        one is enough if neither its S nor its K is larger
    moves        cuts moved by a few sub-layers, as long as that helps
    turns        as `paths`, by paths with a turn, too, and by the fronts of `prefixes`: few suffixes at first, with rough
        fronts, then more with finer ones
    search       the suffixes that are left, by depth, those of least bounds first; large groups are simulated before

Suffixes, S, K and turns are explained in `suffixes`. Where a step leaves no suffix open, the best partition so far is proven;
else the least bound of the open suffixes bounds all partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor, inf

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.solvers.assignment.sweep import steps_of
from trainplan.solvers.core.search import Outcome, Search, first_fitting
from trainplan.solvers.partition.autopipe import Planner
from trainplan.solvers.partition.heuristic import cheap_bound
from trainplan.solvers.partition.prefixes import Prefixes
from trainplan.solvers.partition.spans import FAR, Spans
from trainplan.solvers.partition.suffixes import Suffixes, in_order, longer, longest_bound_ns, no_suffix, undominated
from trainplan.solvers.partition.times import SublayerChain

MEMORY = "least memory over all partitions"
SOURCE = "micro-batches followed through one stage"
SEARCHED = "micro-batches followed through one stage, the rest simulated"
SPANS_TIME = 0.5  # of the time limit, by which the tables of spans have to be there
BEAM, CHUNK = 64, 2048  # suffixes kept in the beam; suffixes branched on, or simulated, together
MOST = 20_000  # suffixes kept by S and K
STEPS = ((256, 4, 7), (1024, 8, 2), (10_000, 32, 2), (60_000, 48, 2))  # suffixes kept; `classes` and `every` of Prefixes
SIMULATED = 256  # suffixes that are worth simulating
LARGEST, MOST_WORK = 2**22, 10**8  # spans in tables; passes to simulate in one round of moved cuts


def branch_and_bound(instance: Instance, search: Search) -> Outcome:
    """The method `branch-and-bound` of pipeline-partition: the optimal cuts with proof, or the best ones found and a lower
    bound in ns on all partitions if time runs out. Chains of sub-layers too long for its tables of all spans get a good
    partition and a lower bound, mostly without a proof of optimality.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    if instance.sublayers**2 > LARGEST:
        return _coarse(instance, search)
    until = inf if search.time_limit is None else SPANS_TIME * search.time_limit
    try:
        spans = Spans(instance, lambda: search.elapsed() > until)
    except TimeoutError:
        return _coarse(instance, search)
    if spans.bound >= FAR:
        return Outcome(infeasible=True, bound_source=MEMORY)
    steps: dict[str, int] = {}

    def ended(source: str) -> Outcome:
        """The outcome of the search with the best bound so far. source: the argument that proves it."""
        return Outcome(bound=search.bound, bound_source=source, statistics=steps)

    search.report(bound=spans.bound)
    for limit in (spans.bound, FAR - 1):
        steps["beam"] = steps.get("beam", 0) + _by_stage(spans, search, limit, BEAM)
        if search.closed():
            return ended(SOURCE)
    if search.objective is None:
        return _coarse(instance, search)
    steps["paths"] = _by_stage(spans, search, _limit(search), MOST, slowest=[0] * instance.stages)
    if search.closed():
        return ended(SOURCE)
    steps["moves"] = _moved(spans, search)
    for width, classes, every in STEPS:
        if not search.closed() and not search.out_of_time():
            prefixes = Prefixes(spans, limit := _limit(search), classes, every, search.out_of_time)
            count = _by_stage(spans, search, limit, width, spans.slowest(limit), prefixes)
            steps["turns"] = steps.get("turns", 0) + count
            steps["moves"] += _moved(spans, search)
    if not search.closed() and not search.out_of_time():
        steps["search"] = _searched(spans, search, Prefixes(spans, _limit(search), *STEPS[-1][1:], search.out_of_time))
    return ended(SEARCHED)


def _coarse(instance: Instance, search: Search) -> Outcome:
    """The outcome for chains of sub-layers too long for tables of all spans (consecutive sub-layers): the better of the
    partitions by the method `sweep` of the problem stage-assignment and by AutoPipe's heuristic, improved by moving cuts; with
    a lower bound, but rarely a proof of optimality.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    chain, row = SublayerChain(instance), instance.forward_ns + instance.backward_ns
    times, moves = np.tile(row, (instance.stages, 1)), np.tile(2 * instance.transfer_ns, (instance.stages - 1, 1))
    bound, source = cheap_bound(instance)
    search.report(bound=bound)
    for step in steps_of(times, moves, instance.micro_batches, chain.windows):
        if step.cuts is not None:
            search.report(Solution(step.cuts))
        if search.out_of_time():
            return Outcome(bound=search.bound, bound_source=source, message="time ran out before the start was found")
    if search.best is None:
        return Outcome(infeasible=True, bound_source=MEMORY)
    planner = Planner(instance)
    planner.run(search.out_of_time)
    first_fitting(instance, search, map(Solution, planner.by_time()), "AutoPipe's search")
    return Outcome(bound=search.bound, bound_source=source, statistics={"moves": _moved(chain, search)})


def _limit(search: Search) -> int:
    """The largest lower bound in ns with which a partial partition is still worth extending: less than the time of the best
    partition found so far by more than the search's relative gap; a very large number if no partition is known.

    search: the run's limits and options, and its best solution so far; only read here."""
    if search.objective is None:
        return FAR - 1
    return search.objective - floor(search.gap * search.objective) - 1


def _by_stage(
    spans: Spans, search: Search, limit: int, width: int, slowest: Sequence[int] | None = None, prefixes: Prefixes | None = None
) -> int:
    """One pass of the method `branch-and-bound`: extend suffixes (the last stages of partitions) by one stage at a time until
    they are whole partitions, keeping the `width` suffixes of least bounds; return the number of suffixes kept. Reports the
    best partition found and the lower bound on all partitions that follows from the suffixes dropped.

    search: the run's limits and options, and its best solution so far. spans: times and bounds of every possible stage. width:
    the number of suffixes kept per number of stages. limit: suffixes with a larger bound in ns are dropped. slowest: for each
    stage, the longest pass in ns of any stage before it, by which dominated suffixes are dropped; None drops none. prefixes:
    stronger bounds on suffixes, which also use paths that follow a micro-batch only as far as some later stage and back; None
    for none."""
    suffixes, count, open_bounds = no_suffix(spans), 0, []
    while suffixes.stage and suffixes.count:
        if search.out_of_time():
            open_bounds.append(suffixes.bound.min())
            suffixes = suffixes.at(slice(0))
            break
        suffixes = longer(spans, suffixes, limit, turning=prefixes is not None)
        if prefixes is not None:
            suffixes = prefixes.bounded(suffixes)
        if slowest is not None:
            suffixes = undominated(suffixes, slowest[suffixes.stage], search.out_of_time)
        if suffixes.count > width:
            order = in_order(spans, suffixes)
            open_bounds.append(suffixes.bound[order[width:]].min())
            suffixes = suffixes.at(order[:width])
        count += suffixes.count
    if suffixes.count:
        suffixes = suffixes.at(in_order(spans, suffixes))
        open_bounds.append(suffixes.bound[0])
        _simulated(spans, suffixes, search)
    _report_bound(int(min([limit + 1, *open_bounds])), search)
    return count


def _report_bound(bound: int, search: Search) -> None:
    """Report a lower bound in ns on all partitions to the search. bound: the least bound of the suffixes (partial partitions)
    that remain; suffixes dropped before had a bound above the best partition's time, so that bound holds for all partitions,
    too.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    search.report(bound=min(bound, _limit(search) + 1))


def _simulated(chain: SublayerChain, suffixes: Suffixes, search: Search) -> None:
    """Simulate whole partitions of sub-layers into pipeline stages in the order of their lower bounds, as far as time allows,
    and report the best to the search. chain: the sub-layers. suffixes: the partitions, as suffixes (last stages) that begin at
    the first stage, sorted by their bounds.

    search: the run's limits and options, and its best solution so far."""
    for start in range(0, suffixes.count, CHUNK):
        part = suffixes.at(slice(start, start + CHUNK))
        part = part.at(part.bound <= _limit(search))
        if part.count and not search.out_of_time():
            _report_best(chain, part.firsts, search)


def _report_best(chain: SublayerChain, firsts: Integers, search: Search) -> bool:
    """Simulate several partitions, and report the best to the search if it is better than the best so far; return True if it
    is. chain: the sub-layers. firsts: (partitions, stages), the first sub-layer of every stage.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    times = chain.times_ns(firsts)
    best = int(times.argmin())
    if search.objective is not None and times[best] >= search.objective:
        return False
    search.report(Solution(tuple(firsts[best, 1:].tolist())))
    return True


def _moved(chain: SublayerChain, search: Search) -> int:
    """Improve the best partition by local search: move one cut by up to three sub-layers, the move that helps most, until none
    helps or time runs out. Reports better partitions to the search; returns the number of rounds of moves (0 for very large
    pipelines). chain: the sub-layers."""
    stages, rounds = chain.stages, 0
    if stages == 1 or stages**2 * (stages + chain.micro_batches) > MOST_WORK:
        return 0
    while not search.out_of_time():
        rounds += 1
        firsts = chain.neighbours(np.array([0, *search.best.cuts], np.int64))
        if not len(firsts) or not _report_best(chain, firsts, search):
            break
    return rounds


def _searched(spans: Spans, search: Search, prefixes: Prefixes) -> int:
    """The exact depth-first search: extend every suffix (last stages of a partition) that may be part of a partition better
    than the best so far, and report better partitions and the bound. Returns the number of suffixes extended. spans: times and
    bounds of every possible stage. prefixes: lower bounds on the stages before a suffix."""
    waiting, count = [no_suffix(spans)], 0
    while waiting and not search.out_of_time():
        suffixes, limit = waiting.pop(), _limit(search)
        suffixes = suffixes.at(suffixes.bound <= limit)
        if suffixes.count > CHUNK:
            waiting.append(suffixes.at(slice(CHUNK, None)))
            suffixes = suffixes.at(slice(CHUNK))
        count += suffixes.count
        if suffixes.count and suffixes.stage == 0:
            _report_best(spans, suffixes.firsts, search)
        elif suffixes.count:
            waiting.append(_bounded(spans, prefixes.bounded(longer(spans, suffixes, limit, turning=True)), search))
        _report_bound(min([int(suffixes.bound[0]) for suffixes in waiting if suffixes.count], default=FAR), search)
    return count


def _bounded(spans: Spans, suffixes: Suffixes, search: Search) -> Suffixes:
    """Sort suffixes (last stages of partitions) by their lower bounds on the iteration; if they are many, their bounds are
    first raised by simulating each suffix as a pipeline of its own. spans: times and bounds of every possible stage. suffixes:
    the suffixes, in any order.

    search: the run's limits and options, and its best solution so far; only read here."""
    if suffixes.stage and suffixes.count >= SIMULATED:
        bound = suffixes.bound.copy()
        for start in range(0, suffixes.count, CHUNK):
            if search.out_of_time():
                break
            firsts = suffixes.firsts[start : start + CHUNK]
            alone = longest_bound_ns(spans, suffixes.stage, firsts[:, 0], spans.times_ns(firsts))
            bound[start : start + CHUNK] = np.maximum(bound[start : start + CHUNK], alone)
        suffixes = replace(suffixes, bound=bound)
    return suffixes.at(in_order(spans, suffixes))
