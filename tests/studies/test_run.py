"""Whole studies: resumed after kills and interrupts, by any executor, with the same table as one that ran through."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from trainplan.profiling.base.yaml_files import yaml_text

import trainplan as tp
from tests.helpers.faulty_methods import gone, installed
from tests.helpers.refusals import refused
from tests.helpers.studies import SMALL
from trainplan.studies import isolated, run
from trainplan.studies.pace import Pace, duration_text
from trainplan.studies.run import agenda, dry_run
from trainplan.studies.specification import specification
from trainplan.studies.storage import StudyStopped, read_rows

RESULT = (
    "key",
    "name",
    "status",
    "value_ns",
    "bound_ns",
    "reason",
    "instance_hash",
    "groups",
    "bound_source",
    "solution_source",
)
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked at by /proc")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small study, which ran through."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    tp.study(SMALL, folder, jobs=2)
    return folder


def table(folder: Path) -> list[tuple[Any, ...]]:
    """What the rows of a study say, apart from times."""
    return sorted(tuple(str(row[name]) for name in RESULT) for row in read_rows(folder))


def test_a_study_is_what_solving_gives(whole: Path) -> None:
    study = tp.read_study(whole)
    assert len(study.rows()) == 8
    for row in study.rows():
        request = json.loads(row["request"])
        result = tp.solve(tp.build("layer-strategies", **request), row["method"])
        assert (row["status"], row["value_ns"], row["bound_ns"]) == (result.status, result.objective, result.bound)
        if result.solution is not None:
            solution = json.loads((whole / row["solution_path"]).read_text())
            checked = tp.check(tp.build("layer-strategies", **request), solution)
            assert (checked.objective, checked.violations) == (row["value_ns"], ())
    assert {row["status"] for row in study.rows()} == {"optimal", "feasible", "infeasible"} - (
        set() if any(row["status"] == "feasible" for row in study.rows()) else {"feasible"}
    )


def test_nothing_is_run_twice(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_rows(whole)
    monkeypatch.setattr(isolated, "run_cell", lambda cell: pytest.fail("ran again"))
    states = list[Any]()
    tp.study(SMALL, whole, progress=states.append)
    assert read_rows(whole) == before
    assert str(states[-1]) == "8/8 · 4 infeasible"


def test_what_has_changed_is_run(whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = read_rows(whole)
    study = specification(SMALL)
    assert agenda(study.cells, rows).rest == []
    for change in ({"seeds": 1}, {"limits": {"time_limit": 29}}, {"batches": [32, 64]}, {"repeats": 2, "seeds": [1]}):
        assert len(agenda(specification({**SMALL, **change}).cells, rows).rest) == 8 * change.get("repeats", 1)
    assert len(agenda(specification({**SMALL, "batches": [8, 16, 32]}).cells, rows).rest) == 4
    for name, value in (("versions", {"trainplan": "another"}), ("machine_id", "another")):
        with monkeypatch.context() as patch:
            patch.setattr(run, name, lambda value=value: value)
            assert len(agenda(study.cells, rows).rest) == 8
            assert len(agenda(study.cells, rows, any_machine=True).rest) == (8 if name == "versions" else 0)


def test_cells_with_given_statuses_are_run_again(whole: Path) -> None:
    rows, study = read_rows(whole), specification(SMALL)
    ended = sum(row["status"] == "infeasible" for row in rows)
    assert len(agenda(study.cells, rows, again=["infeasible", "crashed"]).rest) == ended == 4
    assert dry_run(study, whole, 1, ["infeasible"])["rest"] == ended
    with refused("--again", "lost", "crashed"):
        agenda(study.cells, rows, again=["lost"])


def test_new_groups_are_stated_without_solving(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "run_cell", lambda cell: pytest.fail("ran again"))
    study = tp.study({**SMALL, "groups": {"eight": {"batches": 8}}}, whole)
    assert sorted(row["groups"] for row in study.rows()) == [[]] * 4 + [["eight"]] * 4
    tp.study(SMALL, whole)


def test_a_killed_study_goes_on(whole: Path, tmp_path: Path) -> None:
    """Killed while cells run, by a signal that no process can handle: no process and no temporary file stays, and nothing that
    was finished runs again."""
    file, folder, mark = tmp_path / "study.yaml", tmp_path / "folder", f"TRAINPLAN_KILL_MARK={os.getpid()}"
    file.write_text(yaml_text(SMALL))
    line = [sys.executable, "-m", "trainplan", "study", str(file), "-j", "2", "-o", str(folder)]
    process = subprocess.Popen(line, env={**os.environ, **dict([mark.split("=")])}, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (folder.is_dir() and read_rows(folder)):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    finished = {row["key"]: row["started"] for row in read_rows(folder)}
    assert gone(mark)
    (folder / "plans").mkdir(exist_ok=True)
    (folder / "plans" / ".0123.part").write_text("torn")
    tp.study(file, folder, jobs=2)
    assert table(folder) == table(whole)
    assert finished.items() <= {row["key"]: row["started"] for row in read_rows(folder)}.items()
    assert not [*folder.rglob("*.part"), *folder.glob("journal-*")]


def test_an_interrupt_ends_with_what_is_finished(tmp_path: Path) -> None:
    """As Ctrl-C: exit code 3, one line, and no process stays; what a cell that waits would have given is not stored."""
    site = installed(tmp_path)
    file, folder, mark = tmp_path / "study.yaml", tmp_path / "folder", f"TRAINPLAN_STOP_MARK={os.getpid()}"
    file.write_text(yaml_text({**SMALL, "methods": ["exact", "sleeps"]}))
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(site))))
    line = [sys.executable, "-m", "trainplan", "study", str(file), "-j", "2", "-o", str(folder)]
    environment = {**os.environ, **dict([mark.split("=")]), "PYTHONPATH": paths}
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (folder.is_dir() and read_rows(folder)):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert [line for line in errors.splitlines() if "interrupted" in line]
    assert "Traceback" not in errors
    assert gone(mark)
    assert {row["method"] for row in read_rows(folder)} == {"exact"}


@pytest.mark.long
def test_processes_of_an_executor(whole: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        tp.study(SMALL, tmp_path / "folder", executor=executor)
    assert table(tmp_path / "folder") == table(whole)


class Broken(Executor):
    """An executor that fails for the first cell, and has no room for others after the third."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, function: Any, /, *values: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.count += 1
        if self.count == 1:
            future.set_exception(OSError("the worker was lost"))
        elif self.count <= 3:
            future.set_result(function(*values, **named))
        else:
            raise RuntimeError("cannot schedule new futures")
        return future


def test_executors_that_fail(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(StudyStopped, match="cannot schedule"):
        tp.study(SMALL, tmp_path, executor=Broken())
    rows = read_rows(tmp_path)
    assert [row["status"] for row in rows] == ["crashed", *[row["status"] for row in rows[1:]]]
    assert "the worker was lost" in rows[0]["reason"]
    assert len(rows) == 3
    tp.study(SMALL, tmp_path, jobs=2)  # the lost cell has its row, and is not run again
    assert [row["status"] for row in read_rows(tmp_path)].count("crashed") == 1
    with refused("executor"):
        tp.study(SMALL, tmp_path, executor=3)
    with refused("jobs", "0"):
        tp.study(SMALL, tmp_path, jobs=0)


def test_a_dry_run_counts(whole: Path, tmp_path: Path) -> None:
    study = specification({**SMALL, "exclude": [{"batches": 16, "memory": "100MiB"}], "seeds": [0, 1]})
    counted = dry_run(study, tmp_path / "new", 2)
    assert (counted["cells"], counted["done"], counted["rest"], counted["excluded"]) == (12, 0, 12, [4])
    assert (counted["limit_seconds"], counted["seconds"]) == (12 * 30 / 2, None)
    assert [(row["method"], row["cells"]) for row in counted["counts"]] == [("exact", 6), ("galvatron-dp", 6)]
    assert not (tmp_path / "new").exists()
    counted = dry_run(study, whole, 2)
    assert (counted["done"], counted["rest"]) == (6, 6)
    assert 0 < counted["seconds"] < 180


def test_the_time_left() -> None:
    """By cells of the same problem, method and model, with the same limit if there are any; else at most the limits."""
    pace, cell = (
        Pace(),
        {"task": "solve", "problem": "joint", "method": "exact", "limits": {"time_limit": 60.0}, "request": {"model": "a"}},
    )
    endless = {**cell, "limits": {"time_limit": None}}
    assert pace.rest([cell] * 4, 2) == (120.0, False)
    assert pace.rest([cell, endless], 2) == (None, False)
    row = {"task": "solve", "problem": "joint", "method": "exact", "time_limit_s": 60.0, "wall_seconds": 10.0}
    row |= {"model": "a", "cluster": None}
    pace.add(row)
    pace.add({**row, "wall_seconds": 20.0})
    pace.add({**row, "wall_seconds": None})
    pace.add({**row, "time_limit_s": None, "wall_seconds": 90.0})
    assert pace.rest([cell] * 4, 2) == (30.0, True)
    assert pace.rest([endless], 2) == (90.0, True)
    assert pace.rest([cell, {**cell, "method": "milp"}], 2) == (60.0, False)
    assert pace.rest([cell, {**cell, "request": {"model": "larger"}}], 2) == (60.0, False)
    assert [duration_text(seconds) for seconds in (0.2, 89, 91, 3600, 7300, 200000)] == [
        "1 s",
        "89 s",
        "2 min",
        "60 min",
        "3 h",
        "3 days",
    ]
