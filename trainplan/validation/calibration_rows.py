"""The measured runs that efficiencies are fitted to: those of several files, each once, and why others are left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.base.files import read_data
from trainplan.validation.layouts import LaidRun, laid_run
from trainplan.validation.measured import measured_steps
from trainplan.validation.mixture_words import is_mixture
from trainplan.validation.rows import Run, load_runs

APART = "it is a mixture of experts, to which numbers of its own are fitted (trainplan.validation.mixture_fit)"
LAUNCH_BOUND = "its layers are so small that its host's launches decide its step, which no efficiency does"


@dataclass(frozen=True)
class CalibrationRows:
    """Measured runs for a fit.

    Attributes:
        rows: runs that can be predicted and have a measured step, each with it in `step_s`.
        left_out: for each other run, by its id, why it is left out.
    """

    rows: tuple[LaidRun, ...]
    left_out: Mapping[str, str]


def runs_of(sources: Sequence[str | os.PathLike[str] | Sequence[Mapping[str, Any]]]) -> list[Run]:
    """Read the measured runs of several files, or of lists of dicts. A run with the id of an earlier one is the same run, and
    counts once.

    A row may have, in the field `facts`, the words of its note that were known before it ran: they then stand for its note,
    whose other words may be results. Its field `mem_rank` says which rank's peak was measured. Raises InputError if a file is
    not a list of runs.
    """
    runs: dict[str, Run] = {}
    for source in sources:
        values = read_data(os.fspath(source)) if isinstance(source, str | os.PathLike) else source
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise InputError(str(source), "", f"holds {shown(values)}", "give a list of runs [...]")
        for run in load_runs([_known_fields(value) if isinstance(value, Mapping) else value for value in values]):
            runs.setdefault(run.id, run)
    return list(runs.values())


def _known_fields(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a row with facts without the fields that runs do not have: a warning of each would hide others. A row without facts
    is returned as it is.
    """
    return row if row.get("facts") is None else {name: value for name, value in row.items() if name in Run.model_fields}


def rows_of(runs: Iterable[Run], without: Sequence[str] = ()) -> CalibrationRows:
    """Choose the runs that a fit can be made of. runs: measured runs. without: ids of runs to leave out. Raises InputError if
    `without` names a run that is not among them.
    """
    rows, left_out, ids = list[LaidRun](), dict[str, str](), set[str]()
    for run in runs:
        ids.add(run.id)
        if run.id in without:
            left_out[run.id] = "as asked"
            continue
        found = APART if is_mixture(run) else laid_with_step(run)
        if isinstance(found, str):
            left_out[run.id] = found
        else:
            rows.append(found)
    for name in without:
        if name not in ids:
            raise InputError(COMMAND_LINE, "--without", f"is {name!r}, which no file has", "give the id of a run")
    return CalibrationRows(tuple(rows), left_out)


def laid_with_step(run: Run) -> LaidRun | str:
    """Complete a measured run by assumptions, with its measured step in `step_s`, whatever field states it. Returns the reason
    as a text if the run cannot be predicted, or has no measured step that efficiencies decide.
    """
    try:
        laid = laid_run(run)
    except InputError as error:
        return f"{error.field} {error.problem}"
    if run.oom:
        return "it ran out of memory"
    steps = measured_steps(laid)
    if not steps:
        return "no measured step"
    if laid.layout.framework.issue_ns:
        return LAUNCH_BOUND
    return laid if run.step_s else replace(laid, run=run.changed(step_s=steps[0].step_s))


def read_groups(path: str, runs: Sequence[Run] = ()) -> list[list[LaidRun]]:
    """Read groups of layouts of one job from a JSON file: a list of objects with `rows`, measured runs, and `group`, words that
    name the job, the framework first.

    A row that leaves its framework or its date open has those of the runs of its source, if these agree; else the framework is
    the group's first word. Runs without a measured step, or that cannot be predicted, are left out, and then groups of fewer
    than two. Raises InputError if the file has another form.

    runs: other runs, with their sources, frameworks and dates.
    """
    values = read_data(path)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(path, "", f"holds {shown(values)}", 'give a list of groups [{"rows": [...]}]')
    groups = []
    for index, value in enumerate(values):
        rows = value.get("rows") if isinstance(value, Mapping) else None
        if (
            not isinstance(rows, Sequence)
            or isinstance(rows, str)
            or not all(isinstance(row, Mapping) for row in rows)
            or not rows
        ):
            raise InputError(path, f"[{index}].rows", "are no runs", 'give groups as {"rows": [...]}')
        words = value.get("group") or [None]
        named = {"framework": words[0]} if isinstance(words, Sequence) and isinstance(words[0], str) else {}
        completed = [named | _of_source(str(row.get("source", "")), runs) | _stated(row) for row in rows]
        laid = [found for run in runs_of([completed]) if not isinstance(found := laid_with_step(run), str)]
        groups.append(laid)
    return [group for group in groups if len(group) > 1]


def _stated(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that are stated: those that are not null."""
    return {name: value for name, value in row.items() if value is not None}


def _of_source(source: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The framework and the date that all runs of a source have, as fields of a row; without one on which they do not agree.
    source: the source's name.
    """
    found: dict[str, Any] = {}
    for name in ("framework", "date"):
        values = {getattr(run, name) for run in runs if run.source == source}
        if len(values) == 1 and (value := values.pop()) is not None:
            found[name] = value
    return found
