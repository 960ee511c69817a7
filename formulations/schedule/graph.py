"""The graph of a schedule: every pass and message of a step, with what it waits for and which times of stages it takes.

A node ends when the latest of the nodes that it waits for has ended and its own times have passed:

    end(node) = max( end(earlier) for each earlier node; 0 where there is none ) + sum of the times in node.duration

The nodes do not depend on the times, so a schedule is recorded once and evaluated in several ways:

    whole numbers           `Graph.ends_ns`                   the simulated step, exact for numbers of any size
    arrays                  `Graph.ends_of_columns`           many pipelines together, or one in floats
    longest path            `Graph.longest_path`              which of the earlier nodes was the latest, followed backwards
    rows of linear models   `end_time_rows.end_time_rows`     end times while the times of stages are variables

Times are named by `Symbol`: the name of a time and its stage, from 0. The names are

    forward_ns, backward_ns                    a pass of one micro-batch through the stage
    first_half_ns, second_half_ns              the forward pass of a micro-batch in two halves
    halved_backward_ns                         the backward pass of a micro-batch whose forward pass was in halves
    last_ns                                    what the backward pass of the last micro-batch takes longer
    message_forward_ns, message_backward_ns    what the stage receives before a forward pass, or before a backward pass
    message_half_ns                            what it receives before half a forward pass

The first stage receives nothing before a forward pass, and the last stage nothing before a backward pass: their messages are
named all the same and take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.schedule.orders import Pass, in_turn

FEW_COLUMNS = 64  # pipelines up to which all nodes of one level are one operation on arrays; of more, each node is

Symbol = tuple[str, int]
Duration = tuple[Symbol, ...]


class Node(NamedTuple):
    """A pass with the message that it receives, or messages alone.

    Attributes:
        earlier: the indices of the nodes that it waits for, those of its own device first; no pass waits for a later node.
        duration: the times that it takes.
        task: its pass; None where it is messages alone.
    """

    earlier: tuple[int, ...]
    duration: Duration
    task: Pass | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """All nodes of a step, each after those that it waits for. last: the index of every device's last node, by device."""

    nodes: Sequence[Node]
    last: Sequence[int]

    def ends_ns(self, time_ns: Callable[[Duration], int]) -> list[int]:
        """The end of every node in ns, by index. time_ns: the time of a duration."""
        times = [time_ns(duration) for duration in self.durations]
        ends: list[int] = []
        for (earlier, _, _), number in zip(self.nodes, self.numbers, strict=True):
            latest = 0
            for index in earlier:
                if ends[index] > latest:
                    latest = ends[index]
            ends.append(latest + times[number])
        return ends

    def ends_of_columns(self, time_ns: Callable[[Duration], Any]) -> NDArray[Any]:
        """(nodes, N): the end of every node of N pipelines, by index. Exact where whole numbers fit into 64 bits.

        time_ns: the time of a duration in every pipeline, (N,); or always one number, for N = 1.
        """
        times = np.array([time_ns(duration) for duration in self.durations]).reshape(len(self.durations), -1)
        ends = np.zeros((len(self.nodes) + 1, times.shape[1]), times.dtype)  # the last row: the step's beginning
        if times.shape[1] > FEW_COLUMNS:
            for index, ((earlier, _, _), number) in enumerate(zip(self.nodes, self.numbers, strict=True)):
                latest = ends[earlier[0] if earlier else -1]
                for other in earlier[1:]:
                    latest = np.maximum(latest, ends[other], out=ends[index])
                np.add(latest, times[number], out=ends[index])
            return ends[:-1]
        for low, high, waits, numbers in self._levels.levels:
            latest = ends[waits[0]]
            for others in waits[1:]:
                np.maximum(latest, ends[others], out=latest)
            np.add(latest, times[numbers], out=ends[low:high])
        return ends[self._levels.rows]

    def longest_path(self, ends: Sequence[Any], end: int, last_of_equal: bool) -> tuple[list[int], list[int]]:
        """The nodes of the longest path to a node, backwards, and its turns: for every node on it that waits for several nodes,
        the position in `Node.earlier` of the one with which the path goes on.

            ends: the end of every node, by index.
            end: the index of the node.
            last_of_equal: whether, of several nodes that end at the same time, the path goes on with the last one, which is on
                another device, or with the first one.
        """
        path, turns, node = [end], list[int](), end
        while earlier := self.nodes[node].earlier:
            latest = 0
            for turn in range(1, len(earlier)):
                moment, before = ends[earlier[turn]], ends[earlier[latest]]
                if moment > before or (last_of_equal and moment == before):
                    latest = turn
            if len(earlier) > 1:
                turns.append(latest)
            node = earlier[latest]
            path.append(node)
        return path, turns

    @cached_property
    def durations(self) -> list[Duration]:
        """The different durations of nodes."""
        return list(dict.fromkeys(node.duration for node in self.nodes))

    @cached_property
    def numbers(self) -> list[int]:
        """For every node, the index of its duration in `durations`."""
        numbers = {duration: number for number, duration in enumerate(self.durations)}
        return [numbers[node.duration] for node in self.nodes]

    @cached_property
    def _levels(self) -> _Levels:
        """The nodes by level: a node's level is one above the highest of those that it waits for."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(1 + max([depths[index] for index in node.earlier], default=-1))
        depth = np.array(depths, np.intp)
        order = np.argsort(depth, kind="stable")
        rows = np.empty_like(order)
        rows[order] = np.arange(len(order))
        row_of, numbers, levels = rows.tolist(), np.array(self.numbers, np.intp)[order], []
        for low, high in pairwise([0, *(np.flatnonzero(np.diff(depth[order])) + 1).tolist(), len(order)]):
            waits = [[row_of[earlier] for earlier in self.nodes[index].earlier] or [len(order)] for index in order[low:high]]
            most = max(map(len, waits))
            filled = np.array([wait + wait[-1:] * (most - len(wait)) for wait in waits], np.intp).T.copy()
            levels.append((low, high, filled, numbers[low:high]))
        return _Levels(levels, rows)


@dataclass(frozen=True, eq=False)
class _Levels:
    """Nodes in rows, level by level: no node waits for another one of its level.

    Attributes:
        levels: for each level its first row and the row after its last one; (w, nodes of the level), the rows of the at most w
            nodes that each waits for, filled up with one of them, or the row after all nodes where it waits for none; and the
            indices of its durations.
        rows: the row of every node.
    """

    levels: Sequence[tuple[int, int, NDArray[np.intp], NDArray[np.intp]]]
    rows: NDArray[np.intp]


def source_of(task: Pass, tasks: Container[Pass], stages: int) -> Pass | None:
    """The pass on another stage that a pass waits for; None where it waits for no other stage.

    tasks: all passes of the step. Where a stage has run both halves of a forward pass that the next one runs whole, the next
    one waits for the second half.
    """
    if task.kind == "backward":
        return Pass("backward", task.micro_batch, task.stage + 1) if task.stage + 1 < stages else None
    if task.stage == 0:
        return None
    before = Pass("forward", task.micro_batch, task.stage - 1, task.half)
    return before if before in tasks else before._replace(half=1)


def passes_graph(orders: Sequence[Sequence[Pass]], stages: int, parallel_messages: bool = False) -> Graph:
    """The graph of a step whose passes wait for their own messages alone. Raises Stuck where they wait for each other in a
    cycle.

        orders: the order of the passes on every device.
        stages: the number of stages.
        parallel_messages: whether a message takes its time from the end of the pass that sends it, in parallel with any other
            pass, and is a node by itself. Else a pass begins when its device is free and the pass that it receives from has
            ended; then it takes its message, during which the device waits, and itself. Sending costs nothing.
    """
    tasks = {task for order in orders for task in order}
    halved = {(task.micro_batch, task.stage) for task in tasks if task.half is not None}
    last_micro_batch = max((task.micro_batch for task in tasks), default=0)
    nodes: list[Node] = []
    indices: dict[Pass, int] = {}
    free: list[tuple[int, ...]] = [()] * len(orders)  # the node that each device has had last
    alike: dict[Duration, Duration] = {}  # one object for all that are equal: nodes are many
    for device, task, source in in_turn(orders, lambda task: source_of(task, tasks, stages)):
        message, duration = durations_of(task, task[1:3] in halved, task.micro_batch == last_micro_batch)
        earlier = free[device] if source is None else (*free[device], indices[source])
        if not parallel_messages:
            duration = (message, *duration)
        elif source is not None:
            nodes.append(Node((indices[source],), (message,)))
            earlier = (*free[device], len(nodes) - 1)
        indices[task] = len(nodes)
        free[device] = (len(nodes),)
        nodes.append(Node(earlier, alike.setdefault(duration, duration), task))
    return Graph(nodes, [node for nodes in free for node in nodes])


def durations_of(task: Pass, halved: bool, last: bool) -> tuple[Symbol, Duration]:
    """The times of a pass's message, and of the pass itself.

    halved: whether its stage runs the micro-batch's forward pass in halves; last: whether it is the step's last micro-batch.
    """
    x = task.stage
    if task.kind == "backward":
        backward = ("halved_backward_ns" if halved else "backward_ns", x)
        return ("message_backward_ns", x), (backward, ("last_ns", x)) if last else (backward,)
    if task.half is None:
        return ("message_forward_ns", x), (("forward_ns", x),)
    return ("message_half_ns", x), (("second_half_ns" if task.half else "first_half_ns", x),)
