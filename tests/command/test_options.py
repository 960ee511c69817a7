"""Options of commands are what settings and functions of the API say of their parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import pytest
from trainplan.profiling.base.files import FilePath
from trainplan.profiling.models.model import Model

import trainplan as tp
from tests.command.test_helping import names, options
from trainplan.command.options import options_of


@dataclass(frozen=True)
class Settings:
    """Settings.

    Attributes:
        steps: Steps of training.

            None of them is timed.
        model: A name.
        out_file: Write here, after `steps`, as `run` does (default: not at
            all).
        size: Of memory.
        mode: One of two.
        quiet: Print nothing.
        check: Check the answer (default: check, if `steps` are few).
    """

    steps: int = 3
    model: FilePath | Model | None = None
    out_file: FilePath | None = None
    size: int | str | None = None
    mode: Literal["a", "b"] = "a"
    quiet: bool = False
    check: bool | None = None


def test_an_option_is_what_the_class_says_of_its_field() -> None:
    made = {option.name: (option.annotation.__origin__, option.default) for option in options_of(Settings)}
    optional_text, optional_path = str | None, Path | None
    assert made == {
        "steps": (int, 3),
        "model": (optional_text, None),
        "out_file": (optional_path, None),
        "size": (optional_text, None),
        "mode": (str, "a"),
        "quiet": (bool, False),
        "check": (bool | None, None),
    }
    [steps, out_file, check] = (
        option.annotation.__metadata__[0] for option in options_of(Settings, "steps", "out_file", "check")
    )
    assert steps.help == "Steps of training."
    assert out_file.help == r"Write here, after --steps, as `run` does. \[default: not at all]"
    assert [entry.default for entry in (steps, out_file, check)] == ["--steps", "--out-file", "--check/--no-check"]


@pytest.mark.parametrize("name", names())
def test_helps_are_in_the_words_of_the_command(name: str) -> None:
    """No argument of Python's is left in them, and no reference to the text of another function."""
    fields = {
        field
        for kind in (tp.PlanRequest, tp.SearchOptions, tp.RunSettings, tp.TrainingSettings)
        for field in signature(kind).parameters
    }
    own: dict[str, Any] = options(name.split())
    for option in own.values():
        assert not option.help.startswith("as of")
        assert not {*re.findall(r"`(\w+)`", option.help)} & fields
