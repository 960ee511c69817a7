"""Cells on other machines: a dask scheduler whose workers are killed, jobs of submitit, and scripts for Slurm."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import submitit

from tests.helpers.dask_workers import PATIENCE_SECONDS, dask_workers, wait_for
from tests.helpers.refusals import refused
from trainplan.studies import executors
from trainplan.studies.executors import NotSubmitted, WorkerDied, dask_executor
from trainplan.studies.slurm import (
    BEYOND_BYTES,
    MOST_DEATHS,
    JobsExecutor,
    SlurmSettings,
    for_cells,
    settings_of,
    slurm_executor,
    write_script,
)

ROOT = Path(__file__).parents[2]


def square(number: int) -> int:
    return number * number


def note(number: int, folder: str) -> int:
    """Leave a mark that this call was made."""
    with Path(folder, f"{number}").open("a") as file:
        file.write("x")
    return number


def die_once(number: int, folder: str) -> int:
    """Kill the process at the first call, and answer at the next one."""
    mark = Path(folder, "died")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return note(number, folder)


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail(number: int) -> int:
    raise ValueError(f"not {number}")


def number_and_wait(started: str, mark: str) -> int:
    Path(started, str(os.getpid())).touch()
    return wait_for(mark)


def test_cells_of_a_killed_worker_are_run_by_another(tmp_path: Path) -> None:
    started, mark = tmp_path / "started", tmp_path / "go on"
    started.mkdir()
    with dask_workers(tmp_path, 2) as (file, _), dask_executor(file) as executor:
        waiting = [executor.submit(number_and_wait, str(started), str(mark)) for _ in range(4)]
        until = time.monotonic() + PATIENCE_SECONDS
        while len(list(started.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        killed = int(min(path.name for path in started.iterdir()))
        os.kill(killed, signal.SIGKILL)
        mark.touch()
        answers = [future.result(PATIENCE_SECONDS) for future in waiting]
        assert killed not in answers and len(set(answers)) == 1
        assert [executor.submit(square, number).result(PATIENCE_SECONDS) for number in range(3)] == [0, 1, 4]


@pytest.mark.long
def test_a_cell_that_kills_its_workers_fails_alone(tmp_path: Path) -> None:
    with dask_workers(tmp_path, 3) as (file, _), dask_executor(file) as executor:
        deadly = executor.submit(die, 1)
        with pytest.raises(WorkerDied):
            deadly.result(PATIENCE_SECONDS)
        assert executor.submit(square, 5).result(PATIENCE_SECONDS) == 25  # one worker is left
        with pytest.raises(ValueError, match="not 3"):
            executor.submit(fail, 3).result(PATIENCE_SECONDS)


def test_a_scheduler_that_no_study_can_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("dask"), dask_executor(str(tmp_path / "nowhere.json")):
        pass
    with dask_workers(tmp_path, 0) as (file, _):
        monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
        with refused("dask", fix="worker"), dask_executor(file):
            pass
    with refused("dask"), dask_executor("tcp://127.0.0.1:1"):
        pass


def test_workers_with_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dask_workers(tmp_path, 1) as (file, _):
        monkeypatch.setattr(executors, "versions", lambda: {"trainplan": "0.0.1"})
        with refused("dask", fix="0.0.1"), dask_executor(file):
            pass


@pytest.fixture
def jobs_know_that_files_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs find their modules, and submitit does not wait for another machine's files to appear."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 0.2)


needs_jobs = pytest.mark.usefixtures("jobs_know_that_files_are_here")


@contextmanager
def local_jobs(folder: Path, batch: int) -> Iterator[JobsExecutor]:
    with JobsExecutor(submitit.LocalExecutor(folder=folder / "jobs"), folder, batch, poll_seconds=0.05) as executor:
        yield executor


def results(futures: list[Future[int]]) -> list[int]:
    return [future.result(PATIENCE_SECONDS) for future in futures]


@needs_jobs
def test_jobs_run_batches_of_calls(tmp_path: Path) -> None:
    with local_jobs(tmp_path, 4) as executor:
        assert results([executor.submit(square, number) for number in range(7)]) == [number**2 for number in range(7)]
        with pytest.raises(ValueError, match="not 2"):
            executor.submit(fail, 2).result(PATIENCE_SECONDS)
    assert len(list((tmp_path / "jobs").glob("*_submitted.pkl"))) == 3  # of four, of three, of one
    assert not list(tmp_path.glob("outcomes-*"))


@needs_jobs
def test_a_dead_jobs_finished_calls_are_kept_and_the_rest_run_again(tmp_path: Path) -> None:
    with local_jobs(tmp_path, 3) as executor:
        calls = [executor.submit(function, number, str(tmp_path)) for number, function in enumerate((note, die_once, note))]
        assert results(calls) == [0, 1, 2]
    assert [Path(tmp_path, str(number)).read_text() for number in range(3)] == ["x", "x", "x"]  # each of them answered once


@pytest.mark.long
@needs_jobs
def test_a_call_that_kills_its_jobs_fails_alone(tmp_path: Path) -> None:
    with local_jobs(tmp_path, 3) as executor:
        first, deadly, last = (executor.submit(function, 3) for function in (square, die, square))
        assert results([first, last]) == [9, 9]
        with pytest.raises(WorkerDied):
            deadly.result(PATIENCE_SECONDS)
    assert len(list((tmp_path / "jobs").glob("*_submitted.pkl"))) == MOST_DEATHS + 1


@needs_jobs
def test_cancelled_jobs_end(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    with local_jobs(tmp_path, 1) as executor:
        waiting = executor.submit(number_and_wait, str(started), str(tmp_path / "never"))
        until = time.monotonic() + PATIENCE_SECONDS
        while not list(started.iterdir()) and time.monotonic() < until:
            time.sleep(0.02)
        executor.shutdown(cancel_futures=True)
        with pytest.raises(CancelledError):
            waiting.result(PATIENCE_SECONDS)
        with pytest.raises(RuntimeError):
            executor.submit(square, 1)


class Refusing(submitit.LocalExecutor):
    """An executor whose submission fails, as sbatch does for a partition that there is not."""

    def _submit_command(self, command: str) -> submitit.LocalJob[int]:
        raise submitit.core.utils.FailedJobError("sbatch: error: invalid partition specified: nowhere")


def test_a_refused_submission_says_why(tmp_path: Path) -> None:
    jobs = Refusing(folder=tmp_path / "jobs")
    with JobsExecutor(jobs, tmp_path, 2) as executor, pytest.raises(NotSubmitted, match="invalid partition"):
        executor.submit(square, 2).result(PATIENCE_SECONDS)


OPTIONS = ["partition=long", "time=2h", "memory=16GiB", "cpus=4", "cells=20", "jobs=50", "account=nlp"]


def test_the_script_has_the_settings(tmp_path: Path) -> None:
    folder = tmp_path / "the study" / "slurm"
    text = write_script(settings_of([*OPTIONS, "setup=module load python"]), 410, folder).read_text()
    flags = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    expected = {"partition": "long", "time": "120", "mem": "16384MB", "cpus-per-task": "4", "array": "0-20%21"}
    assert {name: flags[name] for name in expected} == expected
    assert flags["account"] == "nlp" and str(folder) in shlex.split(flags["output"])[0]
    commands = [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]
    assert ["module", "load", "python"] in commands
    srun = next(words for words in commands if words[0] == "srun")
    assert srun[srun.index(sys.executable) + 1 :] == ["-u", "-m", "submitit.core._submit", str(folder)]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_more_jobs_than_may_run_at_once_are_said_in_the_array(tmp_path: Path) -> None:
    text = write_script(settings_of(["time=10", "memory=8GiB", "cells=2", "jobs=5"]), 100, tmp_path).read_text()
    assert "#SBATCH --array=0-49%5" in text


def test_a_jobs_time_and_memory_are_enough_for_its_cells() -> None:
    def cell(time_limit: float | None, memory: int | None) -> dict[str, Any]:
        return {"task": "solve", "limits": {"time_limit": time_limit, "memory": memory, "grace": None, "gap": 0.0}}

    made = for_cells(SlurmSettings(cells=10), [cell(60.0, 2**30), cell(600.0, 8 * 2**30)] * 20)
    assert made.time_min is not None and made.time_min * 60 >= 10 * (600 + 150)
    assert made.memory_bytes == 8 * 2**30 + BEYOND_BYTES
    plans = for_cells(SlurmSettings(cells=1), [{**cell(600.0, None), "task": "plan"}])
    assert plans.time_min is not None and plans.time_min * 60 >= 600 + 750
    kept = for_cells(SlurmSettings(time_min=5, memory_bytes=2**30), [cell(None, None)])
    assert (kept.time_min, kept.memory_bytes) == (5, 2**30)
    with refused("slurm_options", fix="time"):
        for_cells(SlurmSettings(), [cell(None, None)])


@pytest.mark.parametrize(
    "text", ["partitions=long", "cpus", "cpus=0", "cells=many", "time=-1", "time=2 weeks", "memory=16", "jobs=1.5"]
)
def test_bad_settings_are_refused(text: str) -> None:
    with refused(None):
        settings_of([text])


def test_without_slurm_the_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = SlurmSettings(time_min=5, memory_bytes=2**30)
    with refused("slurm", fix="--dry-run"), slurm_executor(settings, tmp_path):
        pass
