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
    """Times in ns of one stage for one micro-batch. forward_ns, backward_ns: its two passes. message_forward_ns: receiving the
    hidden states from the stage before. message_backward_ns: receiving the gradients from the stage after. After the last
    micro-batch: last_ns, the additional backward work; reduce_ns, the reduction of gradients; optimizer_ns, the optimizer.

    first_half_ns, second_half_ns: the forward pass of each half of a sliced micro-batch. message_half_ns: receiving one
    half. halved_backward_ns: the backward pass after halves. These four are 0 if the schedule does not slice micro-batches.
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
        """The time in ns of both passes of one micro-batch, without messages."""
        return self.forward_ns + self.backward_ns


def step_ns(configuration: Configuration, stages: Sequence[StageTimes], tied_ns: int) -> int:
    """The simulated step in ns: the time at which the last device group has ended its passes, reduced its gradients and run
    its optimizer. stages: the times of every stage. tied_ns: the time in which the first and the last stage sum the gradients
    of a parameter table that they share, 0 if there is none. configuration: one schedule, number of micro-batches and
    division into device groups, with the costs of all options.
    """
    group_count = len(configuration.device_groups)
    reduced = [
        end + sum(stage.reduce_ns for stage in stages[x::group_count]) for x, end in enumerate(ends_ns(configuration, stages))
    ]
    if tied_ns:
        reduced[0] = reduced[-1] = max(reduced[0], reduced[-1]) + tied_ns
    return max(moment + sum(stage.optimizer_ns for stage in stages[x::group_count]) for x, moment in enumerate(reduced))


def ends_ns(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """For each device group, in pipeline order, the time in ns from the step's beginning at which its last pass, and every
    message after it, has ended. stages: the times of every stage. configuration: one schedule, number of micro-batches and
    division into device groups, with the costs of all options.
    """
    schedule = configuration.schedule
    if schedule.has_closed_forms:
        return _in_blocks(configuration, stages)

    def time_ns(duration: Duration) -> int:
        return sum(getattr(stages[x], name) for name, x in duration)

    with suppress(TooManyRounds):
        return device_ends_ns(_shape(configuration), time_ns)
    graph = graph_of(configuration)
    ends = graph.ends_ns(time_ns)
    return [ends[index] for index in graph.last]


def _in_blocks(configuration: Configuration, stages: Sequence[StageTimes]) -> list[int]:
    """For each device group, in pipeline order, the time in ns at which its last pass has ended. It computes many equal
    repetitions of the schedule at once with arrays, which is faster than the graph of dependencies. Only for whole
    micro-batches and one stage on each device group. stages: the times of every stage. configuration: one schedule, number
    of micro-batches and division into device groups, with the costs of all options.
    """
    forward, backward, last = (
        np.array(column, np.int64)[:, None]
        for column in (
            [stage.message_forward_ns + stage.forward_ns for stage in stages],
            [stage.message_backward_ns + stage.backward_ns for stage in stages],
            [stage.last_ns for stage in stages],
        )
    )
    ends_ns = pass_ends_ns(configuration.schedule.name, forward, backward, configuration.micro_batches, last)
    by_group: list[int] = ends_ns[:, 0].tolist()
    return by_group


def graph_of(configuration: Configuration) -> Graph:
    """The graph of dependencies between the passes and messages of a configuration. A node's duration is not a number but a
    sum of named times, each a pair (field of `StageTimes`, stage); the graph's devices are the device groups.
    configuration: one schedule, number of micro-batches and division into device groups, with the costs of all options.
    """
    return recorded(_shape(configuration))


def _shape(configuration: Configuration) -> Shape:
    """The part of a configuration that decides its graph of dependencies: schedule, numbers of stages and micro-batches, and
    how messages travel. configuration: one schedule, number of micro-batches and division into device groups, with the
    costs of all options.
    """
    schedule = configuration.schedule
    messages: Messages = "ordered" if schedule.chunks > 1 and not schedule.overlaps_messages else "received"
    return Shape(
        schedule.planned, configuration.stages, configuration.micro_batches, schedule.sliced, schedule.chunks, messages
    )
