"""What the stages before a suffix cost, whatever they are: fronts of prefixes, each for some passes left to stay for.

A prefix is the stages 0 .. x-1, H the sum of t over them, c_y the longest pass b of the stages 0 .. y. The suffix from x on has
the ways S_z and the `longest` L_k of `partition_spans`, where z = p-1-k >= x-1 and k < m; S is the way to the last stage. For
each stage y < x, with B the sum of t over the stages y+1 .. x-1 and H_y that over those before y, there are the paths

    T >= H_y + (m-u) t_y + 2 B + S + S_z + k c_y                                                   where u < m
    T >= H_y + t_y + (m-1) f_y + B + S_z + k c_y,   H_y + t_y + (m-1) b_y + B + S_z + k f_y          where u >= m
    T >= H + L_k + k c_x-1

The first follows the first micro-batch from y to the last stage and back, runs m-1-u times f and b on y, and follows the last
micro-batch to stage z and back, whose last k passes b it leaves to a stage y' <= y, the one of c_y: that runs them after the
pass it has come back to, one after the other. The second, all m passes f of y, then the same way back: on z, of warm-up k < m,
the last pass f is followed by the pass b of micro-batch m-1-k. Or k+1 passes f of y, the way to z, where the first pass b
follows, and back, and all m passes b of y. The last line leaves k passes of a path through the suffix to the prefix.

So T >= M + r S + .., where M is the largest of what does not depend on the suffix: M + S + S_z where m >= p, and M + S_z where
m < p, with the least S after y in place of one B + S. A prefix with cheap cuts, its H small, has stages less alike, its M and c
large. So for each place and class of c, the prefixes are kept that have neither H nor M larger than another one: M + .. falls
and H + .. rises along them, and the least of the larger one is where they cross. The least over classes, c as small as in any
prefix of the class, of the largest over k is below every partition with the suffix.

These are paths with a turn, too: where one suffix is as good as another by S_z and L_k, raised by no less than c and f for each
pass, it is by these bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.partition.spans import FAR, Spans, Suffixes

LARGEST = 2**22  # prefixes made of those before at once
LEFT = 22  # of 32 micro-batches, fewer than which are left to stay for


@dataclass(frozen=True)
class Front:
    """Of the stages 0 .. x-1, for each cell, a place where they end and a class: H rising and M falling, from starts[cell] to
    starts[cell+1]; slowest: the least c of each cell."""

    starts: Integers
    h: Integers
    m: Integers
    slowest: Integers


class Prefixes:
    """The fronts of all prefixes that may be part of a partition up to a limit.

    classes: of c, at most. every: fronts are for each such multiple of a 32nd of the micro-batches left to stay for.
    """

    def __init__(self, spans: Spans, limit: int, classes: int, every: int, out_of_time: Callable[[], bool]) -> None:
        self._spans, self._limit = spans, limit
        self._possible = [np.nonzero(spans.need(x) <= limit) for x in range(spans.stages)]
        passes = [spans.b[possible] for possible in self._possible]
        low = max(int(own.min(initial=FAR)) for own in passes[: max(1, spans.stages // 2)])  # hardly any c is below it
        high = max(int(own.max(initial=low)) for own in passes)
        self._edges = np.unique(np.linspace(low, high, classes + 1)[1:-1].astype(np.int64))
        self._classes = len(self._edges) + 1
        most = min(spans.stages, spans.micro_batches)
        self._fronts: dict[int, list[Front]] = {}
        for left in sorted({most * part // 32 for part in range(0, LEFT, every)}):
            self._fronts[left] = self._built(left, out_of_time)

    def bounded(self, known: Suffixes) -> Suffixes:
        """Those of some suffixes that are up to the limit by these bounds, too."""
        x, passes = known.stage, np.arange(known.longest.shape[1])
        fronts = [(left, own[x]) for left, own in self._fronts.items() if left < known.ways.shape[1] and x < len(own)]
        if not fronts:
            return known
        least = np.full(known.count, FAR)
        for number in range(self._classes):
            cell = known.firsts[:, 0] * self._classes + number
            slowest = fronts[0][1].slowest[cell]
            there = np.flatnonzero(slowest < FAR)
            cell, ways = cell[there], known.ways[there]
            longest = (known.longest[there] + passes * slowest[there, None]).max(axis=1)
            own = longest
            for left, front in fronts:
                way = ways[:, left] + ways[:, 0] if self._spans.rounds == 2 else ways[:, left]
                own = np.maximum(own, _least(front, cell, way, longest))
            least[there] = np.minimum(least[there], own)
        bound = np.maximum(known.bound, least)
        return replace(known, bound=bound).at(bound <= self._limit)

    def _built(self, left: int, out_of_time: Callable[[], bool]) -> list[Front]:
        spans, p, m, classes = self._spans, self._spans.stages, self._spans.micro_batches, self._classes
        count = spans.places * classes
        slowest, cells = np.full(count, FAR), np.zeros(1, np.int64)
        slowest[0] = 0
        found = [Front(np.minimum(np.arange(count + 1), 1), cells, np.full(1, -FAR), slowest)]
        for x in range(p - left):
            if out_of_time():
                break
            known, u, (first, end) = found[-1], p - 1 - x, self._possible[x]
            low = known.starts[first * classes]
            many = known.starts[(first + 1) * classes] - low
            if many.sum() > LARGEST:
                break
            row = np.repeat(np.arange(len(first)), many)
            at = np.arange(len(row)) - np.repeat(np.cumsum(many) - many - low, many)
            before = first[row] * classes + cells[at] % classes
            first, end = first[row], end[row]
            f, b = spans.f[first, end], spans.b[first, end]
            t, lasts = f + b, np.maximum(known.slowest[before], b)
            if spans.rounds == 2:
                own = (m - u) * t + left * lasts
            elif u < m:
                own = (m - u) * t + spans.least_after[x + 1][end] + left * lasts
            else:
                own = t + np.maximum((m - 1) * f + left * lasts, (m - 1) * b + left * f)
            h, worst = known.h[at] + t, np.maximum(known.m[at] + spans.rounds * t, known.h[at] + own)
            cells = end * classes + np.maximum(before % classes, np.searchsorted(self._edges, b, side="right"))
            slowest = np.full(count, FAR)
            np.minimum.at(slowest, cells, lasts)
            kept = np.flatnonzero(h + spans.least_after[x + 1][end] <= self._limit)
            found.append(_front(h[kept], worst[kept], cells[kept], slowest))
            cells = np.repeat(np.arange(count), np.diff(found[-1].starts))
        return found


def _front(h: Integers, worst: Integers, cell: Integers, slowest: Integers) -> Front:
    order = np.lexsort((worst, h, cell))
    h, worst, cell = h[order], worst[order], cell[order]
    rank = np.unique(worst, return_inverse=True)[1] - cell * (len(worst) + 1)  # each cell's are below those of cells before
    least = np.minimum.accumulate(rank)
    kept = np.flatnonzero(np.diff(least, prepend=1) < 0)
    return Front(np.searchsorted(cell[kept], np.arange(len(slowest) + 1)), h[kept], worst[kept], slowest)


def _least(front: Front, cell: Integers, way: Integers, longest: Integers) -> Integers:
    """The least of max(M + way, H + longest) over the prefixes of cells; FAR where there is none."""
    start, end, last = front.starts[cell], front.starts[cell + 1], len(front.h) - 1
    if last < 0:
        return np.full(len(cell), FAR)
    low, high = start, end
    for _ in range(int((end - start).max(initial=0)).bit_length()):
        middle = np.minimum((low + high) // 2, last)
        crossed = front.m[middle] + way <= front.h[middle] + longest
        low, high = np.where(crossed | (low == high), low, middle + 1), np.where(crossed, np.minimum(middle, high), high)
    after = np.where(low < end, front.h[np.minimum(low, last)] + longest, FAR)
    return np.minimum(after, np.where(low > start, front.m[low - 1] + way, FAR))
