"""Docstrings are for a stranger: every public name of the product has one, and those of the reference name every parameter of
every public function, what it gives and raises, in Google's style."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator
from inspect import Parameter, getdoc, isclass, signature, unwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainplan as tp
from tests.helpers.source_names import PATH, mentions, names_something, trees

ROOT = Path(__file__).parent.parent
FOLDERS = ("profiling", "formulations", "solvers", "execution", "trainplan")
# That exports write, and that explain themselves at their heads.
SCRIPTS = ("pipeline", "deepspeed", "accelerate", "megatron_bridge")
WRITTEN = {f"{name}_script.py" for name in SCRIPTS}
FUNCTIONS = [name for name in tp.__all__ if not isclass(getattr(tp, name))]
RECORDS = [name for name in tp.__all__ if dataclasses.is_dataclass(getattr(tp, name))]
STARS: dict[Any, str] = {Parameter.VAR_KEYWORD: "**", Parameter.VAR_POSITIONAL: "*"}


def public(node: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Public functions, classes and methods of a module or class; not what stands inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def test_every_public_name_has_a_docstring() -> None:
    bare = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name in WRITTEN:
                continue
            tree = ast.parse(path.read_text())
            nodes = [(1, "module", ast.get_docstring(tree))] if path.read_text().strip() else []
            nodes += [(node.lineno, node.name, ast.get_docstring(node)) for node in public(tree)]
            bare += [f"{path.relative_to(ROOT)}:{line} {name}" for line, name, text in nodes if not text]
    assert bare == []


def section(text: str, name: str) -> dict[str, str]:
    """The entries of a section of a docstring: each name, and its description."""
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
    assert set(section(text, "Raises")) <= {"InputError", "MissingExtra", "StudyStopped", "WorkerError"}
    assert section(text, "Raises") or name == "chrome_trace"


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_of_a_type_is_documented_in_its_order(name: str) -> None:
    fields = [field.name for field in dataclasses.fields(getattr(tp, name))]
    assert list(section(documented(name), "Attributes")) == fields


def test_the_site_reads_that_style() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    [plugin] = [entry for entry in yaml.safe_load(text)["plugins"] if isinstance(entry, dict) and "mkdocstrings" in entry]
    assert plugin["mkdocstrings"]["handlers"]["python"]["options"]["docstring_style"] == "google"


def test_dotted_names_in_docstrings_and_comments_name_something() -> None:
    gone = [
        f"{path.relative_to(ROOT)}: {name}" for path in trees() for name in mentions(path) if not names_something(name, path)
    ]
    assert gone == []


def test_a_name_that_is_gone_is_found() -> None:
    path = ROOT / "formulations/runtimes.py"
    assert all(names_something(name, path) for name in ("joint.within_runtime", "Strategy.degree", "tp.plan", "model.family"))
    gone = ("joint.runtimes", "Strategy.no_such_method", "gone.module", "model.no_such_field")
    assert not any(names_something(name, path) for name in gone)


def test_files_in_docstrings_and_comments_exist() -> None:
    named = [(path, name) for path in trees() for name in mentions(path, PATH)]
    assert len(named) > 10
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in named if not (ROOT / name).exists()] == []
