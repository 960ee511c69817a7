"""Studies: many requests or instances, solved by many methods, with a row of results for each cell in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import FilePath, Source
from trainplan.studies.pace import Progress
from trainplan.studies.results import Study, read
from trainplan.studies.run import run_study
from trainplan.studies.specification import specification

__all__ = ["study"]


def study(
    study: Source,
    folder: FilePath,
    *,
    jobs: int = 1,
    executor: Any = None,
    progress: Callable[[Progress], None] | None = None,
    again: Sequence[str] | None = None,
) -> Study:
    """Run a study: solve each of its cells in a process of its own, within its limits, and keep a row of results for it.

    Cells that the folder has already are not run again, so that the same call resumes a study that was interrupted. A cell that
    crashes, runs out of memory or time, is infeasible or refused has a row that says so.

    Args:
        study: a study file in YAML or JSON, or a dict with its fields (see the page on studies).
        folder: where the results are kept; it is made if it does not exist.
        jobs: cells that run at a time.
        executor: where they run: any `concurrent.futures.Executor` (default: on this machine). Of another kind of executor,
            `jobs` is only used to estimate the time left.
        progress: called with a `Progress` as cells end, such as `progress=print`.
        again: run cells once more that the folder has with these statuses, such as ["crashed", "out of memory"].

    Returns:
        The results, as `read_study` reads them.

    Raises:
        InputError: for a study that cannot be read, has no cells, or names a method that none of its problems has, and
            for an unknown status.
        StudyStopped: where the disk is full, or the executor broke. What is finished is kept.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InputError(COMMAND_LINE, "executor", f"is a {type(executor).__name__}", "give a concurrent.futures.Executor")
    run_study(specification(study), os.fspath(folder), jobs=jobs, executor=executor, progress=progress, again=again or ())
    return read(folder)
