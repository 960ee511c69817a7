"""The help of commands: the common options first, all of them with --help-all, and what is hidden works all the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import typer

from tests.helpers.calls import call
from trainplan.command.app import ALIASES, COMMANDS, GROUPS, application
from trainplan.command.helping import ALWAYS, COMMON, MOST


def command_of(*words: str) -> Any:
    """A command as typer has it."""
    command: Any = typer.main.get_command(application(words))
    for word in words:
        command = command.commands[word]
    return command


def names() -> list[str]:
    """Every command, those of groups as `profile show`."""
    groups = {group: command_of(group).commands for group in GROUPS}
    return [*COMMANDS, *(f"{group} {name}" for group, commands in groups.items() for name in commands)]


def options(words: Sequence[str]) -> dict[str, Any]:
    """The options of a command by name."""
    return {param.name: param for param in command_of(*words).params if param.param_type_name == "option"}


def helped(*words: str) -> list[str]:
    """The lines of a help, without margins."""
    return [line.strip() for line in call(*words).stdout.rstrip().splitlines()]


def shown_by(*words: str) -> list[str]:
    """The options that a help shows, in its order."""
    rows = (re.match(r"│[ *]{1,4}(--[a-z0-9-]+)", line) for line in helped(*words))
    return [row[1] for row in rows if row]


@pytest.mark.parametrize("name", names())
def test_no_help_shows_many_options(name: str) -> None:
    """The common ones are options of the command, ten at most; where there is no choice of them, all are few."""
    own = [option for option in options(name.split()) if option not in ALWAYS]
    common = COMMON.get(name, ())
    assert set(common) <= set(own) and len(common) == len(set(common)) <= MOST
    assert common or len(own) <= MOST


@pytest.mark.parametrize("name", ["plan", "import-run", "profile measure"])
def test_help_shows_the_common_options_and_help_all_every_one(name: str) -> None:
    own, common = options(name.split()), COMMON[name]
    short, whole = (shown_by(*name.split(), option) for option in ("--help", "--help-all"))
    assert short == [*(own[entry].opts[0] for entry in (*common, *ALWAYS)), "--help"]
    assert set(whole) >= {option.opts[0] for option in own.values()}
    assert helped(*name.split(), "--help")[-1].startswith(f"{len(own) - len(common) - len(ALWAYS)} more options: ")


def test_an_option_that_help_does_not_show_is_taken_and_suggested() -> None:
    assert "zero" not in COMMON["plan"]
    planned = call("plan", "gpt2", "cpu-4", "--batch", "8", "--sequence", "64", "--zero", "3", "--json")
    assert planned.returncode == 0 and '"constraint": "--zero 3"' in planned.stdout
    missed = call("plan", "gpt2", "cpu-4", "--zer", "3")
    assert missed.returncode == 2 and "--zero" in missed.stderr and "plan --help-all" in missed.stderr


def test_the_options_of_a_problem_are_in_the_whole_help() -> None:
    assert "--hybrid" in shown_by("build", "joint", "--help-all")
    assert "--hybrid" not in shown_by("build", "joint", "--help")


def test_short_names_of_presets_are_hidden_and_work() -> None:
    shown, everything = (call(option).stdout for option in ("--help", "--help-all"))
    for name in ALIASES:
        assert f"│ {name} " not in shown and f"│ {name} " in everything
        assert call(name, "--help").returncode == 0
