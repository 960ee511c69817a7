"""The example that each command's help ends with: it is there, fits a terminal of 80 columns, and runs."""

from __future__ import annotations

import shlex
import subprocess
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp

import pytest
import typer

from tests.command.test_helping import helped
from tests.helpers.calls import call
from trainplan.command.app import COMMANDS, GROUPS, application
from trainplan.command.helping import COMMON, EXAMPLES

LONG = {"cluster detect", "place", "profile measure", "run", "throughput", "trial"}  # seconds each
SOME = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in EXAMPLES]


def in_groups() -> list[str]:
    """The commands of groups, such as `profile show`."""
    names = []
    for group in GROUPS:
        command = typer.main.get_command(application([group]))
        names += [f"{group} {name}" for name in command.commands[group].commands]  # type: ignore[attr-defined]
    return names


def test_every_command_has_an_example_and_no_other() -> None:
    assert sorted(EXAMPLES) == sorted([*COMMANDS, *in_groups()])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_help_ends_with_it(name: str) -> None:
    """In full, and where it shows the common options alone, but for the line that says how to see the others."""
    lines = EXAMPLES[name].splitlines()
    for option in ("--help", "--help-all"):
        printed = helped(*name.split(), option)
        if option == "--help" and name in COMMON:
            assert printed.pop().endswith(f" more options: trainplan {name} --help-all")
            printed.pop()
        assert printed[-len(lines) - 1 :] == ["Example:", *(line.strip() for line in lines)]
    assert max(map(len, lines)) <= 78
    assert any(f"{line} ".startswith(f"trainplan {name} ") for line in lines)


@pytest.mark.parametrize("name", SOME)
def test_it_runs(name: str, tmp_path: Path) -> None:
    *before, last = commands(name)
    folder = copytree(made(*before), tmp_path / "here")
    run(last, folder)
    words = shlex.split(last)
    for option in ("-o", "--picture", "--trace", "--resume", ">"):
        if option in words:
            written = folder / words[words.index(option) + 1]
            assert written.is_dir() or written.stat().st_size > 0


def commands(name: str) -> list[str]:
    """The commands of an example, each on a line; one that a quote goes over several is whole."""
    found = [""]
    for line in EXAMPLES[name].replace("\\\n", " ").splitlines():
        found[-1] += line
        if found[-1].count('"') % 2:
            found[-1] += "\n"
        else:
            found.append("")
    return found[:-1]


@cache
def made(*lines: str) -> Path:
    """A folder in which these commands have run; examples have their first ones in common."""
    folder = Path(mkdtemp())
    if lines:
        copytree(made(*lines[:-1]), folder, dirs_exist_ok=True)
        run(lines[-1], folder)
    return folder


def run(line: str, folder: Path) -> None:
    words = shlex.split(line)
    if words[0] != "trainplan":
        subprocess.run(["sh", "-c", line], cwd=folder, check=True)
        return
    target = words.pop() if words[-2] == ">" else None
    done = call(*(words[1:-1] if target else words[1:]), folder=folder)
    assert done.returncode == 0, (line, done.stderr)
    if target:
        (folder / target).write_text(done.stdout)
