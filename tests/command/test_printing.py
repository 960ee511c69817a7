"""Printed texts: those of files escaped and cut, and long lines wrapped below their labels on a terminal alone."""

from __future__ import annotations

import json
import os
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from trainplan.profiling.base.errors import InputError, printable

from tests.command.test_command import COMMAND
from tests.helpers.calls import call
from tests.test_hostile_files import base
from trainplan.command import printing

NASTY = "a\x1b[2J[/]:smile:\nb\u202ec\u2028\x9bd"
ESCAPED = r"a\x1b[2J[/]:smile:\nb\u202ec\u2028\x9bd"
LONG = "word " * 40


def printed(monkeypatch: pytest.MonkeyPatch, terminal: bool, width: int = 60) -> StringIO:
    text = StringIO()
    monkeypatch.setattr(
        printing, "out", Console(file=text, force_terminal=terminal, no_color=True, width=width, soft_wrap=True)
    )
    return text


def test_texts_are_escaped_and_cut() -> None:
    assert printable(NASTY) == ESCAPED and printable(ESCAPED) == ESCAPED
    assert printable("größer 層 é", 50) == "größer 層 é"
    assert printable("k" * 10**6, 20) == "k" * 17 + "..."
    error = InputError("file.json", NASTY, "p" * 10**6, NASTY)
    assert len(error.command_text) < 2000 and error.command_text.isprintable() and ESCAPED in error.field


@pytest.mark.parametrize("key", [NASTY, "k" * 10**6])
def test_an_unknown_key_is_one_short_line(key: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for name, words in (("layer-strategies", ["solve"]), ("plan", ["run"]), ("profile", ["profile", "show"])):
        path.write_text(json.dumps({**base(name), key: 1}))
        done = call(*words, path)
        assert done.returncode == 2 and len(done.stderr) < 1000 and done.stderr[:-1].isprintable(), done.stderr[:300]
    path.write_text(json.dumps({**base("model"), key: 1}))
    done = call("model", "show", path)
    assert len(done.stderr) < 1000 and done.stderr[:-1].isprintable(), done.stderr[:300]


def test_names_in_tables_are_escaped(tmp_path: Path) -> None:
    path, content = tmp_path / "file.json", json.loads(json.dumps(base("layer-strategies")))
    content["layers"][0]["name"] = NASTY
    path.write_text(json.dumps(content))
    done = call("solve", path)
    assert done.returncode == 0 and ESCAPED in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())


def test_tables_take_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[list[Any]] = [[NASTY, "[bold]1[/bold]"]]
    for width in (100, 20):
        text = printed(monkeypatch, terminal=False, width=width)
        printing.table(["layers", "[x]"], rows, "[title]")
        assert "[/]" in text.getvalue() and "[bold]" in text.getvalue() and "[title]" in text.getvalue()


def test_long_lines_are_wrapped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, terminal=True)
    printing.pairs([("label", LONG), ("a", "/folder/" + "x" * 100)])
    lines = text.getvalue().splitlines()
    assert lines[0].startswith("label  word") and lines[1].startswith("       word") and max(map(len, lines[:-1])) <= 60
    assert lines[-1].endswith("x" * 100), "a path stays whole"
    text = printed(monkeypatch, terminal=False)
    printing.pairs([("label", LONG)])
    assert text.getvalue() == f"label  {LONG}\n"


def test_columns_say_how_wide_tables_are() -> None:
    for columns in ("70", "120"):
        words = [*COMMAND, "cluster", "show", "amp-heterogeneous-16"]
        shown = subprocess.run(words, env={**os.environ, "COLUMNS": columns}, capture_output=True, text=True, check=True).stdout
        rules = [len(line.rstrip()) for line in shown.splitlines() if "──" in line]
        assert all(length <= int(columns) for length in rules)


def test_numbers_stay_with_their_units(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(printing.out, "width", 40)
    printing.wrapped("FITS", ["72.4 of 74 GiB on stage 0, most of it 37 GiB of activations, 5 %"])
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(line[printing.LABEL_WIDTH :].strip() for line in lines).startswith("72.4 of 74 GiB on stage 0")
    assert not any(line.strip().startswith(("GiB", "%")) for line in lines) and max(map(len, lines)) <= 40
