"""The numbers of units of experts, fitted to measured steps of mixtures, with the errors of their predictions.

`python -m trainplan.validation.mixture_fit RUNS.json ...` prints what is fitted (`ExpertRates`: grouped products, exchange),
and a table of signed errors by source: with the numbers that the package has, as fitted, and with the source of each run left
out. It writes nothing.

The fit is Gauss-Newton's on the logarithms of predicted over measured steps, with a prior on each number. Runs of one source
that differ in release or batch alone count as one run together, and runs that are far off count less (Huber, 1964). All other
efficiencies are those of the package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from trainplan.formulations.costs.overlapped.folding import FITTED, ExpertRates
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.validation.calibration_rows import laid_with_step, runs_of
from trainplan.validation.layouts import LaidRun
from trainplan.validation.mixture_words import is_mixture
from trainplan.validation.predict import step_of
from trainplan.validation.report import summarised

PRIOR, SPREAD = 0.8, 0.25  # of every number: its mean, and the standard deviation of its logarithm
RUN_SPREAD = 0.12  # standard deviation of the logarithm of a step
ITERATIONS, STEP = 6, 0.02
FAR = 0.15  # error of a logarithm beyond which a run counts less


@dataclass(frozen=True)
class MixtureFit:
    """Numbers of units of experts that are fitted to runs, with the errors of their predictions.

    Attributes:
        rates: the fitted numbers.
        shipped: predicted over measured steps, minus 1, with the package's numbers, in the order of the runs.
        errors: the same with the fitted numbers.
        left_out: the same with numbers that are fitted without the runs of the run's source.
        without: the numbers that are fitted without each source, by its name.
    """

    rates: ExpertRates
    shipped: Sequence[float]
    errors: Sequence[float]
    left_out: Sequence[float]
    without: dict[str, ExpertRates]


def mixtures_with_steps(sources: Sequence[str]) -> list[LaidRun]:
    """Read the mixtures of experts of files of runs that have a measured step and can be predicted. Raises InputError for a
    file that is not a list of runs."""
    found = [laid_with_step(run) for run in runs_of(sources) if is_mixture(run)]
    return [laid for laid in found if not isinstance(laid, str)]


def fitted_mixtures(rows: Sequence[LaidRun]) -> MixtureFit:
    """Fit the numbers of units of experts to the measured steps of runs. rows: the runs, with their steps in `step_s`."""
    logs = np.full(len(fields(ExpertRates)), np.log(PRIOR))
    weights = _weights(rows)
    everything = np.arange(len(rows))
    for iteration in range(ITERATIONS):
        residuals = _residuals(rows, _rates(logs))
        if iteration < 2:
            slopes = np.stack(
                [(_residuals(rows, _rates(logs + step)) - residuals) / STEP for step in STEP * np.eye(len(logs))], 1
            )
        logs = _solved(residuals, slopes, logs, weights, everything)
    residuals = _residuals(rows, _rates(logs))
    sources = np.array([row.run.source for row in rows])
    left_out, without = np.zeros(len(rows)), {}
    for source in dict.fromkeys(sources.tolist()):
        kept = np.flatnonzero(sources != source)
        without[source] = _rates(_solved(residuals, slopes, logs, weights, kept))
        own = np.flatnonzero(sources == source)
        left_out[own] = _residuals([row for row in rows if row.run.source == source], without[source])
    shipped, fitted, apart = (np.expm1(errors).tolist() for errors in (_residuals(rows, FITTED), residuals, left_out))
    return MixtureFit(_rates(logs), shipped, fitted, apart, without)


def _rates(logs: np.ndarray) -> ExpertRates:
    """The numbers whose natural logarithms are given, none above 1."""
    return ExpertRates(*(float(value) for value in np.exp(np.minimum(0.0, logs))))


def _residuals(rows: Sequence[LaidRun], rates: ExpertRates) -> np.ndarray:
    """The natural logarithms of predicted over measured steps of runs, with the given numbers of units of experts."""
    table = shipped_efficiencies()
    found = []
    for row in rows:
        experts = replace(row.layout.experts, rates=rates)
        step = step_of(replace(row, layout=replace(row.layout, experts=experts)), table)
        found.append(np.log(step.step_ns / 1e9 / (row.run.step_s or 0.0)))
    return np.array(found)


def _weights(rows: Sequence[LaidRun]) -> np.ndarray:
    """The weights of runs in the fit, (runs,): runs that differ in release or batch alone have the weight of one together."""
    alike = [(row.run.source, row.run.model, row.name, row.layout.rate, row.run.gpus, row.layout.micro) for row in rows]
    return np.array([1 / alike.count(group) for group in alike])


def _solved(residuals: np.ndarray, slopes: np.ndarray, logs: np.ndarray, weights: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The logarithms of the numbers that fit some runs best, where residuals are taken as linear in them.

    residuals, slopes: of all runs at `logs`, and their derivatives. weights: of all runs. kept: the indices of the runs to fit.
    """
    part, matrix = residuals[kept], slopes[kept]
    best, prior = logs, np.full(len(logs), np.log(PRIOR))
    for _ in range(8):
        far = np.maximum(1.0, np.abs(part + matrix @ (best - logs)) / FAR)
        weighted = matrix.T * (weights[kept] / far / RUN_SPREAD**2)
        normal = weighted @ matrix + np.eye(len(logs)) / SPREAD**2
        right = weighted @ (matrix @ logs - part) + prior / SPREAD**2
        best = np.minimum(0.0, np.linalg.solve(normal, right))
    return best


def report(rows: Sequence[LaidRun], fit: MixtureFit) -> str:
    """The fitted numbers, and a table of signed errors by source in percent. rows: the runs of the fit."""
    lines = [f"{field.name:16} {value:.3f}" for field, value in zip(fields(ExpertRates), astuple(fit.rates), strict=True)]
    for source, rates in fit.without.items():
        lines.append(f"  without {source}: {', '.join(f'{value:.3f}' for value in astuple(rates))}")
    heading = " ".join(f"{word:>8}" for word in ("mean", "abs.", "median", "90 %"))
    lines.append(f"\n{'source':28} {'runs':>4} {'':10} {heading}")
    sources = [row.run.source for row in rows]
    for source in (*dict.fromkeys(sources), "all"):
        for name, errors in (("shipped", fit.shipped), ("fitted", fit.errors), ("left out", fit.left_out)):
            own = [error for error, of in zip(errors, sources, strict=True) if source in (of, "all")]
            found = summarised(own)
            cells = " ".join(f"{100 * value:+8.1f}" for value in (found.mean, found.absolute, found.median, found.ninth))
            lines.append(f"{source:28} {len(own):4} {name:10} {cells}")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Run the command that fits the numbers of units of experts and prints them. words: its arguments. Returns its exit
    code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainplan.validation.mixture_fit", description="Fit numbers of experts to runs."
    )
    parser.add_argument("runs", nargs="+", help="JSON lists of measured runs")
    try:
        rows = mixtures_with_steps(parser.parse_args(words).runs)
        if not rows:
            raise InputError("RUNS", "", "have no mixture of experts with a step", "give runs with experts and step_s")
    except InputError as error:
        print(f"mixture_fit: {error.command_text}", file=sys.stderr)
        return 2
    print(report(rows, fitted_mixtures(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
