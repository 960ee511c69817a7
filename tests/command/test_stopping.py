"""The command when a search is stopped: it prints and writes what there is, and exits with 3."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainplan.solvers.core import method_registry
from trainplan.solvers.core.heuristic import first_plan
from trainplan.solvers.core.search import Outcome, Search

from tests.helpers.instances import paper_instance
from trainplan.command import main

REQUEST = ("--model", "gpt2", "--cluster", "cpu-4", "--batch", "8", "--sequence", "64")


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(paper_instance().to_dict()))
    return path


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit code of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["trainplan", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def stopped_by(monkeypatch: pytest.MonkeyPatch, stop: Callable[[], Outcome]) -> None:
    """Methods that have the first plan when they are stopped."""

    def method(instance: Any, search: Search) -> Outcome:
        search.report(first_plan(instance))
        return stop()

    monkeypatch.setattr(method_registry.Entry, "method", lambda self: method)


def interrupt() -> Outcome:
    raise KeyboardInterrupt


def limit() -> Outcome:
    return Outcome(stopped="time limit")


@pytest.mark.parametrize("stop, words", [(interrupt, "an interrupt"), (limit, "the time limit")])
def test_solve_writes_the_incumbent_and_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], instance: Path, stop: Callable[[], Outcome], words: str
) -> None:
    stopped_by(monkeypatch, stop)
    target = instance.with_name("solution.json")
    assert call(monkeypatch, "solve", instance, "-o", target) == 3
    assert f"stopped by {words}" in " ".join(capsys.readouterr().out.split())
    assert json.loads(target.read_text()) == {"choice": list(first_plan(paper_instance()) or ())}


def test_plan_writes_the_incumbent_and_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stopped_by(monkeypatch, interrupt)
    monkeypatch.setattr("trainplan.solvers.core.solve.cheap_bound", lambda instance: None)  # which proves this first plan
    target = tmp_path / "plan.json"
    assert call(monkeypatch, "plan", *REQUEST, "-o", target) == 3
    assert "STOPPED by an interrupt, before the search was done" in " ".join(capsys.readouterr().out.split())
    plan = json.loads(target.read_text())
    assert plan["claim"]["status"] == "feasible" and plan["claim"]["stopped"] == "interrupt"
    assert plan["predicted"]["step_ns"] > 0


def test_compare_ends_with_the_method_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], instance: Path
) -> None:
    stopped_by(monkeypatch, interrupt)
    assert call(monkeypatch, "compare-methods", instance, "--method", "exact", "--method", "milp", "--json") == 3
    reported = json.loads(capsys.readouterr().out)
    assert [result["method"] for result in reported["results"]] == reported["unfinished"] == ["label-setting"]
    assert call(monkeypatch, "compare-methods", instance, "--method", "exact", "--method", "milp") == 3
    assert "label-setting was interrupted; methods after it were not run" in capsys.readouterr().out


def test_frontier_names_the_points_that_were_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], instance: Path
) -> None:
    words = ("frontier", instance, "--from", "4GiB", "--to", "8GiB", "--points", "3", "--method", "exact", "--method", "milp")
    stopped_by(monkeypatch, interrupt)
    assert call(monkeypatch, *words, "--json") == 3
    first, *rest = json.loads(capsys.readouterr().out)
    assert first["result"]["stopped"] == "interrupt"
    assert [(entry["method"], entry["result"], entry["unfinished"]) for entry in rest] == [
        *[("label-setting", None, "interrupt")] * 2,
        *[("milp", None, "interrupt")] * 3,
    ]
    assert call(monkeypatch, *words) == 3
    shown = capsys.readouterr().out
    assert "label-setting at 4 GiB was interrupted" in shown and "5 points not tried" in shown


def test_throughput_ends_with_the_planner_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("throughput", "--model", "bert-large", "--cluster", "rtx-titan-8", "--step", "64", "--planner", "galvatron-bmw")
    stopped_by(monkeypatch, interrupt)
    assert call(monkeypatch, *words, "--planner", "optimum", "--json") == 3
    [only] = json.loads(capsys.readouterr().out)
    assert only["unfinished"] and len(only["points"]) == 1
    assert call(monkeypatch, *words, "--planner", "optimum") == 3
    assert "was interrupted: larger batches, and planners after it, were not tried" in capsys.readouterr().out


def test_planners_that_were_not_come_to_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_by(monkeypatch, interrupt)
    monkeypatch.setattr("trainplan.solvers.core.solve.cheap_bound", lambda instance: None)
    assert call(monkeypatch, "compare-planners", *REQUEST, "--json") == 3
    first, *rest = json.loads(capsys.readouterr().out)
    assert first["stopped"] == "interrupt" and rest
    assert {entry["why"] for entry in rest} == {"not planned: interrupted"}


@pytest.mark.parametrize("memory", ["12", "much", "1MiB"])
def test_a_solver_memory_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], instance: Path, memory: str
) -> None:
    assert call(monkeypatch, "solve", instance, "--solver-memory", memory) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--solver-memory" in line and "8GiB" in line
