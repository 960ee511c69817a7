"""What the devices of a site hold at most, in bytes (see the problem's head)."""

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

FULL = 6  # times as many micro-batches as sites, beyond which interleaved stages have no other moments
Message = tuple[Kind, int]  # forward into a stage, or the gradients that it sends back


@dataclass(frozen=True, eq=False)
class StageBytes:
    """What the units of one stage hold, each array of one entry a unit, in order. entering, returning: of one micro-batch, what
    the stage receives forward from the one before it, and sends back to it."""

    state: Integers
    kept: Integers
    held: Integers
    work: Integers
    host: Integers
    entering: int = 0
    returning: int = 0

    @property
    def in_flight(self) -> int:
        """What one micro-batch in flight holds."""
        return int(self.kept.sum() + self.held.sum())


@dataclass(frozen=True)
class Moment:
    """A moment of a site's order. counts: micro-batches in flight of each of its stages; messages: how many of each kind wait,
    to be sent or to be used; stage: whose pass runs, None where only messages are under way."""

    counts: tuple[tuple[int, int], ...]
    messages: tuple[tuple[Message, int], ...] = ()
    stage: int | None = None


def peak(stage: StageBytes, in_flight: int) -> tuple[int, int]:
    """The peak of a stage that has its devices alone, and the unit, from the stage's first one, in whose pass it is."""
    most, index = stage_peak(stage.state, stage.kept, stage.work, in_flight, stage.held)
    return int(most), int(index)


def peaks(configuration: Configuration, stages: Sequence[StageBytes]) -> list[tuple[int, int]]:
    """The peak of each stage's devices, and the unit, from the stage's first one, in whose pass that stage comes nearest it.

    Chunks of one site share its devices: each stage's entry is the peak while its own passes run, with all that the others hold
    at the time; messages under way count with the site's first stage. The peak of the site is the largest of its stages'.
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
    kind, stage = message
    return stages[stage].entering if kind == "forward" else stages[stage].returning


def moments_of(configuration: Configuration) -> Sequence[Moment]:
    """The moments at which sites may hold the most."""
    if configuration.schedule.chunks == 1:
        return [Moment(((x, configuration.in_flight(x)),), stage=x) for x in range(configuration.stages)]
    count = min(configuration.micro_batches, FULL * len(configuration.device_groups))
    return _interleaved(configuration.schedule, configuration.stages, count)


def most_in_flight(configuration: Configuration) -> list[int]:
    """The most micro-batches of each stage that are in flight at once."""
    most = [0] * configuration.stages
    for moment in moments_of(configuration):
        for stage, count in moment.counts:
            most[stage] = max(most[stage], count)
    return most


@lru_cache(maxsize=RECORDED)
def _interleaved(schedule: Schedule, stages: int, micro_batches: int) -> tuple[Moment, ...]:
    """`moments_of` where sites have several stages."""
    items = with_messages(schedule.orders(stages, micro_batches), stages)
    return tuple(moment for order in items for moment in _fullest(_moments(order, stages)))


def _fullest(moments: Sequence[Moment]) -> list[Moment]:
    """Of different moments of one site, those at which it may hold more than at any other one, whatever its stages are."""
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
    """The different moments of a site's passes and messages."""
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
    """What a pass sends."""
    return ("forward", task.stage + 1) if task.kind == "forward" else ("backward", task.stage)
