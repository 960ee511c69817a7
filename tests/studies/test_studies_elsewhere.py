"""Whole studies on dask's workers and as jobs of submitit: the same table as on this machine, whoever dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import submitit
from trainplan.profiling.base.yaml_files import yaml_text

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.dask_workers import ROOT, dask_workers
from tests.helpers.studies import SMALL
from trainplan.studies.executors import dask_executor, died
from trainplan.studies.pace import Progress
from trainplan.studies.slurm import JobsExecutor
from trainplan.studies.storage import read_rows

STUDY: dict[str, Any] = {**SMALL, "name": "elsewhere", "seeds": [0, 1]}
COLUMNS = ("key", "name", "status", "value_ns", "bound_ns", "instance_hash", "groups", "bound_source", "solution_source")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, ...]]:
    """The table of the study on this machine."""
    folder = tmp_path_factory.mktemp("here") / "study"
    tp.study(STUDY, folder, jobs=2)
    return table(folder)


def table(folder: Path) -> list[tuple[str, ...]]:
    return sorted(tuple(str(row[name]) for name in COLUMNS) for row in read_rows(folder))


def test_dask_gives_the_same_table_with_a_worker_killed_midway(here: list[tuple[str, ...]], tmp_path: Path) -> None:
    killed: list[int] = []
    with dask_workers(tmp_path, 2) as (file, workers), dask_executor(file) as executor:

        def kill(progress: Progress) -> None:
            if progress.done and not killed:
                killed.append(progress.done)
                workers[0].kill()

        tp.study(STUDY, tmp_path / "study", executor=executor, progress=kill)
    assert killed and killed[0] < len(here)
    assert table(tmp_path / "study") == here
    assert list((tmp_path / "study" / "solutions").rglob("*.json"))  # written here, by the study's own process


def test_jobs_give_the_same_table(here: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    jobs = submitit.LocalExecutor(folder=tmp_path / "jobs")
    with JobsExecutor(jobs, tmp_path, 8, poll_seconds=0.05) as executor:
        tp.study(STUDY, tmp_path / "study", executor=executor)
    assert table(tmp_path / "study") == here


class Deadly(ThreadPoolExecutor):
    """An executor whose workers die with every cell of one seed."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        if arguments[0]["seed"] == 0:
            return super().submit(function, *arguments, **keywords)
        future: Future[Any] = Future()
        future.set_exception(died(RuntimeError("killed four workers")))
        return future


def test_a_cell_that_kills_its_workers_has_a_row_and_the_study_goes_on(tmp_path: Path) -> None:
    small = {**STUDY, "batches": 8, "with": {"memory": "2GiB"}}
    with Deadly(1) as executor:
        study = tp.study(small, tmp_path / "study", executor=executor)
    ends = {(row["seed"], row["method"]): row for row in study.rows()}
    statuses = {key: row["status"] for key, row in ends.items() if key[0]}
    assert statuses == {(1, "exact"): "crashed", (1, "galvatron-dp"): "crashed"}
    assert "killed four workers" in ends[1, "exact"]["reason"] and ends[0, "exact"]["status"] == "optimal"


@pytest.mark.long
def test_the_command_runs_a_study_on_a_scheduler(here: list[tuple[str, ...]], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml_text(STUDY))
    with dask_workers(tmp_path, 1) as (file, _):
        done = call("study", tmp_path / "study.yaml", "-o", tmp_path / "study", "--dask", file, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == len(here) and table(tmp_path / "study") == here


def test_a_dry_run_writes_the_script_and_a_study_may_follow(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml_text({**STUDY, "seeds": 0, "batches": 8, "with": {"memory": "2GiB"}}))
    words = ("study", tmp_path / "study.yaml", "-o", tmp_path / "study", "--json")
    done = call(*words, "--slurm", "--dry-run", "--slurm-options", "cells=2", "--slurm-options", "partition=long")
    script = Path(json.loads(done.stdout)["script"])
    assert script.is_relative_to(tmp_path / "study") and "#SBATCH --partition=long" in script.read_text()
    assert call(*words).returncode == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--dask", "nowhere.json", "--slurm"), "--slurm"),
        (("--slurm-options", "cpus=2"), "--slurm-options"),
        (("--slurm", "--slurm-options", "cpu=2"), "--slurm-options"),
        (("--dask", "nowhere.json"), "--dask"),
    ],
)
def test_wrong_options_are_refused_in_one_line(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml_text(STUDY))
    done = call("study", tmp_path / "study.yaml", "-o", tmp_path / "study", *words, folder=tmp_path)
    assert done.returncode == 2 and named in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_jobs_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml_text(STUDY))
    done = call("study", tmp_path / "study.yaml", "--slurm", "--dry-run")
    assert done.returncode == 2 and "--output" in done.stderr
