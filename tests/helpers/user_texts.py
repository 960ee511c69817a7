"""Every text that trainplan shows to its users, with its position: help, documentation, notebooks, screens, and the literals of
its packages that are sentences."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from trainplan.command.app import COMMANDS, GROUPS, application
from trainplan.planning.presets import PRESETS

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainplan", "profiling", "formulations", "solvers", "execution")
CODE = re.compile(r"`[^`\n]*`|\$[^$\n]*\$|\]\([^)\n]*\)|https?://\S+")  # names of code, formulas and targets of links
OLD_OUTPUT = re.compile(r"^```console\n.*?^```$", re.M | re.S)  # what older revisions printed, on the page that tells of it
CALLED: list[list[str]] = [
    [],
    *([name] for name in (*COMMANDS, *GROUPS)),
    *(["plan", "--like", like] for like in (*PRESETS, "all")),
]
Text = tuple[str, str]  # a position, such as a file and line, and the text there


def helps() -> Iterator[Text]:
    """The help of every command and option, as each command and preset has it."""
    for words in CALLED:
        yield from _helps(typer.main.get_command(application(words)), "trainplan", words)


def _helps(command: Any, path: str, words: Sequence[str]) -> Iterator[Text]:
    where = " ".join((path, *words[1:]))
    yield f"{where} --help", command.help or ""
    yield f"{where} --help", getattr(command, "epilog", None) or ""
    for parameter in command.params:
        for part in ("help", "rich_help_panel"):
            yield f"{where} {parameter.name}", getattr(parameter, part, None) or ""
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _helps(subcommand, f"{path} {name}", words)


def pages() -> Iterator[Text]:
    """The paragraphs of documentation, without names of code and formulas, and the stored screens."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        line = 1
        shown = path.read_text()
        if path.name == "before-and-after.md":
            shown = OLD_OUTPUT.sub(lambda block: "\n" * block[0].count("\n"), shown)
        for text in CODE.sub("``", shown).split("\n\n"):
            yield f"{path.relative_to(ROOT)}:{line}", " ".join(text.split())
            line += text.count("\n") + 2
    for path in sorted((ROOT / "tests/command/screens").glob("*.txt")):
        yield str(path.relative_to(ROOT)), " ".join(path.read_text().split())


def notebooks() -> Iterator[Text]:
    """The prose of notebooks, and the text of their stored outputs."""
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if text.startswith("#"):
                yield f"{path.relative_to(ROOT)}:{number}", CODE.sub("``", text)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                yield str(path.relative_to(ROOT)), CODE.sub("``", "".join(cell["source"]))
            for output in cell.get("outputs", []):
                for kind, text in {"text/plain": output.get("text", ""), **output.get("data", {})}.items():
                    if kind in ("text/plain", "text/html"):
                        yield str(path.relative_to(ROOT)), "".join(text)


def report_page() -> Iterator[Text]:
    """The report's template without its code, and the literals of its script."""
    folder = ROOT / "trainplan/reports"
    page = re.sub(r"\{[{%].*?[%}]\}", "", (folder / "page.html").read_text())
    for number, text in enumerate(page.splitlines(), 1):
        yield f"trainplan/reports/page.html:{number}", text
    for number, text in enumerate((folder / "page.js").read_text().splitlines(), 1):
        for quoted in re.findall(r"\"[^\"]*\"|`[^`]*`", text):
            yield f"trainplan/reports/page.js:{number}", re.sub(r"\$\{[^}]*\}", "", quoted)


def literals() -> Iterator[Text]:
    """String literals of the packages that are sentences or parts of them: those with a space, without docstrings. An f-string
    is one text, with a dash for each value that it inserts. The library's checker is left out: it is read with the files of
    instances, and has the words of their fields, such as `units` and `beside`."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name == "check_library.py":
                continue
            for node, text in _literals(ast.parse(path.read_text())):
                if " " in text:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def _literals(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue  # a docstring
            case ast.JoinedStr(values=values):
                yield node, "".join(str(value.value) if isinstance(value, ast.Constant) else "–" for value in values)
                for value in values:
                    if isinstance(value, ast.FormattedValue):
                        yield from _literals(value)
            case ast.Constant(value=str(text)):
                yield node, text
            case _:
                yield from _literals(node)


def reference() -> Iterator[Text]:
    """The docstrings of the names that the page on the Python interface (docs/api.md) documents."""
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        yield name, CODE.sub("``", getattr(import_module(module), attribute).__doc__ or "")


def exports() -> Iterator[Text]:
    """The comments and docstrings of the training script that `export --to torch` writes."""
    path = ROOT / "execution/runtimes/torch/torch_script.py.jinja"
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if "#" in text or '"""' in text:
            yield f"{path.relative_to(ROOT)}:{number}", text
