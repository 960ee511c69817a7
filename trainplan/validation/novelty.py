"""Intervals by what is new in a run: their widths, fitted to errors of runs that were left out of fits, such that the intervals
hold 80 % of the measured steps of these runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainplan.profiling.clusters.step_errors import ASPECTS, FittedRun, StepErrors, newness
from trainplan.validation.splits import SPLITS, kept_counts

HELD = 0.8  # share of measured steps that intervals are meant to hold
GRID = (0.0, *np.geomspace(0.01, 0.8, 40))  # spreads, as natural logarithms, of which the most likely are taken
ROUNDS = 6  # of the search, in each of which every spread is chosen anew
LEAST = 0.02  # half-width, a natural logarithm, below which no interval is
LIKELY = 0.1  # mean of what each new aspect adds before errors are seen (an exponential distribution)
FEWEST = 5  # errors without which nothing is fitted
ASSUMED = StepErrors(usual=0.15, kind=0.15, scale=0.05, precision=0.1, framework=0.1, difference=0.05)  # without measured runs


@dataclass(frozen=True)
class LeftOut:
    """Errors of runs that were left out of fits, and how new each run was to its fit; all arrays are in one order.

    Attributes:
        errors: (errors,), absolute natural logarithms of predicted over measured steps.
        newness: (errors, aspects), how new each aspect was, from 0 to 1, in the order of ASPECTS.
        left_open: (errors,), half-widths, natural logarithms, for fields that the runs leave open.
        weights: (errors,), which give every split the same weight.
        sources: the runs' sources.
        splits: the names of the splits.
    """

    errors: np.ndarray
    newness: np.ndarray
    left_open: np.ndarray
    weights: np.ndarray
    sources: np.ndarray
    splits: np.ndarray

    def chosen(self, mask: np.ndarray) -> LeftOut:
        """The errors that a mask, (errors,) of bool, selects."""
        parts = (self.errors, self.newness, self.left_open, self.weights, self.sources, self.splits)
        return LeftOut(*(part[mask] for part in parts))

    def half_widths(self, widths: StepErrors) -> np.ndarray:
        """The half-widths, natural logarithms, of the intervals around all predictions: (errors,). widths: what they follow
        from."""
        added = np.array([getattr(widths, aspect) for aspect in ASPECTS]) ** 2
        return np.asarray(np.sqrt(widths.usual**2 + self.newness @ added + self.left_open**2))

    def held(self, widths: StepErrors) -> float:
        """The share of errors within their intervals, each with its weight. widths: what the intervals follow from."""
        return float(np.average(self.errors <= self.half_widths(widths) + 1e-9, weights=self.weights))


def left_out_errors(runs: Sequence[FittedRun]) -> LeftOut:
    """Collect the errors of runs that were left out of fits, one for each run and each split that leaves it out. runs: the runs
    of a fit, with these errors.
    """
    rows: list[tuple[float, list[float], float, float, str, str]] = []
    for split in SPLITS.values():
        tested = [
            (run, counts) for run, counts in zip(runs, kept_counts(split, runs), strict=True) if split.name in run.left_out
        ]
        for run, counts in tested:
            new = newness(counts)
            error = abs(float(np.log1p(run.left_out[split.name])))
            rows.append((error, [new[a] for a in ASPECTS], run.left_open, 1 / len(tested), run.source, split.name))
    errors, new_aspects, left_open, weights, sources, splits = zip(*rows, strict=True) if rows else ([], [], [], [], [], [])
    shape = (len(rows), len(ASPECTS))
    return LeftOut(
        np.array(errors, dtype=float), np.array(new_aspects, dtype=float).reshape(shape), np.array(left_open, dtype=float),
        np.array(weights, dtype=float), np.array(sources, dtype=str), np.array(splits, dtype=str),
    )  # fmt: skip


def step_errors_of(left_out: LeftOut, difference: float) -> StepErrors:
    """Fit the widths of intervals: the usual one, and what is added for each new aspect, such that they are most likely for
    the errors (distributed as Laplace's, whose scale is the half-width) and hold a share HELD of them.

    left_out: errors of runs that were left out of fits. With fewer than FEWEST errors the result is what is assumed without
    any. difference: half-width, a natural logarithm, of the ratio of two layouts' steps; it is taken over.
    """
    if len(left_out.errors) < FEWEST:
        return ASSUMED.changed(difference=difference)
    names = ("usual", *ASPECTS)
    widths = {"usual": float(np.median(left_out.errors)) + LEAST} | dict.fromkeys(ASPECTS, 0.0)
    for _ in range(ROUNDS):
        for name in names:
            tries = [widths | {name: float(value)} for value in GRID if value or name != "usual"]
            costs = [_cost(left_out, StepErrors(**trial, difference=difference)) for trial in tries]
            widths = tries[int(np.argmin(costs))]
    return _holding(left_out, StepErrors(**widths, difference=difference))


def _cost(left_out: LeftOut, widths: StepErrors) -> float:
    """Minus the mean logarithm, up to a constant, of the likelihood of errors under Laplace's distribution, with the prior of
    the additional widths. widths: what the distribution's scales follow from.
    """
    scales = left_out.half_widths(widths)
    prior = sum(getattr(widths, aspect) for aspect in ASPECTS) / LIKELY
    return float(np.average(np.log(scales) + left_out.errors / scales, weights=left_out.weights)) + prior / len(scales)


def _holding(left_out: LeftOut, widths: StepErrors) -> StepErrors:
    """Multiply all widths by one factor, the least with which the intervals hold a share HELD of the errors. left_out: the
    errors. widths: what the intervals follow from.
    """
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if left_out.held(_times(widths, middle)) >= HELD else (middle, high)
    found = _times(widths, high)
    return found.changed(usual=max(LEAST, found.usual))


def _times(widths: StepErrors, factor: float) -> StepErrors:
    """All widths times a factor, except for that of the difference of two layouts."""
    scaled = {name: min(5.0, round(getattr(widths, name) * factor, 4)) for name in ("usual", *ASPECTS)}
    return StepErrors(**scaled, difference=widths.difference)


def held_by_split(runs: Sequence[FittedRun], widths: StepErrors) -> dict[str, float]:
    """The share of measured steps within their intervals for each split that leaves runs out, by the split's name. runs: the
    runs of a fit, with their errors. widths: what the intervals follow from.
    """
    left_out = left_out_errors(runs)
    return {name: left_out.chosen(left_out.splits == name).held(widths) for name in dict.fromkeys(left_out.splits.tolist())}


def held_elsewhere(runs: Sequence[FittedRun]) -> float | None:
    """The share of measured steps of left-out runs within intervals whose widths were fitted without any run of their source:
    what to expect for other sources. None if there are too few sources. runs: the runs of a fit, with their errors.
    """
    left_out = left_out_errors(runs)
    sources = dict.fromkeys(left_out.sources.tolist())
    if len(sources) < 2:
        return None
    held = 0.0
    for source in sources:
        own = left_out.sources == source
        widths = step_errors_of(left_out.chosen(~own), 0.0)
        held += float(np.sum((left_out.errors[own] <= left_out.half_widths(widths)[own]) * left_out.weights[own]))
    return held / float(left_out.weights.sum())
