"""The simulated step of a configuration: when the passes of every stage end, under any schedule, with one lane on each rank.

The times agree with the simulation of a plan's programs on one lane a rank. A pass begins once its device group is free and its
message has been sent, which is when the pass on the neighbouring stage has ended. It then takes its message's time and its own.
Sending costs nothing. The last micro-batch's backward pass takes `last_ns` more.

Under the interleaved schedule a device group exchanges messages with both neighbours in both directions, in an order of their
own (`schedule.message_order`), some long before the pass that needs them. Messages between two passes of a group are one
operation: the ones sent leave as the operation begins; the group waits for the ones received, and then takes the times of all
of them. Where messages overlap passes, as in frameworks, a pass waits for its own message alone.

Slicing: the forward pass of a micro-batch in halves takes the times of its halves, and so do its messages; a message that is
received whole takes the time of a whole one. Where a stage ran halves, its backward pass is that of both.

Every end is the latest of some other ends plus times of stages. `graph_of` gives these dependencies, for numbers and for models
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.schedule.graph import Duration, Graph
from trainplan.formulations.schedule.recorded import Messages, Shape, device_ends_ns, recorded
from trainplan.formulations.schedule.repeats import TooManyRounds
from trainplan.formulations.schedule.vectorised import pass_ends_ns


@dataclass(frozen=True)
class StageTimes:
    """Times in ns of one stage: f, b, c, d, l, g and o of the problem's head, in this order.

    first_half_ns, second_half_ns: the forward pass of each half of a sliced micro-batch. message_half_ns: each message of a
    half that the stage receives. halved_backward_ns: the backward pass after halves. They are 0 where the schedule is not
    sliced.
    """

    forward_ns: int
    backward_ns: int
    message_forward_ns: int
    message_backward_ns: int
    last_ns: int
    reduce_ns: int
    optimizer_ns: int
    first_half_ns: int = 0
    second_half_ns: int = 0
    message_half_ns: int = 0
    halved_backward_ns: int = 0

    @property
    def micro_batch_ns(self) -> int:
        """Both passes of one micro-batch in ns, without messages."""
        return self.forward_ns + self.backward_ns


def step_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The simulated step in ns. tied_ns: the time in which the ends of the pipeline sum their gradients of a shared table, 0
    where there is none."""
    group_count = len(configuration.device_groups)
    reduced = [
        end + sum(stage.reduce_ns for stage in stages[x::group_count]) for x, end in enumerate(ends_ns(configuration, stages))
    ]
    if tied_ns:
        reduced[0] = reduced[-1] = max(reduced[0], reduced[-1]) + tied_ns
    return max(moment + sum(stage.optimizer_ns for stage in stages[x::group_count]) for x, moment in enumerate(reduced))


def ends_ns(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """For each device group, the time in ns at which its last pass, and every message after it, has ended."""
    schedule = configuration.schedule
    if schedule.chunks == 1 and not schedule.sliced:
        return _in_blocks(configuration, stages)

    def time_ns(duration: Duration) -> int:
        return sum(getattr(stages[x], name) for name, x in duration)

    with suppress(TooManyRounds):
        return device_ends_ns(_shape(configuration), time_ns)
    graph = graph_of(configuration)
    ends = graph.ends_ns(time_ns)
    return [ends[index] for index in graph.last]


def _in_blocks(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """As `ends_ns`, for whole micro-batches and one stage on each device group: computed faster than by the graph."""
    forward, backward, last = (
        np.array(column, np.int64)[:, None]
        for column in (
            [stage.message_forward_ns + stage.forward_ns for stage in stages],
            [stage.message_backward_ns + stage.backward_ns for stage in stages],
            [stage.last_ns for stage in stages],
        )
    )
    by_site: list[int] = pass_ends_ns(configuration.schedule.name, forward, backward, configuration.micro_batches, last)[
        :, 0
    ].tolist()
    return by_site


def graph_of(configuration: Configuration) -> Graph:
    """The graph of dependencies between the passes of a configuration, whose durations are names of `StageTimes` and stages,
    and whose devices are the device groups."""
    return recorded(_shape(configuration))


def _shape(configuration: Configuration) -> Shape:
    """The fields of a configuration on which its graph depends."""
    schedule = configuration.schedule
    messages: Messages = "ordered" if schedule.chunks > 1 and not schedule.beside else "received"
    return Shape(
        schedule.planned, configuration.stages, configuration.micro_batches, schedule.sliced, schedule.chunks, messages
    )
