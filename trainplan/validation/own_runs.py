"""Efficiencies corrected by a user's own runs, for one cluster.

Two or three short runs say little, so that few numbers follow from them: one factor on the efficiencies of matrix products and
fused attention on the cluster's devices, and one on each level of links whose share of the step differs among the runs. The
prior of each is 1; its spread is that of the shipped efficiencies' errors. The error of a run has a part that all layouts on
the cluster have in common, which the factors take, and a part of its own, whose spread is that of measured against predicted
ratios of layouts.

The interval around steps on the cluster follows from what is left on the own runs and from their number. The variance of what
is left has a scaled inverse chi-squared prior, which counts as PRIOR_RUNS runs; its scale is the mean, over the sources of the
shipped fit, of the standard deviation of their left-out errors. A further step then is distributed as Student's t. Held to the
shipped runs (corrected by one, two, three or five runs of a source and device that their fit had left out, the prior of all
other sources, everything else of the source predicted), such intervals hold 83, 82, 81 and 81 % of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import log, log1p, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, get_args

import numpy as np

from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import FilePath, parse
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, Kernel, KernelFit, Level, LinkFit, Precision
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.own_runs import OwnRun
from trainplan.profiling.clusters.sheets import sheet
from trainplan.profiling.clusters.step_errors import FittedRun, as_relative
from trainplan.tabular import Tabular
from trainplan.validation.layouts import LaidRun
from trainplan.validation.novelty import ASSUMED
from trainplan.validation.predict import step_of

PRODUCTS = "products"
CORRECTED: tuple[Kernel, ...] = ("matrix-product", "attention")  # classes of kernels that the factor of products is on
EIGHTY = 1.2816  # half-width, in standard deviations, of an interval that holds 80 % of a normal distribution
LINK_SPREAD = 0.2  # standard deviation of the logarithm of a level's factor
LEAST_SPREAD = 0.01  # standard deviation of the logarithm of a step that is measured again
DIFFERS = 0.03  # difference of a level's shares of the steps from which the runs say something of it
SLOWER = 0.98  # factor with which shares of steps are found
ROUNDS = 30  # of the search for the factors
MOST = 3.0  # that a factor may be, or its inverse
PRIOR_RUNS = 3  # own runs that the prior of what is left counts as; with 2 to 4, intervals hold 79 to 85 % of shipped runs
FAR = log(2)  # natural logarithm of predicted over measured step from which a run is not what its row says, if others are near
MUCH = 0.15  # relative error that is left of a run from which the correction says so: three times LEFT_SPREAD
WIDEST = 5.0  # relative half-width of an interval, at most
LEFT_SPREAD = 0.05  # standard deviation of the logarithm of what is left, before measurements, where no run was left out


@dataclass(frozen=True)
class Calibration(Tabular):
    """Efficiencies that are corrected by own runs, with the errors of predictions before and after; its rows are the runs.

    Attributes:
        table: the corrected efficiencies, with the runs, as `plan --calibrated` takes them.
        factors: what efficiencies were multiplied by: `products`, and levels of links.
        before: predicted over measured step, minus 1, of each run by uncorrected efficiencies.
        after: the same with the corrected ones.
        error: relative half-width of the interval around steps on this cluster that is meant to hold 80 % of measured ones.
        remarks: texts about runs that replace others, that are left out, or that are doubtful.
    """

    table: EfficiencyTable
    factors: Mapping[str, float]
    before: tuple[float, ...]
    after: tuple[float, ...]
    error: float
    remarks: tuple[str, ...] = ()

    headings: ClassVar = {"run": "run", "measured_ns": "measured", "before": "error before", "after": "error after"}

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each run: run (its id), device, devices, measured_ns, and the errors before and after the correction."""
        return [
            {
                "run": run.id,
                "device": run.device,
                "devices": run.devices,
                "measured_ns": round(run.measured_s * 1e9),
                "before": before,
                "after": after,
            }
            for run, before, after in zip(self.table.own_runs, self.before, self.after, strict=True)
        ]

    def notes(self) -> list[str]:
        """Lines for people: the mean errors, what was corrected by how much, how far steps on the cluster may be off, and
        which run's error is left where that is much; then the remarks."""
        before, after = (f"{float(np.mean(np.abs(errors))):.1%}" for errors in (self.before, self.after))
        count = plural(len(self.before), "run")
        factors = ", ".join(f"{name} x {factor:.3f}" for name, factor in self.factors.items())
        lines = [
            f"error of {count}: {before} before, {after} after (absolute mean)",
            f"efficiencies corrected: {factors}",
            f"four of five steps of such runs here are likely within {self.error:.0%}, by what is left of {count}",
        ]
        worst, run = max(zip(map(abs, self.after), self.table.own_runs, strict=True), key=lambda pair: pair[0])
        if worst > MUCH:
            apart = min(self.before) < -worst / 2 and max(self.before) > worst / 2
            why = "the runs contradict each other, or " if apart else "no factor this large is likely, or "
            lines.append(f"{run.id} still is {worst:.0%} off: {why}a field of its row is not as it ran")
        return [*lines, *self.remarks]

    def to_dict(self) -> dict[str, Any]:
        """The correction as JSON-ready values: runs (see `rows`), factors by name, error, and remarks, a list of texts."""
        return {"runs": self.rows(), "factors": dict(self.factors), "error": self.error, "remarks": list(self.remarks)}


def own_run(laid: LaidRun, measured_s: float, table: EfficiencyTable) -> OwnRun:
    """Describe a measured run by the shares of its predicted step. laid: the run, with assumed values for everything that it
    does not specify. measured_s: its measured step in seconds. table: uncorrected efficiencies.
    """
    step_ns = step_of(laid, table).step_ns
    names = [PRODUCTS]
    if laid.run.gpus > 1 and laid.sheet.joined is not None:
        names.append(laid.sheet.joined.level)
    if laid.run.gpus > (laid.sheet.joined.domain if laid.sheet.joined else 8):
        names.append("network")
    shares = {}
    for name in names:
        slower = step_of(laid, scaled(table, laid.name, {name: SLOWER})).step_ns
        shares[name] = round((slower / step_ns - 1) / (1 / SLOWER - 1), 4)
    return OwnRun(
        id=laid.run.id,
        device=laid.name,
        devices=laid.run.gpus,
        measured_s=measured_s,
        predicted_s=step_ns / 1e9,
        shares=shares,
    )


def scaled(
    table: EfficiencyTable, device: str, factors: Mapping[str, float], rows: Sequence[str] = ("-",), error: float | None = None
) -> EfficiencyTable:
    """Multiply efficiencies by factors; none becomes larger than 1.

    table: the efficiencies. device: name of the data sheet of the devices whose products are multiplied. factors: by name,
    `products` or a level of links. rows: ids of the runs that the factors follow from. error: the relative error of the new
    efficiencies; None for the old one.
    """
    kernels, links, kind = list(table.kernels), list(table.links), device_kind(device, table)
    about: dict[str, Any] = {"origin": "fitted", "date": date.today().isoformat(), "rows": list(rows)}
    if PRODUCTS in factors:
        for kernel in CORRECTED:
            for precision in sheet(device).flops_per_s:
                reached = kind.reached(kernel, precision)
                if reached is None:
                    continue
                kernels = [fit for fit in kernels if not _same(fit, device, precision, kernel)]
                value = min(1.0, reached.value * factors[PRODUCTS])
                names: Any = {"kernel": kernel, "precision": precision, "device": device}
                sizes: Any = {"half_size": reached.half_size, "half_width": reached.half_width}
                kernels.append(
                    KernelFit(**names, **sizes, **about, value=value, error=reached.error if error is None else error)
                )
    for level in get_args(Level):
        if level in factors:
            old = table.link(level)
            links = [link for link in links if link.level != level or link.origin == "assumed"]
            value = min(1.0, old.value * factors[level])
            links.append(LinkFit(level=level, value=value, error=old.error if error is None else error, **about))
    return table.changed(kernels=kernels, links=links)


def _same(fit: KernelFit, device: str, precision: Precision, kernel: Kernel) -> bool:
    """Whether an entry of a table is the fitted one of a class of kernels on a device in a precision."""
    return (fit.device, fit.precision, fit.kernel, fit.origin) == (device, precision, kernel, "fitted")


def calibration(table: EfficiencyTable, runs: Sequence[OwnRun], name: str) -> Calibration:
    """Correct efficiencies by own runs. Runs that plainly are not what their rows say are left out, with a remark on each.

    table: uncorrected efficiencies. runs: at least one run, all on one kind of device; of several with one id the last counts.
    name: what the corrected numbers are called, for people. Raises InputError if there is no run, or if runs are on several
    kinds of device.
    """
    runs = list({run.id: run for run in runs}.values())
    if not runs:
        raise InputError(name, "step_s", "is of no run", "give runs with a measured step")
    devices = list(dict.fromkeys(run.device for run in runs))
    if len(devices) > 1:
        raise InputError(
            name, "gpu", f"is {' and '.join(devices)}", f"give one file for each cluster, such as {devices[0]}.yaml"
        )
    names, logs, spreads, after = _corrected(table, runs)
    remarks = []
    for run, left in _unlike(table, runs, after):
        remarks.append(
            f"{run.id} is left out: corrected by the others it is {left:+.0%} off; a field of its row is not as it ran"
        )
        runs = [other for other in runs if other.id != run.id]
    if remarks:
        names, logs, spreads, after = _corrected(table, runs)
    factors = {key: round(float(np.exp(value)), 4) for key, value in zip(names, logs, strict=True)}
    error = _error(np.log1p(after), _slopes(runs, names, logs), spreads, left_spread(table.runs))
    corrected = scaled(table, devices[0], factors, [run.id for run in runs], error)
    before = tuple(run.predicted_s / run.measured_s - 1 for run in runs)
    changed = corrected.changed(corrected_for=name, own_runs=runs)
    return Calibration(changed, factors, before, after, error, tuple(remarks))


def _corrected(table: EfficiencyTable, runs: Sequence[OwnRun]) -> tuple[list[str], np.ndarray, np.ndarray, tuple[float, ...]]:
    """Find the factors that runs on one kind of device correct efficiencies by. Returns the factors' names, the natural
    logarithms of their values, their standard deviations before measurements (all of one length), and the relative error that
    is left of each run. table: uncorrected efficiencies.
    """
    widths = table.step_errors or ASSUMED
    noise = max(LEAST_SPREAD, widths.difference / EIGHTY / sqrt(2))
    names = [PRODUCTS, *(level for level in dict.fromkeys(key for run in runs for key in run.shares) if _differs(level, runs))]
    spreads = np.array([widths.usual / EIGHTY if key == PRODUCTS else LINK_SPREAD for key in names])
    most = np.array([log(_most(name, table, runs[0].device)) for name in names])
    logs = _fitted(runs, names, spreads, noise, most)
    return names, logs, spreads, tuple(_left(run, names, logs) for run in runs)


def _left(run: OwnRun, names: Sequence[str], logs: np.ndarray) -> float:
    """The relative error of a run's step that factors leave. names: the factors; logs: natural logarithms of their values."""
    factors = {key: round(float(np.exp(value)), 4) for key, value in zip(names, logs, strict=True)}
    return run.with_factors_s(factors) / run.measured_s - 1


def _unlike(table: EfficiencyTable, runs: Sequence[OwnRun], after: Sequence[float]) -> list[tuple[OwnRun, float]]:
    """The runs that plainly are not what their rows say, each with the relative error that the factors of the others leave of
    it: runs more than FAR off, both before and after a correction by the others. None if one correction explains all runs, or
    if most runs are as far off, which may be the cluster's own speed.

    table: uncorrected efficiencies. after: the relative error of each run that a correction by all of them leaves.
    """
    far = [run for run in runs if abs(log(run.predicted_s / run.measured_s)) > FAR]
    near = [run for run in runs if run not in far]
    if max(map(abs, after)) <= MUCH or len(near) < max(1, len(far)):
        return []
    names, logs, _, _ = _corrected(table, near)
    errors = [(run, _left(run, names, logs)) for run in far]
    return [(run, error) for run, error in errors if abs(log1p(error)) > FAR]


def left_spread(runs: Sequence[FittedRun]) -> float:
    """The standard deviation of the natural logarithm of what is left of runs' steps on one cluster, once their common error is
    corrected: the mean of those of the errors of each source's runs on one kind of device, as predicted by fits without that
    source. runs: the runs of a fit, with these errors; LEFT_SPREAD if no two of them have a source and a device in common.
    """
    errors: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if "source" in run.left_out:
            errors.setdefault((run.source, run.device), []).append(log1p(run.left_out["source"]))
    spreads = [stdev(logs) for logs in errors.values() if len(logs) > 1]
    return fmean(spreads) if spreads else LEFT_SPREAD


def _error(left: np.ndarray, slopes: np.ndarray, spreads: np.ndarray, usual: float) -> float:
    """The relative half-width of the interval around a further step on the cluster that is meant to hold 80 % of measured ones.

    left: (runs,), natural logarithms of corrected over measured steps. slopes: (runs, factors), derivatives of the logarithms
    of steps by those of the factors. spreads: (factors,), standard deviations of the latter before measurements. usual: the
    standard deviation of `left` before measurements.
    """
    freedom = PRIOR_RUNS + len(left)
    variance = max(LEAST_SPREAD**2, (PRIOR_RUNS * usual**2 + float(np.sum(left**2))) / freedom)
    covariance = np.linalg.inv(slopes.T @ slopes / variance + np.diag(1 / spreads**2))
    common = float(np.mean(np.einsum("ri,ij,rj->r", slopes, covariance, slopes)))
    return round(min(WIDEST, as_relative(_of_students_t(freedom) * sqrt(common + variance))), 4)


def _of_students_t(freedom: int) -> float:
    """The half-width of an interval that holds 80 % of Student's t distribution, by its expansion around the normal one
    (Abramowitz and Stegun, 26.7.5), which is exact to 0.002 from three degrees of freedom. freedom: their number.
    """
    z = EIGHTY
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return sum(term / freedom**power for power, term in enumerate(terms))


def _most(name: str, table: EfficiencyTable, device: str) -> float:
    """The largest factor with which no efficiency exceeds 1, and at most MOST. name: `products`, or a level of links."""
    if name != PRODUCTS:
        value = next(table.link(level).value for level in get_args(Level) if level == name)
    else:
        kind = device_kind(device, table)
        found = [kind.reached("matrix-product", precision) for precision in sheet(device).flops_per_s]
        value = max((efficiency.value for efficiency in found if efficiency is not None), default=1.0)
    return min(MOST, 1 / value)


def _differs(level: str, runs: Sequence[OwnRun]) -> bool:
    """Whether the shares of the runs' steps that depend on a level of links differ by more than DIFFERS."""
    shares = [run.shares.get(level, 0.0) for run in runs]
    return level != PRODUCTS and max(shares) - min(shares) > DIFFERS


def _fitted(runs: Sequence[OwnRun], names: Sequence[str], spreads: np.ndarray, noise: float, most: np.ndarray) -> np.ndarray:
    """Find the most likely factors (Gauss-Newton). Returns their natural logarithms, (factors,).

    runs: the measured runs. names: the factors. spreads: (factors,), standard deviations of the logarithms before
    measurements. noise: that of the logarithm of a single run's step. most: (factors,), logarithms of the largest factors.
    """
    logs, prior = np.zeros(len(names)), np.diag(1 / spreads**2)
    for _ in range(ROUNDS):
        factors = dict(zip(names, np.exp(logs), strict=True))
        errors = np.array([log(run.with_factors_s(factors) / run.measured_s) for run in runs])
        slopes = _slopes(runs, names, logs)
        normal = slopes.T @ slopes / noise**2 + prior
        step = np.linalg.solve(normal, slopes.T @ errors / noise**2 + prior @ logs)
        moved = np.clip(logs - step, -log(MOST), most)
        done, logs = np.abs(moved - logs).max() < 1e-6, moved
        if done:
            break
    return logs


def _slopes(runs: Sequence[OwnRun], names: Sequence[str], logs: np.ndarray) -> np.ndarray:
    """The derivatives of the logarithms of predicted steps by those of factors, (runs, factors). names: the factors; logs: the
    logarithms of their values.
    """
    factors = dict(zip(names, np.exp(logs), strict=True))
    steps = np.array([run.with_factors_s(factors) for run in runs])
    shares = np.array([[run.predicted_s * run.shares.get(name, 0.0) / factors[name] for name in names] for run in runs])
    return -shares / steps[:, None]


def calibrated_table(path: FilePath) -> EfficiencyTable:
    """Read a table of efficiencies that was corrected by own runs. path: its file. Raises InputError if it is none."""
    table = parse(Path(path), EfficiencyTable)
    if not table.own_runs:
        fix = "give a file that `trainplan validate runs.json --calibrated mine.yaml` wrote"
        raise InputError(str(path), "own_runs", "is missing", fix)
    return table


def earlier_runs(path: FilePath) -> list[OwnRun]:
    """The own runs of a file of corrected efficiencies, to which others are added; none if there is no such file yet. Raises
    InputError if the file is something else.
    """
    if not Path(path).exists():
        return []
    try:
        return calibrated_table(path).own_runs
    except InputError as error:
        problem = "is a file of something else, which is not written over"
        raise InputError(
            str(path), error.command_field, problem, "name a new file, such as mine.yaml, for --calibrated"
        ) from None


def calibrated_cluster(cluster: FilePath | Cluster, calibrated: FilePath) -> Cluster:
    """The cluster that a user names by nodes of a kind, such as h100:8x4, with efficiencies that own runs correct.

    calibrated: the file of corrected efficiencies. A Cluster that has corrected ones is returned unchanged. Raises InputError
    for a bad name or file, if the file is of another kind of device, or for a cluster that is not named by its nodes.
    """
    if isinstance(cluster, Cluster):
        if cluster.corrected:
            return cluster
        problem = f"is given with {cluster.name}, an object that has its numbers"
        raise InputError(COMMAND_LINE, "--calibrated", problem, "give the cluster's name, such as h100:8x4")
    table = calibrated_table(calibrated)
    loaded = load_cluster(cluster, table)
    own = sheet(table.own_runs[0].device)
    if [kind.name for kind in loaded.used_kinds] != [own.name]:
        problem = f"is of {own.name}, and the cluster has {loaded.used_kinds[0].name}"
        fix = f"give the file of this cluster's runs, or a cluster such as {table.own_runs[0].device}:8"
        raise InputError(COMMAND_LINE, "--calibrated", problem, fix)
    return loaded
