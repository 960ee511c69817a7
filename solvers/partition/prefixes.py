"""Lower bounds on a partition's first stages, whatever they are: Pareto fronts of prefixes, for several numbers of passes left.

The symbols are those of `spans` and `suffixes`. A prefix is the stages 0 .. x-1, H the sum of t over them, c_y the longest pass
b of the stages 0 .. y. The suffix from x on has the route times S_z and the `longest` L_k of `suffixes`, where z = p-1-k >= x-1
and k < m; S is the route to the last stage. For each stage y < x, with u = p-1-y its warm-up, B the sum of t over the stages
y+1 .. x-1 and H_y that over those before y, there are the paths

    T >= H_y + (m-u) t_y + 2 B + S + S_z + k c_y                                                   where u < m
    T >= H_y + t_y + (m-1) f_y + B + S_z + k c_y,   H_y + t_y + (m-1) b_y + B + S_z + k f_y          where u >= m
    T >= H + L_k + k c_x-1

The first follows the first micro-batch from y to the last stage and back, runs m-1-u times f and b on y, and follows the last
micro-batch to stage z and back, whose last k passes b it leaves to a stage y' <= y, the one of c_y: that runs them after the
pass it has come back to, one after the other. The second, all m passes f of y, then the same route back: on z, of warm-up k <
m, the last pass f is followed by the pass b of micro-batch m-1-k. Or k+1 passes f of y, the route to z, where the first pass b
follows, and back, and all m passes b of y. The last line leaves k passes of a path through the suffix to the prefix.

So for each k, which is `passes_left` here, a prefix is known by three numbers (H, M, c): M is the largest over y of what does
not depend on the suffix (`stay_ns` at y, and t of each later stage, twice where m >= p), c = c_x-1, and

    T >= max( M + route, H + longest ),     route = S + S_k where m >= p, else S_k;     longest = max_k (L_k + k c).

(Where m < p, the least S after y stands in place of one B + S.)

Cells. Prefixes that end at one boundary with c of about one size share a cell: cell = boundary * classes + class, class by the
borders of c. Its `slowest` is the least c of its prefixes, with which the bound holds for all of them.

Dominance. Within a cell, a prefix with neither H nor M below another's is left out: for any suffix its bound is no lower. The
others are a front, H rising and M falling. Example: (H, M) of (10, 50), (12, 40), (13, 45), (20, 30); the third is left out for
the second. For a suffix with route 5 and longest 20 the bounds of the others are max(55, 30), max(45, 32), max(35, 40): M +
route falls and H + longest rises along the front, and the least of the larger one, 40, is where they cross, on either side. The
least over cells of one boundary is below every partition with the suffix.

These are paths with a turn, too: where one suffix dominates another by `raised` routes and longest, it does by these bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.partition.spans import FAR, Spans
from trainplan.solvers.partition.suffixes import Suffixes

LARGEST = 2**22  # the most prefixes that are built for one stage
PARTS, LEFT = 32, 22  # numbers of passes left are multiples of 1 / PARTS of the micro-batches, below LEFT of them


@dataclass(frozen=True)
class Front:
    """The undominated prefixes (first stages of partitions, 0 .. x-1) of every cell, in parallel arrays, cell after cell. A
    cell holds the prefixes that end at one boundary and whose longest backward pass is of about one size.

    starts: (cells + 1,), the index where each cell's prefixes begin. h: the time in ns of a prefix's stages; m: the length in
    ns of the longest part of a path through the prefix that does not depend on the later stages; h rises and m falls within a
    cell. slowest: (cells,), the least longest backward pass of any prefix of the cell; FAR (infinite) where there is none."""

    starts: Integers
    h: Integers
    m: Integers
    slowest: Integers

    @property
    def cells(self) -> Integers:
        """For each prefix in the arrays, the index of its cell, (prefixes,)."""
        return np.repeat(np.arange(len(self.slowest)), np.diff(self.starts))


class Prefixes:
    """Lower bounds on a partition's first stages, whatever they are: Pareto fronts of all prefixes (first stages 0 .. x-1) that
    may be part of a partition whose iteration is at most a limit in ns. Suffixes are the last stages of partitions; c is the
    longest backward pass of any stage of a prefix. A number of passes left means: how many backward passes a path through the
    suffix leaves to a stage of the prefix.

    classes: the largest number of classes into which prefixes are grouped by c. every: fronts are built for numbers of passes
    left that are multiples of `every` 32nds of the micro-batches. out_of_time: building ends when it returns True; bounds are
    then weaker."""

    def __init__(self, spans: Spans, limit: int, classes: int, every: int, out_of_time: Callable[[], bool]) -> None:
        """Build the fronts of all prefixes within the limit; arguments as in the class."""
        self._spans, self._limit = spans, limit
        self._possible = [np.nonzero(spans.need(x) <= limit) for x in range(spans.stages)]
        passes = [spans.b[possible] for possible in self._possible]
        low = max(int(b.min(initial=FAR)) for b in passes[: max(1, spans.stages // 2)])  # hardly any c is below it
        high = max(int(b.max(initial=low)) for b in passes)
        self._borders = np.unique(np.linspace(low, high, classes + 1)[1:-1].astype(np.int64))
        self._classes = len(self._borders) + 1
        most = min(spans.stages, spans.micro_batches)
        # By passes_left, the fronts of the prefixes without a stage, with one, with two, ..
        self._fronts: dict[int, list[Front]] = {}
        for passes_left in sorted({most * part // PARTS for part in range(0, LEFT, every)}):
            self._fronts[passes_left] = self._built(passes_left, out_of_time)

    def bounded(self, suffixes: Suffixes) -> Suffixes:
        """Raise the lower bounds of suffixes (last stages of partitions) by what the stages before them must take (by
        `bound_ns`), and return the suffixes whose bound is still at most the limit of this object."""
        bound = np.maximum(suffixes.bound, self.bound_ns(suffixes))
        return replace(suffixes, bound=bound).at(bound <= self._limit)

    def bound_ns(self, suffixes: Suffixes) -> Integers:
        """For each of N suffixes, (N,), a lower bound in ns on the iteration of all partitions within the limit that end with
        it; FAR (infinite) if there is no such partition.

        Proof: the partition's prefix is in one of the cells of the boundary where the suffix begins, or is dominated there, and
        the iteration is at least as long as the paths at the head of this file, for every number of passes left."""
        x, passes = suffixes.stage, np.arange(suffixes.longest.shape[1])
        fronts = {
            passes_left: f[x]
            for passes_left, f in self._fronts.items()
            if passes_left < suffixes.routes.shape[1] and x < len(f)
        }
        if not fronts:
            return suffixes.bound
        slowest_of_cell = next(iter(fronts.values())).slowest  # for any number of passes left: c does not depend on it
        least = np.full(suffixes.count, FAR)
        for number in range(self._classes):
            cells = self._cell(suffixes.firsts[:, 0], number)
            some = np.flatnonzero(slowest_of_cell[cells] < FAR)
            cells = cells[some]
            longest = (suffixes.longest[some] + passes * slowest_of_cell[cells][:, None]).max(axis=1)
            bound = longest
            for passes_left, front in fronts.items():
                bound = np.maximum(bound, crossing_ns(front, cells, self._route_ns(suffixes, passes_left)[some], longest))
            least[some] = np.minimum(least[some], bound)
        return least

    def _cell(self, boundary: Integers, number: Integers | int) -> Integers:
        """The index of a cell: the group of prefixes that end at one boundary and whose longest backward pass c is in one
        class. boundary: the boundary between sub-layers, 0 before the first. number: the class of c."""
        return boundary * self._classes + number

    def _route_ns(self, suffixes: Suffixes, passes_left: int) -> Integers:
        """The time in ns that paths through a stage of the prefix spend in each of N suffixes, (N,), if the path leaves
        `passes_left` of the backward passes to the stages of the prefix.

        With at least as many micro-batches as stages it is the first micro-batch's route to the last stage plus the last
        micro-batch's route to the stage after which `passes_left` stages follow; else only the last micro-batch's route."""
        turning = suffixes.routes[:, passes_left]
        return turning + suffixes.routes[:, 0] if self._spans.rounds == 2 else turning

    def _built(self, passes_left: int, out_of_time: Callable[[], bool]) -> list[Front]:
        """Build the Pareto fronts of prefixes (first stages of partitions) for paths that leave a given number of backward
        passes to the prefix: a list of fronts, for prefixes of 0, 1, 2, .. stages. The list ends early if there are too many
        prefixes or time runs out.

        passes_left: that number of backward passes. out_of_time: returns True once building should end."""
        spans, count = self._spans, self._spans.boundaries * self._classes
        slowest = np.full(count, FAR)
        slowest[0] = 0
        fronts = [Front(np.minimum(np.arange(count + 1), 1), np.zeros(1, np.int64), np.full(1, -FAR), slowest)]
        for x in range(spans.stages - passes_left):
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
                front.m[prefix] + spans.rounds * (f + b), front.h[prefix] + stay_ns(spans, x, passes_left, end, f, b, slowest)
            )
            number = np.maximum(cell % self._classes, np.searchsorted(self._borders, b, side="right"))
            cell = self._cell(end, number)
            least_slowest = np.full(count, FAR)
            np.minimum.at(least_slowest, cell, slowest)
            possible = np.flatnonzero(h + spans.least_after[x + 1][end] <= self._limit)
            fronts.append(front_of(h[possible], m[possible], cell[possible], least_slowest))
        return fronts


def stay_ns(spans: Spans, y: int, passes_left: int, end: Integers, f: Integers, b: Integers, slowest: Integers) -> Integers:
    """The time in ns that a path through the pipeline's passes spends at stage y if it leaves `passes_left` backward passes to
    an earlier stage; the path's time in other stages is not included.

    spans: times and bounds of every possible stage. f, b: forward and backward passes in ns of stage y; end: the boundary where
    it ends; slowest: the longest backward pass in ns of the stages up to y. All four are arrays of equal length."""
    m, warm_up, t = spans.micro_batches, spans.stages - 1 - y, f + b
    if spans.rounds == 2:
        return (m - warm_up) * t + passes_left * slowest
    if warm_up < m:
        return (m - warm_up) * t + spans.least_after[y + 1][end] + passes_left * slowest
    return t + np.maximum((m - 1) * f + passes_left * slowest, (m - 1) * b + passes_left * f)


def front_of(h: Integers, m: Integers, cell: Integers, slowest: Integers) -> Front:
    """The Pareto front of prefixes (first stages of partitions) by cell (a cell holds prefixes that end at one boundary and
    whose longest backward pass is of about one size): prefixes that are at least as high in both h and m as another prefix of
    their cell are left out.

    h, m, cell: (prefixes,), the time in ns of a prefix's stages, the length in ns of the longest part of a path through it that
    does not depend on later stages, and the index of its cell. slowest: (cells,), the least longest backward pass in each cell.
    """
    order = np.lexsort((m, h, cell))
    h, m, cell = h[order], m[order], cell[order]
    rank = np.unique(m, return_inverse=True)[1] - cell * (len(m) + 1)  # ranks of a cell are below those of the cells before it
    least = np.minimum.accumulate(rank)
    undominated = np.flatnonzero(np.diff(least, prepend=len(m)) < 0)
    starts = np.searchsorted(cell[undominated], np.arange(len(slowest) + 1))
    return Front(starts, h[undominated], m[undominated], slowest)


def crossing_ns(front: Front, cells: Integers, route: Integers, longest: Integers) -> Integers:
    """For each of N cells of a front of prefixes (first stages of partitions), (N,), the least of max(m + route, h + longest)
    over the cell's prefixes, where h is the time in ns of the prefix's stages and m the largest part of a path in them that
    does not depend on later stages; FAR (infinite) for an empty cell.

    cells: (N,), their indices. route, longest: (N,), two times in ns of the last stages that follow each cell.

    Proof: m + route falls and h + longest rises along a cell, so the least is at the first prefix where h + longest is not
    below m + route, found by bisection, or at the one before."""
    start, end, last = front.starts[cells], front.starts[cells + 1], len(front.h) - 1
    if last < 0:
        return np.full(len(cells), FAR)
    low, high = start, end
    for _ in range(int((end - start).max(initial=0)).bit_length()):
        middle = np.minimum((low + high) // 2, last)
        crossed = front.m[middle] + route <= front.h[middle] + longest
        low, high = np.where(crossed | (low == high), low, middle + 1), np.where(crossed, np.minimum(middle, high), high)
    after = np.where(low < end, front.h[np.minimum(low, last)] + longest, FAR)
    return np.minimum(after, np.where(low > start, front.m[low - 1] + route, FAR))
