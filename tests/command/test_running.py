"""What `trainplan run` refuses, and what it writes of measured times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from trainplan.profiling.profiles import load_profile

from tests.helpers.plans import UNTIED, plan_of
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
    ("words", "line"),
    [
        (["--stall-timeout", "0.5"], "--stall-timeout is 0.5; give 1 second or more, such as 30"),
        (["--stall-timeout", "nan"], "--stall-timeout is nan; give 1 second or more"),
        (["-o", "profile.json"], "--output has no profile to write; give it with --measure and a --profile, or a --cluster"),
        (["--measure", "-o", "profile.json"], "--output has no profile to write"),
        (["--cluster", "cpu-4"], "--cluster is given without --measure"),
        (["--measure", "--cluster", "cpu-4", "--scale-down", "2"], "--cluster is given with --scale-down"),
        (["--measure", "--backend", "threads"], "--measure goes with 'threads'; give --backend serial"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    plan: Path, words: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plan.parent)
    assert call(monkeypatch, "run", plan, *words) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_measured_times_are_printed_by_kind_and_written_as_a_profile(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = plan.with_name("profile.json")
    words = ("--measure", "--cluster", "cpu-4", "-o", target, "--steps", "2", "--no-compare", "--json")
    assert call(monkeypatch, "run", plan, *words) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert max(report["predicted_peak_bytes"]) > report["limit_bytes"] == 1000
    assert "memory_bytes is 1000" in printed.err
    by_kind = {row["kind"]: row for row in report["instructions"]}
    assert by_kind["backward"]["count"] == len(UNTIED.units)
    assert by_kind["backward"]["predicted_ns"] > 0
    profile = load_profile(target)
    assert profile.origin == "measured"
    assert profile.optimizer_ns_per_parameter.origin == "measured"
    assert call(monkeypatch, "simulate", plan, "--profile", target, "--json") == 0
    assert json.loads(capsys.readouterr().out)["step_ns"] > 0
