"""Efficiencies fitted to measured runs: `python -m trainplan.validation.calibrate [RUNS.json] [-o efficiencies.yaml]`.

Without a file of runs it takes those that come with the package, `trainplan/data/measured/steps.json`, to which the shipped
efficiencies are fitted; without `-o` it prints, and writes nothing.

At most one number for each kind of device, precision and class of kernels, and one for each level of links. It is a
least-squares fit of the logarithms of predicted over measured steps (Gauss-Newton), with a prior on each number, for runs are
few: its mean is what the table assumes, its spread below. What is assumed of one class of kernels errs alike in all precisions
of a device. Runs of one source err together (its clock, its counts, its software), so that a source with many rows does not
count as many; rows beyond twice the spread count less (Huber, 1964). Beside the fit, each source is left out in turn: what the
others predict of it is what to expect of other runs, and gives the intervals their width, by device and precision where there
are rows enough.
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

ROW_SPREAD, SOURCE_SPREAD = 0.06, 0.06  # of logarithms: of one run, and of all of a source
SPREADS: dict[Kernel, float] = {"matrix-product": 0.12, "attention": 0.25, "memory": 0.12}
LINK_SPREAD, MOST_OF_LINK = 0.2, 0.95
ALIKE = 0.7  # correlation of what is assumed of one class of kernels on one device
MEMORY_PRIOR = 0.85  # of the bandwidth of memory
LINK_PRIORS: dict[str, float] = {"network": 0.85}  # of levels that the table has at their peaks
ITERATIONS, STEP = 5, 0.02
INSIDE = 0.8
FEW_ROWS = 10  # as many rows of a device and precision count as much for its interval as all rows


@dataclass(frozen=True)
class Key:
    """One number of the fit: of a class of kernels on a device in a precision, or of a level of links."""

    device: str = ""
    precision: Precision | None = None
    kernel: Kernel | None = None
    level: Level | None = None

    def __str__(self) -> str:
        return self.level or " ".join(filter(None, (self.device, self.precision, self.kernel)))


class Fit:
    """A fit of the numbers that the rows depend on."""

    def __init__(self, rows: Sequence[LaidRun], table: EfficiencyTable) -> None:
        assumed = [fit for fit in table.kernels if fit.origin == "assumed"]
        links = [link for link in table.links if link.origin == "assumed"]
        self.rows, self.table = rows, EfficiencyTable(kernels=assumed, links=links)
        self.keys = list(dict.fromkeys(key for row in rows for key in keys_of(row)))
        self.priors = np.log([self._prior(key) for key in self.keys])
        self.spreads = np.array([LINK_SPREAD if key.kernel is None else SPREADS[key.kernel] for key in self.keys])
        alike = np.array([[1.0 if a == b else ALIKE * related(a, b) for b in self.keys] for a in self.keys])
        self.prior_precision = np.linalg.inv(alike * np.outer(self.spreads, self.spreads))
        self.most = np.log([MOST_OF_LINK if key.level else 1.0 for key in self.keys])
        self.uses = [[self.keys.index(key) for key in keys_of(row)] for row in rows]

    def _prior(self, key: Key) -> float:
        if key.level is not None:
            return LINK_PRIORS.get(key.level, 0.78 if "nvlink" in key.level else self.table.link(key.level).value)
        if key.kernel == "memory":
            return MEMORY_PRIOR
        reached = device_kind(key.device, self.table).reached(key.kernel or "memory", key.precision or "bfloat16")
        return reached.value if reached is not None else 0.7

    def with_values(self, logs: np.ndarray, **about: Any) -> EfficiencyTable:
        """The table with these logarithms of the numbers."""
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

    def residuals(self, logs: np.ndarray, places: Iterable[int]) -> np.ndarray:
        """Logarithms of predicted over measured steps of some rows."""
        table = self.with_values(logs)
        return np.array([np.log(step_of(self.rows[index], table).step_ns / 1e9 / self.steps[index]) for index in places])

    @cached_property
    def steps(self) -> list[float]:
        """Measured ones, in seconds."""
        return [row.run.step_s or 0.0 for row in self.rows]

    def jacobian(self, logs: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Derivatives of the residuals."""
        matrix = np.zeros((len(self.rows), len(self.keys)))
        for index in range(len(self.keys)):
            rows = [row for row, used in enumerate(self.uses) if index in used]
            moved = logs.copy()
            moved[index] -= STEP
            matrix[rows, index] = (at[rows] - self.residuals(moved, rows)) / STEP
        return matrix

    def solve(self, at: np.ndarray, matrix: np.ndarray, logs: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """The best logarithms by some rows, where residuals are as linear as they are here."""
        sources = [self.rows[index].run.source for index in places]
        same = np.array([[SOURCE_SPREAD**2 * (a == b) for a in sources] for b in sources])
        part, slopes = at[list(places)], matrix[list(places)]
        best = logs
        for _ in range(8):
            left = part + slopes @ (best - logs)
            weights = np.maximum(1.0, np.abs(left) / (2 * np.hypot(ROW_SPREAD, SOURCE_SPREAD)))
            precision = np.linalg.inv(same + np.diag(ROW_SPREAD**2 * weights**2))
            normal = slopes.T @ precision @ slopes + self.prior_precision
            right = slopes.T @ precision @ (slopes @ logs - part) + self.prior_precision @ self.priors
            best = np.minimum(np.linalg.solve(normal, right), self.most)
        return np.asarray(best)

    def run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logarithms of the numbers, residuals with them, and residuals of each row where its source is left out."""
        everything = range(len(self.rows))
        logs = self.priors
        for _ in range(ITERATIONS):
            at = self.residuals(logs, everything)
            matrix = self.jacobian(logs, at)
            better = self.solve(at, matrix, logs, everything)
            moved, logs = float(np.abs(better - logs).max()), better
            if moved < 1e-3:
                break
        at = self.residuals(logs, everything)
        apart = np.zeros(len(self.rows))
        for source in dict.fromkeys(row.run.source for row in self.rows):
            others = [place for place in everything if self.rows[place].run.source != source]
            mine = [place for place in everything if self.rows[place].run.source == source]
            apart[mine] = self._without(self.solve(at, matrix, logs, others), others, mine)
        return logs, at, apart

    def _without(self, logs: np.ndarray, others: Sequence[int], mine: Sequence[int]) -> np.ndarray:
        """Residuals of rows by a table of the others: numbers that no other row has are those of the nearest kinds."""
        used = {place for row in others for place in self.uses[row]}
        table = self.with_values(logs)
        left_out = [key for place, key in enumerate(self.keys) if place not in used]
        gone = {(key.device, key.precision, key.kernel) for key in left_out if key.kernel}
        kernels = [
            each for each in table.kernels if each.origin == "assumed" or (each.device, each.precision, each.kernel) not in gone
        ]
        levels = {key.level for key in left_out}
        links = [link for link in table.links if link.origin == "assumed" or link.level not in levels]
        table = EfficiencyTable(kernels=kernels, links=links)
        return np.array([np.log(step_of(self.rows[row], table).step_ns / 1e9 / self.steps[row]) for row in mine])


def related(a: Key, b: Key) -> bool:
    """Whether what is assumed of two numbers errs alike: of one class of kernels, in any precision of a device."""
    return a.level is None and b.level is None and (a.device, a.kernel) == (b.device, b.kernel)


def keys_of(row: LaidRun) -> list[Key]:
    """The numbers that a row's prediction depends on."""
    layout, keys = row.layout, [Key(row.name, None, "memory")]
    keys.append(Key(row.name, layout.rate, "matrix-product"))
    if layout.framework.fused_attention:
        keys.append(Key(row.name, layout.base, "attention"))
    if row.run.gpus > 1 and row.sheet.joined is not None:
        keys.append(Key(level=row.sheet.joined.level))
    if row.run.gpus > (row.sheet.joined.domain if row.sheet.joined else 8):
        keys.append(Key(level="network"))
    return keys


def fitted_table(fit: Fit, logs: np.ndarray, at: np.ndarray, apart: np.ndarray) -> EfficiencyTable:
    """The table with the fitted numbers, their rows and residuals, and the width of intervals."""
    about: dict[str, dict[str, Any]] = {}
    for index, key in enumerate(fit.keys):
        rows = [row for row, used in enumerate(fit.uses) if index in used]
        about[str(key)] = {
            "error": width(apart, rows),
            "date": date.today().isoformat(),
            "rows": [fit.rows[row].run.id for row in rows],
            "residuals": [round(float(np.expm1(at[row])), 4) for row in rows],
            "left_out": [round(float(np.expm1(apart[row])), 4) for row in rows],
            "source": f"prior {np.exp(fit.priors[index]):.3g}",
        }
    return fit.with_values(logs, **about)


def width(apart: np.ndarray, rows: Sequence[int]) -> float:
    """By how much, relative to it, a prediction of some rows may be off, so that most steps are within: by the residuals of
    these rows with their source left out and, where they are few, more by those of all; and by no less than by those of all,
    since other runs are of other software, too."""
    own, every = (float(np.log(np.quantile(np.abs(each), INSIDE))) for each in (apart[list(rows)], apart))
    share = len(rows) / (len(rows) + FEW_ROWS)
    return round(float(np.expm1(np.exp(max(every, share * own + (1 - share) * every)))), 3)


HEADER = """# What kernels and links reach of their peaks. `fitted` rows are fitted to measured runs by `make calibrate`, with
# the ids of the runs and what is left of each; `assumed` ones stand where nothing is fitted.
format: trainplan-efficiencies
"""


def table_text(table: EfficiencyTable) -> str:
    """The table as its file has it."""
    lines = [HEADER + "kernels:"]
    lines += [f"  - {_flow(fit)}" for fit in table.kernels]
    lines.append("links:")
    lines += [f"  - {_flow(fit)}" for fit in table.links]
    return "\n".join(lines) + "\n"


def _flow(fit: KernelFit | LinkFit) -> str:
    fields = {name: value for name, value in fit.model_dump().items() if value not in (None, [], "")}
    return json.dumps(fields)


def print_errors(rows: Sequence[LaidRun], at: np.ndarray, apart: np.ndarray) -> None:
    """Errors of the fit, and with each source left out."""
    print(f"{'':24} {'runs':>4}  {'fit: mean':>9} {'abs.':>6} {'median':>6} {'90 %':>6}   left out: mean   abs. median   90 %")
    groups: Mapping[str, list[int]] = {"all": list(range(len(rows)))}
    for index, row in enumerate(rows):
        groups.setdefault(row.run.source, []).append(index)  # type: ignore[attr-defined]
        groups.setdefault(f"{row.name} {row.layout.rate}", []).append(index)  # type: ignore[attr-defined]
    for name, indices in groups.items():
        fitted, others = (summarised(list(np.exp(each[indices]) - 1)) for each in (at, apart))
        numbers = [
            f"{100 * value:6.1f}" for each in (fitted, others) for value in (each.mean, each.absolute, each.median, each.ninth)
        ]
        print(f"{name:24} {len(indices):4}     {' '.join(numbers[:4])}           {' '.join(numbers[4:])}")


def main(words: Sequence[str]) -> int:
    """Fit, print, and write the table where a file is named. words: the command's arguments; its exit code is given back."""
    parser = argparse.ArgumentParser(prog="python -m trainplan.validation.calibrate", description="Fit efficiencies to runs.")
    parser.add_argument("runs", nargs="?", default=SHIPPED_RUNS, help="a JSON list of measured runs (default: shipped ones)")
    parser.add_argument("-o", "--output", type=Path, help="write the fitted table to this file (default: write nothing)")
    asked = parser.parse_args(words)
    rows = []
    for run in load_runs(asked.runs):
        try:
            laid = laid_run(run)
        except InputError as error:
            print(f"{run.id}: left out: {error.field} {error.problem}")
            continue
        if run.step_s:
            rows.append(laid)
    fit = Fit(rows, shipped_efficiencies())
    logs, at, apart = fit.run()
    table = fitted_table(fit, logs, at, apart)
    for key, log, prior in zip(fit.keys, logs, fit.priors, strict=True):
        print(f"{key!s:36} {np.exp(log):.3f}  (assumed {np.exp(prior):.3f})")
    print_errors(rows, at, apart)
    every = width(apart, range(len(rows)))
    print(f"an interval of a factor {1 + every:.3f} holds {INSIDE:.0%} of the steps with their source left out; by kind:")
    for fitted in table.kernels:
        if fitted.origin == "fitted" and fitted.kernel == "matrix-product":
            print(f"  {fitted.device} {fitted.precision}: {1 + fitted.error:.3f}, of {len(fitted.rows)} rows")
    if asked.output is not None:
        write_whole(asked.output, table_text(table))
        print(f"written {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
