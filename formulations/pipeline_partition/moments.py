"""When passes begin while the stages are not known yet: `recurrences` as rows for linear models.

The start of a pass is the larger of one or two sums: of an earlier start, and of stage and transfer times. Where there is one
only, or one that no stage times put above the other (the same start and some times more), the start is that sum; else it is a
variable S[v] with a row S[v] >= sum for each. Passes with the same sums share a variable. So do, in the 1F1B phase, the
backward pass y of stage x and the forward pass p - 1 - x + y of stage x + 1: both wait for the exchange between these stages,

    t(x, y, 1) = max(t(x+1, y, 1) + b_{x+1}, t(x, y, 0) + f_x) + c_{x+1} = t(x+1, y+1, 0).

At the least end of the step the rows hold with the longest path's starts, so a model with them has the simulation's optimum.
"""

from __future__ import annotations

from typing import NamedTuple

from trainplan.formulations.schedule.orders import Pass, one_f_one_b
from trainplan.formulations.schedule.simulate import source_of


class Sum(NamedTuple):
    """start: number of a variable, None for the step's beginning. counts: how often each time is added: f_0 .. f_{p-1}, then
    b_0 .. b_{p-1}, then c_1 .. c_{p-1}."""

    start: int | None
    counts: tuple[int, ...]

    def plus(self, place: int) -> Sum:
        """The sum with the time at this place of `counts` added once more."""
        return Sum(self.start, (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :]))

    def at_most(self, other: Sum) -> bool:
        """Whether this sum is not above the other one, whatever the times are."""
        return self.start in (None, other.start) and all(a <= b for a, b in zip(self.counts, other.counts, strict=True))


class Moments(NamedTuple):
    """rows: the sums that each variable is not below. end: of the last pass."""

    rows: tuple[tuple[Sum, ...], ...]
    end: Sum


def moments(stages: int, micro_batches: int) -> Moments:
    """The moments of 1F1B, for any times of its stages."""
    orders = one_f_one_b(stages, micro_batches)
    tasks = {task for order in orders for task in order}
    ends: dict[Pass, Sum] = {}
    numbers: dict[frozenset[Sum], int] = {}
    free = [Sum(None, (0,) * (3 * stages - 1))] * stages  # the end of each stage's last pass
    done = [0] * stages
    while any(count < len(order) for count, order in zip(done, orders, strict=True)):
        for x, order in enumerate(orders):
            while done[x] < len(order):
                task = order[done[x]]
                source = source_of(task, tasks, stages)
                if source is not None and source[0] not in ends:
                    break
                sums = {free[x]}
                if source is not None:
                    transfer = 2 * stages + min(x, source[0].stage)
                    sums = {wait.plus(transfer) for wait in (free[x], ends[source[0]])}
                largest = frozenset(s for s in sums if not any(s != other and s.at_most(other) for other in sums))
                start = next(iter(largest))
                if len(largest) > 1:
                    start = Sum(numbers.setdefault(largest, len(numbers)), (0,) * (3 * stages - 1))
                free[x] = ends[task] = start.plus(x if task.kind == "forward" else stages + x)
                done[x] += 1
    return Moments(tuple(tuple(sorted(sums, key=str)) for sums in numbers), free[0])
