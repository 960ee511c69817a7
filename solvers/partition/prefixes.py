"""What the stages before a suffix cost, whatever they are: fronts of prefixes, each for some passes left to stay for.

A prefix is the stages 0 .. x-1, H the sum of t over them, c_y the longest pass b of the stages 0 .. y. The suffix from x on has
the ways S_z and the `longest` L_k of `suffixes`, where z = p-1-k >= x-1 and k < m; S is the way to the last stage. For each
stage y < x, with u = p-1-y its warm-up, B the sum of t over the stages y+1 .. x-1 and H_y that over those before y, there are
the paths

    T >= H_y + (m-u) t_y + 2 B + S + S_z + k c_y                                                   where u < m
    T >= H_y + t_y + (m-1) f_y + B + S_z + k c_y,   H_y + t_y + (m-1) b_y + B + S_z + k f_y          where u >= m
    T >= H + L_k + k c_x-1

The first follows the first micro-batch from y to the last stage and back, runs m-1-u times f and b on y, and follows the last
micro-batch to stage z and back, whose last k passes b it leaves to a stage y' <= y, the one of c_y: that runs them after the
pass it has come back to, one after the other. The second, all m passes f of y, then the same way back: on z, of warm-up k < m,
the last pass f is followed by the pass b of micro-batch m-1-k. Or k+1 passes f of y, the way to z, where the first pass b
follows, and back, and all m passes b of y. The last line leaves k passes of a path through the suffix to the prefix.

So for each k, which `left` is here, a prefix is known by three numbers (H, M, c): M is the largest over y of what does not
depend on the suffix (`stay_ns` at y, and t of each later stage, twice where m >= p), c = c_x-1, and

    T >= max( M + way, H + longest ),     way = S + S_k where m >= p, else S_k;     longest = max_k (L_k + k c).

(Where m < p, the least S after y stands in place of one B + S.)

Cells. Prefixes that end at one place with c of about one size share a cell: cell = place * classes + class, class by the
borders of c. Its `slowest` is the least c of its prefixes, with which the bound holds for all of them.

Dominance. Within a cell, a prefix with neither H nor M below another's is left out: for any suffix its bound is no lower. What
is left is a front, H rising and M falling. Example: (H, M) of (10, 50), (12, 40), (13, 45), (20, 30); the third is left out for
the second. For a suffix with way 5 and longest 20 the bounds of the others are max(55, 30), max(45, 32), max(35, 40): M + way
falls and H + longest rises along the front, and the least of the larger one, 40, is where they cross, on either side. The least
over cells of one place is below every partition with the suffix.

These are paths with a turn, too: where one suffix does for another by `raised` ways and longest, it does by these bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.partition.spans import FAR, Spans
from trainplan.solvers.partition.suffixes import Suffixes

LARGEST = 2**22  # prefixes made of those before at once
PARTS, LEFT = 32, 22  # of so many parts of the micro-batches, fewer than LEFT are left to stay for


@dataclass(frozen=True)
class Front:
    """The undominated prefixes 0 .. x-1 of every cell.

    starts: (cells + 1,), where each cell's prefixes begin. h, m: H rising and M falling within a cell, cell after cell.
    slowest: (cells,), the least c of any prefix of the cell; FAR where there is none.
    """

    starts: Integers
    h: Integers
    m: Integers
    slowest: Integers

    @property
    def cells(self) -> Integers:
        """The cell of each prefix."""
        return np.repeat(np.arange(len(self.slowest)), np.diff(self.starts))


class Prefixes:
    """The fronts of all prefixes that may be part of a partition up to a limit.

    classes: of c, at most. every: fronts are for each such multiple of a 32nd of the micro-batches left to stay for.
    """

    def __init__(self, spans: Spans, limit: int, classes: int, every: int, out_of_time: Callable[[], bool]) -> None:
        self._spans, self._limit = spans, limit
        self._possible = [np.nonzero(spans.need(x) <= limit) for x in range(spans.stages)]
        passes = [spans.b[possible] for possible in self._possible]
        low = max(int(b.min(initial=FAR)) for b in passes[: max(1, spans.stages // 2)])  # hardly any c is below it
        high = max(int(b.max(initial=low)) for b in passes)
        self._borders = np.unique(np.linspace(low, high, classes + 1)[1:-1].astype(np.int64))
        self._classes = len(self._borders) + 1
        most = min(spans.stages, spans.micro_batches)
        # By left, the fronts of the prefixes without a stage, with one, with two, ..
        self._fronts: dict[int, list[Front]] = {}
        for left in sorted({most * part // PARTS for part in range(0, LEFT, every)}):
            self._fronts[left] = self._built(left, out_of_time)

    def bounded(self, suffixes: Suffixes) -> Suffixes:
        """The suffixes whose bound is still at most the limit with `bound_ns`."""
        bound = np.maximum(suffixes.bound, self.bound_ns(suffixes))
        return replace(suffixes, bound=bound).at(bound <= self._limit)

    def bound_ns(self, suffixes: Suffixes) -> Integers:
        """(N,): no partition up to the limit with the suffix has a shorter iteration; FAR where there is none.

        Proof: its prefix is in one of the cells of the place where the suffix begins, or is dominated there, and its iteration
        is at least as long as the paths at the head of this file, for every `left`.
        """
        x, passes = suffixes.stage, np.arange(suffixes.longest.shape[1])
        fronts = {left: f[x] for left, f in self._fronts.items() if left < suffixes.ways.shape[1] and x < len(f)}
        if not fronts:
            return suffixes.bound
        slowest_of_cell = next(iter(fronts.values())).slowest  # of any left: c does not depend on it
        least = np.full(suffixes.count, FAR)
        for number in range(self._classes):
            cells = self._cell(suffixes.firsts[:, 0], number)
            some = np.flatnonzero(slowest_of_cell[cells] < FAR)
            cells = cells[some]
            longest = (suffixes.longest[some] + passes * slowest_of_cell[cells][:, None]).max(axis=1)
            bound = longest
            for left, front in fronts.items():
                bound = np.maximum(bound, crossing_ns(front, cells, self._way_ns(suffixes, left)[some], longest))
            least[some] = np.minimum(least[some], bound)
        return least

    def _cell(self, place: Integers, number: Integers | int) -> Integers:
        """The cell of a place and a class."""
        return place * self._classes + number

    def _way_ns(self, suffixes: Suffixes, left: int) -> Integers:
        """(N,): what the paths through a stage before take in the suffix: with m >= p both the first micro-batch's way to the
        last stage, and the last one's to the stage behind which `left` passes remain; else the latter alone."""
        turning = suffixes.ways[:, left]
        return turning + suffixes.ways[:, 0] if self._spans.rounds == 2 else turning

    def _built(self, left: int, out_of_time: Callable[[], bool]) -> list[Front]:
        """The fronts for some passes left, a stage more at a time, as far as there are not too many prefixes."""
        spans, count = self._spans, self._spans.places * self._classes
        slowest = np.full(count, FAR)
        slowest[0] = 0
        fronts = [Front(np.minimum(np.arange(count + 1), 1), np.zeros(1, np.int64), np.full(1, -FAR), slowest)]
        for x in range(spans.stages - left):
            if out_of_time():
                break
            front, (first, end) = fronts[-1], self._possible[x]
            low = front.starts[self._cell(first, 0)]
            many = front.starts[self._cell(first + 1, 0)] - low  # prefixes that end where the span begins
            if many.sum() > LARGEST:
                break
            row = np.repeat(np.arange(len(first)), many)
            prefix = np.arange(len(row)) - np.repeat(np.cumsum(many) - many - low, many)
            cell, first, end = front.cells[prefix], first[row], end[row]
            f, b = spans.f[first, end], spans.b[first, end]
            slowest = np.maximum(front.slowest[cell], b)
            h = front.h[prefix] + f + b
            m = np.maximum(
                front.m[prefix] + spans.rounds * (f + b), front.h[prefix] + stay_ns(spans, x, left, end, f, b, slowest)
            )
            number = np.maximum(cell % self._classes, np.searchsorted(self._borders, b, side="right"))
            cell = self._cell(end, number)
            least_slowest = np.full(count, FAR)
            np.minimum.at(least_slowest, cell, slowest)
            possible = np.flatnonzero(h + spans.least_after[x + 1][end] <= self._limit)
            fronts.append(front_of(h[possible], m[possible], cell[possible], least_slowest))
        return fronts


def stay_ns(spans: Spans, y: int, left: int, end: Integers, f: Integers, b: Integers, slowest: Integers) -> Integers:
    """What a path through stage y that leaves `left` passes behind takes, without H_y and the ways behind y.

    f, b: the stage's passes; end: where it ends; slowest: c_y. See the paths at the head of this file.
    """
    m, warm_up, t = spans.micro_batches, spans.stages - 1 - y, f + b
    if spans.rounds == 2:
        return (m - warm_up) * t + left * slowest
    if warm_up < m:
        return (m - warm_up) * t + spans.least_after[y + 1][end] + left * slowest
    return t + np.maximum((m - 1) * f + left * slowest, (m - 1) * b + left * f)


def front_of(h: Integers, m: Integers, cell: Integers, slowest: Integers) -> Front:
    """The front of prefixes, by cell: without those that another of their cell has neither H nor M above."""
    order = np.lexsort((m, h, cell))
    h, m, cell = h[order], m[order], cell[order]
    rank = np.unique(m, return_inverse=True)[1] - cell * (len(m) + 1)  # each cell's are below those of cells before
    least = np.minimum.accumulate(rank)
    undominated = np.flatnonzero(np.diff(least, prepend=len(m)) < 0)
    starts = np.searchsorted(cell[undominated], np.arange(len(slowest) + 1))
    return Front(starts, h[undominated], m[undominated], slowest)


def crossing_ns(front: Front, cells: Integers, way: Integers, longest: Integers) -> Integers:
    """(N,): the least of max(M + way, H + longest) over the prefixes of each of N cells; FAR where there is none.

    Proof: M + way falls and H + longest rises along a cell, so the least is at the first prefix where the latter is not below
    the former, found by bisection, or at the one before.
    """
    start, end, last = front.starts[cells], front.starts[cells + 1], len(front.h) - 1
    if last < 0:
        return np.full(len(cells), FAR)
    low, high = start, end
    for _ in range(int((end - start).max(initial=0)).bit_length()):
        middle = np.minimum((low + high) // 2, last)
        crossed = front.m[middle] + way <= front.h[middle] + longest
        low, high = np.where(crossed | (low == high), low, middle + 1), np.where(crossed, np.minimum(middle, high), high)
    after = np.where(low < end, front.h[np.minimum(low, last)] + longest, FAR)
    return np.minimum(after, np.where(low > start, front.m[low - 1] + way, FAR))
