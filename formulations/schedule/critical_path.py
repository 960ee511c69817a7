"""The critical path of a step, and the master stage (AutoPipe, Section III-B).

A pass begins with its message after both the pass before it on the device and the pass on the other stage have ended; the later
one of the two is critical. Of the longest paths, the one nearest to the last stage is meant: where both end at the same time,
the path is followed to the later stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from trainplan.formulations.schedule.graph import source_of
from trainplan.formulations.schedule.simulate import Event, Timeline


@dataclass(frozen=True)
class Critical:
    """The critical path of a step: passes from the first to the last, each of which begins when the one before it on the path
    has ended.

    path: the passes with their times, in order. master: AutoPipe's master stage: the stage with the most passes of the 1F1B
    phase (neither warm-up nor cooldown) on the path; if several have the most, the last one.
    """

    path: tuple[Event, ...]
    master: int


def critical_path(timeline: Timeline) -> Critical:
    """The critical path of a simulated step, followed back from the last pass of the first device, with which the step ends.
    timeline: the passes of the simulated step with their times.
    """
    stages = timeline.work.stages
    events = {event.task: event for device in timeline.devices for event in device}
    before = {event.task: earlier for device in timeline.devices for earlier, event in pairwise(device)}
    current = timeline.devices[0][-1]
    assert current.end_ns == timeline.time_ns
    path = [current]
    while True:
        source = source_of(current.task, events.keys(), stages)
        waited_for = [] if source is None else [events[source]]
        waited_for += [before[current.task]] if current.task in before else []
        binding = [event for event in waited_for if event.end_ns == current.ready_ns]
        if not binding:
            break
        current = max(binding, key=lambda event: event.task.stage)
        path.append(current)
    path.reverse()
    return Critical(tuple(path), _master(timeline, path))


def _master(timeline: Timeline, path: list[Event]) -> int:
    """The stage with the most passes of the 1F1B phase on a path, the last one of several; if the path has no such passes, the
    last stage on the path. timeline: the passes of the simulated step with their times.
    """
    steady = _steady(timeline)
    counts = Counter(event.task.stage for event in path if event.task in steady)
    if not counts:
        return max(event.task.stage for event in path)
    return max(counts, key=lambda stage: (counts[stage], stage))


def _steady(timeline: Timeline) -> set[object]:
    """The passes of the 1F1B phase of a simulated step, between warm-up and cooldown: on each device, from its last forward
    pass before the first backward pass to the backward pass after its last forward pass. timeline: the passes of the
    simulated step with their times.
    """
    steady: set[object] = set()
    for device in timeline.devices:
        kinds = [event.task.kind for event in device]
        first = kinds.index("backward") - 1
        last = len(kinds) - 1 - kinds[::-1].index("forward") + 1
        steady.update(event.task for event in device[first : last + 1])
    return steady
