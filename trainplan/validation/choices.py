"""Choices among measured layouts of one job: whether the layout that is predicted to be fastest is, and how far predictions of
two layouts can be apart before one is known to be faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

import numpy as np

from trainplan.profiling.clusters.step_errors import Choices
from trainplan.validation.layouts import LaidRun
from trainplan.validation.novelty import HELD
from trainplan.validation.predict import DECISIVE

DIFFERENCE = 0.05  # half-width, a natural logarithm, of the ratio of two layouts' steps, without measured pairs
FEWEST_PAIRS = 5


@dataclass(frozen=True)
class Alternatives:
    """Measured layouts of one job, the same model, batch and devices.

    Attributes:
        names: the ids of the runs.
        measured_s: their measured steps in seconds.
        predicted_s: their predicted steps in seconds.
        open: whether any of the runs leaves fields open that decide most of a step, so that its prediction is of another run.
    """

    names: tuple[str, ...]
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]
    open: bool = False

    @property
    def chosen(self) -> int:
        """The index of the run that is predicted to be fastest, the first of equal ones."""
        return int(np.argmin(self.predicted_s))

    @property
    def regret(self) -> float:
        """The measured step of the chosen run over that of the fastest, minus 1."""
        return self.measured_s[self.chosen] / min(self.measured_s) - 1

    @property
    def differences(self) -> list[float]:
        """For each pair of runs, the absolute difference of the logarithms of predicted over measured steps: the error of the
        predicted ratio of their steps."""
        errors = [log(p / m) for p, m in zip(self.predicted_s, self.measured_s, strict=True)]
        return [abs(a - b) for a, b in combinations(errors, 2)]


def jobs(rows: Sequence[LaidRun]) -> list[list[LaidRun]]:
    """Find, among measured runs, those that are layouts of one job: of one source, model, number and kind of devices, tokens,
    batch, precision and framework. Returns groups of at least two.
    """
    groups: dict[object, list[LaidRun]] = {}
    for row in rows:
        run, layout = row.run, row.layout
        key = (run.source, run.model, run.gpus, row.name, row.model.tokens, layout.batch, row.products, layout.framework.name)
        groups.setdefault(key, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def choices_of(groups: Sequence[Alternatives]) -> Choices | None:
    """The cost of choosing by predictions: the mean regret over jobs. groups: jobs with at least two measured layouts; None is
    returned if there are none.
    """
    if not groups:
        return None
    regrets = [group.regret for group in groups]
    best = sum(regret <= 0 for regret in regrets)
    return Choices(groups=len(groups), best=best, regret=round(float(np.mean(regrets)), 4), worst=round(float(max(regrets)), 4))


def difference_of(groups: Sequence[Alternatives]) -> float:
    """The half-width, a natural logarithm, of the interval around the predicted ratio of two layouts' steps that holds a share
    HELD of the measured ratios; every job has the same weight. groups: jobs with at least two measured layouts; those with
    runs that leave fields open do not count.
    """
    pairs = sorted(
        (difference, 1 / len(group.differences)) for group in groups if not group.open for difference in group.differences
    )
    if len(pairs) < FEWEST_PAIRS:
        return DIFFERENCE
    reached, whole = 0.0, sum(weight for _, weight in pairs)
    for difference, weight in pairs:
        reached += weight
        if reached >= HELD * whole - 1e-9:
            return round(difference, 4)
    return round(pairs[-1][0], 4)


def with_predictions(group: Sequence[LaidRun], predicted_s: Mapping[str, float]) -> Alternatives:
    """The measured layouts of one job with their predictions. Runs with the same prediction differ in nothing that they state:
    they are one alternative, which the fastest of them stands for.

    group: runs with measured steps. predicted_s: predicted steps in seconds, by the runs' ids.
    """
    fastest: dict[float, LaidRun] = {}
    for row in sorted(group, key=lambda row: row.run.step_s or 0.0):
        fastest.setdefault(predicted_s[row.run.id], row)
    chosen = [row for row in group if fastest[predicted_s[row.run.id]] is row]
    return Alternatives(
        tuple(row.run.id for row in chosen),
        tuple(row.run.step_s or 0.0 for row in chosen),
        tuple(predicted_s[row.run.id] for row in chosen),
        open=any(name in row.assumed for row in chosen for name in DECISIVE),
    )
