"""`trainplan run` refuses plans that it cannot run, and writes measured times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from trainplan.profiling.profiles import load_profile

from tests.helpers.plans import UNTIED, plan_of
from tests.helpers.refusals import stated
from trainplan.command import main


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan_of(UNTIED, ["single"] * len(UNTIED.units), 1, 2).changed(memory_bytes=1000).model_dump_json())
    return path


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit code of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["trainplan", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--stall-timeout", "0.5"], ("--stall-timeout", "0.5", "1", "30")),
        (["--stall-timeout", "nan"], ("--stall-timeout", "nan", "1", "30")),
        (["-o", "profile.json"], ("--output", "--measure", "--profile", "--cluster")),
        (["--measure", "-o", "profile.json"], ("--output", "--measure", "--profile", "--cluster")),
        (["--cluster", "cpu-4"], ("--cluster", "--measure")),
        (["--measure", "--cluster", "cpu-4", "--scale-down", "2"], ("--cluster", "--scale-down")),
        (["--measure", "--backend", "threads"], ("--measure", "threads", "--backend serial")),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    plan: Path, words: list[str], refusal: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plan.parent)
    assert call(monkeypatch, "run", plan, *words) == 2
    field, *facts = refusal
    line = capsys.readouterr().err.splitlines()[-1]
    assert f" {field} " in line and all(stated(fact, line) for fact in facts), line


def test_measured_times_are_printed_by_kind_and_written_as_a_profile(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = plan.with_name("profile.json")
    words = ("--measure", "--cluster", "cpu-4", "-o", target, "--steps", "2", "--no-compare", "--json")
    assert call(monkeypatch, "run", plan, *words) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert max(report["predicted_peak_bytes"]) > report["limit_bytes"] == 1000
    assert stated("memory_bytes", printed.err) and stated("1000", printed.err)
    by_kind = {row["kind"]: row for row in report["instructions"]}
    assert by_kind["backward"]["count"] == len(UNTIED.units)
    assert by_kind["backward"]["predicted_ns"] > 0
    profile = load_profile(target)
    assert profile.origin == "measured"
    assert profile.optimizer_ns_per_parameter.origin == "measured"
    assert call(monkeypatch, "simulate", plan, "--profile", target, "--json") == 0
    assert json.loads(capsys.readouterr().out)["step_ns"] > 0
