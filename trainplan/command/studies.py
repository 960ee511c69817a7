"""`trainplan study`: batches of experiments."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import bars, options
from trainplan.command.ending import stop
from trainplan.command.executors import EXECUTORS, executor_of, script_of
from trainplan.command.options import Command, Outcome, command_with, flag, word
from trainplan.command.printing import pairs, table
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import plural
from trainplan.studies.pace import Progress, duration_text
from trainplan.studies.run import dry_run
from trainplan.studies.specification import specification
from trainplan.studies.storage import StudyStopped

FOLDER_HELP = "Keep the results here. The same line again goes on with what is not finished."


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `study`. name: the command's name. words: the command line, without
    the program's name; unused."""
    return study


@command_with(
    [
        word("study", Path, "A study file (YAML or JSON)."),
        flag("folder", Path | None, FOLDER_HELP, names=("--output", "-o")),
        flag("jobs", int, "Cells that run at a time.", 1, names=("--jobs", "-j")),
        flag("again", str | None, "Run cells with these statuses once more, such as 'crashed,out of memory'."),
        flag("dry_run", bool, "Count the cells and estimate their time, and run nothing.", False),
    ],
    EXECUTORS,
)
def study(study: Path, folder: Path | None, jobs: int, again: str | None, dry_run: bool, **where: Any) -> Outcome:
    """Run a study: models, clusters, batches and so on times problems times methods, each cell in a process of its own.

    A cell that crashes, runs out of memory or time, is infeasible or refused has a row that says so. Cells that the folder has
    are not run again, so that the same line resumes a study after Ctrl-C; `trainplan results FOLDER` reads it at any time.
    """
    statuses = [text.strip() for text in (again or "").split(",") if text.strip()]
    if dry_run:
        return _counted(study, folder, jobs, statuses, where)
    if folder is None:
        raise InputError("command line", "--output", "is missing", "give a folder, such as -o results, or --dry-run")
    last = Progress(0, 0, Counter(), None, False)
    cells = [cell.to_dict() for cell in specification(study).cells] if where["slurm"] else []
    with bars.studying(study.stem) as shown:

        def progress(state: Progress) -> None:
            nonlocal last
            last = state
            shown(state)

        try:
            with executor_of(cells, folder, **where) as executor:
                api.study(study, folder, jobs=jobs, executor=executor, progress=progress, again=statuses or None)
        except KeyboardInterrupt:
            stop(f"interrupted after {last.done} of {last.total} cells, which are kept; the same line goes on", options.STOPPED)
        except StudyStopped as error:
            stop(str(error), options.STOPPED)
    content = {"folder": str(folder), "cells": last.total, "done": last.done, "statuses": dict(last.statuses)}
    return Outcome(content, partial(_show_end, last, folder))


def _show_end(last: Progress, folder: Path) -> None:
    """Print how the cells of a finished study ended, and the command that reads them."""
    ends = " · ".join(f"{count} {status}" for status, count in last.statuses.most_common())
    pairs([("cells", f"{last.total}: {ends}"), ("next", f"trainplan results {shlex.quote(str(folder))}")])


def _counted(study: Path, folder: Path | None, jobs: int, again: Sequence[str], where: dict[str, Any]) -> Outcome:
    """The outcome of a dry run: the cells by problem and method, what is left out, and how long the rest takes. again: statuses
    with which cells do not count as finished. where: the options that say where cells run; for Slurm the script that would be
    submitted is written."""
    read = specification(study)
    counted = dry_run(read, folder, jobs, again)
    script = script_of([cell.to_dict() for cell in read.cells] if where["slurm"] else [], folder, **where)
    return Outcome(counted | ({} if script is None else {"script": str(script)}), partial(_show_counts, counted, jobs, script))


def _show_counts(counted: dict[str, Any], jobs: int, script: Path | None) -> None:
    """Print a dry run, as `trainplan.studies.run.dry_run` returns it. script: the one that was written for Slurm, if any."""
    columns = ("problem", "method", "cells", "done")
    rows = [[str(row[name] if row[name] is not None else "-") for name in columns] for row in counted["counts"]]
    table(columns, rows, left=("problem", "method"))
    limit, seconds = counted["limit_seconds"], counted["seconds"]
    lines = [("cells", f"{counted['cells']}, of which {counted['done']} are finished")]
    lines += [(f"exclude[{number}]", f"leaves out {plural(count, 'cell')}") for number, count in enumerate(counted["excluded"])]
    lines += [("left out", f"{problem} has no method {method}") for problem, method in counted["without"]]
    if counted["rest"]:
        by_limits = (
            "unknown, since some have no time limit" if limit is None else f"at most {duration_text(limit)} by time limits"
        )
        estimate = "" if seconds is None else f", about {duration_text(seconds)} by finished cells"
        lines.append(("time", f"{by_limits}{estimate}, with -j {jobs}"))
    pairs([*lines, *([] if script is None else [("written", str(script))])])
