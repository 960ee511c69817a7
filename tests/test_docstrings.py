"""Every public name of the product has a docstring: a stranger meets it without its neighbours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("profiling", "formulations", "solvers", "execution", "trainplan")
# That exports write, and that explain themselves at their heads.
SCRIPTS = ("pipeline", "deepspeed", "accelerate", "megatron_bridge")
WRITTEN = {f"{name}_script.py" for name in SCRIPTS}


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
