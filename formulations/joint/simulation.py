"""When the passes of every stage have ended, by any schedule: what the time walk says of a plan's programs on one lane a rank.

A pass begins once its site is free and its message has been sent, which is when the pass on the neighbouring stage has ended.
It then takes its message and itself. Sending costs nothing. The last micro-batch's backward pass takes `last_ns` more.

Under the interleaved schedule a site talks to both neighbours in both ways, and its messages stand in an order of their own
(`step.messages`), some long before the pass that needs them. Messages between two passes of a site are one operation: what it
sends goes off as the operation begins; what it receives it waits for, and then takes the times of all of them.

Slicing: the forward pass of a micro-batch in halves takes the times of its halves, and so do its messages; a message that is
received whole takes that of a whole one. Where a stage ran halves, its backward pass is that of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.step.messages import Item, with_messages
from trainplan.formulations.step.schedules import Pass, is_sliced


@dataclass(frozen=True)
class StageTimes:
    """What one stage takes, in ns: f, b, c, d, l, g and o of the problem.

    halves_ns: of the forward pass of a micro-batch in halves; message_halves_ns: of each message of a half that it receives;
    halved_backward_ns: of the backward pass after halves.
    """

    forward_ns: int
    backward_ns: int
    message_forward_ns: int
    message_backward_ns: int
    last_ns: int
    reduce_ns: int
    optimizer_ns: int
    halves_ns: tuple[int, int] = (0, 0)
    message_halves_ns: tuple[int, int] = (0, 0)
    halved_backward_ns: int = 0

    @property
    def micro_batch_ns(self) -> int:
        """One micro-batch in both passes, without messages."""
        return self.forward_ns + self.backward_ns


def step_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The simulated step. tied_ns: what the ends of the pipeline take to add up their gradients of a table, 0 where none."""
    ends = ends_ns(configuration, stages)
    reduced = [end + stage.reduce_ns for end, stage in zip(ends, stages, strict=True)]
    if tied_ns:
        reduced[0] = reduced[-1] = max(reduced[0], reduced[-1]) + tied_ns
    behind = [moment + stage.optimizer_ns for moment, stage in zip(reduced, stages, strict=True)]
    return max(behind)


def ends_ns(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """When each stage's site has ended its last pass, and each message behind it."""
    orders = configuration.orders()
    if configuration.schedule.chunks > 1:
        return _interleaved(configuration, stages, with_messages(orders, len(stages)))
    ended: dict[Pass, int] = {}
    at, free = [0] * len(orders), [0] * len(orders)
    going = True
    while going:
        going = False
        for x, order in enumerate(orders):
            while at[x] < len(order):
                task = order[at[x]]
                source = _source(configuration, task)
                if source is not None and source not in ended:
                    break
                begin = free[x] if source is None else max(free[x], ended[source])
                ended[task] = free[x] = begin + _duration_ns(configuration, stages[x], task)
                at[x] += 1
                going = True
    return free


def _source(configuration: Configuration, task: Pass) -> Pass | None:
    """The pass on another stage that a pass waits for."""
    if task.kind == "backward":
        return None if task.stage + 1 == configuration.stages else task._replace(stage=task.stage + 1)
    if task.stage == 0:
        return None
    before = task.stage - 1
    if task.half is None and _in_halves(configuration, before, task.micro_batch):
        return task._replace(stage=before, half=1)
    return task._replace(stage=before)


def _in_halves(configuration: Configuration, stage: int, micro_batch: int) -> bool:
    return is_sliced(stage, micro_batch, configuration.stages, configuration.schedule.sliced)


def _duration_ns(configuration: Configuration, stage: StageTimes, task: Pass) -> int:
    """A pass with its message."""
    if task.kind == "forward":
        if task.half is None:
            return stage.message_forward_ns + stage.forward_ns
        return stage.message_halves_ns[task.half] + stage.halves_ns[task.half]
    halved = _in_halves(configuration, task.stage, task.micro_batch)
    last = stage.last_ns if task.micro_batch == configuration.micro_batches - 1 else 0
    return stage.message_backward_ns + (stage.halved_backward_ns if halved else stage.backward_ns) + last


def _interleaved(configuration: Configuration, stages: Sequence[StageTimes], items: Sequence[Sequence[Item]]) -> list[int]:
    """`ends_ns` where sites have several stages; a site ends with its last operation, and so do all of its stages."""
    operations = [[tuple(part) for what, part in groupby(order, _operation)] for order in items]
    sent: dict[Pass, int] = {}
    at, free = [0] * len(items), [0] * len(items)
    gone = [False] * len(items)  # whether the sends of the site's present operation have gone off
    going = True
    while going:
        going = False
        for site, order in enumerate(operations):
            while at[site] < len(order):
                operation = order[at[site]]
                if not gone[site]:
                    sent.update({item.task: free[site] for item in operation if item.what == "send"})
                    gone[site] = going = True
                received = [item.task for item in operation if item.what == "receive"]
                if any(task not in sent for task in received):
                    break
                begin = max([free[site], *(sent[task] for task in received)])
                free[site] = begin + sum(_item_ns(configuration, stages, item) for item in operation)
                at[site] += 1
                gone[site], going = False, True
    assert all(place == len(order) for place, order in zip(at, operations, strict=True)), "sites that wait for each other"
    return [free[x % len(items)] for x in range(len(stages))]


def _operation(item: Item) -> Pass | None:
    """What items of one operation have in common: messages that follow each other are one, and each pass is one."""
    return item.task if item.what == "pass" else None


def _item_ns(configuration: Configuration, stages: Sequence[StageTimes], item: Item) -> int:
    """A pass without its message, or a message that is received; a message that is sent is free."""
    task = item.task
    if item.what == "send":
        return 0
    if item.what == "receive":
        forward = task.kind == "forward"
        return stages[task.stage + 1].message_forward_ns if forward else stages[task.stage - 1].message_backward_ns
    stage = stages[task.stage]
    if task.kind == "forward":
        return stage.forward_ns
    return stage.backward_ns + (stage.last_ns if task.micro_batch == configuration.micro_batches - 1 else 0)
