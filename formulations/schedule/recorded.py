"""The recorded graphs of schedules, and when devices end where micro-batches are many: rounds that recur are skipped in leaps.

With one more round of micro-batches, the same sequence of nodes appears in the graph again, wherever the pipeline is full. This
is looked for, and asserted, in the graphs of two steps of few micro-batches. `repeats` then follows the sequence as often as it
recurs. A round is one micro-batch where devices have one stage, and else as many micro-batches as there are devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from trainplan.formulations.schedule.graph import Duration, Graph, passes_graph
from trainplan.formulations.schedule.message_order import messages_graph
from trainplan.formulations.schedule.orders import PlanSchedule, orders
from trainplan.formulations.schedule.repeats import TooManyRounds, after_rounds

RECORDED, RECURRING = 4, 64  # schedules whose graphs are kept, and those of which it is kept what recurs
FEW = 8  # rounds of micro-batches, of which those in the middle find the pipeline full

Messages = Literal["received", "ordered", "parallel"]
Row = tuple[tuple[int, ...], Duration]  # how far before a node those stand that it waits for, and what it takes


class Shape(NamedTuple):
    """The arguments that decide the graph of a step: its passes and messages, and which waits for which.

    Attributes:
        schedule: the name of the plan's schedule.
        stages: the number of stages on all devices.
        micro_batches: the number of micro-batches in the step.
        sliced: the number of first micro-batches whose forward passes are run in halves.
        chunks: the number of stages per device.
        messages: "received" if a device waits while it receives, right before the pass that needs the message; "ordered" if
            messages have an order of their own (see `message_order`); "parallel" if they overlap with passes.
    """

    schedule: PlanSchedule
    stages: int
    micro_batches: int
    sliced: int = 0
    chunks: int = 1
    messages: Messages = "received"

    @property
    def round_size(self) -> int:
        """The number of micro-batches after which the order of passes repeats: 1 with one stage per device, otherwise the
        number of devices."""
        return self.stages // self.chunks if self.chunks > 1 else 1


@lru_cache(maxsize=RECORDED)
def recorded(shape: Shape) -> Graph:
    """The graph of a schedule: its passes and messages with what they wait for. The latest graphs are cached. shape: the
    schedule, its numbers of stages and micro-batches, and how messages travel.
    """
    passes = orders(shape.schedule, shape.stages, shape.micro_batches, shape.sliced, shape.chunks)
    if shape.messages == "ordered":
        return messages_graph(passes, shape.stages)
    return passes_graph(passes, shape.stages, shape.messages == "parallel")


def device_ends_ns(shape: Shape, time_ns: Callable[[Duration], int]) -> list[int]:
    """The time in ns at which each device ends its last pass or message: exact for any number of micro-batches.

    time_ns: returns the time in ns of a duration, a tuple of named times of stages that a pass or message takes. shape: the
    schedule, its numbers of stages and micro-batches, and how messages travel. Raises TooManyRounds if there are many
    micro-batches and the time that each further one adds does not repeat.
    """
    size, count = shape.round_size, shape.micro_batches
    few = FEW * size + (shape.stages + shape.sliced if size == 1 else 0)
    if count > 2 * few and count % size == 0:
        return _recurring(shape._replace(micro_batches=few)).ends_ns((count - few) // size, time_ns)
    graph = recorded(shape)
    ends = graph.ends_ns(time_ns)
    return [ends[index] for index in graph.last]


@dataclass(frozen=True)
class Recurring:
    """The repeating pattern of a schedule's graph, so that steps with many micro-batches need no graph of their own.

    A row stands for a node of the graph (a pass or a message): the distances back to the rows that it waits for, and its
    duration. A round is the group of micro-batches after which the order of passes repeats (one micro-batch, or one per
    device).

    rows: all rows of a step with few micro-batches. end, size: every further round repeats the `size` rows before row
    `end`. last: for each device, the distance of its last row from the end of all rows.
    """

    rows: Sequence[Row]
    end: int
    size: int
    last: Sequence[int]

    @cached_property
    def kept(self) -> list[int]:
        """The rows of a round whose ends later rounds wait for, each as its distance back from the end of the round,
        ascending.
        """
        kept: set[int] = set()
        for begin in (self.end - self.size, self.end):  # of the round itself, and of what comes after the last one
            for index, (before, _) in enumerate(self.rows[begin:]):
                kept.update(back - index for back in before if back > index)
        for back in sorted(kept, reverse=True):
            kept.update(range(back, 0, -self.size))
        return sorted(kept)

    def ends_ns(self, more: int, time_ns: Callable[[Duration], int]) -> list[int]:
        """The time in ns at which each device ends its last pass.

        more: the number of rounds (groups of micro-batches) in addition to those of `rows`. time_ns: returns the time in ns of
        a duration, a tuple of named times of stages. Raises TooManyRounds if the times that rounds add do not repeat.
        """
        times = {duration: time_ns(duration) for duration in {duration for _, duration in self.rows}}
        rows = [(before, times[duration]) for before, duration in self.rows]
        round_rows = rows[self.end - self.size : self.end]
        ended: list[int] = []
        _follow(ended, rows[: self.end])

        def one_round(moments: Sequence[int]) -> list[int]:
            """The moments that later rows wait for, after one more round."""
            later = [0] * self.kept[-1]
            for back, moment in zip(self.kept, moments, strict=True):
                later[-back] = moment
            _follow(later, round_rows)
            return [later[-back] for back in self.kept]

        moments = after_rounds([ended[-back] for back in self.kept], one_round, more)
        for back, moment in zip(self.kept, moments, strict=True):
            ended[-back] = moment
        _follow(ended, rows[self.end :])
        return [ended[-back] for back in self.last]


def _follow(ended: list[int], rows: Sequence[tuple[tuple[int, ...], int]]) -> None:
    """Compute when some passes or messages (rows) end, and append the results, in ns, to `ended`, which already has the ends of
    the rows before them. rows: for each row, the distances back to the rows that it waits for, and its time in ns."""
    for index, (before, time) in enumerate(rows, len(ended)):
        latest = 0
        for back in before:
            if ended[index - back] > latest:
                latest = ended[index - back]
        ended.append(latest + time)


@lru_cache(maxsize=RECURRING)
def _recurring(shape: Shape) -> Recurring:
    """Find the nodes (passes and messages) that repeat with every further round of micro-batches: in the order of the graph,
    or else sorted by when they would end if each took one unit of time. shape: the schedule, its numbers of stages and
    micro-batches, and how messages travel. Raises TooManyRounds if neither order repeats.
    """
    few, more = recorded(shape), recorded(shape._replace(micro_batches=shape.micro_batches + shape.round_size))
    found = _found(_rows(few), _rows(more)) or _found(_levelled_rows(few, shape.messages), _levelled_rows(more, shape.messages))
    if found is None:
        raise TooManyRounds("passes that do not recur")
    return found


Rows = tuple[list[Row], list[int]]  # and how far before their end the devices' last ones stand


def _rows(graph: Graph) -> Rows:
    """A graph's nodes as rows in which repetition can be found: for each node, the distances back to the nodes that it waits
    for, and its duration; and for each device, how many rows before the end its last node is."""
    nodes = enumerate(graph.nodes)
    rows = [(tuple(index - earlier for earlier in node.earlier), node.duration) for index, node in nodes]
    return rows, [len(rows) - index for index in graph.last]


def _levelled_rows(graph: Graph, messages: Messages) -> Rows:
    """The nodes of a graph as rows (the distances back to the rows waited for, and a duration), sorted by when they would end
    if each took one unit of time. messages: "parallel" if messages overlap with passes, and then take no time here;
    otherwise a message takes one unit, too.
    """
    moments: list[int] = []
    for node in graph.nodes:
        instant = messages == "parallel" and node.task is None
        moments.append(max((moments[index] for index in node.earlier), default=0) + (not instant))

    def key(index: int) -> tuple[int, bool, str]:
        """When a node ends, and what tells nodes that end at the same time apart."""
        return moments[index], graph.nodes[index].task is None, str(graph.nodes[index].duration)

    order = sorted(range(len(moments)), key=key)
    new = {old: index for index, old in enumerate(order)}
    nodes = [graph.nodes[old]._replace(earlier=tuple(new[i] for i in graph.nodes[old].earlier)) for old in order]
    return _rows(Graph(nodes, [new[index] for index in graph.last]))


def _found(few: Rows, more: Rows) -> Recurring | None:
    """Find the rows (passes and messages) that a step with one more round of micro-batches repeats; None if none repeat.

    few, more: the rows of a step of few micro-batches, and of one with a round more.
    """
    (rows, last), (longer, longer_last) = few, more
    size = len(longer) - len(rows)
    if last != longer_last:
        return None
    common = next((index for index, (a, b) in enumerate(zip(rows, longer, strict=False)) if a != b), len(rows))
    for end in range(common, max(3 * size, common - size) - 1, -1):
        row = rows[end - size : end]
        alike = all(rows[end - n * size : end - (n - 1) * size] == row for n in (2, 3))
        if alike and longer[end : end + size] == row and longer[end + size :] == rows[end:]:
            return Recurring(rows, end, size, last)
    return None
