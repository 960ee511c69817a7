"""Messages between the passes of interleaved stages, in an order in which no two ranks ever wait for each other.

Where a rank has several stages, it exchanges messages with both neighbours in both directions. If it received each message
right before the pass that needs it, two ranks that both have something to send would block each other. Instead all passes and
messages of all ranks are put in one order, and each rank takes its part of it.

Proof that no rank is blocked: let passes take one unit of time forward and two backward, and messages none. A message stands at
the end of the pass that produces it, a pass at its beginning, messages first. So a pass stands after the messages that it needs
and before the one that it produces, and the passes of a rank stand in their order. Of all that is not done, whatever stands
first has nothing before it that is not done, on either rank: so it can be done. Nor is any rank blocked where messages that
follow each other on it begin together: they then begin no later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from trainplan.formulations.schedule.graph import Duration, Graph, Node, durations_of, passes_graph
from trainplan.formulations.schedule.orders import Pass

TIMES = {"forward": 1, "backward": 2}
UNITS = {"forward_ns": TIMES["forward"], "backward_ns": TIMES["backward"]}  # by the names of times in a graph


class Item(NamedTuple):
    """One action of a device: running a pass, sending a pass's result, or receiving another device's result. what: the kind of
    action. task: the pass that is run, or whose result is sent or received.
    """

    what: Literal["pass", "send", "receive"]
    task: Pass


def with_messages(orders: Sequence[Sequence[Pass]], stages: int) -> list[list[Item]]:
    """For each device, its passes with sends and receives inserted between them, in an order with which no two devices can
    deadlock.

    orders: for each device, its passes in order; stage s is on device s modulo the number of devices. stages: the number of
    stages on all devices.
    """
    ends = _ends(orders, stages)
    items: list[list[tuple[tuple[int, int, Pass], Item]]] = [[] for _ in orders]
    for device, order in enumerate(orders):
        for task in order:
            end = ends[task]
            items[device].append(((end - TIMES[task.kind], 1, task), Item("pass", task)))
            receiver = task.stage + (1 if task.kind == "forward" else -1)
            if 0 <= receiver < stages:
                items[device].append(((end, 0, task), Item("send", task)))
                items[receiver % len(orders)].append(((end, 0, task), Item("receive", task)))
    return [[item for _, item in sorted(of_device)] for of_device in items]


def operations(order: Sequence[Item]) -> list[tuple[Pass | None, tuple[Item, ...]]]:
    """Group a device's actions into operations: a pass alone, as (the pass, its one action), or consecutive sends and receives
    that are done together, as (None, these actions). order: the device's actions, in order.
    """
    return [(task, tuple(part)) for task, part in groupby(order, lambda item: item.task if item.what == "pass" else None)]


def messages_graph(orders: Sequence[Sequence[Pass]], stages: int) -> Graph:
    """The graph of a step in which devices send and receive between passes, in the fixed order of `with_messages`. Its nodes
    are passes, and groups of consecutive sends and receives of a device that are done together.

    orders: for each device, its passes in order, without messages; stage s is on device s modulo the number of devices.
    stages: the number of pipeline stages. The messages of a group are sent when the group begins; it ends when all messages
    that it receives have been sent, plus the time of receiving each of them.
    """
    items = with_messages(orders, stages)
    parts = [[part for _, part in operations(order)] for order in items]
    last_micro_batch = max(task.micro_batch for order in orders for task in order)
    nodes: list[Node] = []
    sent: dict[Pass, tuple[int, ...]] = {}  # the node at whose end a message goes off; none: at the step's beginning
    positions, free = [0] * len(items), [()] * len(items)  # type: tuple[list[int], list[tuple[int, ...]]]
    gone = [False] * len(items)  # whether what the device's present operation sends has gone off
    alike: dict[Duration, Duration] = {}  # one object for all that are equal: nodes are many
    going = True
    while going:
        going = False
        for device, order in enumerate(parts):
            while positions[device] < len(order):
                operation = order[positions[device]]
                if not gone[device]:
                    sent.update({item.task: free[device] for item in operation if item.what == "send"})
                    gone[device] = going = True
                received = [item.task for item in operation if item.what == "receive"]
                if any(task not in sent for task in received):
                    break
                earlier = (*free[device], *(node for task in received for node in sent[task]))
                duration = tuple(symbol for item in operation for symbol in _duration(item, last_micro_batch))
                free[device] = (len(nodes),)
                nodes.append(Node(earlier, alike.setdefault(duration, duration), _task(operation)))
                positions[device], gone[device], going = positions[device] + 1, False, True
    assert all(position == len(order) for position, order in zip(positions, parts, strict=True)), "devices wait for each other"
    return Graph(nodes, [node for last in free for node in last])


def _task(operation: Sequence[Item]) -> Pass | None:
    """The pass that an operation of a device runs; None if the operation sends and receives messages."""
    return operation[0].task if operation[0].what == "pass" else None


def _duration(item: Item, last_micro_batch: int) -> Duration:
    """The named times that an action takes: running a pass, or receiving a message; empty for sending. last_micro_batch: the
    index of the step's last micro-batch, whose backward pass takes longer."""
    task = item.task
    if item.what == "send":
        return ()
    if item.what == "receive":
        return (("message_forward_ns", task.stage + 1) if task.kind == "forward" else ("message_backward_ns", task.stage - 1),)
    return durations_of(task, False, task.micro_batch == last_micro_batch)[1]


def _ends(orders: Sequence[Sequence[Pass]], stages: int) -> dict[Pass, int]:
    """The end of every pass if a forward pass takes 1 unit of time, a backward pass 2 units and messages none, and each pass
    begins as early as it can. The order of messages follows from these times.

    orders: for each device, its passes in order. stages: the number of stages of all devices.
    """
    graph = passes_graph(orders, stages)
    ends = graph.ends_ns(lambda duration: sum(UNITS.get(name, 0) for name, _ in duration))
    return {node.task: end for node, end in zip(graph.nodes, ends, strict=True) if node.task is not None}
