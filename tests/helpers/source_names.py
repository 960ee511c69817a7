"""Dotted names in backticks that docstrings and comments mention, and whether they still name something in the tree."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import trainplan as tp

ROOT = Path(__file__).parents[2]
FOLDERS = ("profiling", "formulations", "solvers", "execution", "trainplan", "benchmarks", "tests")
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)}|docs)/[a-z0-9_/-]+\.(?:py|md|json|jsonl|yaml))\b")
FILE = re.compile(r"\.(py|json|yaml|bin|sh|jsonl)$")
GROUPS = {"trainplan.problems", "trainplan.methods", "trainplan.families", "trainplan.exports"}  # of entry points
FOREIGN = {  # first parts of names that other software has, and of names in examples
    *("Accelerator", "ConfigContainer", "FSDPParam", "FullyShardedDataParallelPlugin", "Trainer", "accelerator", "deepspeed"),
    *(
        "Progress",
        "UntypedStorage",
        "fsdp_config",
        "job",
        "layers",
        "nn",
        "object",
        "pandas",
        "planned",
        "section",
        "torch",
        "relative",
        "logger",
        *sys.stdlib_module_names,
    ),
}
Names = dict[tuple[str, ...], set[str]]


def _defined(node: ast.AST) -> set[str]:
    """The names that the body of a module or a class binds."""
    names = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(child.name)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in child.names}
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        elif not isinstance(child, ast.expr) or isinstance(child, ast.Tuple | ast.List | ast.Starred):
            names |= _defined(child)
    return names


def _members(node: ast.ClassDef) -> set[str]:
    """The names that the body of a class or its methods bind, as in `self.values = []`."""
    stored = {sub.attr for sub in ast.walk(node) if isinstance(sub, ast.Attribute) and isinstance(sub.ctx, ast.Store)}
    return _defined(node) | stored


@cache
def trees() -> dict[Path, ast.Module]:
    """The syntax tree of every file of Python in the repository's folders of code."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text()) for path in paths}


@cache
def owners() -> tuple[Names, set[str]]:
    """What has names of its own: a dict from every end of a module's dotted name (such as `joint.problem`)
    and from every class to the names in it; and the members of all classes together."""
    found: Names = defaultdict(set)
    for path, tree in trees().items():
        own = _defined(tree)
        parts = ("trainplan", *path.relative_to(ROOT).with_suffix("").parts)
        parts = tuple(part for number, part in enumerate(parts) if part != "__init__" and (number != 1 or part != "trainplan"))
        for length in range(1, len(parts) + 1):
            for start in range(length):
                found[parts[start:length]] |= own if length == len(parts) else {parts[length]}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[(node.name,)] |= _members(node)
    members = set().union(*(names for parts, names in found.items() if parts[-1][0].isupper()))
    for public in ("tp", "api", "trainplan"):
        found[(public,)] |= set(tp.__all__)
    return found, members


def names_something(name: str, path: Path) -> bool:
    """Whether a dotted name that a file mentions is a module, an attribute of a module or class, a member of an object that the
    file has a variable for, a file, or of other software."""
    parts, (found, members) = tuple(name.split(".")), owners()
    if parts in found or name in GROUPS or FILE.search(name):
        return True
    for length in range(len(parts) - 1, 0, -1):
        if parts[length] in found.get(parts[:length], ()):
            return length == len(parts) - 1 or names_something(".".join(parts[length:]), path)
    variable = parts[0] in variables(path) and parts[1] in members
    return parts[0] in FOREIGN or (variable and not parts[0][0].isupper() and parts[0] not in packages())


@cache
def packages() -> set[str]:
    """The names of all folders of code, with which no variable is mistaken."""
    return {part for path in trees() for part in path.relative_to(ROOT).parent.parts}


@cache
def variables(path: Path) -> set[str]:
    """The names of all parameters and variables in a file, imported ones too."""
    names = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return names


def mentions(path: Path, pattern: re.Pattern[str] = DOTTED) -> Iterator[str]:
    """The matches of a pattern in a file's docstrings and comments: by default the dotted names in backticks."""
    source = path.read_text()
    if not pattern.search(source):
        return
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [ast.get_docstring(node) or "" for node in ast.walk(trees()[path]) if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    for text in texts:
        yield from pattern.findall(text)
