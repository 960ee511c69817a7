"""Branches of scripts by the status of commands: known ones as bash has them, and undecided where nobody can know them."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.shell import command_of_text
from trainplan.execution.launch_files.shell.commands import Command

from tests.configurations.test_shell import RUN

TP = "--tensor-model-parallel-size"


def command(text: str, folder: Path = Path("."), **message: str) -> Command:
    return command_of_text(text, message, str(folder / "run.sh"), folder)


def size(text: str, folder: Path = Path(".")) -> object:
    """The value that a script gives TP, which is decided."""
    made = command(f"{text}\n{RUN} {TP} $TP\n", folder)
    assert not made.open, made.open
    return made.values[TP]


def undecided(text: str, folder: Path = Path(".")) -> str:
    """Why it is not decided which value a script gives TP."""
    return command(f"{text}\n{RUN} {TP} ${{TP:-1}}\n", folder).open[TP].problem


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("false; TP=$?", "1"),
        ("true; TP=$?", "0"),
        ("f() { return 3; }; f; TP=$?", "3"),
        ("f() { (exit 4); }; f; TP=$?", "4"),
        ("f() { return 3; }; f || TP=$?", "3"),
        ("f() { return 3; }; X=$(f); TP=$?", "3"),
        ("f() { return 3; }; ! f; TP=$?", "0"),
        ("f() { return 3; }; f() { false; return; }; f; TP=$?", "1"),
        ("f() { return 3; }; f; export RC=$?; TP=$RC", "3"),
        ("f() { return 3; }; f; export RC=$?; TP=$?", "0"),
        ("f() { return 3; }; f | cat; TP=$?", "0"),
        ("f() { return 3; }; f; X=1; TP=$?", "0"),
        ("[ 1 = 2 ]; rc=$?; if [ $rc -ne 0 ]; then TP=4; else TP=1; fi", "4"),
    ],
)
def test_a_status_that_is_known(text: str, status: str) -> None:
    assert size(text) == status


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-smi | grep -q H100; IS=$?; if [ $IS -eq 0 ]; then TP=8; else TP=2; fi",
        "X=$(nvidia-smi); if [ $? -eq 0 ]; then TP=8; else TP=2; fi",
        "nvidia-smi; rc=$?; [ $rc -eq 2 ] && TP=4",
        "nvidia-smi; rc=$?; case $rc in 0) TP=8 ;; *) TP=2 ;; esac",
        "if pip show transformer-engine > /dev/null; then TP=2; fi",
        "if module load cuda/12; then TP=2; fi",
        "if mkdir lock 2>/dev/null; then TP=2; else TP=4; fi",
        "mkdir -p lock && TP=2",
        "cd /nonexistent || TP=4",
        "sed -i s/x/y/ conf && TP=2",
        "if ! rm lock; then TP=2; fi",
        "while ! mkdir lock; do TP=2; sleep 1; done",
        "if python3 check.py; then TP=2; fi",
        "bash check.sh && TP=2",
        "source check.sh || TP=2",
        "if cat flag; then TP=2; fi",
        "if [ $(date +%H) -gt 12 ]; then TP=2; fi",
        "if pip list | grep -q flash; then TP=2; fi",
        'f() { mkdir -p "$1"; }; f x && TP=2',
    ],
)
def test_a_status_that_nobody_knows_is_not_taken_for_success(text: str, tmp_path: Path) -> None:
    assert "not decided" in undecided(text, tmp_path)


def test_a_command_that_fails_has_no_status_of_zero() -> None:
    """Whatever the status is, only one side of these conditions is left once the other has ended the script."""
    assert size("nvidia-smi; rc=$?; if [ $rc -ne 0 ]; then exit $rc; fi; TP=$((rc + 2))") == "2"
    assert size("nvidia-smi || { [ $? != 0 ] && TP=4 || TP=8; exit 1; }; TP=2") == "2"


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p logs || exit 1",
        "cd /somewhere || exit",
        "cp a b || true",
        "rm -f x || echo 'nothing there'",
        "mkdir -p logs && chmod 777 logs",
        'DIR=$(cd "$(dirname "$0")" && pwd)',
        'HERE="$(cd /opt/models && pwd)"',
        "if ! mkdir -p logs; then echo no; exit 1; fi",
        "nvidia-smi; if [ $? -ne 0 ]; then exit 1; fi",
        "python check.py || exit 1",
        "source venv/bin/activate && pip install -q x",
        "until mkdir lock; do sleep 1; done",
    ],
)
def test_what_only_prepares_or_leaves_decides_nothing(text: str) -> None:
    assert size(f"TP=2\n{text}") == "2"


@pytest.mark.parametrize(
    "text",
    [
        f"source venv/bin/activate && {RUN} {TP} 2",
        f"cd /somewhere && export A=1 && {RUN} {TP} 2",
        f"mkdir -p logs && module load cuda && {RUN} {TP} 2 && echo done",
        f"if source venv/bin/activate; then {RUN} {TP} 2; fi",
        f"python check.py && {RUN} {TP} 2 || exit 1",
    ],
)
def test_training_after_a_command_that_may_fail_is_the_run(text: str) -> None:
    made = command(text)
    assert made.values[TP] == "2" and not made.open
