"""The peak memory of the devices of a group, in bytes, from the bytes of units (see the head of `problem`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Schedule
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.message_order import Item, operations, with_messages
from trainplan.formulations.schedule.orders import Kind, Pass
from trainplan.formulations.schedule.recorded import RECORDED
from trainplan.formulations.schedule.stage_memory import stage_peak

FULL = 6  # micro-batches for each device group, beyond which interleaved stages have no further moments
Message = tuple[Kind, int]  # forward into a stage, or the gradients that it sends back


@dataclass(frozen=True, eq=False)
class StageBytes:
    """The bytes of the units (sub-layers or layers) of one stage on one device. state, kept, held, work and host are arrays
    with one entry for each unit, in order. state: model states. kept: for one micro-batch, from the unit's forward to its
    backward pass. held: for one micro-batch, while it is in flight (forward pass done, backward pass not yet). work: while
    a pass of the unit runs. host: on the host.

    entering, returning: for one micro-batch, the bytes of the message that the stage receives from the stage before it, and
    of the gradients that it sends back to it.
    """

    state: Integers
    kept: Integers
    held: Integers
    work: Integers
    host: Integers
    entering: int = 0
    returning: int = 0

    @property
    def in_flight(self) -> int:
        """The bytes that one micro-batch in flight (forward pass done, backward pass not yet) holds on the stage."""
        return int(self.kept.sum() + self.held.sum())


@dataclass(frozen=True)
class Moment:
    """A moment in the order of passes of a device group, at which its memory is counted. counts: for each stage of the group,
    a pair (stage, number of its micro-batches in flight). messages: pairs (message, number of its copies that wait to be
    sent or used). stage: the stage whose pass runs, None if only messages travel.
    """

    counts: tuple[tuple[int, int], ...]
    messages: tuple[tuple[Message, int], ...] = ()
    stage: int | None = None


def peak(stage: StageBytes, in_flight: int) -> tuple[int, int]:
    """The peak bytes of a device that runs one stage only, and the index within the stage of the unit (sub-layer or layer) in
    whose pass the peak is. in_flight: the number of micro-batches in flight (forward pass done or running, backward pass not
    finished)."""
    most, index = stage_peak(stage.state, stage.kept, stage.work, in_flight, stage.held)
    return int(most), int(index)


def peaks(configuration: Configuration, stages: Sequence[StageBytes]) -> list[tuple[int, int]]:
    """For each stage, the peak bytes of its devices while the stage's own passes run, and the index within the stage of the
    unit (sub-layer or layer) in whose pass they are reached.

    Several stages (chunks) of one device group share its devices, so an entry includes the bytes that the group's other
    stages hold at the time. Moments at which only messages travel count for the group's first stage. The peak of a device
    group is the largest entry of its stages. stages: the bytes of the units of every stage. configuration: one schedule,
    number of micro-batches and division into device groups, with the costs of all options.
    """
    largest = [(0, 0)] * len(stages)
    for moment in moments_of(configuration):
        counts, x = dict(moment.counts), moment.stage
        others = sum(int(stages[y].state.sum()) + n * stages[y].in_flight for y, n in counts.items() if y != x)
        others += sum(n * _message_bytes(stages, message) for message, n in moment.messages)
        most, index = (0, 0) if x is None else peak(stages[x], counts[x])
        counted = min(counts) if x is None else x
        largest[counted] = max(largest[counted], (most + others, index), key=lambda entry: entry[0])
    return largest


def _message_bytes(stages: Sequence[StageBytes], message: Message) -> int:
    """The bytes of one copy of a message. stages: the bytes of every stage. message: its direction, and the stage at whose
    beginning it crosses from one stage to the other."""
    kind, stage = message
    return stages[stage].entering if kind == "forward" else stages[stage].returning


def moments_of(configuration: Configuration) -> Sequence[Moment]:
    """The moments at which some device group may hold the most memory; each states the stage whose pass runs and the number of
    micro-batches in flight on each stage of the group. configuration: one schedule, number of micro-batches and division
    into device groups, with the costs of all options.
    """
    if configuration.schedule.chunks == 1:
        return [Moment(((x, configuration.in_flight(x)),), stage=x) for x in range(configuration.stages)]
    count = min(configuration.micro_batches, FULL * len(configuration.device_groups))
    return _interleaved(configuration.schedule, configuration.stages, count)


def most_in_flight(configuration: Configuration) -> list[int]:
    """For each stage, the largest number of micro-batches in flight at the same time (forward pass begun, backward pass not
    finished). configuration: one schedule, number of micro-batches and division into device groups, with the costs of all
    options.
    """
    most = [0] * configuration.stages
    for moment in moments_of(configuration):
        for stage, count in moment.counts:
            most[stage] = max(most[stage], count)
    return most


@lru_cache(maxsize=RECORDED)
def _interleaved(schedule: Schedule, stages: int, micro_batches: int) -> tuple[Moment, ...]:
    """The moments at which device groups may hold the most memory, for schedules with several stages on each device group;
    cached. stages: the number of stages of the pipeline. micro_batches: the number of micro-batches whose passes are
    listed.
    """
    items = with_messages(schedule.orders(stages, micro_batches), stages)
    return tuple(moment for order in items for moment in _fullest(_moments(order, stages)))


def _fullest(moments: Sequence[Moment]) -> list[Moment]:
    """The moments of one device group at which it may hold the most memory, whatever bytes its stages have: every moment that
    no other one exceeds in numbers of micro-batches and of messages."""
    messages = sorted({message for moment in moments for message, _ in moment.messages})
    numbers = []
    for moment in moments:
        counts, waiting = dict(moment.counts), dict(moment.messages)
        numbers.append(
            [*counts.values(), *(waiting.get(message, 0) for message in messages), *(x == moment.stage for x in counts)]
        )
    columns = np.array(numbers)
    return [moment for moment, row in zip(moments, columns, strict=True) if (columns >= row).all(axis=1).sum() == 1]


def _moments(order: Sequence[Item], stages: int) -> list[Moment]:
    """The different moments in the order of passes and messages of one device group: how many micro-batches are in flight on
    its stages, and how many messages it holds. order: the group's passes and messages, in the order in which it runs them.
    stages: the number of stages of the whole pipeline."""
    counts = dict.fromkeys(sorted({item.task.stage for item in order if item.what == "pass"}), 0)
    waiting: Counter[Message] = Counter()
    moments: dict[Moment, None] = {}

    def note(stage: int | None) -> None:
        moments[Moment(tuple(counts.items()), tuple(sorted((+waiting).items())), stage)] = None

    for task, part in operations(order):
        if task is None:
            waiting.update(_message(item.task) for item in part if item.what == "receive")
            note(None)
            waiting.subtract(_message(item.task) for item in part if item.what == "send")
            continue
        forward, stage = task.kind == "forward", task.stage
        counts[stage] += forward
        used: Message = ("forward", stage) if forward else ("backward", stage + 1)
        sent = _message(task)
        waiting[used] -= 0 < used[1] < stages
        note(stage)
        waiting[sent] += 0 < sent[1] < stages
        counts[stage] -= not forward
    return list(moments)


def _message(task: Pass) -> Message:
    """The message that a pass sends when it has ended, as (direction, stage): `forward` with the stage that receives it, or
    `backward` with the stage that sends gradients back to the stage before it. task: the pass."""
    return ("forward", task.stage + 1) if task.kind == "forward" else ("backward", task.stage)
