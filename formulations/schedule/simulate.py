"""When every pass of a schedule runs: an event simulation, for any order of passes on the devices.

A pass begins once its device is free and its message is there: the one before it on the device has ended, and so has the pass
that its input comes from, on the stage before (forward) or after (backward). Then the message takes its transfer time, during
which the device waits, and the pass runs. Sending costs the sender nothing. (These are AutoPipe's recurrences, which add Comm
after the maximum of both.) Halves of a pass take half its time, and their messages half the transfer; odd nanoseconds go to
the second half.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from trainplan.formulations.schedule.orders import Pass
from trainplan.profiling.base.display import in_one_line


@dataclass(frozen=True)
class Work:
    """What stages take, in ns. forward_ns, backward_ns: of one micro-batch on each stage. transfer_ns: between each stage and
    the next, one entry less; the same both ways."""

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Their number, p."""
        return len(self.forward_ns)


@dataclass(frozen=True)
class Event:
    """A pass on its device. ready_ns: when its message begins; start_ns: when it runs, the message received; both from the
    step's beginning."""

    task: Pass
    device: int
    ready_ns: int
    start_ns: int
    end_ns: int


@in_one_line
@dataclass(frozen=True)
class Timeline:
    """All passes of a step, by device in their order."""

    work: Work
    devices: tuple[tuple[Event, ...], ...]

    @property
    def time_ns(self) -> int:
        """The step, from its first pass to the end of its last one."""
        return max(events[-1].end_ns for events in self.devices)

    def step_ns(self, syncs_ns: Sequence[int]) -> int:
        """Until the last device has ended what it adds behind its last pass. syncs_ns: of every device."""
        return max(events[-1].end_ns + sync for events, sync in zip(self.devices, syncs_ns, strict=True))

    @property
    def startup_ns(self) -> int:
        """Until the last device begins with the first micro-batch, or the first half of it (AutoPipe's startup overhead)."""
        return self.devices[-1][0].start_ns

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """The time that each device computes."""
        return tuple(sum(event.end_ns - event.start_ns for event in events) for events in self.devices)

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they do not compute."""
        whole = self.time_ns * len(self.devices)
        return 1 - sum(self.busy_ns) / whole if whole else 0.0


class Stuck(Exception):
    """An order in which passes wait for each other for ever."""


def duration_ns(work: Work, task: Pass) -> int:
    """How long a pass of a pipeline takes, without its message."""
    time = (work.forward_ns if task.kind == "forward" else work.backward_ns)[task.stage]
    return _half(time, task.half)


def _half(time_ns: int, half: int | None) -> int:
    return time_ns if half is None else time_ns // 2 if half == 0 else time_ns - time_ns // 2


def source_of(task: Pass, tasks: Container[Pass], stages: int) -> tuple[Pass, int | None] | None:
    """The pass on another stage that a pass waits for, and which half of it the message is (None: all of it).

    tasks: all passes of the step. None where the pass waits for no other stage.
    """
    if task.kind == "backward":
        return (Pass("backward", task.micro_batch, task.stage + 1), None) if task.stage + 1 < stages else None
    if task.stage == 0:
        return None
    before = Pass("forward", task.micro_batch, task.stage - 1, task.half)
    if before in tasks:
        return before, task.half
    return before._replace(half=1), None


def simulate(work: Work, orders: Sequence[Sequence[Pass]]) -> Timeline:
    """Every pass as early as its device's order allows. Raises Stuck where the orders wait for each other in a cycle."""
    tasks = {task for order in orders for task in order}
    sources = {task: source_of(task, tasks, work.stages) for task in tasks}
    followers: dict[Pass, list[int]] = {}
    for device, order in enumerate(orders):
        for task in order:
            if (source := sources[task]) is not None:
                followers.setdefault(source[0], []).append(device)
    ended: dict[Pass, int] = {}
    free, done = [0] * len(orders), [0] * len(orders)
    events: list[list[Event]] = [[] for _ in orders]
    waiting: list[tuple[int, int]] = []

    def look(device: int) -> None:
        """Put the device's next pass in the queue, if all that it waits for has ended."""
        if done[device] < len(orders[device]):
            source = sources[orders[device][done[device]]]
            if source is None or source[0] in ended:
                heappush(waiting, (max(free[device], 0 if source is None else ended[source[0]]), device))

    for device in range(len(orders)):
        look(device)
    while waiting:
        ready, device = heappop(waiting)
        task = orders[device][done[device]]
        source = sources[task]
        message = 0
        if source is not None:
            message = _half(work.transfer_ns[min(task.stage, source[0].stage)], source[1])
        start = ready + message
        end = start + duration_ns(work, task)
        events[device].append(Event(task, device, ready, start, end))
        ended[task], free[device] = end, end
        done[device] += 1
        look(device)
        for other in followers.get(task, ()):
            if other != device and done[other] < len(orders[other]):
                following = sources[orders[other][done[other]]]
                if following is not None and following[0] == task:
                    look(other)
    if any(count < len(order) for count, order in zip(done, orders, strict=True)):
        raise Stuck
    return Timeline(work, tuple(map(tuple, events)))
