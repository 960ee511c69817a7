"""Memory over the time of a step, by what holds it, on one rank of each stage: computed, and drawn as paths of SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trainplan.execution.analysis.memory.peak import held_parts
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.formulations.plan.plan import Plan
from trainplan.prediction.metrics import PARTS, fullest_programs, part_of

COLUMNS = 240  # intervals that the step is divided into
HIGH = 100.0  # height of the drawing, in its own units


@dataclass(frozen=True)
class StageCurve:
    """Memory over the time of a step, of the fullest rank of a pipeline stage.

    stage, rank: their indices. peak_bytes: the rank's peak, which the curve reaches. columns: (COLUMNS, parts), for each of
    COLUMNS equal intervals of the step the bytes of each of PARTS (such as activations) at the moment of the interval when
    the most memory is in use.
    """

    stage: int
    rank: int
    peak_bytes: int
    columns: tuple[tuple[int, ...], ...]

    def areas(self, most_bytes: int) -> list[tuple[str, str]]:
        """The stacked areas of the drawing, as pairs (part, SVG path) for each part of memory that has any bytes.

        The drawing is COLUMNS wide and HIGH high; its top is at `most_bytes`.
        """
        below = [0] * len(self.columns)
        drawn = []
        for number, part in enumerate(PARTS):
            above = [low + column[number] for low, column in zip(below, self.columns, strict=True)]
            if any(column[number] for column in self.columns):
                drawn.append((part, _area(below, above, most_bytes)))
            below = above
        return drawn


def stage_curves(plan: Plan, prediction: PlanPrediction) -> list[StageCurve]:
    """Compute the memory over time of the fullest rank of each pipeline stage, in order; interleaved stages that run on the
    same ranks are one entry. Raises InputError for a step with more micro-batches than are simulated one by one. plan: a
    training plan, with its stages and strategies. prediction: the simulation of the plan's programs (instruction lists of
    ranks).
    """
    prediction.time.assure_whole()
    return [_curve(prediction, stage, index) for stage, index in enumerate(fullest_programs(plan, prediction))]


def _curve(prediction: PlanPrediction, stage: int, index: int) -> StageCurve:
    """Compute the memory over the time of a step of one rank. prediction: the simulated programs (instruction lists of ranks).
    stage: the index of the rank's stage. index: index of the rank's program among the simulated ones.
    """
    rounds, memory = prediction.time.rounds[index], prediction.memory[index]
    copies = {part_of("copies"): memory.outside_program_bytes}
    sizes = [
        tuple(held[part] + copies.get(part, 0) for part in PARTS)
        for held in held_parts(rounds.few, memory.backend, part_of, PARTS)
    ]
    starts = accumulate(prediction.time.start_ns[index], max)  # never before an instruction that was issued earlier
    most: list[tuple[int, ...] | None] = [None] * COLUMNS
    step = max(1, prediction.step_ns)
    for number, start in enumerate(starts):
        column = min(COLUMNS - 1, start * COLUMNS // step)
        held = sizes[rounds.stretch(number)[0]]  # every round holds as much as the one before it
        largest = most[column]
        if largest is None or sum(held) > sum(largest):
            most[column] = held
    filled, before = list[tuple[int, ...]](), next(held_at for held_at in most if held_at is not None)
    for held_at in most:
        before = held_at if held_at is not None else before
        filled.append(before)
    return StageCurve(stage, rounds.few.rank, memory.peak_bytes, tuple(filled))


def _area(below: Sequence[int], above: Sequence[int], most: int) -> str:
    """The SVG path, closed, of the area between two stepped lines.

    below, above: bytes of the lower and of the upper line, one value per column of the drawing. most: the bytes at the top of
    the drawing.
    """
    corners = [*_corners(above, most), *reversed(_corners(below, most))]
    return f"M{'L'.join(f'{x} {y}' for x, y in corners)}Z"


def _corners(values: Sequence[int], most: int) -> list[tuple[int, str]]:
    """The corners (x, y) of the stepped line through values in bytes, one per column of the drawing; equal neighbours form one
    step.

    most: the bytes at the top of the drawing, where y is 0. y is a text with at most two decimals.
    """
    corners: list[tuple[int, str]] = []
    for column, value in enumerate(values):
        if column and value == values[column - 1]:
            corners[-1] = (column + 1, corners[-1][1])
            continue
        height = f"{HIGH - HIGH * value / most:.2f}".rstrip("0").rstrip(".")
        corners += [(column, height), (column + 1, height)]
    return corners
