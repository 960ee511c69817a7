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
from trainplan.formulations.schedule.orders import by_order
from trainplan.solvers.joint.free_cuts.critical_path_bounds import gpipe_ns, one_f_one_b_ns, sliced_ns, slope
from trainplan.solvers.joint.free_cuts.path_relaxation import Step, whole_path
from trainplan.solvers.joint.stages.option_tables import Floats

Booleans = NDArray[np.bool_]
Mask = tuple[int, Booleans]  # of one stage: its least first unit, and the arcs from there on, as of `StageArcs.u_ns`
ROUNDS = 3


@dataclass(frozen=True, eq=False)
class StageArcs:
    """Lower bounds on spans (consecutive units, that is, sub-layers) as one stage, called arcs, in arrays (I, units, lengths,
    O). Classes of cuts group the layouts of activations at a cut. The axes are: the class of the cut before, the first unit
    from `low` on, the number of units less one, and the class of the cut after. The first stage has no class before it, the
    last one none after it (I = 1, O = 1). u is the forward plus backward pass of a micro-batch, g the work after the last
    micro-batch.

    u_ns: the least u, infinite if the span cannot be this stage. extra: (weights, ..), for every weight p the least p u + g.
    excess_ns: the largest difference, over the weights p that are at most the rate at which the stage's bounds rise with u,
    between the least p u + g and p times the least u. capped: for the first stage, by number of units less one and class after
    it, pairs of a limit on u and the least u + g under that limit."""

    low: int
    u_ns: Floats
    extra: Floats
    excess_ns: Floats
    capped: Mapping[tuple[int, int], Sequence[tuple[float, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, low: int, u_ns: Floats, extra: Floats, weights: Sequence[int], rate: int) -> StageArcs:
        """The arcs of a stage from the bounds of its spans. low: the first unit that the arrays stand for. u_ns: (I, units,
        lengths, O), the least u of each span. extra: (weights, I, units, lengths, O), the least p u + g for every weight p.
        weights: the values of p. rate: how many ns the stage's bounds rise at least with each ns of u."""
        finite = np.isfinite(u_ns)
        u, excess = np.where(finite, u_ns, 0.0), np.zeros_like(u_ns)
        for p, values in zip(weights, extra, strict=True):
            if p <= rate:
                np.maximum(excess, np.where(finite, values - p * u, np.inf), out=excess)
        return cls(low, u_ns, extra, excess)


@dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs, spans with lower bounds, of one configuration's stages. weights: the values of p at which p u + g is bounded
    (u, both passes of a micro-batch; g, the work after the last). before_ns: (L + 1,) for L units, the sum of the least forward
    passes in ns of the units (sub-layers) before each unit; of first halves if micro-batches are sliced. trip_ns, head_ns: for
    sliced schedules only, (L + 1,), the least time of a first half forward and of its gradients back: from each unit on through
    the last stage, and through the units before it, with the work at the end of stage 0.
    """

    stages: Sequence[StageArcs]
    weights: Sequence[int]
    before_ns: Floats
    trip_ns: Floats | None = None
    head_ns: Floats | None = None


class PathBoundSearch:
    """Bounds the step time of one configuration (number of stages and micro-batches, with a schedule) with two or more stages
    by bisection: shows that no partition has a step time of at most a limit, or finds the cheapest path: a sequence of stages,
    each (first unit, last unit, class of the cut before, class of the cut after). Classes of cuts group the layouts of
    activations at the cut. Arcs are spans (consecutive units, that is, sub-layers) as a stage, with lower bounds. u is the
    forward plus backward pass of a micro-batch in a stage, g the work after the last one; there are bounds on p u + g for
    several weights p. A mask says which arcs of a stage remain; it comes with the first unit that its rows begin at.

    units: the number of units, L. m: the number of micro-batches. rates: for each stage, how many ns the bound on the step
    rises at least for each ns of the stage's u. first: for each number of first stages, the least time before each unit, over
    all arcs. least: the least sum of u over all stages with the g of stage 0. after_first: the least sums of u after stage 0
    that the latest pass over the stages found."""

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
        """A lower bound in ns on the time from the first pass of a stage to the end of its last pass, which depends on the
        schedule.

        u: for each span that the stage may be, its u in ns. after: the sum of u over the stages after it. w: the number of
        stages after it. first: the spans' first units (used for sliced schedules only)."""
        if self.schedule == "sliced":
            assert self.arcs.trip_ns is not None
            needed: Floats = sliced_ns(u, after, w, self.m, self.arcs.trip_ns[first][:, None, None])
        else:
            needed = by_order(self.schedule, gpipe=gpipe_ns, one_f_one_b=one_f_one_b_ns)(u, after, w, self.m)
        return needed

    def _prefixes(self, masks: Sequence[Mask] | None, limit: float) -> list[Floats]:
        """For each number of first stages, (classes, L + 1): the least sum in ns of u over these stages and of the g of stage
        0, by the class of the cut and the unit after them. masks: for each stage, the arcs that count, None for all. limit: a
        limit in ns on the step time."""
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
        """Lower bounds in ns on u + g of each span (consecutive units) as stage 0, (1, lengths, classes of the cut after): the
        largest, over weights p, of the least p u + g less (p - 1) times the largest u that a step time of at most `limit` ns
        allows. capped: whether to use such limits on u; if not, only p = 1 counts."""
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
        """The largest u that a step time of at most `limit` ns allows spans as stage 0, (1, lengths, classes), given S, a lower
        bound on the sum of u over the stages after it (from the latest pass over the stages).

        Proof: m u is at most the limit; and so are (m - w) u + 2 S of 1F1B with w < m stages after it, and m u + S of GPipe."""
        width = self.arcs.stages[0].u_ns.shape[2]
        after = self.after_first[:, 1 : 1 + width].T[None]
        most = np.full(after.shape, np.floor(limit / self.m))
        if self.schedule == "1f1b" and self.stages - 1 < self.m:
            most = np.minimum(most, np.floor((limit - 2 * after) / self.rates[0]))
        elif self.schedule == "gpipe":
            most = np.minimum(most, np.floor((limit - after) / self.m))
        return most

    def with_capped(self, capped: Mapping[tuple[int, int], Sequence[tuple[float, float]]]) -> None:
        """Set lower bounds on the first stage that hold under limits on its u, found by solving spans exactly. capped: a dict
        from (number of units less one, class of the cut after the stage) to pairs of a limit on u in ns and the least u + g
        under it."""
        stages = (replace(self.arcs.stages[0], capped=capped), *self.arcs.stages[1:])
        self.arcs = replace(self.arcs, stages=stages)

    def possible(self, limit: float, rounds: int = ROUNDS) -> tuple[Step, ...] | None:
        """Test whether some partition may have a step time of at most `limit` ns: returns a path of stages that the bounds do
        not exclude, None if no partition has such a step. rounds: the largest number of passes over the stages; each pass
        sharpens the sums that the next one uses."""
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
        """The arcs that remain under a limit. Returns for each stage the arcs that a step time of at most `limit` ns may use
        (masks), and the least sums of u over the stages before it; None if no partition has such a step. rounds: the largest
        number of passes over the stages."""
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
        """For each stage, (L + 1,): the least sum in ns of u over this stage and all later ones, by its first unit. masks: for
        each stage, the arcs that remain."""
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
        """The largest whole u in ns that each of N spans as stage x may have in a step time of at most `limit` ns, (N,), by
        bisection.

        x: the stage's index. first: (N,), the spans' first units. before, after: (N,), the least sums of u over the stages
        before each span (with the g of stage 0) and after it."""
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
        """Choose a weight p for a stage, and return p with the largest p u + g in ns that each of N spans as stage x may have
        in a step time of at most `limit` ns, (N,).

        x: the stage's index. first, last: (N,), the spans' first and last units. before, after: (N,), the least sums of u over
        the stages before each span (with the g of stage 0) and after it.

        Proof: after stage x comes its g, before it the sum over the stages before, and of a later stage the forward passes
        alone; and the step rises by at least p with u, from its value at the least u."""
        arcs, p, shape = self.arcs.stages[x], self.rates[x], (slice(None), None, None)
        u = arcs.u_ns[:, first - arcs.low, last - first].min(axis=(0, 2))
        least = self.need(u[shape], after[shape], self.stages - 1 - x, first)[:, 0, 0] - p * u
        prefix = before if not x else self.arcs.before_ns[first]
        return p, limit - prefix - least

    def _backward(self, limit: float, before: Sequence[Floats]) -> tuple[list[Mask], tuple[Step, ...]] | None:
        """One pass over the stages, from the last to the first: for each stage, the arcs that a step time of at most `limit` ns
        may use (masks), and the path of stages with the least sum of u; None if no partition has such a step.

        before: for each stage, the least sums of u over the stages before it, with the g of stage 0. Sets `after_first`."""
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
        """Find by bisection the largest limit up to which no partition is possible. Returns a lower bound in ns on the step
        time of all partitions, a whole number, and a path of stages whose step time may be close to it.

        tolerance: the relative precision of the bisection. limit: the largest step time in ns of interest; if no step time up
        to it is possible, the next whole number is returned, and None instead of a path. proven: a known lower bound. whole:
        follow one whole partition at a time, which gives a larger bound but takes longer."""
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
    """Reconstruct from the tables of a pass over the stages the path with the least sum of forward and backward passes: each
    stage as (first unit, last unit, class of the cut before, class of the cut after); classes group cuts by the layouts of
    activations at the cut.

    steps: for each stage three values: the first unit (sub-layer) that its table begins at; the table, by class of the cut
    before and first unit, whose entries pack the best length and the class of the cut after into one number (length x number of
    classes + class); and the number of classes."""
    path, first, into = [], 0, 0
    for low, best, classes in steps:
        length, out = divmod(int(best[into, first - low]), classes)
        path.append((first, first + length, into, out))
        first, into = first + length + 1, out
    return tuple(path)
