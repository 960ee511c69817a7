"""Cells of a study as jobs of Slurm, by submitit: arrays of jobs, each of which runs a batch of cells one after the other.

A job writes the row of every cell as soon as it is done, into the folder of its rows, which the study's process reads: what a
job had finished is kept when it dies or reaches its time limit. The cell that ran then is tried again, MOST_DEATHS times in
all; the cells after it go into the next array.
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.studies.executors import NotSubmitted, died, installed
from trainplan.studies.isolated import grace_seconds

FLAG = "--slurm-options"
MOST_DEATHS = 3
MOST_IN_ARRAY = 1000  # jobs; Slurm's MaxArraySize is 1001 unless it is configured
GATHER_SECONDS = 0.3  # without a new cell before jobs are submitted
BEYOND_SECONDS = 120  # that a cell may take in addition to its time limit and grace, for starting and building
BEYOND_BYTES = 4 * 2**30  # that a job may take in addition to the memory limit of a cell
NO_LIMIT_BYTES = 16 * 2**30  # of a job whose cells have no memory limit
SCRIPT = "submission.sh"
_TIME = re.compile(r"([0-9]{1,6}(?:\.[0-9]+)?)\s*(min|m|h|d)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """Settings of the jobs in which a study runs its cells.

    Attributes:
        partition: where the jobs run; None for the default partition.
        time_min: minutes of a job; None for what the limits of its cells add up to.
        memory_bytes: of a job; None for the largest limit of its cells and BEYOND_BYTES.
        cpus: of a job.
        cells: that a job runs, one after the other.
        jobs: at once.
        account, qos, constraint: as sbatch takes them; None to leave them out.
        setup: lines of shell that a job runs first, such as `module load python`.
    """

    partition: str | None = None
    time_min: int | None = None
    memory_bytes: int | None = None
    cpus: int = 2
    cells: int = 10
    jobs: int = 100
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: tuple[str, ...] = ()


NAMES = {"time": "time_min", "memory": "memory_bytes"}  # options whose field has a unit in its name


def settings_of(texts: Iterable[str]) -> SlurmSettings:
    """The settings that texts NAME=VALUE state: ["partition=long", "time=2h", "memory=16GiB", "cpus=4"].

    Times are minutes, or have a unit (min, h, d). `setup` may come several times, a line of shell each. Raises InputError for
    other names and for values that are no such numbers.
    """
    known = [name.removesuffix("_min").removesuffix("_bytes") for name in (entry.name for entry in fields(SlurmSettings))]
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if name not in known or not value:
            raise InputError(COMMAND_LINE, FLAG, f"is {shown(text)}", f"{one_of(name, known)}, such as time=2h")
        if name == "setup":
            values["setup"] = (*values.get("setup", ()), value)
        elif name == "memory":
            values["memory_bytes"] = parse_bytes(value, FLAG)
        elif name == "time":
            values["time_min"] = _minutes(value)
        elif name in ("cpus", "cells", "jobs"):
            if not re.fullmatch(r"[1-9][0-9]{0,5}", value, re.ASCII):
                raise InputError(COMMAND_LINE, FLAG, f"has {name}={shown(value)}", "give a whole number from 1")
            values[name] = int(value)
        else:
            values[name] = value
    return SlurmSettings(**values)


def _minutes(text: str) -> int:
    """A time such as `90`, `90min`, `2h` or `1d` in whole minutes, rounded up. Raises InputError for other texts."""
    match = _TIME.fullmatch(text)
    minutes = 0 if match is None else ceil(float(match[1]) * {"h": 60, "d": 1440}.get(match[2] or "", 1))
    if minutes < 1:
        raise InputError(COMMAND_LINE, FLAG, f"has time={shown(text)}", "give minutes, or a time such as 2h or 1d")
    return minutes


def for_cells(settings: SlurmSettings, cells: Sequence[Mapping[str, Any]]) -> SlurmSettings:
    """The settings with the time and the memory of a job, where they are not given: enough for the cells with the largest
    limits.

    cells: as `Cell.to_dict` gives them. Raises InputError for cells without a time limit, for which no job's time is enough.
    """
    limits = [cell["limits"] for cell in cells]
    time_min, memory_bytes = settings.time_min, settings.memory_bytes
    if time_min is None:
        if any(limit["time_limit"] is None for limit in limits):
            fix = "give time=2h, or cells a time limit"
            raise InputError(COMMAND_LINE, FLAG, "has no time, and cells have no time limit", fix)
        seconds = max((cell["limits"]["time_limit"] + grace_seconds(cell) for cell in cells), default=0.0)
        time_min = ceil(min(settings.cells, max(len(cells), 1)) * (seconds + BEYOND_SECONDS) / 60)
    if memory_bytes is None:
        sizes = [limit["memory"] for limit in limits if limit["memory"] is not None]
        memory_bytes = max(sizes) + BEYOND_BYTES if sizes and len(sizes) == len(limits) else NO_LIMIT_BYTES
    return replace(settings, time_min=time_min, memory_bytes=memory_bytes)


def parameters_of(settings: SlurmSettings) -> dict[str, Any]:
    """The settings as parameters of submitit's Slurm executor. Their time and memory are given (`for_cells`)."""
    assert settings.time_min is not None and settings.memory_bytes is not None
    made: dict[str, Any] = {"job_name": "trainplan", "time": settings.time_min, "cpus_per_task": settings.cpus}
    made |= {"mem": f"{ceil(settings.memory_bytes / 2**20)}MB", "array_parallelism": settings.jobs}  # Slurm's MB is binary
    named = {name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint")}
    made |= {name: value for name, value in named.items() if value is not None}
    return made | ({"setup": [*settings.setup]} if settings.setup else {})


@contextmanager
def slurm_executor(settings: SlurmSettings, folder: str | os.PathLike[str]) -> Iterator[JobsExecutor]:
    """An executor of cells by Slurm's jobs, as a context manager, which cancels them if it ends by an exception.

    settings: with a time and a memory (`for_cells`). folder: of the jobs' files, which all machines share. Raises InputError
    where there is no Slurm, and MissingExtra where submitit is not installed.
    """
    submitit = installed("submitit", "submitit", "--slurm")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        fix = "run this where Slurm's jobs are submitted, or add --dry-run to write the scripts alone"
        raise InputError(COMMAND_LINE, "--slurm", "needs sbatch and srun, which this machine does not have", fix)
    jobs = submitit.SlurmExecutor(folder=os.fspath(folder))
    jobs.update_parameters(**parameters_of(settings))
    executor = JobsExecutor(jobs, folder, settings.cells)
    try:
        yield executor
    except BaseException:
        executor.shutdown(cancel_futures=True)
        raise
    executor.shutdown()


def write_script(settings: SlurmSettings, cells: int, folder: str | os.PathLike[str]) -> Path:
    """Write the script that would submit a study's first array of jobs, and submit nothing.

    settings: with a time and a memory (`for_cells`). cells: the number of cells to run. folder: of the jobs' files. Returns the
    script's path.
    """
    installed("submitit", "submitit", "--slurm")
    from submitit.slurm.slurm import _make_sbatch_string

    folder, jobs = Path(folder), min(MOST_IN_ARRAY, ceil(cells / settings.cells))
    folder.mkdir(parents=True, exist_ok=True)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    text = _make_sbatch_string(command=command, folder=folder, map_count=jobs, **parameters_of(settings))
    target = folder / SCRIPT
    target.write_text(text + "\n")
    return target


@dataclass
class _Call:
    """A call of a function that waits for its job, or runs in one. number: of the file of its outcome. deaths: of jobs that
    died while they ran it."""

    number: int
    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    deaths: int = 0


@dataclass
class _Job:
    """A job of submitit's, and the calls that it makes, in order."""

    job: Any
    calls: list[_Call] = field(default_factory=list)


class JobsExecutor(Executor):
    """A `concurrent.futures.Executor` whose calls are gathered into batches, each of them one job of a submitit executor."""

    def __init__(self, jobs: Any, folder: str | os.PathLike[str], batch: int, poll_seconds: float = 1.0) -> None:
        """Make an executor, and start the thread that submits jobs and reads their outcomes.

        Args:
            jobs: an executor of submitit, such as SlurmExecutor or LocalExecutor.
            folder: of the files that jobs write, which all machines share.
            batch: calls of a job at most.
            poll_seconds: between two looks at the jobs.
        """
        self._jobs, self._batch, self._poll = jobs, batch, poll_seconds
        self._outcomes = Path(folder, f"outcomes-{os.getpid()}-{time.time_ns()}")
        self._outcomes.mkdir(parents=True)
        self._changed, self._closed, self._cancelled = threading.Condition(), False, False
        self._waiting, self._running, self._count, self._last = list[_Call](), list[_Job](), 0, 0.0
        self._thread = threading.Thread(target=self._work, name="jobs of a study", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Have a job call a function with arguments, and return the future of its answer. Keywords are not taken."""
        assert not keywords, "jobs call functions without keywords"
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot submit after shutdown")
            call = _Call(self._count, Future(), function, arguments)
            self._count, self._last = self._count + 1, time.monotonic()
            self._waiting.append(call)
            self._changed.notify()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. wait: until all have ended. cancel_futures: cancel what waits, and the jobs that run."""
        with self._changed:
            self._closed, self._cancelled = True, self._cancelled or cancel_futures
            if self._cancelled:
                self._cancel()
            self._changed.notify()
        if wait:
            self._thread.join()

    def _cancel(self) -> None:
        """Cancel what waits, and the jobs that run. The lock is held."""
        for call in (*self._waiting, *(call for job in self._running for call in job.calls)):
            call.future.cancel()
        for job in self._running:
            with suppress(Exception):  # a job that has ended meanwhile cannot be cancelled
                job.job.cancel(check=False)
        self._waiting, self._running = [], []

    def _work(self) -> None:
        """Submit what waits and settle what has ended, until the executor is closed and nothing is left."""
        while True:
            with self._changed:
                if self._closed and not self._waiting and not self._running:
                    shutil.rmtree(self._outcomes, ignore_errors=True)
                    return
                self._changed.wait(GATHER_SECONDS if self._waiting else self._poll if self._running else None)
                gathered = self._closed or time.monotonic() - self._last >= GATHER_SECONDS
                ready, self._waiting = (self._waiting, []) if gathered else ([], self._waiting)
                ready = [call for call in ready if not call.future.cancelled()]
            for first in range(0, len(ready), self._batch * MOST_IN_ARRAY):
                self._send(ready[first : first + self._batch * MOST_IN_ARRAY])
            for job in [*self._running]:
                self._settle(job)

    def _send(self, calls: list[_Call]) -> None:
        """Submit an array of jobs that make calls; if it cannot be submitted, their futures raise NotSubmitted."""
        batches = [calls[first : first + self._batch] for first in range(0, len(calls), self._batch)]
        try:
            with self._jobs.batch():
                made = [self._jobs.submit(run_calls, self._outcomes, _contents(batch)) for batch in batches]
        except Exception as error:  # submitit raises errors of its own kinds, and sbatch's text is in them
            text = " ".join(str(error).split())[:300] or type(error).__name__
            for call in calls:
                _pass_on(call.future, None, NotSubmitted(f"jobs cannot be submitted: {text}"))
            return
        with self._changed:
            self._running += [_Job(job, batch) for job, batch in zip(made, batches, strict=True)]
            if self._cancelled:  # meanwhile
                self._cancel()

    def _settle(self, job: _Job) -> None:
        """Pass on the outcomes that a job has written; of a job that has ended without all of them, try the rest again."""
        ended = job.job.done()
        for call in [*job.calls]:
            if (outcome := _outcome(self._outcomes / f"{call.number}.pickle")) is not None:
                job.calls.remove(call)
                _pass_on(call.future, *outcome)
        if not ended:
            return
        with self._changed:
            if job in self._running:
                self._running.remove(job)
            if not job.calls:
                return
            error = job.job.exception() or RuntimeError("its job ended without a result")
            first, *others = job.calls
            first.deaths += 1
            if first.deaths >= MOST_DEATHS:
                _pass_on(first.future, None, died(error))
            else:
                others = [first, *others]
            self._waiting += [call for call in others if not call.future.cancelled()]
            self._changed.notify()


def _contents(calls: Sequence[_Call]) -> list[tuple[int, Callable[..., Any], tuple[Any, ...]]]:
    """Calls as `run_calls` takes them: number, function and arguments."""
    return [(call.number, call.function, call.arguments) for call in calls]


def _pass_on(future: Future[Any], answer: Any, error: BaseException | None) -> None:
    """Settle a future with an answer or an error, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _outcome(path: Path) -> tuple[Any, BaseException | None] | None:
    """The answer and the error that a job has written to a file; None if the file is not there (yet)."""
    try:
        outcome: tuple[Any, BaseException | None] = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)
    return outcome


def run_calls(folder: Path, calls: Sequence[tuple[int, Callable[..., Any], tuple[Any, ...]]]) -> int:
    """Make calls one after the other, in a job, and write the outcome of each of them to a file, whole or not at all.

    folder: of the files. calls: number, function and arguments. Returns the number of calls.
    """
    for number, function, arguments in calls:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = function(*arguments), None
        except Exception as error:
            outcome = None, error
        temporary = folder / f"{number}.part"
        temporary.write_bytes(pickle.dumps(outcome))
        temporary.replace(folder / f"{number}.pickle")
    return len(calls)
