"""Memory over time: what holds it on one rank of each stage, from the memory walk and the moments of the time walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trainplan.execution.analysis.memory.peak import held_parts
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.formulations.plan.plan import Plan
from trainplan.prediction.metrics import PARTS, fullest_places, part_of

COLUMNS = 240  # moments at which a stage's memory is drawn, at most
HIGH = 100.0  # of the drawing, in its own units, at the most that is drawn


@dataclass(frozen=True)
class StageCurve:
    """Memory of the fullest rank of a stage over time. peak_bytes: of the memory walk, which the curve reaches. columns: of
    each column of time the bytes by part at the moment in it when most is held, in the order of PARTS."""

    stage: int
    rank: int
    peak_bytes: int
    columns: tuple[tuple[int, ...], ...]

    def areas(self, most_bytes: int) -> list[tuple[str, str]]:
        """Name and SVG path of each part, stacked, in a drawing COLUMNS wide and HIGH high, whose top stands for most_bytes."""
        below = [0] * len(self.columns)
        drawn = []
        for number, part in enumerate(PARTS):
            above = [low + column[number] for low, column in zip(below, self.columns, strict=True)]
            if any(column[number] for column in self.columns):
                drawn.append((part, _area(below, above, most_bytes)))
            below = above
        return drawn


def stage_curves(plan: Plan, judged: PlanPrediction) -> list[StageCurve]:
    """The curve of the fullest rank of each stage; of interleaved stages, of the ranks that have them. Raises InputError for
    more micro-batches than can be shown."""
    judged.time.assure_whole()
    return [_curve(judged, stage, index) for stage, index in enumerate(fullest_places(plan, judged))]


def _curve(judged: PlanPrediction, stage: int, index: int) -> StageCurve:
    rounds, walk = judged.time.rounds[index], judged.memory[index]
    copies = {part_of("copies"): walk.outside_program_bytes}
    sizes = [
        tuple(held[part] + copies.get(part, 0) for part in PARTS)
        for held in held_parts(rounds.few, walk.backend, part_of, PARTS)
    ]
    starts = accumulate(judged.time.start_ns[index], max)  # what is issued later counts from where it was issued
    most: list[tuple[int, ...] | None] = [None] * COLUMNS
    step = max(1, judged.step_ns)
    for number, start in enumerate(starts):
        column = min(COLUMNS - 1, start * COLUMNS // step)
        held = sizes[rounds.stretch(number)[0]]  # every round holds as much as the one before it
        if (there := most[column]) is None or sum(held) > sum(there):
            most[column] = held
    filled, before = list[tuple[int, ...]](), next(held_at for held_at in most if held_at is not None)
    for held_at in most:
        before = held_at if held_at is not None else before
        filled.append(before)
    return StageCurve(stage, rounds.few.rank, walk.peak_bytes, tuple(filled))


def _area(below: Sequence[int], above: Sequence[int], most: int) -> str:
    """A closed path of steps: along the upper edge, and back along the lower one."""
    forth = _edge(above, most)
    back = [f"{x} {y}" for x, y in reversed(_corners(below, most))]
    return f"M{forth}L{'L'.join(back)}Z"


def _edge(values: Sequence[int], most: int) -> str:
    return "L".join(f"{x} {y}" for x, y in _corners(values, most))


def _corners(values: Sequence[int], most: int) -> list[tuple[int, str]]:
    """The corners of a line that changes at the columns' edges; columns of one value are one piece."""
    corners: list[tuple[int, str]] = []
    for column, value in enumerate(values):
        if column and value == values[column - 1]:
            corners[-1] = (column + 1, corners[-1][1])
            continue
        height = f"{HIGH - HIGH * value / most:.2f}".rstrip("0").rstrip(".")
        corners += [(column, height), (column + 1, height)]
    return corners
