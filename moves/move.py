"""Moves and renames modules: `python moves/move.py moves/*.tsv [--only PREFIX]`, from the root of the checkout.

Each line of a table is `old path<TAB>new path`. Files are moved by `git mv`, and every name of a moved module is rewritten: in imports,
in texts that name it (entry points, documentation), as a dotted name and as a path. No statement of a body is changed but that
a module that is imported by its name is called by its new one. What is not there is passed over, so that the script can be run
on any commit before the moves.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path, PurePosixPath

PACKAGES = ("profiling", "formulations", "solvers", "execution")
TEXTS = {".py", ".md", ".toml", ".yml", ".yaml", ".jinja", ".txt", ".cff", ".html", ".ipynb", ""}
LEFT = ("CHANGELOG.md", "moves/", "tests/fixtures/", "LICENSE")


def dotted(path: str) -> str:
    """The name under which a file is imported."""
    parts = PurePosixPath(path.removesuffix(".py").removesuffix("/__init__")).parts
    return ".".join(("trainplan", *parts) if parts[0] in PACKAGES else parts)


def tracked() -> list[str]:
    return subprocess.check_output(["git", "ls-files"], text=True).split("\n")[:-1]


def imports_rewritten(text: str, modules: dict[str, str]) -> str:
    """`from package import module` of moved modules, and the module's name in the body."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    lines = text.splitlines(keepends=True)
    renamed: dict[str, str] = {}
    edits: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not any(f"{node.module}.{a.name}" in modules for a in node.names):
            continue
        indent = " " * node.col_offset
        kept = [a for a in node.names if f"{node.module}.{a.name}" not in modules]
        new: list[str] = []
        if kept:
            new.append(f"{indent}from {node.module} import {', '.join(a.name + (f' as {a.asname}' if a.asname else '') for a in kept)}\n")
        for a in node.names:
            target = modules.get(f"{node.module}.{a.name}")
            if target is None:
                continue
            package, _, name = target.rpartition(".")
            folder = package.removeprefix("trainplan.execution.runtimes.")
            call = name if folder == package or "." in folder else f"{folder}_{name}"  # there is a reader of every runtime
            local = a.asname or a.name
            if a.asname is None and call != a.name:
                renamed[a.name] = call
            apart = package.replace("trainplan", "trainplan_MOVED", 1)  # so that it is not taken for an old name
            new.append(f"{indent}from {apart} import {name}{f' as {local}' if local != name else ''}\n")
        edits.append((node.lineno - 1, node.end_lineno or node.lineno, "".join(new)))
    for first, last, new_text in sorted(edits, reverse=True):
        lines[first:last] = [new_text]
    text = "".join(lines)
    bound = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} | {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }
    names = bound | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)
    }
    for old, new_name in renamed.items():
        if old in bound or new_name in names:
            continue
        text = re.sub(rf"( import (\w+)) as {old}\n", lambda m: m[1] + (f" as {new_name}" if m[2] != new_name else "") + "\n", text)
        places = [
            (n.lineno - 1, n.col_offset)
            for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Name) and n.id == old
        ]
        rows = text.splitlines(keepends=True)
        for row, column in sorted(places, reverse=True):
            raw = rows[row].encode()
            rows[row] = (raw[:column] + new_name.encode() + raw[column + len(old.encode()) :]).decode()
        text = "".join(rows)
    return text


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("tables", nargs="+", type=Path)
    given.add_argument("--only", default=None, help="only what lies under this folder today")
    arguments = given.parse_args()
    moves: dict[str, str] = {}
    for table in arguments.tables:
        for line in table.read_text().splitlines():
            old, new = line.split("\t")
            if arguments.only is None or any(old.startswith(p) for p in arguments.only.split(",")):
                moves[old] = new
    files = set(tracked())
    moves = {old: new for old, new in moves.items() if old in files and old != new}
    for old, new in moves.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        # By way of a second name, as one file may move to where another one stands until it is moved itself.
        subprocess.check_call(["git", "mv", old, f"{new}.moving"])
    for new in moves.values():
        subprocess.check_call(["git", "mv", f"{new}.moving", new])
    code = {old: new for old, new in moves.items() if old.endswith(".py")}
    for new in code.values():
        for folder in Path(new).parents:
            start = folder / "__init__.py"
            if str(folder) in (".", "tests", "benchmarks", *PACKAGES[:1]) or start.exists():
                continue
            start.write_text("")
            subprocess.check_call(["git", "add", str(start)])
    for folder in {Path(old).parent for old in code}:
        rest = [f for f in tracked() if f.startswith(f"{folder}/")]
        if rest == [f"{folder}/__init__.py"]:
            subprocess.check_call(["git", "rm", "-qf", rest[0]])
    modules = {dotted(old): dotted(new) for old, new in code.items()}
    alone = re.compile(r"(?<![\w./-])(" + "|".join(map(re.escape, sorted(modules, key=len, reverse=True))) + r")(?!\w|/|\.(?:py|json|md)\b)")
    moves |= {str(Path(old).parent): str(Path(new).parent) for old, new in moves.items() if old.endswith("/__init__.py")}
    paths = re.compile(r"(?<![\w./-])((?:\.\./)*)(" + "|".join(map(re.escape, sorted(moves, key=len, reverse=True))) + r")(?![\w])")
    for name in tracked():
        path = Path(name)
        if path.suffix not in TEXTS or name.startswith(LEFT) or path.is_symlink() or not path.is_file():
            continue
        try:
            before = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        text = imports_rewritten(before, modules) if path.suffix == ".py" else before
        text = alone.sub(lambda m: modules[m[1]], text).replace("trainplan_MOVED", "trainplan")
        text = paths.sub(lambda m: m[1] + moves[m[2]], text)
        if text != before:
            path.write_text(text, "utf-8")
    packages()


def packages() -> None:
    """List the packages of today's folders in pyproject.toml."""
    found = defaultdict(list)
    for name in tracked():
        folder = PurePosixPath(name).parent
        if name.endswith("/__init__.py") and folder.parts[0] in ("trainplan", *PACKAGES):
            found[folder.parts[0]].append(dotted(name))
    found["profiling"].append("trainplan.profiling")
    ordered = [p for top in ("trainplan", *PACKAGES) for p in sorted(set(found[top]))]
    path = Path("pyproject.toml")
    listed = "packages = [\n" + "".join(f'    "{p}",\n' for p in ordered) + "]\n"
    path.write_text(re.sub(r"(?ms)^packages = \[\n.*?^\]\n", listed, path.read_text(), count=1))


if __name__ == "__main__":
    main()
