"""Messages between the passes of interleaved stages, in an order in which no two ranks ever wait for each other.

Where a rank has several stages, it talks to both neighbours in both ways, and a receive right before the pass that needs it
gets two ranks stuck that both have something to send. Instead all passes and messages of all ranks are put in one order, and
each rank takes its part of it.

Proof that no rank is stuck: let passes take one unit forward and two backward, and messages none. A message stands at the end
of the pass that makes it, a pass at its beginning, messages first. So a pass stands behind the messages that it needs and
before the one that it makes, and the passes of a rank stand in their order. Of all that is not done, whatever stands first has
nothing before it that is not done, on either rank: so it can be done. Nor is any rank stuck where messages that follow each
other on it begin together: they then begin no later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainplan.formulations.schedule.orders import Pass, in_turn

TIMES = {"forward": 1, "backward": 2}


class Item(NamedTuple):
    """A pass, or the send or receive of what a pass has made."""

    what: Literal["pass", "send", "receive"]
    task: Pass


def with_messages(orders: Sequence[Sequence[Pass]], stages: int) -> list[list[Item]]:
    """Passes and messages of every device. orders: of the passes alone; stage s is on device s mod the number of devices."""
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


def _ends(orders: Sequence[Sequence[Pass]], stages: int) -> dict[Pass, int]:
    """When each pass ends where passes begin as soon as they can."""
    ends: dict[Pass, int] = {}
    free = [0] * len(orders)
    for device, task, needed in in_turn(orders, lambda task: _needed(task, stages)):
        begin = max(free[device], ends[needed] if needed is not None else 0)
        ends[task] = free[device] = begin + TIMES[task.kind]
    return ends


def _needed(task: Pass, stages: int) -> Pass | None:
    """The pass whose result another one needs."""
    if task.kind == "forward":
        return task._replace(stage=task.stage - 1) if task.stage else None
    if task.stage == stages - 1:
        return task._replace(kind="forward")
    return task._replace(stage=task.stage + 1)
