"""Bounds the step of all pipelines of one configuration by bounds on single stages: shows that no partition has a step up to V,
or finds the cheapest path.

Of a partition, let S be the sum of u over the stages after stage x, and H that over those before it, where stage 0 adds its g.
The bounds of `critical_path_bounds` give a lower bound of the step, and all of them rise with u, H and S. So for a step V in
question

    backward   S_x(a): the least S of stages x .. P-1 that begin at unit a, each with least H and least S under V
    forward    H_x(a): the least H of stages 0 .. x-1 that end before unit a, by spans which the backward pass has left

each with one number for each unit and class of the cut there, since every later limit is looser for a smaller one. A round of
both sharpens the other; where no stage is left, no partition has a step up to V. V is found by bisection: the largest that is
impossible is the bound.

Also no stage may have m u above V, which limits spans to short ones, and first units of stages to those near the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from trainplan.solvers.joint.free_cuts.critical_path_bounds import gpipe_ns, one_f_one_b_ns, sliced_ns, slope
from trainplan.solvers.joint.free_cuts.path_relaxation import Step, whole_path
from trainplan.solvers.joint.stages.option_tables import Floats

Booleans = NDArray[np.bool_]
Mask = tuple[int, Booleans]  # of one stage: its least first unit, and the arcs from there on, as of `StageArcs.u_ns`
ROUNDS = 3


@dataclass(frozen=True, eq=False)
class StageArcs:
    """Lower bounds on spans as one stage, in arrays (I, units, lengths, O): by the class of the cut before, the first unit from
    `low` on, the length less one, and the class of the cut after. The first stage has no class before it, the last one none
    after it (I = 1, O = 1).

    u_ns: the least u, infinite where the span cannot be this stage. extra: (weights, ..), the least p u + g for every weight p.
    excess_ns: the most by which p u + g exceeds p u for the least u, over the weights p by which a stage's bounds rise. capped:
    for the first stage, by length less one and class after it, limits on u, each with the least u + g under that limit.
    """

    low: int
    u_ns: Floats
    extra: Floats
    excess_ns: Floats
    capped: Mapping[tuple[int, int], Sequence[tuple[float, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, low: int, u_ns: Floats, extra: Floats, weights: Sequence[int], rate: int) -> StageArcs:
        """The arcs of a stage from its bounds. rate: by how much the stage's bounds rise at least with u."""
        finite = np.isfinite(u_ns)
        u, excess = np.where(finite, u_ns, 0.0), np.zeros_like(u_ns)
        for p, values in zip(weights, extra, strict=True):
            if p <= rate:
                np.maximum(excess, np.where(finite, values - p * u, np.inf), out=excess)
        return cls(low, u_ns, extra, excess)


@dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs of one configuration's stages.

    weights: the values of p. before_ns: (L + 1,), the least forward passes of the units before each, of first halves where they
    are sliced. trip_ns, head_ns: for sliced schedules only, (L + 1,), the least time of a first half forward and of its
    gradients back: from each unit on through the last stage, and through the units before it, with the work at the end of stage
    0.
    """

    stages: Sequence[StageArcs]
    weights: Sequence[int]
    before_ns: Floats
    trip_ns: Floats | None = None
    head_ns: Floats | None = None


class PathBoundSearch:
    """Bisection over the step V for one configuration with P >= 2 stages."""

    def __init__(self, arcs: Arcs, units: int, m: int, schedule: str, check_time: Callable[[], None] = lambda: None) -> None:
        """units: their number L. m: the number of micro-batches. schedule: `gpipe`, `1f1b` or `sliced`. check_time: called in
        each pass over the stages; its exceptions are passed on."""
        self.arcs, self.units, self.m, self.schedule, self.check_time = arcs, units, m, schedule, check_time
        self.stages = len(arcs.stages)
        widths = [stage.u_ns.shape[2] for stage in arcs.stages]
        self.longest = max(widths)
        # By length, the least u of any span and stage.
        least = np.full(self.longest, np.inf)
        for stage, width in zip(arcs.stages, widths, strict=True):
            if stage.u_ns.size:
                least[:width] = np.minimum(least[:width], stage.u_ns.min(axis=(0, 1, 3)))
        self.shortest = least
        self.rates = [slope(schedule, self.stages - 1 - x, m) for x in range(self.stages)]
        self.first: list[Floats] = self._prefixes(None, np.inf)
        self.least = float(self.first[-1][0, units])  # of a round trip; of a step, too, where no micro-batch is in halves

    def need(self, u: Floats, after: Floats, w: int, first: NDArray[np.intp]) -> Floats:
        """A lower bound in ns of the time from the first pass of a stage to the end of its last one, by the schedule (see
        `critical_path_bounds`). u: both passes of the stage's spans. after: the sum of u of the stages after them. w: the
        number of stages after them. first: the spans' first units."""
        if self.schedule == "gpipe":
            needed: Floats = gpipe_ns(u, after, w, self.m)
        elif self.schedule == "sliced":
            assert self.arcs.trip_ns is not None
            needed = sliced_ns(u, after, w, self.m, self.arcs.trip_ns[first][:, None, None])
        else:
            needed = one_f_one_b_ns(u, after, w, self.m)
        return needed

    def _prefixes(self, masks: Sequence[Mask] | None, limit: float) -> list[Floats]:
        """H for each stage: (stages + 1) arrays of (classes, L + 1), by all arcs, or by those that masks leave under a limit on
        the step."""
        start = np.full((1, self.units + 1), np.inf)
        start[0, 0] = 0.0
        before = [start]
        for x, arcs in enumerate(self.arcs.stages):
            low, u, left = arcs.low, arcs.u_ns, None
            if masks is not None:
                low, left = masks[x]
                u = u[:, low - arcs.low : low - arcs.low + left.shape[1], : left.shape[2]]
            if x == 0 and u.size:
                u = np.where(np.isfinite(u), self.first_stage(limit, left is not None)[:, None, : u.shape[2]], np.inf)
            _, rows, width, classes = u.shape
            first = np.arange(low, low + rows)
            reached = u + before[-1][:, first, None, None]
            if left is not None:
                reached = np.where(left, reached, np.inf)
            through = reached.min(axis=0) if rows else np.zeros((0, width, classes))
            end = np.minimum(first[:, None] + 1 + np.arange(width), self.units).ravel()
            here = np.full((classes, self.units + 1), np.inf)
            for number in range(classes):
                np.minimum.at(here[number], end, through[:, :, number].ravel())
            before.append(here)
        return before

    def first_stage(self, limit: float, capped: bool) -> Floats:
        """(1, lengths, classes): the least u + g of spans as stage 0, from the least p u + g less (p - 1) u, with the largest u
        that a step up to the limit allows. capped: whether to use that limit."""
        arcs = self.arcs.stages[0]
        least = arcs.u_ns[:, 0]
        most = self.most_first_u(limit) if capped else None
        for p, values in zip(self.arcs.weights, arcs.extra[:, :, 0], strict=True):
            if p == 1:
                least = np.maximum(least, values)
            elif most is not None:
                finite = np.where(np.isfinite(values), values, 0.0)
                less = np.where(np.isfinite(values), finite - (p - 1) * np.maximum(most, 0), np.inf)
                least = np.maximum(least, less)
        if most is not None and arcs.capped:
            least = least.copy()
            for (length, out), caps in arcs.capped.items():
                if length < least.shape[1]:
                    at = 0, length, out
                    least[at] = max([least[at], *(value for cap, value in caps if most[at] <= cap)])
        return least

    def most_first_u(self, limit: float) -> Floats:
        """(1, lengths, classes): the largest u that a step up to the limit allows stage 0, with the least S after it that the
        last pass over the stages has found.

        Proof: m u is at most the limit; and so are (m - w) u + 2 S of 1F1B with w < m, and m u + S of GPipe.
        """
        width = self.arcs.stages[0].u_ns.shape[2]
        after = self.after_first[:, 1 : 1 + width].T[None]
        most = np.full(after.shape, np.floor(limit / self.m))
        if self.schedule == "1f1b" and self.stages - 1 < self.m:
            most = np.minimum(most, np.floor((limit - 2 * after) / self.rates[0]))
        elif self.schedule == "gpipe":
            most = np.minimum(most, np.floor((limit - after) / self.m))
        return most

    def with_capped(self, capped: Mapping[tuple[int, int], Sequence[tuple[float, float]]]) -> None:
        """Set the known least u + g of the first stage under limits on its u, see `StageArcs`."""
        stages = (replace(self.arcs.stages[0], capped=capped), *self.arcs.stages[1:])
        self.arcs = replace(self.arcs, stages=stages)

    def possible(self, limit: float, rounds: int = ROUNDS) -> tuple[Step, ...] | None:
        """None where no partition has a step up to `limit`; else the stages of one that the bounds allow."""
        before, path = self.first, None
        for turn in range(rounds):
            reached = self._backward(limit, before)
            if reached is None:
                return None
            masks, path = reached
            if turn == rounds - 1:
                break
            sharper = self._prefixes(masks, limit)
            if not np.isfinite(sharper[-1][0, self.units]):
                return None
            if all(np.array_equal(a, b) for a, b in zip(sharper, before, strict=True)):
                break
            before = sharper
        return path

    def left(self, limit: float, rounds: int = 8) -> tuple[list[Mask], list[Floats]] | None:
        """For each stage, the arcs that a step up to `limit` may use, after as many rounds as help, and the least H before
        them; None where there are none."""
        before, masks = self.first, list[Mask]()
        for _ in range(rounds):
            reached = self._backward(limit, before)
            if reached is None:
                return None
            masks = reached[0]
            sharper = self._prefixes(masks, limit)
            if not np.isfinite(sharper[-1][0, self.units]):
                return None
            if all(np.array_equal(a, b) for a, b in zip(sharper, before, strict=True)):
                break
            before = sharper
        return masks, before

    def after(self, masks: Sequence[Mask]) -> list[Floats]:
        """(stages + 1) arrays of (L + 1,): the least S of the stages from each one on, by the arcs that masks leave."""
        after = np.full((1, self.units + 1), np.inf)
        after[0, self.units] = 0.0
        found = [after[0]]
        for arcs, (low, mask) in zip(reversed(self.arcs.stages), reversed(masks), strict=True):
            _, rows, width, _ = mask.shape
            first = np.arange(low, low + rows)
            end = np.minimum(first[:, None] + 1 + np.arange(width), self.units)
            u = arcs.u_ns[:, low - arcs.low : low - arcs.low + rows, :width]
            through = np.where(mask, u + after[:, end].transpose(1, 2, 0), np.inf)
            after = np.full((mask.shape[0], self.units + 1), np.inf)
            after[:, first] = through.min(axis=(2, 3))
            found.append(after.min(axis=0))
        return found[::-1]

    def most_u(self, x: int, limit: float, first: NDArray[np.intp], before: Floats, after: Floats) -> Floats:
        """(N,): the largest whole u of spans as stage x within a limit on the step, by bisection. before, after: (N,), the
        least H and S of each span."""
        low, high = np.full(len(first), -1.0), np.full(len(first), np.floor(limit / self.m) + 1)
        prefix = before if self.arcs.head_ns is None or not x else self.arcs.head_ns[first]
        while (high - low > 1).any():
            middle = np.floor((low + high) / 2)
            shape = (slice(None), None, None)
            fits = prefix + self.need(middle[shape], after[shape], self.stages - 1 - x, first)[:, 0, 0] <= limit
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return low

    def most_with_extra(
        self, x: int, limit: float, first: NDArray[np.intp], last: NDArray[np.intp], before: Floats, after: Floats
    ) -> tuple[int, Floats]:
        """A weight p, and (N,) the largest p u + g of spans as stage x within a limit on the step; arguments as of `most_u`.

        Proof: after stage x comes its g, before it H, and of a later stage the forward passes alone; and the step rises by at
        least p with u, from its value at the least u.
        """
        arcs, p, shape = self.arcs.stages[x], self.rates[x], (slice(None), None, None)
        u = arcs.u_ns[:, first - arcs.low, last - first].min(axis=(0, 2))
        least = self.need(u[shape], after[shape], self.stages - 1 - x, first)[:, 0, 0] - p * u
        prefix = before if not x else self.arcs.before_ns[first]
        return p, limit - prefix - least

    def _backward(self, limit: float, before: Sequence[Floats]) -> tuple[list[Mask], tuple[Step, ...]] | None:
        """For each stage, the arcs that a step up to the limit may use, and the path of the least S; None where there is none.
        before: H for each stage."""
        self.check_time()
        units, stages = self.units, self.stages
        short = np.flatnonzero(self.shortest * self.m <= limit)
        longest = int(short[-1]) + 1 if len(short) else 0
        if longest * stages < units:
            return None
        after = np.full((1, units + 1), np.inf)
        after[0, units] = 0.0
        masks: list[Mask] = []
        steps: list[tuple[int, NDArray[np.intp], int]] = []
        for x in reversed(range(stages)):
            w, arcs = stages - 1 - x, self.arcs.stages[x]
            low = max(x, units - (w + 1) * longest, arcs.low)
            high = min(units - w, x * longest + 1, arcs.low + arcs.u_ns.shape[1])
            if low >= high:
                return None
            rows, first = slice(low - arcs.low, high - arcs.low), np.arange(low, high)
            u = arcs.u_ns[:, rows, :longest]
            if x == 0:
                self.after_first = after
            end = np.minimum(first[:, None] + 1 + np.arange(u.shape[2]), units)
            suffix = after[:, end].transpose(1, 2, 0)
            base = self.need(u, suffix, w, first)
            # g after it, at the least u: the bound rises by p at least where F(p, 1) - p u falls by p.
            with_extra = base + arcs.excess_ns[:, rows, :longest]
            if x == 0:
                total = with_extra
            else:
                prefix = before[x][:, first, None, None]
                if self.arcs.head_ns is not None:  # the first micro-batch may be there in halves
                    prefix = np.where(np.isfinite(prefix), self.arcs.head_ns[first][:, None, None], np.inf)
                total = np.maximum(prefix + base, self.arcs.before_ns[first][:, None, None] + with_extra)
            mask = total <= limit
            masks.append((low, mask))
            through = np.where(mask, u + suffix, np.inf).reshape(*u.shape[:2], -1)
            index = through.argmin(axis=2)
            after = np.full((u.shape[0], units + 1), np.inf)
            after[:, first] = np.take_along_axis(through, index[:, :, None], axis=2)[:, :, 0]
            if not np.isfinite(after).any():
                return None
            steps.append((low, index, u.shape[3]))
        if not np.isfinite(after[0, 0]):
            return None
        return masks[::-1], _traced(steps[::-1])

    def bound(
        self, limit: float, tolerance: float, proven: float = 0.0, whole: bool = False
    ) -> tuple[float, tuple[Step, ...] | None]:
        """A whole number that no partition's step is below, the largest within a relative tolerance, and a path near it.

        limit: steps above it do not matter; where none up to it is possible, the next whole number, and no path. proven: a
        known lower bound. whole: follow one whole partition at a time, see `path_relaxation.whole_path`.
        """
        possible = (lambda step: whole_path(self, step, tolerance)) if whole else self.possible
        if not np.isfinite(self.least):
            return np.inf, None
        low = np.floor(max(proven, 0.0 if self.schedule == "sliced" else self.least)) - 1
        high = np.floor(limit) if np.isfinite(limit) else max(2 * self.least + 1, low + 1)
        while (path := possible(high)) is None:
            if np.isfinite(limit) or high > 2.0**60:
                return (high + 1 if np.isfinite(limit) else np.inf), None
            low, high = high, 2 * high
        low, step = min(low, high), max(1.0, np.floor(tolerance * high))
        galloping = True
        while high - low > max(1.0, tolerance * high):
            middle = min(low + step, np.floor((low + high) / 2)) if galloping else np.floor((low + high) / 2)
            again = possible(middle)
            if again is None:
                low, step = middle, 4 * step
            else:
                high, path, galloping = middle, again, False
        return low + 1, path


def _traced(steps: Sequence[tuple[int, NDArray[np.intp], int]]) -> tuple[Step, ...]:
    """The path of the least S from the first unit. steps: for each stage, its least first unit; the best length and class
    after, as one number, by class before and unit; and the number of classes."""
    path, first, into = [], 0, 0
    for low, best, classes in steps:
        length, out = divmod(int(best[into, first - low]), classes)
        path.append((first, first + length, into, out))
        first, into = first + length + 1, out
    return tuple(path)
