"""What the devices of a site hold at most, in bytes (see the problem's head)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.instances import Integers
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.step.schedules import Pass
from trainplan.formulations.step.stage_memory import stage_peak


@dataclass(frozen=True, eq=False)
class StageBytes:
    """What the units of one stage hold, each array of one entry a unit, in order. waiting_bytes: a message that a stage has
    received and not used yet, in either way, which only the interleaved schedule lets be."""

    state: Integers
    kept: Integers
    held: Integers
    work: Integers
    host: Integers
    waiting_bytes: int = 0


def peak(stage: StageBytes, in_flight: int) -> tuple[int, int]:
    """The peak of a stage that has its devices alone, and the unit, from the stage's first one, in whose pass it is."""
    most, place = stage_peak(stage.state, stage.kept, stage.work, in_flight, stage.held)
    return int(most), int(place)


def peaks(configuration: Configuration, stages: Sequence[StageBytes]) -> list[tuple[int, int]]:
    """The peak of each stage's devices, and the unit, from the stage's first one, in whose pass that stage comes nearest it.

    Chunks of one site share its devices: each stage's entry is the peak while its own passes run, with all that the others hold
    at the time. The peak of the site is the largest of them.
    """
    if configuration.schedule.chunks == 1:
        return [peak(stage, configuration.in_flight(x)) for x, stage in enumerate(stages)]
    found = [(0, 0)] * len(stages)
    for order in configuration.orders():
        mine = sorted({task.stage for task in order})
        states = sum(int(stages[x].state.sum()) for x in mine)
        for counts, x in _moments(order):
            others = sum(n * _in_flight_bytes(stages[y]) for y, n in counts.items() if y != x)
            waiting = 2 * sum(stages[y].waiting_bytes for y in mine)
            alone, place = peak(stages[x], counts[x])
            most = alone + states - int(stages[x].state.sum()) + others + waiting
            found[x] = max(found[x], (most, place), key=lambda entry: entry[0])
    return found


def _in_flight_bytes(stage: StageBytes) -> int:
    return int(stage.kept.sum() + stage.held.sum())


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


def host_bytes(stages: Sequence[StageBytes]) -> list[int]:
    """What each stage holds on its host."""
    return [int(np.sum(stage.host)) for stage in stages]
