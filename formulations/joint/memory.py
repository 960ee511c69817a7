"""What the devices of a site hold at most, in bytes (see the problem's head)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.formulations.instances import Integers
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.step.schedules import Pass
from trainplan.formulations.step.stage_memory import stage_peak


@dataclass(frozen=True, eq=False)
class StageBytes:
    """What the units of one stage hold, each array of one entry a unit, in order."""

    state: Integers
    kept: Integers
    held: Integers
    work: Integers
    host: Integers


def peak(stage: StageBytes, in_flight: int) -> tuple[int, int]:
    """The peak of a stage that has its devices alone, and the unit, from the stage's first one, in whose pass it is."""
    most, place = stage_peak(stage.state, stage.kept, stage.work, in_flight, stage.held)
    return int(most), int(place)


def peaks(configuration: Configuration, stages: Sequence[StageBytes]) -> list[tuple[int, int]]:
    """The peak of each stage's devices, and the unit, from the stage's first one, in whose pass that stage comes nearest it.

    Chunks of one site share its devices: each stage's entry is the peak while its own passes run, with all that the others hold
    at the time. The peak of the site is the largest of them.
    """
    found = [(0, 0)] * len(stages)
    states = [int(stage.state.sum()) for stage in stages]
    for counts, x in moments_of(configuration):
        others = sum(states[y] + n * _in_flight_bytes(stages[y]) for y, n in counts.items() if y != x)
        most, place = peak(stages[x], counts[x])
        found[x] = max(found[x], (most + others, place), key=lambda entry: entry[0])
    return found


def _in_flight_bytes(stage: StageBytes) -> int:
    return int(stage.kept.sum() + stage.held.sum())


def moments_of(configuration: Configuration) -> list[tuple[dict[int, int], int]]:
    """The moments at which sites may hold the most: micro-batches in flight of each stage of the site, and the stage whose pass
    runs. Those at which no stage has more in flight than at another one, and the same pass runs, are left out."""
    if configuration.schedule.chunks == 1:
        return [({x: configuration.in_flight(x)}, x) for x in range(configuration.stages)]
    found = []
    for order in configuration.orders():
        moments = _moments(order)
        for counts, x in moments:
            larger = (other for other, y in moments if y == x and other != counts)
            if not any(all(n <= other[y] for y, n in counts.items()) for other in larger):
                found.append((counts, x))
    return found


def _moments(order: Sequence[Pass]) -> list[tuple[dict[int, int], int]]:
    """The different (micro-batches in flight by stage, stage of the pass that runs) of a site's order."""
    counts: dict[int, int] = dict.fromkeys(sorted({task.stage for task in order}), 0)
    seen: dict[tuple[tuple[int, ...], int], tuple[dict[int, int], int]] = {}
    for task in order:
        if task.kind == "forward":
            counts[task.stage] += 1
        seen.setdefault((tuple(counts.values()), task.stage), (dict(counts), task.stage))
        if task.kind == "backward":
            counts[task.stage] -= 1
    return list(seen.values())
