"""What one stage of a pipeline partition costs the whole iteration, whatever the other stages are: bounds by paths.

The iteration is the longest path through the passes of 1F1B, where f_x and b_x take in the messages that they receive, and
t_x = f_x + b_x. One micro-batch is followed to stage x, then the passes of x as long as it has some, then one micro-batch back
to the first stage. With H and S, the sums of t over the stages before and after x, and u = p - 1 - x, the warm-up of x:

    T >= H + t_x + max(S, u f_x) + (m - 1 - u) t_x + max(S, u b_x)                             where u < m
    T >= H + max(m t_x, t_x + S + (m - 1) max(f_x, b_x))                                       where u >= m

Before its first backward pass, x waits for the first micro-batch's way to the last stage and back, S, or runs its warm-up, u
forward passes. Then one forward and one backward pass follow each other m - 1 - u times. After its last forward pass, x waits
for the last micro-batch's way, or runs the backward passes left. (With u = m - 1 the two ways meet on stage x + 1.) Where f and
b have one ratio throughout, and stages are nearly equal, other paths are hardly ever longer.

H and S depend on where the stage begins and ends, and on the transfers of the other cuts. So the least maximum over partitions
is a bottleneck path through spans, which no partition is below; where transfers differ by cut, with the cheapest H and S.

A suffix is the stages x .. p-1. S is the sum of its passes; K is its longest path of those kinds, from the first forward to the
last backward pass of stage x, and S and K are all that it adds to such paths. No partition with it is below H + K, with the
least H of stages before it, nor below what these need with its S, nor below H and the suffix simulated on its own.

Paths with a turn follow the first or the last micro-batch from stage x to any stage z only, in place of the last stage, and
have as many passes more to stay for as there are stages after z: forward ones on x at first, backward ones at last, on x or on
a stage y < x on the way back to the first stage.

    T >= H + t_x + max_z (S_z + (p-1-z) f_x) + (m-1-u) t_x + max_z (S_z + (p-1-z) b_y),   z = x .. p-1, y <= x, u < m

with S_z the sum of t over the stages x+1 .. z. To such paths a suffix adds its S_z, the `ways`, and the `longest` from its
first forward pass to each of its last backward passes, both by the number of passes k that are left for a stage before it.
With more left, at most the longest pass of those stages is gained for each: so suffixes nearly balanced differ little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.solvers.partition.times import Chain, Truths

FAR = 2**60  # more than any path; three of them can be added
KEPT = 2**24  # numbers of `need` that are kept
COMPARED = 64  # suffixes that others of the same first sub-layer are compared to


class Spans(Chain):
    """All spans of a chain, and what they lead to.

    least_before: (p+1, n+1), the least H of the stages 0 .. x-1 that end at a place; least_after: the least S of the stages
    x .. p-1 from a place on. best_before: the least that the stages 0 .. x-1 need; even_before: that of the paths alone that
    follow the first and the last micro-batch, to which each ns more of S adds `rounds` ns. FAR where nothing fits.
    """

    def __init__(self, instance: Instance, out_of_time: Callable[[], bool]) -> None:
        """Raises TimeoutError."""
        super().__init__(instance)
        self._place = np.arange(self.places)
        self.f, self.b = self.passes_ns(self._place[:, None], self._place)
        self.t = self.f + self.b
        self.rounds = 2 if self.micro_batches >= self.stages else 1
        self._needs: dict[int, Integers] = {}
        tables = (np.full((self.stages + 1, self.places), FAR) for _ in range(4))
        self.least_before, self.least_after, self.best_before, self.even_before = tables
        for table in (self.least_before, self.best_before, self.even_before):
            table[0, 0] = 0
        self.least_after[self.stages, -1] = 0
        for step in (self._before, self._after, self._best):
            for number in range(self.stages):
                if out_of_time():
                    raise TimeoutError
                step(number)

    @property
    def bound(self) -> int:
        """No partition is below it; FAR where none fits."""
        return int(self.best_before[-1, -1])

    def paths(self, x: int, f: Integers, b: Integers, after: Integers) -> Integers:
        """The longest of the paths through stage x, without H. after: S."""
        m, warm_up = self.micro_batches, self.stages - 1 - x
        if warm_up < m:
            return (m - warm_up) * (f + b) + np.maximum(after, warm_up * f) + np.maximum(after, warm_up * b)
        return np.maximum(m * (f + b), f + b + after + (m - 1) * np.maximum(f, b))

    def need(self, x: int) -> Integers:
        """(n+1, n+1): no partition with a span as stage x is below this, by first and end; FAR where there is none."""
        if x in self._needs:
            return self._needs[x]
        before, after = self.least_before[x][:, None], self.least_after[x + 1]
        possible = self._may(x) & (before < FAR) & (after < FAR)
        found = np.where(possible, before + self.paths(x, self.f, self.b, after), FAR)
        if self.stages * self.places**2 <= KEPT:
            self._needs[x] = found
        return found

    def slowest(self, limit: int) -> list[int]:
        """For each stage, the longest forward or backward pass of a stage before it, of spans that need no more than that."""
        found = [0]
        for x in range(self.stages - 1):
            spans = self.need(x) <= limit
            longest = [int(own.max(where=spans, initial=0)) for own in (self.f, self.b)]
            found.append(max(found[-1], *longest))
        return found

    def _may(self, x: int) -> Truths:
        return self.fits(x, self._place[:, None], self._place)

    def _before(self, x: int) -> None:
        times = np.where(self._may(x), self.t, FAR)
        self.least_before[x + 1] = np.minimum((self.least_before[x][:, None] + times).min(axis=0), FAR)

    def _after(self, step: int) -> None:
        x = self.stages - 1 - step
        times = np.where(self._may(x), self.t, FAR)
        self.least_after[x] = np.minimum((self.least_after[x + 1] + times).min(axis=1), FAR)

    def _best(self, x: int) -> None:
        m, need, warm_up = self.micro_batches, self.need(x), self.stages - 1 - x
        after = self.least_after[x + 1]
        even = (m - warm_up) * self.t + 2 * after if warm_up < m else self.t + after + (m - 1) * np.maximum(self.f, self.b)
        even = np.where(need < FAR, self.least_before[x][:, None] + even, FAR)
        self.best_before[x + 1] = np.maximum(self.best_before[x][:, None], need).min(axis=0)
        self.even_before[x + 1] = np.maximum(self.even_before[x][:, None], even).min(axis=0)


@dataclass(frozen=True)
class Suffixes:
    """The stages from `stage` on. firsts: (N, p - stage), the first sub-layer of each. ways, longest: (N, k+1), by the passes
    that are left; without turns, of S and K alone."""

    stage: int
    firsts: Integers
    ways: Integers
    longest: Integers
    bound: Integers

    @property
    def count(self) -> int:
        return len(self.bound)

    def at(self, chosen: Integers | Truths | slice) -> Suffixes:
        own = (self.firsts, self.ways, self.longest, self.bound)
        return Suffixes(self.stage, *(array[chosen] for array in own))


def no_suffix(spans: Spans) -> Suffixes:
    zero = np.zeros(1, np.int64)
    return Suffixes(spans.stages, np.zeros((1, 0), np.int64), zero[:, None], zero[:, None], zero)


def longer(spans: Spans, known: Suffixes, limit: int, turning: bool) -> Suffixes:
    """All suffixes with a stage more, up to a bound. turning: by paths, too, that turn before the last stage."""
    x = known.stage - 1
    ends = known.firsts[:, 0] if known.firsts.shape[1] else np.full(known.count, spans.places - 1)
    columns, column = np.unique(ends, return_inverse=True)
    possible = (spans.need(x)[:, columns] <= limit) & (spans.best_before[x] <= limit)[:, None]
    row, first = np.nonzero(possible.T[column])
    f, b = spans.f[first, ends[row]], spans.b[first, ends[row]]
    after = known.ways[row, 0]
    longest = np.maximum(known.longest[row, 0] + f + b, spans.paths(x, f, b, after))
    more = spans.rounds * (after + f + b - spans.least_after[x][first])
    bound = np.maximum(spans.even_before[x][first] + more, np.maximum(spans.best_before[x][first], known.bound[row]))
    kept = np.flatnonzero(np.maximum(bound, spans.least_before[x][first] + longest) <= limit)
    row, first, f, b, longest, bound = (array[kept] for array in (row, first, f, b, longest, bound))

    ways, lasts, warm_up = known.ways[row], known.longest[row] + (f + b)[:, None], spans.stages - 1 - x
    longer_ways = ways + (f + b)[:, None]
    if not turning:
        lasts = longest[:, None]
    else:
        if warm_up < spans.micro_batches:
            nothing = np.zeros((len(row), 1), np.int64)
            lasts = np.concatenate([lasts, nothing], axis=1)[:, : warm_up + 1]
            begun = (spans.micro_batches - warm_up) * (f + b) + (ways + np.arange(warm_up + 1) * f[:, None]).max(axis=1)
            lasts = np.maximum(lasts, begun[:, None] + ways)
            longer_ways = np.concatenate([longer_ways, nothing], axis=1)
        lasts[:, 0] = np.maximum(lasts[:, 0], longest)
        lingering = np.arange(lasts.shape[1]) * b[:, None]
        lasts = np.maximum.accumulate((lasts + lingering)[:, ::-1], axis=1)[:, ::-1] - lingering
    bound = np.maximum(bound, spans.least_before[x][first] + lasts[:, 0])
    found = Suffixes(x, np.concatenate([first[:, None], known.firsts[row]], axis=1), longer_ways, lasts, bound)
    return found.at(bound <= limit)


def undominated(known: Suffixes, slowest: int, out_of_time: Callable[[], bool]) -> Suffixes:
    """Of suffixes that begin at one sub-layer, those that no other is as good as, or where time runs out some more.

    slowest: no stage before has a longer pass. So a way is raised to what the ways that leave out less are worth, less such a
    pass for each stage: no largest way and pass of a stage changes.
    """
    first, kept = known.firsts[:, 0], []
    values = np.concatenate([_raised(known.longest, slowest), _raised(known.ways, slowest)], axis=1)
    order = np.lexsort((values.sum(axis=1, dtype=float), first))
    for group in np.split(order, np.flatnonzero(np.diff(first[order])) + 1):
        left = group
        for _ in range(COMPARED):
            if not len(left) or out_of_time():
                break
            best, left = left[:1], left[1:]
            kept.append(best)
            left = left[(values[left] < values[best]).any(axis=1)]
        kept.append(left)
    return known.at(np.concatenate(kept))


def _raised(ways: Integers, slowest: int) -> Integers:
    lingering = np.arange(ways.shape[1]) * slowest
    return np.maximum.accumulate(ways + lingering, axis=1) - lingering


def in_order(spans: Spans, known: Suffixes) -> Integers:
    """By bound, and among equal ones by the longest path through the suffix."""
    return np.lexsort((known.longest[:, 0] + spans.least_before[known.stage][known.firsts[:, 0]], known.bound))
