"""Efficiencies fitted to measured runs, with the errors of their predictions.

`python -m trainplan.validation.calibrate [RUNS.json ...] [--without ID ...] [--groups GROUPS.json] [-o efficiencies.yaml]
[--page docs/measured.md]`. Without a file of runs it fits to those that come with the package, that is
`trainplan/data/measured/steps.json`; without `-o` and `--page` it prints, and writes nothing.

The fit is that of `efficiency_fit`. In addition, runs are left out in turn by source, kind of device, precision, framework and
scale (`splits`): the errors with which the others predict them are those to expect for other runs. They give intervals their
widths, by what is new in a run (`novelty`). Layouts of one job, found among the runs or given as groups, show what it costs to
choose by predictions (`choices`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole
from trainplan.profiling.clusters.efficiencies import EfficiencyTable, KernelFit, LinkFit, shipped_efficiencies
from trainplan.profiling.clusters.own_runs import OwnRun
from trainplan.profiling.clusters.step_errors import FittedRun
from trainplan.validation.calibration_report import report, write_page
from trainplan.validation.calibration_rows import read_groups, rows_of, runs_of
from trainplan.validation.choices import Alternatives, choices_of, difference_of, jobs, with_predictions
from trainplan.validation.efficiency_fit import Fit, Fitted, Key
from trainplan.validation.layouts import LaidRun
from trainplan.validation.novelty import HELD, left_out_errors, step_errors_of
from trainplan.validation.predict import step_of
from trainplan.validation.rows import SHIPPED_RUNS, load_runs
from trainplan.validation.splits import fitted_runs

FEW_ROWS = 10  # with this number of rows of its own, a number's error is half by these and half by all rows


def calibrated(fit: Fit, groups: Sequence[Sequence[LaidRun]] = ()) -> EfficiencyTable:
    """Fit efficiencies to measured runs, and the widths of intervals to the errors of left-out runs. Returns the table with
    all of these, and with the errors of every run.

    fit: the runs and the assumed efficiencies. groups: runs with measured steps that are layouts of one job; if there are none,
    those that are found among the runs of the fit.
    """
    fitted = fit.run()
    runs = fitted_runs(fit, fitted)
    choices = predicted_choices(fit, fitted, groups)
    errors = step_errors_of(left_out_errors(runs), difference_of(choices))
    table = fitted_table(fit, fitted[0], runs)
    return table.changed(step_errors=errors, choices=choices_of(choices), runs=runs)


def predicted_choices(fit: Fit, fitted: Fitted, groups: Sequence[Sequence[LaidRun]]) -> list[Alternatives]:
    """Predict layouts of one job, each by a fit without its source.

    fit, fitted: the fit and its result. groups: runs with measured steps that are layouts of one job; if there are none, those
    that are found among the runs of the fit.
    """
    tables: dict[str, EfficiencyTable] = {}
    found = []
    for group in groups or jobs(fit.rows):
        steps = {}
        for row in group:
            source = row.run.source
            if source not in tables:
                kept = [index for index, other in enumerate(fit.rows) if other.run.source != source]
                tables[source] = fit.kept_table(fitted, kept)
            steps[row.run.id] = step_of(row, tables[source]).step_ns / 1e9
        found.append(with_predictions(group, steps))
    return [alternatives for alternatives in found if len(alternatives.names) > 1]


def fitted_table(fit: Fit, logs: np.ndarray, runs: Sequence[FittedRun]) -> EfficiencyTable:
    """Build the table of fitted efficiencies. Each entry has the ids of the runs that it was fitted to, and the relative
    half-width of an interval around predictions that depend on it.

    fit: the fit, with its runs and keys. logs: (efficiencies,), natural logarithms of the fitted efficiencies. runs: the fit's
    runs, with their errors.
    """
    about: dict[str, dict[str, Any]] = {}
    held_out = np.log1p([run.left_out["source"] for run in runs])
    for index, key in enumerate(fit.keys):
        rows = [row for row, used in enumerate(fit.uses) if index in used]
        about[str(key)] = {
            "error": width(held_out, rows),
            "date": date.today().isoformat(),
            "rows": [fit.rows[row].run.id for row in rows],
            "residuals": [],
            "source": f"prior {np.exp(fit.priors[index]):.3g}",
        }
    return fit.with_values(logs, **about)


def width(held_out: np.ndarray, rows: Sequence[int]) -> float:
    """The relative half-width of an interval around the predicted steps of some runs that is meant to hold a share HELD of
    the measured steps.

    held_out: (runs,), natural logarithms of predicted over measured steps of all runs, each predicted by a fit without the
    runs of its own source (publication). rows: indices of the runs that the interval is for. The width follows from the
    values of these runs and, the fewer they are, the more from the values of all runs; it is at least the width for all runs.
    """
    own, every = (float(np.log(np.quantile(np.abs(errors), HELD))) for errors in (held_out[list(rows)], held_out))
    share = len(rows) / (len(rows) + FEW_ROWS)
    return round(float(np.expm1(np.exp(max(every, share * own + (1 - share) * every)))), 3)


HEADER = """# What kernels and links reach of their peaks. `fitted` rows are fitted to measured runs by `make calibrate`, with
# the ids of the runs; `assumed` ones stand where nothing is fitted. `runs` has what is left of each run.
format: trainplan-efficiencies
"""


def table_text(table: EfficiencyTable) -> str:
    """Format a table of efficiencies as the text of a YAML file."""
    lines = [HEADER + "kernels:"]
    lines += [f"  - {_flow(fit)}" for fit in table.kernels]
    lines.append("links:")
    lines += [f"  - {_flow(fit)}" for fit in table.links]
    if table.corrected_for:
        lines.append(f"corrected_for: {json.dumps(table.corrected_for)}")
    for name, record in (("step_errors", table.step_errors), ("choices", table.choices)):
        if record is not None:
            lines.append(f"{name}: {json.dumps(record.model_dump())}")
    for name, runs in (("runs", table.runs), ("own_runs", table.own_runs)):
        if runs:
            lines.append(f"{name}:")
            lines += [f"  - {_flow(run)}" for run in runs]
    return "\n".join(lines) + "\n"


def _flow(fit: KernelFit | LinkFit | FittedRun | OwnRun) -> str:
    """Format an entry of the table of efficiencies as one line of YAML, without empty fields."""
    fields = {name: value for name, value in fit.model_dump().items() if value not in (None, [], "")}
    return json.dumps(fields)


def main(words: Sequence[str]) -> int:
    """Run the command that calibrates predictions: fit efficiencies (shares of peak rates) to measured runs, print them with
    their errors, and write them to a file if one is named. words: the command's arguments. Returns its exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m trainplan.validation.calibrate", description="Fit efficiencies to runs.")
    parser.add_argument("runs", nargs="*", help="JSON lists of measured runs (default: shipped ones)")
    parser.add_argument("--without", nargs="+", action="extend", default=[], metavar="ID", help="leave out runs with these ids")
    parser.add_argument(
        "--groups", help="a JSON list of groups of runs that are layouts of one job (default: found in the runs)"
    )
    parser.add_argument("-o", "--output", type=Path, help="write the fitted table to this file (default: write nothing)")
    parser.add_argument("--page", type=Path, help="write the errors into this page, such as docs/measured.md")
    arguments = parser.parse_args(words)
    try:
        return _calibrate(arguments)
    except InputError as error:
        print(f"calibrate: {error.command_text}", file=sys.stderr)
        return 2


def _calibrate(arguments: argparse.Namespace) -> int:
    """Carry out what `main` documents. arguments: the command's parsed arguments. Raises InputError for files of another
    form.
    """
    runs = runs_of(arguments.runs or [SHIPPED_RUNS])
    chosen = rows_of(runs, arguments.without)
    groups = [] if arguments.groups is None else read_groups(arguments.groups, runs)
    _print_left_out(chosen.left_out)
    if not chosen.rows:
        raise InputError(
            ", ".join(arguments.runs), "", "have no run that efficiencies can be fitted to", "give runs with step_s"
        )
    fit = Fit(chosen.rows, shipped_efficiencies())
    table = calibrated(fit, groups)
    priors = {str(key): float(np.exp(prior)) for key, prior in zip(fit.keys, fit.priors, strict=True)}
    entries: list[tuple[str, KernelFit | LinkFit]] = [
        *((str(Key(fitted.device, fitted.precision, fitted.kernel)), fitted) for fitted in table.kernels),
        *((str(Key(level=link.level)), link) for link in table.links),
    ]
    for name, entry in entries:
        if entry.origin == "fitted":
            print(f"{name:36} {entry.value:.3f}  (assumed {priors[name]:.3f}, of {len(entry.rows)} runs)")
    texts = report(table, (run.id for run in load_runs(SHIPPED_RUNS)))
    for text in texts.values():
        print(f"\n{text}")
    if arguments.output is not None:
        write_whole(arguments.output, table_text(table))
        print(f"written {arguments.output}")
    if arguments.page is not None:
        write_page(arguments.page, texts)
        print(f"written {arguments.page}")
    return 0


def _print_left_out(left_out: Mapping[str, str]) -> None:
    """Print why runs are left out of a fit, a line for each reason. left_out: the reasons by the runs' ids."""
    for reason in dict.fromkeys(left_out.values()):
        ids = [name for name, why in left_out.items() if why == reason]
        print(f"left out: {reason}: {', '.join(ids)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
