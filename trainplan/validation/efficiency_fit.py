"""The fit of efficiencies, the shares of their peak rates that kernels and links reach, to the measured steps of runs.

There is at most one number for each kind of device, precision and class of kernels, and one for each level of links. They are a
least-squares fit of the logarithms of predicted over measured steps (Gauss-Newton), with a prior on each number, for runs are
few: the prior's mean is the value that the table assumes, its spread is given below. The priors of one class of kernels on a
device are correlated over precisions. Errors of runs of one source are correlated (its clock, its counts, its software), so
that a source with many runs does not count as many independent ones; runs with errors above twice the spread count less (Huber,
1964).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainplan.profiling.clusters.efficiencies import (
    EfficiencyTable,
    Kernel,
    KernelFit,
    Level,
    LinkFit,
    Precision,
)
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.validation.layouts import LaidRun
from trainplan.validation.predict import step_of

ROW_SPREAD, SOURCE_SPREAD = 0.06, 0.06  # standard deviations of the logarithms of one run, and common to a source
SPREADS: dict[Kernel, float] = {"matrix-product": 0.12, "attention": 0.25, "memory": 0.12}
LINK_SPREAD, MOST_OF_LINK = 0.2, 0.95
ALIKE = 0.7  # correlation of the priors of one class of kernels on one device
MEMORY_PRIOR = 0.85  # share of the bandwidth of memory
LINK_PRIORS: dict[str, float] = {"network": 0.85}  # priors of levels for which the table assumes the peak
ITERATIONS, STEP = 8, 0.02
MOVED = 2e-3  # change of a logarithm below which the fit is done
SLOPES = 2  # iterations that compute derivatives anew; later ones use the last


@dataclass(frozen=True)
class Key:
    """The key of one fitted efficiency, the share of a peak rate that is reached: either by a class of kernels on a device in
    a precision, or by a level of links.

    Attributes:
        device: name of the device's data sheet; empty for a level of links.
        precision: the kernels' precision; None if it does not matter.
        kernel: the class of kernels, such as matrix products; None for links.
        level: the level of links, such as the network between nodes; None for kernels.
    """

    device: str = ""
    precision: Precision | None = None
    kernel: Kernel | None = None
    level: Level | None = None

    def __str__(self) -> str:
        return self.level or " ".join(filter(None, (self.device, self.precision, self.kernel)))


Fitted = tuple[np.ndarray, np.ndarray, np.ndarray]  # what `Fit.run` returns


class Fit:
    """A fit of efficiencies (the shares of their peak rates that kernels and links reach) to the measured steps of training
    runs.

    Efficiencies are handled by their natural logarithms (`logs`), an array in the order of `keys`. A residual is the natural
    logarithm of a run's predicted step over its measured step; arrays of residuals are in the order of `rows`, the measured
    runs, and an index of a run is its index in `rows`. A prior is the distribution that is assumed for an efficiency before
    measurements. A source is the publication that a run is from. `uses` has, for every run, the indices in `keys` of the
    efficiencies that its predicted step depends on.
    """

    def __init__(self, rows: Sequence[LaidRun], table: EfficiencyTable) -> None:
        """rows: measured runs with their steps; table: its assumed efficiencies are the priors, its fitted ones are not
        used."""
        assumed = [fit for fit in table.kernels if fit.origin == "assumed"]
        links = [link for link in table.links if link.origin == "assumed"]
        self.rows, self.table = rows, EfficiencyTable(kernels=assumed, links=links)
        self.keys = list(dict.fromkeys(key for row in rows for key in keys_of(row)))
        self.priors = np.log([self._prior(key) for key in self.keys])
        self.spreads = np.array([LINK_SPREAD if key.kernel is None else SPREADS[key.kernel] for key in self.keys])
        correlations = np.array([[1.0 if a == b else ALIKE * related(a, b) for b in self.keys] for a in self.keys])
        self.prior_precision = np.linalg.inv(correlations * np.outer(self.spreads, self.spreads))
        self.most = np.log([MOST_OF_LINK if key.level else 1.0 for key in self.keys])
        self.uses = [[self.keys.index(key) for key in keys_of(row)] for row in rows]

    def _prior(self, key: Key) -> float:
        """The mean of the prior of one efficiency: the share of the peak rate, from 0 to 1, that is assumed before
        measurements.
        """
        if key.level is not None:
            return LINK_PRIORS.get(key.level, 0.78 if "nvlink" in key.level else self.table.link(key.level).value)
        if key.kernel == "memory":
            return MEMORY_PRIOR
        reached = device_kind(key.device, self.table).reached(key.kernel or "memory", key.precision or "bfloat16")
        return reached.value if reached is not None else 0.7

    def with_values(self, logs: np.ndarray, **about: Any) -> EfficiencyTable:
        """Build the table of efficiencies that has all assumed entries and an entry for each fitted efficiency. logs:
        (efficiencies,), natural logarithms of the fitted efficiencies. about: fields that replace the defaults of a fitted
        entry, such as its error, as a dict by the text of its key.
        """
        kernels, links = list(self.table.kernels), list(self.table.links)
        for key, log in zip(self.keys, logs, strict=True):
            value = round(float(min(1.0, np.exp(log))), 4)
            fitted: dict[str, Any] = {
                "value": value,
                "origin": "fitted",
                "date": "2000-01-01",
                "rows": ["-"],
                "residuals": [0.0],
                "error": 0.2,
            }
            fitted |= about.get(str(key), {})
            if key.level is not None:
                links.append(LinkFit(level=key.level, **fitted))
                continue
            assert key.kernel is not None
            like = device_kind(key.device, self.table).reached(key.kernel, key.precision or "bfloat16")
            names: Any = {"device": key.device, "kernel": key.kernel, "precision": key.precision}
            if like is not None:
                names |= {"half_size": like.half_size, "half_width": like.half_width}
            kernels.append(KernelFit(**names, **fitted))
        return EfficiencyTable(kernels=kernels, links=links)

    def residuals(self, logs: np.ndarray, indices: Iterable[int]) -> np.ndarray:
        """The residuals of selected runs: natural logarithms of predicted over measured steps, one for each of `indices`, in
        their order. logs: (efficiencies,), natural logarithms of the efficiencies that the predictions are made with.
        """
        table = self.with_values(logs)
        return np.array([self.residual(table, index) for index in indices])

    def residual(self, table: EfficiencyTable, index: int) -> float:
        """The residual of the run with an index, if its step is predicted with the efficiencies of a table."""
        return float(np.log(step_of(self.rows[index], table).step_ns / 1e9 / self.steps[index]))

    @cached_property
    def steps(self) -> list[float]:
        """The measured step of each run in seconds, in the order of the runs; 0 for a run without a measured step."""
        return [row.run.step_s or 0.0 for row in self.rows]

    def jacobian(self, logs: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """The derivatives of the residuals of all runs by the logarithms of the efficiencies, as difference quotients: (runs,
        efficiencies).

        logs: logarithms of the efficiencies at which derivatives are taken. residuals: (runs,), the residuals with these
        efficiencies.
        """
        matrix = np.zeros((len(self.rows), len(self.keys)))
        tables = []
        for index in range(len(self.keys)):
            moved = logs.copy()
            moved[index] -= STEP
            tables.append(self.with_values(moved))
        for row, used in enumerate(self.uses):  # run by run, whose schedule is then built once
            for index in used:
                matrix[row, index] = (residuals[row] - self.residual(tables[index], row)) / STEP
        return matrix

    def solve(self, residuals: np.ndarray, matrix: np.ndarray, logs: np.ndarray, indices: Sequence[int]) -> np.ndarray:
        """Make one Gauss-Newton step: return the logarithms of the efficiencies, (efficiencies,), that fit some runs best if
        residuals are taken as linear in them.

        Args:
            residuals: (runs,), the residuals of all runs at `logs`.
            matrix: (runs, efficiencies), the derivatives of the residuals at `logs`.
            logs: (efficiencies,), the logarithms of the efficiencies at which `residuals` and `matrix` were computed.
            indices: the indices of the runs to fit.
        """
        sources = [self.rows[index].run.source for index in indices]
        same = np.array([[SOURCE_SPREAD**2 * (a == b) for a in sources] for b in sources])
        part, slopes = residuals[list(indices)], matrix[list(indices)]
        best = logs
        for _ in range(8):
            errors = part + slopes @ (best - logs)
            weights = np.maximum(1.0, np.abs(errors) / (2 * np.hypot(ROW_SPREAD, SOURCE_SPREAD)))
            precision = np.linalg.inv(same + np.diag(ROW_SPREAD**2 * weights**2))
            normal = slopes.T @ precision @ slopes + self.prior_precision
            right = slopes.T @ precision @ (slopes @ logs - part) + self.prior_precision @ self.priors
            best = np.minimum(np.linalg.solve(normal, right), self.most)
        return np.asarray(best)

    def run(self) -> Fitted:
        """Fit all efficiencies to all runs. Returns three arrays: the natural logarithms of the efficiencies, (efficiencies,);
        the residual of every run, the logarithm of its predicted over its measured step, (runs,); and the derivatives of the
        residuals by the logarithms of the efficiencies, (runs, efficiencies), which `kept_table` takes.
        """
        everything = range(len(self.rows))
        logs, residuals = self.priors, self.residuals(self.priors, everything)
        matrix = self.jacobian(logs, residuals)
        for iteration in range(ITERATIONS):
            better = self.solve(residuals, matrix, logs, everything)
            moved, logs = float(np.abs(better - logs).max()), better
            residuals = self.residuals(logs, everything)
            if moved < MOVED:
                break
            if iteration + 1 < SLOPES:
                matrix = self.jacobian(logs, residuals)
        return logs, residuals, matrix

    def kept_table(self, fitted: Fitted, kept: Sequence[int]) -> EfficiencyTable:
        """Build the table of a fit to some of the runs, in which residuals are taken as linear. An efficiency on which none of
        these runs depends is left out of it, so that the table's assumed value or that of the most similar device counts.

        fitted: the fit to all runs, as `run` returns it. kept: the indices of the runs to fit; none gives the assumed table.
        """
        logs, residuals, matrix = fitted
        if not kept:
            return self.table
        table = self.with_values(self.solve(residuals, matrix, logs, kept))
        used = {index for row in kept for index in self.uses[row]}
        unfitted = [key for index, key in enumerate(self.keys) if index not in used]
        unfitted_kernels = {(key.device, key.precision, key.kernel) for key in unfitted if key.kernel}
        kernels = [
            fit
            for fit in table.kernels
            if fit.origin == "assumed" or (fit.device, fit.precision, fit.kernel) not in unfitted_kernels
        ]
        levels = {key.level for key in unfitted}
        links = [link for link in table.links if link.origin == "assumed" or link.level not in levels]
        return EfficiencyTable(kernels=kernels, links=links)


def related(a: Key, b: Key) -> bool:
    """Whether the priors of two efficiencies (shares of peak rates) are correlated: True if both are of the same class of
    kernels on the same device, in any two precisions.
    """
    return a.level is None and b.level is None and (a.device, a.kernel) == (b.device, b.kernel)


def keys_of(row: LaidRun) -> list[Key]:
    """List the keys of the efficiencies (shares of peak rates) that the predicted step of a run depends on: of matrix products,
    memory-bound kernels and fused attention on its device, and of the links that it uses. row: a measured run, with assumed
    values for everything that it does not specify.
    """
    layout, keys = row.layout, [Key(row.name, None, "memory")]
    keys.append(Key(row.name, layout.rate, "matrix-product"))
    if layout.base != layout.rate:  # of embedding and head
        keys.append(Key(row.name, layout.base, "matrix-product"))
    if layout.framework.fused_attention:
        keys.append(Key(row.name, layout.base, "attention"))
    if row.run.gpus > 1 and row.sheet.joined is not None:
        keys.append(Key(level=row.sheet.joined.level))
    if row.run.gpus > (row.sheet.joined.domain if row.sheet.joined else 8):
        keys.append(Key(level="network"))
    return keys
