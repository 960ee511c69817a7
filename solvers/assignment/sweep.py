"""Solve stage-assignment exactly and fast: a sweep over the largest stage time, each step a shortest path through the stages.

t_i(first .. end - 1) is the time of stage i on these layers, e_i(first) that of the transfer before it, gas the number of
micro-batches. Under a cap V on every stage the rest of Eq. 5 of AMP, S = sum_i t_i + sum_i e_i, is least by a dynamic program
over the stages,

    D_i(end) = min over first of  D_{i-1}(first) + e_{i-1}(first) + t_i(first .. end - 1),

where `first` runs over a window: a stage fits its cap and its memory exactly where it begins late enough, and that first layer
does not fall as the stage's last layer rises. So a step costs one sliding minimum for each stage, over those first layers only
that both the stages before and those after can reach under the cap.

The least S(V) does not rise with V. Intervals (low, high] of caps are kept with a floor of S in them, that of a larger cap: a
solution in one costs at least (gas - 1)(low + 1) + floor. The one of the least bound is next: its upper end (the sweep's step,
to the next smaller largest stage) and its middle are tried in turn, until no bound is below the best solution. The first cap is
the least that the stages can keep, by which the others soon drop out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.core.search import Outcome, Search

FAR = np.int64(2**60)  # half of it is more than any sum of times
NEVER = 2**62
LEVELS = np.array([max(0, size.bit_length() - 1) for size in range(10_001)])  # of the largest power of two in a size
LOWEST, HIGHEST, MIDDLE = range(3)


@dataclass(frozen=True)
class Step:
    """The state of the sweep (the exact method) after one step. The sweep tries caps on the slowest stage's time one after the
    other. objective: the step time in ns of the best solution so far, or the cutoff if there is none. cuts: its cuts (first
    layer of every stage but the first), None if none is known. bound: a lower bound in ns on all solutions."""

    objective: int
    cuts: tuple[int, ...] | None
    bound: int


def sweep(instance: Instance, search: Search) -> Outcome:
    """The method `sweep`: the optimal cuts of layers into stages on given devices, with proof, or the best cuts found and a
    lower bound if time runs out.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    windows = instance.windows
    source, steps, bound = "a sweep over caps on the largest stage", 0, NEVER
    for step in steps_of(instance.layer_ns, instance.transfer_ns, instance.micro_batches, windows):
        steps, bound = steps + 1, step.bound
        search.report(None if step.cuts is None else Solution(step.cuts), bound if bound < NEVER else None)
        if search.closed(bound) or search.out_of_time():
            break
    statistics = {"steps": steps}
    if bound == NEVER:
        return Outcome(infeasible=True, bound_source=source, statistics=statistics)
    if search.best is None:
        return Outcome(message="time ran out before cuts were found", bound=bound, bound_source=source)
    return Outcome(bound=bound, bound_source=source, statistics=statistics)


def assign(
    layer_ns: Integers,
    transfer_ns: Integers,
    micro_batches: int,
    windows: Integers | None = None,
    cutoff_ns: int | None = None,
) -> tuple[int, tuple[int, ...]] | None:
    """Find the cuts of L layers into k pipeline stages on given devices with the least step time. Returns the time in ns (Eq. 5
    of AMP: all micro-batches but one on the slowest stage, and one through all stages and transfers), and the cuts, that is,
    the first layer of every stage but the first; None if nothing fits the memory, or nothing is below the cutoff.

    layer_ns: (k, L), the time in ns of each layer in each stage. transfer_ns: (k-1, L-1), entry [i, l]: the transfer time in ns
    from stage i to the next if stage i ends with layer l. windows: (k, L), entry [i, l]: the earliest first layer with which
    stage i, if it ends with layer l, fits its memory; rows must not fall; None without a memory limit. micro_batches: the
    number of micro-batches in a step. cutoff_ns: only solutions below it are wanted."""
    last = deque(steps_of(layer_ns, transfer_ns, micro_batches, windows, cutoff_ns), maxlen=1)
    return (last[0].objective, last[0].cuts) if last and last[0].cuts is not None else None


def steps_of(
    layer_ns: Integers,
    transfer_ns: Integers,
    micro_batches: int,
    windows: Integers | None = None,
    cutoff_ns: int | None = None,
) -> Iterator[Step]:
    """Cut L layers into k pipeline stages on given devices with the least step time, exactly, one step of the search at a time:
    each step tries another cap on the slowest stage's time, and yields the best solution so far and a lower bound, which are
    equal at the end.

    layer_ns: (k, L), the time in ns of each of L layers in each of k stages. transfer_ns: (k-1, L-1), entry [i, l]: the
    transfer time in ns from stage i to the next if stage i ends with layer l. windows: (k, L), entry [i, l]: the earliest first
    layer with which stage i, if it ends with layer l, fits its memory; None without a memory limit. micro_batches: the number
    of micro-batches in a step. cutoff_ns: only solutions below it are wanted."""
    chain = _Chain(layer_ns, transfer_ns, windows)
    most, cuts, rounds = NEVER if cutoff_ns is None else cutoff_ns, None, micro_batches - 1
    floor = chain.least_sum()
    top = min(chain.longest(), (most - 1 - floor) // rounds) if rounds else chain.longest()
    low = chain.least_cap(top) - 1 if rounds else -1
    waiting = [(rounds * (low + 1) + floor, low, top, floor, LOWEST if rounds else HIGHEST)]
    while waiting:
        bound, low, high, floor, where = heappop(waiting)
        if rounds:
            high = min(high, (most - 1 - floor) // rounds)
        if bound >= most or low >= high:
            continue
        cap = (low + 1, high, (low + high) // 2)[where]
        following = MIDDLE if where == HIGHEST else HIGHEST
        path = chain.path(cap)
        if path is not None:
            total, largest, tried = path
            if rounds * largest + total < most:
                most, cuts = rounds * largest + total, tried
            if low < largest - 1:
                heappush(waiting, (rounds * (low + 1) + total, low, largest - 1, total, following))
        if cap < high:
            heappush(waiting, (rounds * (cap + 1) + floor, cap, high, floor, following))
        yield Step(most, cuts, min(most, waiting[0][0]) if waiting else most)


class _Chain:
    """The stages and layers of one stage-assignment problem as arrays for the steps of the sweep. Boundaries 0 .. L are the
    gaps before the L layers, and the end. A cap is the most ns that any stage may take. Rows of layer times that are equal
    (stages on equal devices) are stored only once."""

    def __init__(self, layer_ns: Integers, transfer_ns: Integers, windows: Integers | None) -> None:
        self.stages, self.layers = layer_ns.shape
        kinds: dict[bytes, int] = {}
        self.kind = [kinds.setdefault(row.tobytes(), len(kinds)) for row in layer_ns]
        rows = layer_ns[[self.kind.index(kind) for kind in range(len(kinds))]]
        self.layer_ns, self.transfer_ns = rows, transfer_ns
        self.before = np.zeros((len(kinds), self.layers + 1), np.int64)  # time of all layers before a boundary
        np.cumsum(rows, axis=1, out=self.before[:, 1:])
        self.before_of = [row.tolist() for row in self.before]
        self.windows = windows
        self.firsts = None if windows is None else windows.tolist()
        self.entry = transfer_ns  # what a boundary adds to the path, instead of its stage's time from layer 0 on
        if len(kinds) > 1:
            all_before = self.before[self.kind, 1:-1]
            self.entry = transfer_ns + all_before[:-1] - all_before[1:]

    def least_sum(self) -> int:
        """A lower bound in ns on the sum of all stage times and transfers: every layer on its fastest stage, every transfer
        at its cheapest cut."""
        moves = self.transfer_ns.min(axis=1).sum() if self.stages > 1 else 0
        return int(self.layer_ns.min(axis=0).sum() + moves)

    def longest(self) -> int:
        """An upper bound in ns on the time of any stage: all layers on the slowest stage."""
        return max(before[-1] for before in self.before_of)

    def furthest(self, cap: int) -> tuple[list[int], int, int]:
        """The furthest boundaries that the stages can reach if no stage takes more than `cap` ns and each stage begins where
        the one before it ends.

        Returns three values: a 0, then for each stage the last boundary at which it can end (k + 1 entries); the largest stage
        time used; and the least cap above `cap` with which any of these boundaries is later. (Where layers fit some stages
        only, a boundary may be too late.)"""
        ends, used, following = [0], 0, NEVER
        for i in range(self.stages):
            before, first = self.before_of[self.kind[i]], ends[-1]
            end = most = min(self.layers - self.stages + 1 + i, self.layers)
            if self.firsts is not None:
                end = most = min(most, bisect_right(self.firsts[i], first))
            if before[end] - before[first] > cap:
                end = bisect_right(before, before[first] + cap) - 1
            if end < most:
                following = min(following, before[end + 1] - before[first])
            used = max(used, before[end] - before[first])
            ends.append(end)
        return ends, used, following

    def least_cap(self, top: int) -> int:
        """A lower bound in ns on the largest stage time of any assignment of layers to stages; a value above `top` if no
        assignment keeps all stages within `top` ns (`top`: the largest cap of interest)."""
        low = max(int(self.layer_ns.min(axis=0).max()), -(-int(self.layer_ns.min(axis=0).sum()) // self.stages))
        high, cap = top + 1, low
        while low < high:
            indices, used, following = self.furthest(cap)
            if indices[-1] == self.layers:
                high = used
            else:
                low = following
            cap = (low + high) // 2
        return low

    def path(self, cap: int) -> tuple[int, int, tuple[int, ...]] | None:
        """The cuts of layers into stages with the least sum of stage times and transfers, if every stage may take at most `cap`
        ns: that sum in ns, the largest stage time in ns, and the cuts (first layer of every stage but the first); None if
        nothing fits."""
        highest = self.furthest(cap)[0]
        if highest[-1] < self.layers:
            return None
        lowest = [self.layers]
        for i in reversed(range(1, self.stages)):
            before, end = self.before_of[self.kind[i]], lowest[-1]
            first = max(i, bisect_left(before, before[end] - cap))
            lowest.append(first if self.firsts is None else max(first, self.firsts[i][end - 1]))
        lowest = [0, *reversed(lowest)]
        if any(low > high for low, high in zip(lowest, highest, strict=True)):
            return None
        starts = {kind: np.searchsorted(before, before - cap) for kind, before in enumerate(self.before)}
        least, steps = np.zeros(highest[1] - lowest[1] + 1, np.int64), []
        for i in range(1, self.stages):
            (a, b), (c, d) = ((lowest[j], highest[j]) for j in (i, i + 1))
            least = least + self.entry[i - 1, a - 1 : b]
            first = starts[self.kind[i]][c : d + 1]
            if self.windows is not None:
                first = np.maximum(first, self.windows[i, c - 1 : d])
            steps.append((least, first))
            least = _window_minima(least, np.maximum(first, a) - a, np.minimum(np.arange(c, d + 1) - 1, b) - a)
        if least[0] >= FAR // 2:
            return None
        cuts, end = [], self.layers
        for i, (sums, first) in zip(reversed(range(1, self.stages)), reversed(steps), strict=True):
            a, window = lowest[i], int(first[end - lowest[i + 1]])
            start = max(window, a)
            end = start + int(sums[start - a : end - a].argmin())
            cuts.append(end)
        cuts.reverse()
        bounds = list(pairwise((0, *cuts, self.layers)))
        largest = max(
            self.before_of[kind][end] - self.before_of[kind][first]
            for kind, (first, end) in zip(self.kind, bounds, strict=True)
        )
        return int(least[0]) + self.before_of[self.kind[-1]][-1], largest, tuple(cuts)


def _window_minima(values: Integers, first: Integers, last: Integers) -> Integers:
    """Sliding minima: for every window i, the minimum of values[first[i] .. last[i]] (both inclusive), (windows,); FAR
    (infinite) if the window is empty. Uses a table of the minima of 1, 2, 4, .. values from every index on."""
    sizes = last - first + 1
    longest, shortest = int(sizes.max()), int(sizes.min())
    if shortest < 1:
        first, last = np.minimum(first, len(values) - 1), np.maximum(last, 0)
    levels = max(1, longest.bit_length())
    table = np.empty((levels, len(values)), np.int64)
    table[0] = values
    for level in range(1, levels):
        half = 1 << level - 1
        np.minimum(table[level - 1, :-half], table[level - 1, half:], out=table[level, :-half])
    if shortest.bit_length() == levels:
        row = table[-1]
        return np.minimum(row[first], row[last + 1 - (1 << levels - 1)])
    level = LEVELS[np.maximum(sizes, 1)]
    flat, base = table.ravel(), level * len(values)
    minima = np.minimum(flat[base + first], flat[base + np.maximum(last + 1 - (1 << level), 0)])
    if shortest < 1:
        minima[sizes < 1] = FAR
    return minima
