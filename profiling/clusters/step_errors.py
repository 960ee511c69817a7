"""How far predicted steps are from measured ones, and how wide an interval around a prediction must be: the wider, the less the
measured runs of a fit had in common with the run that is predicted.

An interval is meant to hold 80 % of measured steps. Its half-width h is a natural logarithm: from step / exp(h) to step *
exp(h). Its square is that of the usual width plus, for the kind of device, the scale, the precision and the framework of the
run, the square of an additional width times a share: 1 where no measured run had the same, FEW / (n + FEW) where n had. A run
of the same scale is one of the kind of device on at least half as many devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import Annotated, Literal

from pydantic import Field
from trainplan.profiling.base.files import Record

Aspect = Literal["kind", "scale", "precision", "framework"]
ASPECTS: tuple[Aspect, ...] = ("kind", "scale", "precision", "framework")
NOUNS: dict[Aspect, str] = {"kind": "kind of device", "scale": "scale", "precision": "precision", "framework": "framework"}
FEW = 3  # measured runs with one aspect in common, with which half of its additional width is left
NEW = 0.5  # share of an additional width from which users are told that an aspect is new
Width = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=-1, le=1e3, allow_inf_nan=False)]


class FittedRun(Record):
    """A measured run that efficiencies were fitted to, and how far its predictions are from its measured step.

    id: the run's id in its file. source: the publication or the user's file that it is from. device: name of the data sheet.
    devices: their number. precision: the dtype of the layers' matrix multiplications. framework: the cost model's name of its
    framework. error: predicted over measured step, minus 1, as fitted. left_out: the same ratios of fits without all runs
    that share something with it, by what they share (`source`, `kind`, `precision`, `framework`; `scale` for fits to small
    runs only). left_open: what is added to the half-width of its interval, in squares, because its file leaves fields open.
    """

    id: str
    source: str = ""
    device: str
    devices: Annotated[int, Field(ge=1)]
    precision: str
    framework: str
    error: Ratio
    left_out: dict[str, Ratio] = Field(default_factory=dict)
    left_open: Width = 0.0


class StepErrors(Record):
    """Half-widths, as natural logarithms, of intervals that are meant to hold 80 % of measured steps.

    usual: for a run that has everything in common with measured ones, except for its source. kind, scale, precision,
    framework: what is added, in squares, where that is new. difference: of the ratio of the steps of two layouts of one job,
    whose predictions have most of their errors in common.
    """

    usual: Width
    kind: Width = 0.0
    scale: Width = 0.0
    precision: Width = 0.0
    framework: Width = 0.0
    difference: Width

    def half_width(self, shares: Mapping[Aspect, float], left_open: float = 0.0) -> float:
        """The half-width, a natural logarithm, of the interval around a predicted step. shares: how new each aspect of the run
        is, from 0 to 1. left_open: an additional half-width, added in squares, for what is not known of the run.
        """
        added = (share * getattr(self, aspect) ** 2 for aspect, share in shares.items())
        return sqrt(self.usual**2 + sum(added) + left_open**2)


class Choices(Record):
    """The cost of choosing, among measured layouts of one job, the one that is predicted to be fastest.

    groups: the number of jobs with at least two measured layouts. best: of how many of them the fastest was chosen. regret: the
    mean, over the jobs, of the measured step of the chosen layout over that of the fastest, minus 1. worst: the largest.
    """

    groups: Annotated[int, Field(ge=1)]
    best: Annotated[int, Field(ge=0)]
    regret: Ratio
    worst: Ratio


def in_common(runs: Sequence[FittedRun], device: str, devices: int, precision: str, framework: str) -> dict[Aspect, int]:
    """Count the measured runs that have each aspect in common with a run: its kind of device, its scale (the same kind of
    device, and at least half as many), its precision and its framework.

    runs: the measured runs. device: name of the kind's data sheet; devices: their number.
    """
    return {
        "kind": sum(run.device == device for run in runs),
        "scale": sum(run.device == device and 2 * run.devices >= devices for run in runs),
        "precision": sum(run.precision == precision for run in runs),
        "framework": sum(run.framework == framework for run in runs),
    }


def newness(counts: Mapping[Aspect, int]) -> dict[Aspect, float]:
    """How new each aspect of a run is, from 0 (many measured runs have it in common) to 1 (none). counts: the numbers of
    measured runs that have it in common.
    """
    return {aspect: FEW / (FEW + count) for aspect, count in counts.items()}


def new_words(counts: Mapping[Aspect, int], errors: StepErrors) -> tuple[str, ...]:
    """Name what makes the interval around a prediction wider: for each aspect, such as the kind of device, that few measured
    runs have in common, its noun and their number. Aspects that add nothing to the interval are left out.
    """
    return tuple(
        f"{NOUNS[aspect]} of {count} measured runs" if count else f"{NOUNS[aspect]} of no measured run"
        for aspect, count in counts.items()
        if getattr(errors, aspect) > 0 and newness({aspect: count})[aspect] >= NEW
    )


def as_relative(half_width: float) -> float:
    """The relative half-width of an interval from step / (1 + r) to step * (1 + r). half_width: its natural logarithm."""
    return exp(half_width) - 1


def apart(first_ns: float, second_ns: float) -> float:
    """The absolute natural logarithm of the ratio of two steps, in any one unit."""
    return abs(log(first_ns / second_ns))
