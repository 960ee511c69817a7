"""The reference is whole: every parameter of every public function, what it gives and raises, in Google's style."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from inspect import Parameter, getdoc, isclass, signature, unwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainplan as tp

FUNCTIONS = [name for name in tp.__all__ if not isclass(getattr(tp, name))]
RECORDS = [name for name in tp.__all__ if dataclasses.is_dataclass(getattr(tp, name))]
STARS: dict[Any, str] = {Parameter.VAR_KEYWORD: "**", Parameter.VAR_POSITIONAL: "*"}


def section(text: str, name: str) -> dict[str, str]:
    """The entries of a section of a docstring: each name, and what is said of it."""
    found = re.search(rf"^{name}:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return {} if found is None else dict(re.findall(r"^    ([*\w]+): (.+)$", found[1], re.MULTILINE))


def documented(name: str) -> str:
    text = getdoc(unwrap(getattr(tp, name)))
    assert text is not None
    return text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_documented_in_its_order(name: str) -> None:
    function: Callable[..., Any] = unwrap(getattr(tp, name))
    named = [STARS.get(parameter.kind, "") + parameter.name for parameter in signature(function).parameters.values()]
    assert list(section(documented(name), "Args")) == named


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_gives_and_raises_is_documented(name: str) -> None:
    text = documented(name)
    assert re.search(r"^Returns:\n    \S", text, re.MULTILINE)
    assert set(section(text, "Raises")) <= {"InputError", "MissingExtra", "WorkerError"}
    assert section(text, "Raises") or name == "chrome_trace"


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_of_a_type_is_documented_in_its_order(name: str) -> None:
    fields = [field.name for field in dataclasses.fields(getattr(tp, name))]
    assert list(section(documented(name), "Attributes")) == fields


def test_the_site_reads_that_style() -> None:
    text = (Path(__file__).parents[1] / "mkdocs.yml").read_text()
    [plugin] = [each for each in yaml.safe_load(text)["plugins"] if isinstance(each, dict) and "mkdocstrings" in each]
    assert plugin["mkdocstrings"]["handlers"]["python"]["options"]["docstring_style"] == "google"
