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
    """A node of the graph of a step: a forward or backward pass, with or without receiving its message, or messages alone.

    Attributes:
        earlier: the indices of the nodes that it waits for, those of its own device first; all are smaller than its own
            index.
        duration: the names of the times that it takes, each with the index of its stage; the node takes their sum.
        task: its pass; None if it consists of messages alone.
    """

    earlier: tuple[int, ...]
    duration: Duration
    task: Pass | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """All passes and messages (nodes) of a training step, with the nodes that each waits for. A node begins when all of these
    have ended and takes its duration: a tuple of named times of stages, such as ("forward_ns", 2), which are added and
    whose values are given when the graph is evaluated.

    nodes: in an order in which no node waits for a later one. last: for each device, the index of its last node.
    """

    nodes: Sequence[Node]
    last: Sequence[int]

    def ends_ns(self, time_ns: Callable[[Duration], int]) -> list[int]:
        """The time in ns, from the step's beginning, at which each node ends, by index. time_ns: returns the value of a
        duration in ns."""
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
        """Times at which each node ends in N pipelines that run this graph with different times of stages: (nodes, N). Exact if
        whole numbers fit into 64 bits.

        time_ns: returns the value of a duration in every pipeline, of shape (N,); or, for N = 1, always one number.
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
        """The critical path to a node: a list of node indices from that node back to a node that waits for none, and a list of
        turns. For every node on the path that waits for several nodes, a turn is the position in `Node.earlier` of the one with
        which the path goes on: the one that ends last.

            ends: the end of every node, by index.
            end: the index of the node where the path ends.
            last_of_equal: of several nodes that end at the same time, whether the path goes on with the last in `Node.earlier`,
                which is on another device, or with the first.
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
        """The different durations (tuples of named times of stages) of the graph's nodes, in order of first use."""
        return list(dict.fromkeys(node.duration for node in self.nodes))

    @cached_property
    def numbers(self) -> list[int]:
        """For every node of the graph, the index of its duration in `durations`."""
        numbers = {duration: number for number, duration in enumerate(self.durations)}
        return [numbers[node.duration] for node in self.nodes]

    @cached_property
    def _levels(self) -> _Levels:
        """The nodes grouped for array operations: a node's level is one above the highest level of the nodes that it waits for,
        so that all nodes of one level can be computed together."""
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
    """The nodes of a graph in rows of an array, level by level: no node waits for another one of its level.

    Attributes:
        levels: for each level, its first row; the row after its last one; an array (w, nodes of the level) with the rows of the
            nodes that each node waits for, at most w, where shorter lists repeat their last row and nodes that wait for none
            have the row after all nodes; and the index of each node's duration.
        rows: the row of every node, by the node's index.
    """

    levels: Sequence[tuple[int, int, NDArray[np.intp], NDArray[np.intp]]]
    rows: NDArray[np.intp]


def source_of(task: Pass, tasks: Container[Pass], stages: int) -> Pass | None:
    """The pass on another stage whose result a pass needs: on the stage before for a forward pass, on the stage after for a
    backward pass; None for the first stage's forward and the last stage's backward passes.

    tasks: all passes of the step. If a stage runs a forward pass in two halves and the next stage runs it whole, the next
    stage needs the second half. task: the pass. stages: the number of pipeline stages.
    """
    if task.kind == "backward":
        return Pass("backward", task.micro_batch, task.stage + 1) if task.stage + 1 < stages else None
    if task.stage == 0:
        return None
    before = Pass("forward", task.micro_batch, task.stage - 1, task.half)
    return before if before in tasks else before._replace(half=1)


def passes_graph(orders: Sequence[Sequence[Pass]], stages: int, parallel_messages: bool = False) -> Graph:
    """The graph of a step whose passes wait for nothing but the pass before them on their device and the message with their
    input. Raises Stuck if passes wait for each other in a cycle.

        orders: for each device, its passes in order.
        stages: the number of stages of all devices.
        parallel_messages: whether a message overlaps with passes: it is then a node of its own, which begins when the pass that
            sends it ends. Otherwise a pass begins when its device is free and its sender has ended; the device waits while it
            receives the message, and then runs the pass. Sending costs nothing.
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
    """The named times of a pass, as a pair: the name of the time of receiving its message, and the names of the times that add
    up to the pass itself; each name comes with the index of its stage.

    task: the pass. halved: whether its stage runs the micro-batch's forward pass in halves. last: whether it belongs to the
    step's last micro-batch, whose backward pass takes longer.
    """
    x = task.stage
    if task.kind == "backward":
        backward = ("halved_backward_ns" if halved else "backward_ns", x)
        return ("message_backward_ns", x), (backward, ("last_ns", x)) if last else (backward,)
    if task.half is None:
        return ("message_forward_ns", x), (("forward_ns", x),)
    return ("message_half_ns", x), (("second_half_ns" if task.half else "first_half_ns", x),)
