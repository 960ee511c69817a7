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
    """The bytes of the units of one stage, arrays with one entry for each unit, in order: model states, kept from a forward to
    its backward pass, held while a micro-batch is in flight, used while a pass runs (work), and on the host. entering,
    returning: for one micro-batch, the bytes that the stage receives from the one before it, and sends back to it."""

    state: Integers
    kept: Integers
    held: Integers
    work: Integers
    host: Integers
    entering: int = 0
    returning: int = 0

    @property
    def in_flight(self) -> int:
        """The bytes that one micro-batch in flight holds on the stage."""
        return int(self.kept.sum() + self.held.sum())


@dataclass(frozen=True)
class Moment:
    """A moment in the order of passes of a device group. counts: for each of its stages, the number of micro-batches in flight.
    messages: for each message, how many copies wait to be sent or used. stage: the stage whose pass runs, None where only
    messages are under way."""

    counts: tuple[tuple[int, int], ...]
    messages: tuple[tuple[Message, int], ...] = ()
    stage: int | None = None


def peak(stage: StageBytes, in_flight: int) -> tuple[int, int]:
    """The peak bytes of a stage that has its devices alone, and the index within the stage of the unit in whose pass the peak
    is. in_flight: the number of micro-batches in flight."""
    most, index = stage_peak(stage.state, stage.kept, stage.work, in_flight, stage.held)
    return int(most), int(index)


def peaks(configuration: Configuration, stages: Sequence[StageBytes]) -> list[tuple[int, int]]:
    """For each stage, the peak bytes of its devices while its own passes run, and the index within the stage of the unit in
    whose pass the stage comes nearest to it.

    Chunks of one device group share its devices, so each entry includes the bytes that the group's other stages hold at the
    time; messages under way count with the group's first stage. The peak of a device group is the largest entry of its stages.
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
    """The bytes of one copy of a message."""
    kind, stage = message
    return stages[stage].entering if kind == "forward" else stages[stage].returning


def moments_of(configuration: Configuration) -> Sequence[Moment]:
    """The moments at which device groups may hold the most memory."""
    if configuration.schedule.chunks == 1:
        return [Moment(((x, configuration.in_flight(x)),), stage=x) for x in range(configuration.stages)]
    count = min(configuration.micro_batches, FULL * len(configuration.device_groups))
    return _interleaved(configuration.schedule, configuration.stages, count)


def most_in_flight(configuration: Configuration) -> list[int]:
    """For each stage, the largest number of micro-batches that are in flight at once."""
    most = [0] * configuration.stages
    for moment in moments_of(configuration):
        for stage, count in moment.counts:
            most[stage] = max(most[stage], count)
    return most


@lru_cache(maxsize=RECORDED)
def _interleaved(schedule: Schedule, stages: int, micro_batches: int) -> tuple[Moment, ...]:
    """As `moments_of`, for schedules with several stages on each device group."""
    items = with_messages(schedule.orders(stages, micro_batches), stages)
    return tuple(moment for order in items for moment in _fullest(_moments(order, stages)))


def _fullest(moments: Sequence[Moment]) -> list[Moment]:
    """Those moments of one device group at which it may hold more than at any other one, whatever its stages are."""
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
    """The different moments in the order of passes and messages of one device group. stages: of the whole pipeline."""
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
    """The message that a pass sends."""
    return ("forward", task.stage + 1) if task.kind == "forward" else ("backward", task.stage)
