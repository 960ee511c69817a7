"""Runs left out of a fit: by source, kind of device, precision, framework, and scale. The errors with which the other runs
predict them are those to expect for runs that the fit has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log1p, sqrt

import numpy as np

from trainplan.profiling.clusters.efficiencies import EfficiencyTable
from trainplan.profiling.clusters.step_errors import Aspect, FittedRun, in_common
from trainplan.validation.efficiency_fit import Fit, Fitted
from trainplan.validation.layouts import LaidRun
from trainplan.validation.predict import ASSUMED_ERROR, DECISIVE, framework_name

SMALL = 64  # devices of the largest runs that the fit of the split by scale is of


@dataclass(frozen=True)
class Split:
    """A way to leave runs out of a fit.

    Attributes:
        name: its name, as keys of `FittedRun.left_out`.
        words: what it leaves out, for people.
        fold_of: for a run of the fit, the name of the group with which it is left out; None if it is never left out.
    """

    name: str
    words: str
    fold_of: Callable[[FittedRun], str | None]

    def folds(self, runs: Sequence[FittedRun]) -> Mapping[str, tuple[list[int], list[int]]]:
        """For each group that is left out, by its name: the indices of the runs that the fit is then made of, and those of
        the group. runs: all runs.
        """
        names = [self.fold_of(run) for run in runs]
        everything = range(len(runs))
        return {
            name: ([i for i in everything if names[i] != name], [i for i in everything if names[i] == name])
            for name in dict.fromkeys(names)
            if name is not None
        }


SPLITS = {
    split.name: split
    for split in (
        Split("source", "each source left out", lambda run: run.source),
        Split(
            "scale",
            f"fitted to {SMALL} devices at most, larger ones left out",
            lambda run: "large" if run.devices > SMALL else None,
        ),
        Split("kind", "each kind of device left out", lambda run: run.device),
        Split("precision", "each precision left out", lambda run: run.precision),
        Split("framework", "each framework left out", lambda run: run.framework),
    )
}


def described(row: LaidRun, error: float = 0.0) -> FittedRun:
    """Describe a measured run by what it has in common with others. row: the run, with assumed values for everything that it
    does not specify. error: predicted over measured step, minus 1.
    """
    left_open = sum(name in row.assumed for name in DECISIVE)
    return FittedRun(
        id=row.run.id,
        source=row.run.source,
        device=row.name,
        devices=row.run.gpus,
        precision=row.layout.rate,
        framework=framework_name(row),
        error=round(error, 4),
        left_open=round(log1p(ASSUMED_ERROR * sqrt(left_open)), 4),
    )


def fitted_runs(fit: Fit, fitted: Fitted) -> list[FittedRun]:
    """Describe all runs of a fit, with their errors as fitted and with each split's runs left out, in the order of the fit's
    runs. fitted: the fit to all runs, as `Fit.run` returns it.
    """
    runs = [described(row, float(np.expm1(residual))) for row, residual in zip(fit.rows, fitted[1], strict=True)]
    tables: list[dict[str, EfficiencyTable]] = [{} for _ in runs]
    for split in SPLITS.values():
        for kept, tested in split.folds(runs).values():
            table = fit.kept_table(fitted, kept)
            for index in tested:
                tables[index][split.name] = table
    return [
        run.changed(left_out={name: round(float(np.expm1(fit.residual(table, index))), 4) for name, table in left_out.items()})
        for index, (run, left_out) in enumerate(zip(runs, tables, strict=True))
    ]


def kept_counts(split: Split, runs: Sequence[FittedRun]) -> list[dict[Aspect, int]]:
    """For each run, the numbers of the runs that have each aspect in common with it and that are not left out with it. split:
    how runs are left out; a run that it never leaves out gets the numbers of all other runs.
    """
    names = [split.fold_of(run) for run in runs]
    return [
        in_common(
            [other for other, theirs in zip(runs, names, strict=True) if other is not run and (name is None or theirs != name)],
            run.device,
            run.devices,
            run.precision,
            run.framework,
        )
        for run, name in zip(runs, names, strict=True)
    ]
