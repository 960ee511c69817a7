"""Options of `study` and `sweep` that say on which machines their cells run: this one, dask's workers, or Slurm's jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainplan.command.options import flag, panel
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.studies.executors import dask_executor
from trainplan.studies.slurm import FLAG, for_cells, settings_of, slurm_executor, write_script

SLURM_HELP = (
    "NAME=VALUE of Slurm's jobs: partition, time (such as 2h), memory (16GiB), cpus, cells (of a job), jobs (at once), "
    "account, qos, constraint, setup (a line of shell); may be repeated."
)
NAMES = ("dask", "slurm", "slurm_options")
EXECUTORS = panel(
    "Where cells run",
    [
        flag("dask", str | None, "On the workers of a dask scheduler: its address, such as tcp://10.0.0.1:8786, or its file."),
        flag("slurm", bool, "As jobs of Slurm; with --dry-run, only write the script that would be submitted.", False),
        flag("slurm_options", list[str] | None, SLURM_HELP),
    ],
)


@contextmanager
def executor_of(
    cells: Sequence[Mapping[str, Any]], folder: Path | None, dask: str | None, slurm: bool, slurm_options: Sequence[str] | None
) -> Iterator[Executor | None]:
    """The executor that the options name, as a context manager; None for this machine.

    cells: with their limits, from which a job's time and memory follow where they are not given. folder: the study's. dask,
    slurm, slurm_options: as given. Raises InputError for options that contradict each other, and as the executors do.
    """
    _check(folder, dask, slurm, slurm_options)
    if dask is not None:
        with dask_executor(dask) as executor:
            yield executor
    elif slurm:
        with slurm_executor(for_cells(settings_of(slurm_options or ()), cells), _jobs_folder(folder)) as jobs:
            yield jobs
    else:
        yield None


def script_of(
    cells: Sequence[Mapping[str, Any]], folder: Path | None, dask: str | None, slurm: bool, slurm_options: Sequence[str] | None
) -> Path | None:
    """Write the script that would submit the cells as jobs of Slurm, and return its path; None without `slurm`. The parameters
    are those of `executor_of`."""
    _check(folder, dask, slurm, slurm_options)
    if not slurm:
        return None
    return write_script(for_cells(settings_of(slurm_options or ()), cells), max(len(cells), 1), _jobs_folder(folder))


def _check(folder: Path | None, dask: str | None, slurm: bool, slurm_options: Sequence[str] | None) -> None:
    """Raise InputError for options that contradict each other, and for jobs without a folder that all machines share."""
    if dask is not None and slurm:
        raise InputError(COMMAND_LINE, "--slurm", "is given with --dask", "give one of the two")
    if slurm_options and not slurm:
        raise InputError(COMMAND_LINE, FLAG, "is given without --slurm", "add --slurm")
    if slurm and folder is None:
        raise InputError(
            COMMAND_LINE, "--output", "is missing, and jobs are written there", "give a folder that machines share"
        )


def _jobs_folder(folder: Path | None) -> Path:
    """The folder of the jobs' files, below the study's folder."""
    assert folder is not None
    return (folder / "slurm").absolute()
