"""Exact label-setting for chains under a memory limit: dynamic programming with dominance, on whole bytes and nanoseconds.

Labels run from the last layer to the first. A label of the layers from l to the last is (t, H, M): their time, the peak over
them with everything in them resident, and their model states. Adding a layer of own time t_l, memory f, b and ms (see `chain`)
that is linked to them at a cost R gives

    t' = t + R + t_l        M' = M + ms        H' = ms + f + max(b + M, H).

Why it is exact and small (E is the memory limit):

1. Feasibility: the earlier layers add at least the least sum of f + ms to H, so H plus that must stay within E; and M adds to
   the least peak that the earlier layers have of themselves. Options that fit with no others are removed beforehand.
2. Dominance: among labels of one kind, which can follow the same options at the same costs, one with smaller or equal t, H and
   M is as good. M may be raised to H minus the most by which an earlier layer's own pass can exceed H, where it no longer
   matters: then M follows from H, and labels have two entries.
3. Completion bound: see `bounds`. A label whose bound does not beat the incumbent is dropped.
4. Cap (on request): a second time u that must stay within a limit. It is one more entry of a label, of dominance, and, at
   multipliers of its own, of the completion bound.
5. Beam: each sweep keeps the labels of best bound, up to a width; those that it drops have a bound too, so every sweep gives
   both an incumbent and a proven bound. A sweep that drops nothing proves optimality; else the next one is wider. One sweep
   compares times coarsely, as if for a gap (see 6), to find a better incumbent.
6. Gap (on request): half of it goes to the incumbent, which labels must beat by that much; half to dominance, which compares
   times in whole grains. A layer can lose at most a grain less one nanosecond by it, so the bound is lowered by that much for
   every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance, Integers
from trainplan.solvers.chain.bounds import Cap, Completion, possible
from trainplan.solvers.chain.chain import LOWEST, Booleans, Floats, Indices, MemoryChain, chain_of, traced
from trainplan.solvers.chain.dominance import undominated
from trainplan.solvers.chain.least_memory import least_memory, little_memory
from trainplan.solvers.core.search import Outcome, Search

# Width, and a gap that dominance may take half of.
SWEEPS = ((400, 0.0), (20_000, 0.0), (20_000, 5e-4), (1_000_000, 0.0), (5_000_000, 0.0))
BLOCK = 2_000_000
SOURCE = "completion bounds of label-setting"
FASTEST = "fastest choice without a memory limit"
WORTH = "worth_ns"  # an option for callers: the largest objective that is of interest
STOPPED = "time ran out before the labels were set"
Pairs = tuple[Indices, Indices]


@dataclass
class Labels:
    """The labels of one layer in parallel arrays, one entry per label. A label is a partial choice: options for this layer and
    all later layers.

    t: time in ns; u: second, capped time in ns (0 without a cap); h: peak and m: model states, in bytes; option: the layer's
    option; parent: the index of the label of the next layer to which this layer's option was added."""

    t: Integers
    u: Integers
    h: Integers
    m: Integers
    option: Integers
    parent: Integers

    def __len__(self) -> int:
        return len(self.t)

    def take(self, keep: Indices | Booleans) -> Labels:
        """Select some of the labels. keep: indices of labels, in whose order they are returned, or one flag per label, True to
        keep it."""
        return Labels(*(column[keep] for column in vars(self).values()))


def label_setting(instance: Instance | MemoryChain, search: Search, cap: Cap | None = None) -> Outcome:
    """The method `label-setting`: the fastest choice of one option per layer within the memory limit, with a proof of
    optimality, or the best choice found and a lower bound if time runs out. It has no options for users.

    instance: the layers of one pipeline stage, each with its options (parallel strategies), their times and memory, and one
    memory limit. search: the run's limits and options, and its best solution so far, to which better ones are reported. cap: a
    limit on a second time of each choice, or None; with a cap, `search` must already know a solution that keeps this limit."""
    chain = chain_of(instance)
    time, choice = chain.fastest()
    search.report(bound=time)
    if cap is None and int(chain.peaks(np.array([choice]))[0]) <= chain.memory_bytes:
        search.report(choice)
        return Outcome(bound=time, bound_source=FASTEST)
    try:
        least, choice = little_memory(chain)
        if least > chain.memory_bytes:
            least, choice = least_memory(chain, search.check_time)
        if least > chain.memory_bytes:
            return Outcome(infeasible=True, bound_source="least memory over all choices")
        search.report(choice)
        search.check_time()
        remaining = possible(chain)
        chain, cap = chain.restricted(remaining), cap and replace(cap, chain=cap.chain.restricted(remaining))
        problem = Completion(chain, cap, check_time=search.check_time)
        search.report(bound=problem.bound)
        if (path := problem.best_mixed_path()) is not None:
            search.report([int(options[s]) for options, s in zip(remaining, path, strict=True)])
    except TimeoutError:
        return Outcome(bound=search.bound, bound_source=FASTEST, message=STOPPED)
    statistics = {"labels": 0, "sweeps": 0}
    for width, coarse in SWEEPS:
        if _enough(search):
            break
        finished = _sweep(problem, remaining, search, width, max(coarse, search.gap), statistics)
        statistics["sweeps"] += 1
        if not finished or search.out_of_time():
            break
    return Outcome(bound=search.bound, bound_source=SOURCE, statistics=statistics)


def _enough(search: Search) -> bool:
    """Whether the search may stop: its lower bound is within the requested gap of the best solution, or above `worth_ns`, the
    largest objective in ns that the caller cares about (if given).

    search: the run's limits and options, and its best solution so far; only read here."""
    assert search.objective is not None
    return search.closed() or (search.bound is not None and search.bound > search.options.get(WORTH, search.objective))


def _target(search: Search) -> int:
    """The largest objective in ns that is still worth finding: below the best solution by half the requested gap and at least 1
    ns; and at most the search's option `worth_ns`, if the caller gives it.

    search: the run's limits and options, and its best solution so far; only read here."""
    assert search.objective is not None
    target = search.objective - max(1, int(search.objective * search.gap / 2))
    return min(target, search.options.get(WORTH, target))


def _sweep(
    problem: Completion, remaining: list[Indices], search: Search, width: int, coarse: float, statistics: dict[str, int]
) -> bool:
    """One sweep of label-setting over the layers, from the last to the first: report a better choice, if there is one, and the
    lower bound that the sweep proves. Returns False if time ran out.

    search: the run's limits and options, and its best solution so far, to which better ones are reported. problem: the chain
    and its completion bounds. remaining: for each layer, the indices that the chain's options had before useless options were
    removed. width: the number of labels (partial choices) kept per layer: the labels of least bound. coarse: a share of the
    objective; dominance rounds times to multiples of some ns, chosen so that the result is off by at most half of this share.
    statistics: its count "labels" is raised."""
    chain, target = problem.chain, _target(search)
    assert search.objective is not None
    grain = 1 + int(search.objective * coarse / 2) // chain.layers
    dropped = np.inf
    zero = np.zeros(1, np.int64)
    labels = Labels(zero, zero, zero + LOWEST, zero, zero, zero)
    trail: list[Labels] = []
    for l in range(chain.layers - 1, -1, -1):
        parts, bounds = [], []
        for batch in _batches(chain.pairs(l, labels.option)):
            if search.out_of_time():
                return False
            part, bound = _extended(problem, l, labels, batch, target)
            parts.append(part)
            bounds.append(bound)
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        merged, bound = Labels(*map(np.concatenate, columns)), np.concatenate(bounds)
        statistics["labels"] += len(merged)
        keep = _undominated(problem, l, merged, grain)
        merged, bound = merged.take(keep), bound[keep]
        if len(merged) > width:
            order = np.lexsort((merged.h, bound))
            dropped = min(dropped, float(bound[order[width]]))
            merged = merged.take(order[:width])
        labels = merged
        trail.append(labels)
        if not len(labels):
            break
    if len(labels):
        choice = traced([(step.option, step.parent) for step in trail], int(labels.t.argmin()))
        assert int(chain.times(np.array([choice]))[0]) == int(labels.t.min())
        search.report([int(options[s]) for options, s in zip(remaining, choice, strict=True)])
    # Whatever was cut is above the target, has the bound of the best label dropped, or is a few grains faster than what stayed.
    proven = min(search.objective, target + 1)
    proven = proven if dropped == np.inf else min(proven, int(np.ceil(dropped)))
    search.report(bound=proven - chain.layers * (grain - 1))
    return True


def _batches(pairs: Iterable[Pairs]) -> Iterator[list[Pairs]]:
    """Group pairs of index vectors into batches of about `BLOCK` combinations, splitting large ones, to limit memory. pairs:
    blocks (options of a layer, indices of labels of the next layer); all combinations within a block count."""
    batch, size = list[Pairs](), 0
    for options, indices in pairs:
        step = max(1, BLOCK // len(options))
        for start in range(0, len(indices), step):
            batch.append((options, indices[start : start + step]))
            size += len(options) * len(batch[-1][1])
            if size >= BLOCK:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _extended(problem: Completion, l: int, labels: Labels, batch: list[Pairs], target: int) -> tuple[Labels, Floats]:
    """Extend labels (partial choices from layer l + 1 on) by the options of layer l: the labels of layer l that may fit the
    memory and may be better than the target, and their lower bounds in ns as whole choices.

    problem: the chain and its completion bounds. labels: the labels of layer l + 1. batch: blocks (options of layer l, indices
    of labels) whose combinations are tried. target: the largest objective in ns that is worth finding.
    """
    chain, cap = problem.chain, problem.cap
    parts = [_fitting(problem, l, labels, options, indices) for options, indices in batch]
    option, parent, h, m = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    link, following = (chain.links[l], labels.option[parent]) if l + 1 < chain.layers else (None, None)
    time = labels.t[parent] + chain.time_ns[l][option]
    if link is not None and following is not None:
        time += link.cost(option, following)
    u = np.zeros(len(time), np.int64)
    if cap is not None:
        u = labels.u[parent] + cap.chain.time_ns[l][option]
        if following is not None:
            u += cap.chain.links[l].cost(option, following)
    m = np.maximum(m, h - problem.chain.least.reach[l][option])
    longer = Labels(time, u, h, m, option, parent)
    if cap is not None:
        longer = longer.take(u + problem.least_capped[l][option] <= cap.limit_ns)
    # The next float up, so that a target that no float equals cuts nothing that reaches it.
    keep, bound = problem.bounded(l, longer.t, longer.u, longer.h, longer.option, float(np.nextafter(target, np.inf)))
    return longer.take(keep), bound


def _fitting(
    problem: Completion, l: int, labels: Labels, options: Indices, indices: Indices
) -> tuple[Indices, Indices, Integers, Integers]:
    """The combinations of options of layer l and labels (partial choices from layer l + 1 on) that may fit the memory, as four
    vectors over combinations: option of layer l, index of the label, peak and model states in bytes.

    problem: the chain and its completion bounds. labels: all labels of layer l + 1. options: options of layer l. indices: the
    labels to combine them with."""
    chain = problem.chain
    f, b, ms = (column[l][options][:, None] for column in (chain.forward_bytes, chain.backward_bytes, chain.state_bytes))
    m = labels.m[indices]
    peak, states = ms + f + np.maximum(b + m, labels.h[indices]), ms + m
    room = chain.memory_bytes - problem.chain.least.added[l][options], chain.memory_bytes - problem.chain.least.peak[l][options]
    row, column = np.nonzero((peak <= room[0][:, None]) & (states <= room[1][:, None]))
    return options[row], indices[column], peak[row, column], states[row, column]


def _undominated(problem: Completion, l: int, labels: Labels, grain: int) -> Indices:
    """Pareto filter of labels (partial choices from layer l on): the indices of the labels that no other label equals or beats
    in time, capped time, peak and model states, among labels that can follow the same options at equal costs.

    problem: the chain and its completion bounds. grain: times are compared in whole multiples of this many ns; 1 is exact."""
    # Entries that may differ in addition to time; where peaks and states rise together, the peak stands for both.
    plane = bool((labels.m == labels.h - problem.chain.least.reach[l][labels.option]).all())
    entries = [labels.h] if plane else [labels.h, labels.m]
    entries += [labels.u] if problem.cap is not None else []
    return undominated(problem.kinds[l][labels.option], labels.t // grain, entries)
