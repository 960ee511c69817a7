"""A simulated step in the Trace Event Format, which Perfetto and chrome://tracing open.

Every device has two rows: its passes, named F3 or B3 by micro-batch (F0a and F0b its halves; F3.1 on the device's second
stage), and the messages that it waits for. An arrow leads from the end of a pass to the message that it sends, or to the pass
itself where a message takes no time. Times are microseconds that stand for whole nanoseconds. On one row no two events overlap.

A plan without such a timeline (states on the host, interleaved stages, stages of unequal size) is shown by its programs
instead: one process for one rank of each stage, with a row for each of its lanes, which has every operation of its program.

Format: Google, "Trace Event Format"; https://perfetto.dev/docs/getting-started/other-formats
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nextafter
from typing import Any

from trainplan.execution.analysis.timing.simulate import TimeWalk
from trainplan.formulations.schedule.critical_path import critical_path
from trainplan.formulations.schedule.graph import source_of
from trainplan.formulations.schedule.orders import Pass
from trainplan.formulations.schedule.simulate import Event, Timeline

PROCESS = 1  # the process id in the trace


def chrome_trace(timeline: Timeline, *, name: str = "pipeline", stages: Sequence[str] | None = None) -> dict[str, Any]:
    """A timeline as a trace that Perfetto and chrome://tracing show.

    Args:
        timeline: a simulated step, such as `simulate(...).timeline`.
        name: the name of the process in the trace.
        stages: a name for every stage, such as its units.

    Returns:
        A dict, to be written as JSON.
    """
    events: list[dict[str, Any]] = [_named("process_name", name, None)]
    by_task = {event.task: event for row in timeline.devices for event in row}
    critical = {event.task for event in critical_path(timeline).path}
    chunked = timeline.work.stages > len(timeline.devices)
    for device in range(len(timeline.devices)):
        for tid, title in ((_compute(device), f"device {device}"), (_receive(device), f"device {device} receives")):
            events += [_named("thread_name", title, tid), _sorted(tid)]
    messages = 0
    for row in timeline.devices:
        for event in row:
            events.append(_pass(timeline, event, event.task in critical, chunked, stages))
            source = source_of(event.task, by_task.keys(), timeline.work.stages)
            if source is not None:
                events += _message(event, by_task[source], messages)
                messages += 1
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": _summary(timeline)}


def operations_trace(simulated: TimeWalk, programs: Sequence[int], *, name: str, units: Sequence[str]) -> dict[str, Any]:
    """The operations of a simulated step in the Trace Event Format, as a dict to be written as JSON.

    simulated: the simulation of a plan's programs (the lists of instructions that ranks execute). programs: indices, in the
    simulation, of the programs to show, one per stage. name: the step's name. units: names of the model's units (sub-layers),
    by index. Raises InputError if the step has more micro-batches than are simulated one by one.
    """
    stages = {simulated.rounds[index].few.rank: stage for stage, index in enumerate(programs)}
    events: list[dict[str, Any]] = []
    for rank, stage in stages.items():
        events.append(_named("process_name", f"{name}: stage {stage}, rank {rank}", None) | {"pid": rank + PROCESS})
    lanes: dict[tuple[int, str], int] = {}
    for operation in simulated.operations():
        if operation.rank not in stages:
            continue
        tid = lanes.setdefault((operation.rank, operation.lane), len(lanes) + 1)
        instruction = operation.instruction
        unit = None if instruction.unit is None else units[instruction.unit]
        facts = {"unit": unit, "micro_batch": instruction.micro_batch, "bytes": instruction.message_bytes or None}
        about = {key: value for key, value in facts.items() if value is not None}
        done = _slice(str(instruction.op), operation.lane, tid, operation.start_ns, operation.end_ns, about)
        events.append(done | {"pid": operation.rank + PROCESS})
    for (rank, lane), tid in lanes.items():
        events += [event | {"pid": rank + PROCESS} for event in (_named("thread_name", lane, tid), _sorted(tid))]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"step_ns": simulated.step_ns}}


def label(task: Pass, devices: int | None = None) -> str:
    """The short name of a pass: F3 and B3 for the forward and backward pass of micro-batch 3, F0a for the first half of F0.

    devices: the number of devices if each of them has several stages: the pass on a device's second stage is then F3.1. None
    if every device has one stage.
    """
    half = "" if task.half is None else "ab"[task.half]
    chunk = "" if devices is None else f".{task.stage // devices}"
    return f"{task.kind[0].upper()}{task.micro_batch}{half}{chunk}"


def _compute(device: int) -> int:
    """The thread id, in the trace, of the row with the passes of a device: unique in the whole trace, and never 0."""
    return 10 * device + 1


def _receive(device: int) -> int:
    """The thread id, in the trace, of the row with the messages that a device receives: unique in the whole trace."""
    return 10 * device + 2


def _us(time_ns: int) -> float:
    """Convert whole nanoseconds to microseconds as a float, such that a reader that converts back gets the same nanoseconds
    whether it rounds or truncates, as Perfetto does.
    """
    microseconds = time_ns / 1000
    while microseconds * 1000 < time_ns:
        microseconds = nextafter(microseconds, inf)
    return microseconds


def _pass(timeline: Timeline, event: Event, critical: bool, chunked: bool, stages: Sequence[str] | None) -> dict[str, Any]:
    """The slice of a pass (a trace event with begin and duration), on the row of its device.

    timeline: the simulated passes and messages of a pipeline's step. event: the pass. critical: whether it is on the critical
    path. chunked: whether devices have several stages. stages: names of the units that every stage holds; None for no names.
    """
    task, count = event.task, len(timeline.devices)
    about: dict[str, Any] = {"micro_batch": task.micro_batch, "stage": task.stage, "critical": critical}
    if task.half is not None:
        about["half"] = task.half
    if stages is not None:
        about["holds"] = stages[task.stage]
    return _slice(
        label(task, count if chunked else None), task.kind, _compute(event.device), event.start_ns, event.end_ns, about
    )


def _message(event: Event, source: Event, number: int) -> list[dict[str, Any]]:
    """The trace events for the message that a pass waits for: a slice (an event with begin and duration) while the pass waits,
    and an arrow from the pass that sends the message.

    event: the pass that needs the message. source: the pass that sends it. number: the arrow's id. An arrow has to begin and
    end within slices, and the last instant of a slice is outside it: so the arrow begins one nanosecond earlier, and there is
    none from or to a slice of no duration.
    """
    kind = "activation" if event.task.kind == "forward" else "gradient"
    events, tid, until = [], _compute(event.device), event.end_ns
    if event.start_ns > event.ready_ns:
        tid, until = _receive(event.device), event.start_ns
        about = {"micro_batch": event.task.micro_batch, "from_stage": source.task.stage, "to_stage": event.task.stage}
        events.append(_slice(f"{kind} {event.task.micro_batch}", "transfer", tid, event.ready_ns, until, about))
    if source.end_ns > source.start_ns and until > event.ready_ns:
        arrow = {"name": kind, "cat": "transfer", "id": number, "pid": PROCESS}
        events.append(arrow | {"ph": "s", "tid": _compute(source.device), "ts": _us(source.end_ns - 1)})
        events.append(arrow | {"ph": "f", "bp": "e", "tid": tid, "ts": _us(event.ready_ns)})
    return events


def _slice(name: str, category: str, tid: int, start_ns: int, end_ns: int, about: dict[str, Any]) -> dict[str, Any]:
    """Make a slice, a trace event with a begin and a duration, on the row with the thread id `tid`.

    category: group of events in viewers. start_ns, end_ns: begin and end. about: facts that viewers show when the slice is
    selected.
    """
    times = {"ts": _us(start_ns), "dur": _us(end_ns - start_ns)}
    return {"name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": tid, **times, "args": about}


def _named(kind: str, name: str, tid: int | None) -> dict[str, Any]:
    """Make the trace event that names a row, or, if `tid` is None, the whole process.

    kind: `process_name` or `thread_name`. tid: the row's thread id.
    """
    return {"name": kind, "ph": "M", "pid": PROCESS, "args": {"name": name}} | ({} if tid is None else {"tid": tid})


def _sorted(tid: int) -> dict[str, Any]:
    """Make the trace event that makes viewers sort the rows by their thread ids, for the row with this thread id."""
    return {"name": "thread_sort_index", "ph": "M", "pid": PROCESS, "tid": tid, "args": {"sort_index": tid}}


def _summary(timeline: Timeline) -> dict[str, Any]:
    """The trace's additional data as a dict: `iteration_ns` (the passes of all micro-batches), `startup_ns` (until the last
    stage begins), and `bubble` (the fraction of the devices' time in which they are idle). timeline: the simulated passes and
    messages of a pipeline's step."""
    return {"iteration_ns": timeline.time_ns, "startup_ns": timeline.startup_ns, "bubble": timeline.bubble}
