"""The timeline of every pass of a schedule, for any order of passes on the devices, from the graph of `graph` in whole numbers.

A pass begins when its device is free and its message is there: the one before it on the device has ended, and so has the pass
that its input comes from, on the stage before (forward) or after (backward). Then the message takes its transfer time, during
which the device waits, and the pass runs. Sending costs the sender nothing. (These are AutoPipe's recurrences, which add Comm
after the maximum of both.) Halves of a pass take half its time, and their messages half the transfer; odd nanoseconds go to the
second half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.formulations.schedule.graph import Duration, passes_graph
from trainplan.formulations.schedule.orders import Pass
from trainplan.profiling.base.display import in_one_line


@dataclass(frozen=True)
class Work:
    """Times of the stages of a pipeline, in ns.

    forward_ns, backward_ns: for each stage, its pass of one micro-batch. transfer_ns: for each stage but the last, a message to
    or from the next stage.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]

    @property
    def stages(self) -> int:
        """The number p of pipeline stages."""
        return len(self.forward_ns)


@dataclass(frozen=True)
class Event:
    """A pass with the times at which it runs on its device, in ns from the step's beginning. ready_ns: when the device begins
    to receive the pass's input. start_ns: when the input has arrived and the pass begins. end_ns: when the pass ends.
    """

    task: Pass
    device: int
    ready_ns: int
    start_ns: int
    end_ns: int


@in_one_line
@dataclass(frozen=True)
class Timeline:
    """All passes of a simulated step with their times. work: the times of the stages. devices: for each device, its passes in
    order."""

    work: Work
    devices: tuple[tuple[Event, ...], ...]

    @property
    def time_ns(self) -> int:
        """Time in ns from the beginning of the step's first pass to the end of its last pass."""
        return max(events[-1].end_ns for events in self.devices)

    def step_ns(self, syncs_ns: Sequence[int]) -> int:
        """Time in ns from the step's beginning until the last device has ended all its work. syncs_ns: for each device, the
        time of its work after its last pass (summing gradients, optimizer).
        """
        return max(events[-1].end_ns + sync for events, sync in zip(self.devices, syncs_ns, strict=True))

    @property
    def startup_ns(self) -> int:
        """AutoPipe's startup overhead: time in ns until the last device begins its first forward pass (or first half of
        one)."""
        return self.devices[-1][0].start_ns

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """For each device, the time in ns that it spends in passes."""
        return tuple(sum(event.end_ns - event.start_ns for event in events) for events in self.devices)

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they run no pass, between 0 and 1."""
        whole = self.time_ns * len(self.devices)
        return 1 - sum(self.busy_ns) / whole if whole else 0.0


def simulate(work: Work, orders: Sequence[Sequence[Pass]]) -> Timeline:
    """Simulate a step of a pipeline in which every pass runs as early as its device's order allows.

    orders: for each device, its passes in order. work: the times of the stages' passes and messages. Raises Stuck if
    devices wait for each other in a cycle.
    """
    graph = passes_graph(orders, work.stages)
    times = [_times_ns(work, duration) for duration in graph.durations]
    device_of = {task: device for device, order in enumerate(orders) for task in order}
    events: list[list[Event]] = [[] for _ in orders]
    ends: list[int] = []
    for (earlier, _, task), number in zip(graph.nodes, graph.numbers, strict=True):
        assert task is not None
        message, length = times[number]
        ready = 0
        for index in earlier:
            if ends[index] > ready:
                ready = ends[index]
        ends.append(ready + message + length)
        device = device_of[task]
        events[device].append(Event(task, device, ready, ready + message, ends[-1]))
    return Timeline(work, tuple(map(tuple, events)))


def _times_ns(work: Work, duration: Duration) -> tuple[int, int]:
    """The times in ns of the message that a pass receives (0 if it receives none) and of the pass. duration: the names of
    these times with the index of their stage. work: the times of the stages' passes and messages.
    """
    (message, stage), (name, _), *_ = duration
    half = {"first_half_ns": 0, "second_half_ns": 1}.get(name)
    if message == "message_backward_ns":
        return work.transfer_ns[stage] if stage + 1 < work.stages else 0, work.backward_ns[stage]
    transfer_ns = work.transfer_ns[stage - 1] if stage else 0
    return _half(transfer_ns, half if message == "message_half_ns" else None), _half(work.forward_ns[stage], half)


def _half(time_ns: int, half: int | None) -> int:
    """The part of a time in ns that a pass takes: all of it if `half` is None, otherwise its first (0) or second (1) half; an
    odd nanosecond belongs to the second half."""
    return time_ns if half is None else time_ns // 2 if half == 0 else time_ns - time_ns // 2
