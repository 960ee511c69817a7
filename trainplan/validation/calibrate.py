"""Efficiencies fitted to measured runs: `python -m trainplan.validation.calibrate [RUNS.json] [-o efficiencies.yaml]`.

Without a file of runs it fits to those that come with the package, `trainplan/data/measured/steps.json`, as the shipped
efficiencies were; without `-o` it prints, and writes nothing.

There is at most one number for each kind of device, precision and class of kernels, and one for each level of links. They are a
least-squares fit of the logarithms of predicted over measured steps (Gauss-Newton), with a prior on each number, for runs are
few: the prior's mean is the value that the table assumes, its spread is given below. The priors of one class of kernels on a
device are correlated over precisions. Errors of runs of one source are correlated (its clock, its counts, its software), so
that a source with many runs does not count as many independent ones; runs with errors above twice the spread count less (Huber,
1964). In addition, each source is left out in turn: the errors with which the others predict it are those to expect for other
runs, and give the intervals their width, by device and precision where there are enough runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole
from trainplan.profiling.clusters.efficiencies import (
    EfficiencyTable,
    Kernel,
    KernelFit,
    Level,
    LinkFit,
    Precision,
    shipped_efficiencies,
)
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.predict import step_of
from trainplan.validation.report import summarised
from trainplan.validation.rows import SHIPPED_RUNS, load_runs

ROW_SPREAD, SOURCE_SPREAD = 0.06, 0.06  # standard deviations of the logarithms of one run, and common to a source
SPREADS: dict[Kernel, float] = {"matrix-product": 0.12, "attention": 0.25, "memory": 0.12}
LINK_SPREAD, MOST_OF_LINK = 0.2, 0.95
ALIKE = 0.7  # correlation of the priors of one class of kernels on one device
MEMORY_PRIOR = 0.85  # share of the bandwidth of memory
LINK_PRIORS: dict[str, float] = {"network": 0.85}  # priors of levels for which the table assumes the peak
ITERATIONS, STEP = 5, 0.02
INSIDE = 0.8
FEW_ROWS = 10  # with this number of rows of its own, a number's interval is half by these and half by all rows


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
        return np.array([np.log(step_of(self.rows[index], table).step_ns / 1e9 / self.steps[index]) for index in indices])

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
        for index in range(len(self.keys)):
            rows = [row for row, used in enumerate(self.uses) if index in used]
            moved = logs.copy()
            moved[index] -= STEP
            matrix[rows, index] = (residuals[rows] - self.residuals(moved, rows)) / STEP
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

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fit all efficiencies to all runs. Returns three arrays: the natural logarithms of the efficiencies, (efficiencies,);
        the residual of every run, the logarithm of its predicted over its measured step, (runs,); and the residual of every
        run when the efficiencies are fitted to the runs of other sources only, (runs,).
        """
        everything = range(len(self.rows))
        logs = self.priors
        for _ in range(ITERATIONS):
            residuals = self.residuals(logs, everything)
            matrix = self.jacobian(logs, residuals)
            better = self.solve(residuals, matrix, logs, everything)
            moved, logs = float(np.abs(better - logs).max()), better
            if moved < 1e-3:
                break
        residuals = self.residuals(logs, everything)
        held_out = np.zeros(len(self.rows))
        for source in dict.fromkeys(row.run.source for row in self.rows):
            kept = [index for index in everything if self.rows[index].run.source != source]
            tested = [index for index in everything if self.rows[index].run.source == source]
            held_out[tested] = self._without(self.solve(residuals, matrix, logs, kept), kept, tested)
        return logs, residuals, held_out

    def _without(self, logs: np.ndarray, kept: Sequence[int], tested: Sequence[int]) -> np.ndarray:
        """The residuals of the runs with the indices `tested`, predicted by efficiencies that were fitted to the runs with the
        indices `kept`. For an efficiency on which no kept run depends, the table's assumed value or the value of the most
        similar device is used.

        logs: (efficiencies,), natural logarithms of the fitted efficiencies.
        """
        used = {index for row in kept for index in self.uses[row]}
        table = self.with_values(logs)
        unfitted = [key for index, key in enumerate(self.keys) if index not in used]
        unfitted_kernels = {(key.device, key.precision, key.kernel) for key in unfitted if key.kernel}
        kernels = [
            fit
            for fit in table.kernels
            if fit.origin == "assumed" or (fit.device, fit.precision, fit.kernel) not in unfitted_kernels
        ]
        levels = {key.level for key in unfitted}
        links = [link for link in table.links if link.origin == "assumed" or link.level not in levels]
        table = EfficiencyTable(kernels=kernels, links=links)
        return np.array([np.log(step_of(self.rows[row], table).step_ns / 1e9 / self.steps[row]) for row in tested])


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
    if layout.framework.fused_attention:
        keys.append(Key(row.name, layout.base, "attention"))
    if row.run.gpus > 1 and row.sheet.joined is not None:
        keys.append(Key(level=row.sheet.joined.level))
    if row.run.gpus > (row.sheet.joined.domain if row.sheet.joined else 8):
        keys.append(Key(level="network"))
    return keys


def fitted_table(fit: Fit, logs: np.ndarray, residuals: np.ndarray, held_out: np.ndarray) -> EfficiencyTable:
    """Build the table of fitted efficiencies. Each entry has the ids of the runs that it was fitted to, their residuals, and
    the relative half-width of the interval around predictions that depend on it.

    Args:
        fit: the fit, with its runs and keys.
        logs: (efficiencies,), natural logarithms of the fitted efficiencies.
        residuals: (runs,), natural logarithms of predicted over measured steps with these efficiencies.
        held_out: (runs,), natural logarithms of predicted over measured steps where each run is predicted by a fit without the
            runs of its own source (publication).
    """
    about: dict[str, dict[str, Any]] = {}
    for index, key in enumerate(fit.keys):
        rows = [row for row, used in enumerate(fit.uses) if index in used]
        about[str(key)] = {
            "error": width(held_out, rows),
            "date": date.today().isoformat(),
            "rows": [fit.rows[row].run.id for row in rows],
            "residuals": [round(float(np.expm1(residuals[row])), 4) for row in rows],
            "left_out": [round(float(np.expm1(held_out[row])), 4) for row in rows],
            "source": f"prior {np.exp(fit.priors[index]):.3g}",
        }
    return fit.with_values(logs, **about)


def width(held_out: np.ndarray, rows: Sequence[int]) -> float:
    """The relative half-width of an interval around the predicted steps of some runs that is meant to hold a share INSIDE of
    the measured steps.

    held_out: (runs,), natural logarithms of predicted over measured steps of all runs, each predicted by a fit without the
    runs of its own source (publication). rows: indices of the runs that the interval is for. The width follows from the
    values of these runs and, the fewer they are, the more from the values of all runs; it is at least the width for all runs.
    """
    own, every = (float(np.log(np.quantile(np.abs(errors), INSIDE))) for errors in (held_out[list(rows)], held_out))
    share = len(rows) / (len(rows) + FEW_ROWS)
    return round(float(np.expm1(np.exp(max(every, share * own + (1 - share) * every)))), 3)


HEADER = """# What kernels and links reach of their peaks. `fitted` rows are fitted to measured runs by `make calibrate`, with
# the ids of the runs and what is left of each; `assumed` ones stand where nothing is fitted.
format: trainplan-efficiencies
"""


def table_text(table: EfficiencyTable) -> str:
    """Format a table of efficiencies as the text of a YAML file."""
    lines = [HEADER + "kernels:"]
    lines += [f"  - {_flow(fit)}" for fit in table.kernels]
    lines.append("links:")
    lines += [f"  - {_flow(fit)}" for fit in table.links]
    return "\n".join(lines) + "\n"


def _flow(fit: KernelFit | LinkFit) -> str:
    """Format an entry of the table of efficiencies as one line of YAML, without empty fields."""
    fields = {name: value for name, value in fit.model_dump().items() if value not in (None, [], "")}
    return json.dumps(fields)


def print_errors(rows: Sequence[LaidRun], residuals: np.ndarray, held_out: np.ndarray) -> None:
    """Print a table of prediction errors over all runs, over the runs of each source (publication), and over the runs on each
    device.

    rows: the measured runs. residuals: (runs,), natural logarithms of predicted over measured steps. held_out: (runs,), such
    logarithms where each run is predicted by a fit without the runs of its own source.
    """
    print(f"{'':24} {'runs':>4}  {'fit: mean':>9} {'abs.':>6} {'median':>6} {'90 %':>6}   left out: mean   abs. median   90 %")
    groups: Mapping[str, list[int]] = {"all": list(range(len(rows)))}
    for index, row in enumerate(rows):
        groups.setdefault(row.run.source, []).append(index)  # type: ignore[attr-defined]
        groups.setdefault(f"{row.name} {row.layout.rate}", []).append(index)  # type: ignore[attr-defined]
    for name, indices in groups.items():
        fitted, left_out = (summarised(list(np.exp(values[indices]) - 1)) for values in (residuals, held_out))
        numbers = [
            f"{100 * value:6.1f}"
            for errors in (fitted, left_out)
            for value in (errors.mean, errors.absolute, errors.median, errors.ninth)
        ]
        print(f"{name:24} {len(indices):4}     {' '.join(numbers[:4])}           {' '.join(numbers[4:])}")


def main(words: Sequence[str]) -> int:
    """Run the command that calibrates predictions: fit efficiencies (shares of peak rates) to measured runs, print them with
    their errors, and write them to a file if one is named. words: the command's arguments. Returns its exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m trainplan.validation.calibrate", description="Fit efficiencies to runs.")
    parser.add_argument("runs", nargs="?", default=SHIPPED_RUNS, help="a JSON list of measured runs (default: shipped ones)")
    parser.add_argument("-o", "--output", type=Path, help="write the fitted table to this file (default: write nothing)")
    arguments = parser.parse_args(words)
    rows = []
    for run in load_runs(arguments.runs):
        try:
            laid = laid_run(run)
        except InputError as error:
            print(f"{run.id}: left out: {error.field} {error.problem}")
            continue
        if run.step_s:
            rows.append(laid)
    fit = Fit(rows, shipped_efficiencies())
    logs, residuals, held_out = fit.run()
    table = fitted_table(fit, logs, residuals, held_out)
    for key, log, prior in zip(fit.keys, logs, fit.priors, strict=True):
        print(f"{key!s:36} {np.exp(log):.3f}  (assumed {np.exp(prior):.3f})")
    print_errors(rows, residuals, held_out)
    every = width(held_out, range(len(rows)))
    print(f"an interval of a factor {1 + every:.3f} holds {INSIDE:.0%} of the steps with their source left out; by kind:")
    for fitted in table.kernels:
        if fitted.origin == "fitted" and fitted.kernel == "matrix-product":
            print(f"  {fitted.device} {fitted.precision}: {1 + fitted.error:.3f}, of {len(fitted.rows)} rows")
    if arguments.output is not None:
        write_whole(arguments.output, table_text(table))
        print(f"written {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
