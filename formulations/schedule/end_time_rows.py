"""End times of passes while the times of stages are not known yet: the graph of a schedule as rows for linear models.

A node ends at the latest of some earlier ends, plus times of stages. Where one of these is surely the latest, whatever the
times, the end is a sum; else the latest is a variable with a row for each sum that it is not below. Nodes that wait for equal
sums share a variable: so do, in the steady phase of 1F1B, the backward pass of micro-batch y on stage x and the forward pass of
micro-batch p - 1 - x + y on stage x + 1, which both wait for the exchange between these two stages.

With the least step the rows are satisfied by the longest path's moments, so a model with them has the simulation's optimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from trainplan.formulations.schedule.graph import Duration, Graph

Time = TypeVar("Time")  # what a model calls a time of a stage


class Sum(NamedTuple, Generic[Time]):
    """A moment of a step, as an earlier moment plus times of passes and messages. A linear model names these times by objects
    of type `Time`.

    start: the number of the variable for the earlier moment; None for the step's beginning. times: pairs (time, number of
    times that it is added), sorted.
    """

    start: int | None
    times: tuple[tuple[Time, int], ...] = ()

    def plus(self, times: Sequence[Time]) -> Sum[Time]:
        """This moment with further times added. times: as the model names them; one may occur several times."""
        return Sum(self.start, tuple(sorted((Counter(dict(self.times)) + Counter(times)).items())))

    def at_most(self, other: Sum[Time]) -> bool:
        """Whether this moment is never after the other one, whatever nonnegative values the times have."""
        counts = dict(other.times)
        return self.start in (None, other.start) and all(count <= counts.get(time, 0) for time, count in self.times)


class EndTimeRows(NamedTuple, Generic[Time]):
    """The ends of the passes of a schedule, as constraints of a linear model in which the times of stages are unknown.

    rows: for each variable, which is a moment, by its number: the sums that are lower bounds of it. ends: for each device,
    the end of its last pass or message.
    """

    rows: tuple[tuple[Sum[Time], ...], ...]
    ends: tuple[Sum[Time], ...]


def end_time_rows(graph: Graph, times_of: Callable[[Duration], Sequence[Time]]) -> EndTimeRows[Time]:
    """Formulate when the passes of a pipeline step end as constraints of a linear model in which the times of stages are
    unknown. They hold for any nonnegative times.

    graph: the passes and messages (nodes) of the step, with the nodes that each waits for. times_of: takes a node's
    duration (a tuple of named times of stages) and returns the model's names of the times that add up to it; times known to
    be 0 are left out.
    """
    named: dict[Duration, Sequence[Time]] = {}
    numbers: dict[frozenset[Sum[Time]], int] = {}
    ends: list[Sum[Time]] = []
    for earlier, duration, _ in graph.nodes:
        if duration not in named:
            named[duration] = times_of(duration)
        sums = frozenset(ends[index] for index in earlier) or frozenset([Sum[Time](None)])
        largest = frozenset(s for s in sums if not any(s != other and s.at_most(other) for other in sums))
        latest = next(iter(largest)) if len(largest) == 1 else Sum[Time](numbers.setdefault(largest, len(numbers)))
        ends.append(latest.plus(named[duration]))
    return EndTimeRows(tuple(tuple(sorted(sums, key=str)) for sums in numbers), tuple(ends[index] for index in graph.last))
