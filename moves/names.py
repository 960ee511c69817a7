"""Renames loop variables that say nothing: `each` becomes the singular of what is gone through, `place` an index.

`python3.13 moves/names.py` (3.12 or later: positions inside f-strings), from the root of the checkout. A name is left where its
new one is taken in the function or the module, where it is an argument, and where what is gone through has no plural name.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import subprocess
from pathlib import Path

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LEFT = {"class", "classe", "thi", "los", "status", "bas", "axi", "basi", "analysi", "alia", "bia", "canva", "mas", "clas", "plu", "alway", "perhap", "its", "it", "i", "l", "n", "p", "x", "d", "t", "s"}
WHOLE = {"leaves": "leaf", "halves": "half", "indices": "index", "places": "index", "matches": "match", "batches": "batch", "boxes": "box", "passes": "pass_", "processes": "process",
         "losses": "loss", "switches": "switch", "axes": "axis", "pieces": "piece", "prefixes": "prefix", "suffixes": "suffix", "branches": "branch",
         "patches": "patch", "caches": "cache", "slices": "slice_", "buses": "bus", "boundaries": "boundary", "vertices": "vertex", "fixes": "fix"}


def singular(name: str) -> str | None:
    name = name.lstrip("_")
    if name in WHOLE:
        return WHOLE[name]
    head, _, last = name.rpartition("_")
    if head and last in ("ns", "bytes", "flops"):
        return None
    if last in WHOLE:
        one = WHOLE[last]
    elif len(last) > 4 and last.endswith("ies"):
        one = last[:-3] + "y"
    elif last.endswith("s") and not last.endswith(("ss", "us", "is", "ches", "shes", "xes", "sses")) and len(last) > 3:
        one = last[:-1]
    else:
        return None
    one = f"{head}_{one}" if head else one
    if one in LEFT or keyword.iskeyword(one) or one in dir(builtins) or not one.islower():
        return None
    return one


def base(node: ast.expr) -> str | None:
    """The name of what is gone through."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return base(node.value) if isinstance(node.slice, ast.Slice) else None
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in ("sorted", "reversed", "list", "tuple", "set", "islice") and node.args:
            return base(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "values":
            return base(node.func.value)
        name = base(node.func) or ""
        return name if "_" not in name.lstrip("_") else None
    return None


def wanted(target: ast.expr, iterated: ast.expr, old: str) -> str | None:
    """The new name of `old`, bound by this target."""
    if isinstance(target, ast.Name):
        return singular(base(iterated) or "") if target.id == old else None
    if isinstance(target, ast.Tuple) and isinstance(iterated, ast.Call):
        spots = [i for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id == old]
        name = iterated.func.id if isinstance(iterated.func, ast.Name) else getattr(iterated.func, "attr", "")
        if len(spots) == 1:
            if name == "zip" and len(iterated.args) == len(target.elts) and not any(isinstance(a, ast.Starred) for a in iterated.args):
                return singular(base(iterated.args[spots[0]]) or "")
            if name == "enumerate" and spots[0] == 1:
                return singular(base(iterated.args[0]) or "")
            if name == "items" and isinstance(iterated.func, ast.Attribute) and spots[0] == 1:
                return singular(base(iterated.func.value) or "")
    for inner_target, inner in ([(target.elts[1], iterated.args[0])] if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name) and iterated.func.id == "enumerate" and iterated.args else []):
        return wanted(inner_target, inner, old)
    return None


def holds(target: ast.expr, old: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == old for n in ast.walk(target))


def scopes(tree: ast.Module) -> list[ast.AST]:
    """Outermost functions, and what is left of the module and of classes."""
    found: list[ast.AST] = []

    def go(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, SCOPES):
                found.append(child)
            else:
                go(child)

    go(tree)
    return found


def names_in(node: ast.AST) -> set[str]:
    return (
        {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        | {n.name for n in ast.walk(node) if isinstance(n, (*SCOPES, ast.ClassDef))}
        | {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name}
    )


def edits_of_each(scope: ast.AST, taken: set[str], old: str = "each") -> list[tuple[ast.Name, str]]:
    edits: dict[int, tuple[ast.Name, str]] = {}
    if any(isinstance(n, ast.arg) and n.arg == old for n in ast.walk(scope)) or any(
        isinstance(n, ast.MatchAs) and n.name == old for n in ast.walk(scope)
    ):
        return []
    owner: dict[int, ast.AST | None] = {}

    def own(node: ast.AST, current: ast.AST | None) -> None:
        if isinstance(node, COMPREHENSIONS) and any(holds(g.target, old) for g in node.generators):
            own(node.generators[0].iter, current)
            for g_index, g in enumerate(node.generators):
                own(g.target, node)
                if g_index:
                    own(g.iter, node)
                for condition in g.ifs:
                    own(condition, node)
            for field in ("elt", "key", "value"):
                if (part := getattr(node, field, None)) is not None:
                    own(part, node)
            return
        if isinstance(node, ast.For) and holds(node.target, old):
            own(node.iter, current)
            for part in (node.target, *node.body, *node.orelse):
                own(part, node)
            return
        if isinstance(node, ast.Name) and node.id == old:
            owner[id(node)] = current
            nodes[id(node)] = node
        for child in ast.iter_child_nodes(node):
            own(child, current)

    nodes: dict[int, ast.Name] = {}
    binders: dict[int, ast.AST] = {}
    own(scope, None)
    for node in ast.walk(scope):
        if isinstance(node, (*COMPREHENSIONS, ast.For)):
            binders[id(node)] = node
    new: dict[int, str] = {}
    loose = any(value is None for value in owner.values())  # a use that no loop is around
    for key, node in binders.items():
        pairs = [(node.target, node.iter)] if isinstance(node, ast.For) else [(g.target, g.iter) for g in node.generators]
        pairs = [p for p in pairs if holds(p[0], old)]
        if len(pairs) != 1 or (isinstance(node, ast.For) and loose):
            continue
        name = wanted(*pairs[0], old)
        if name and name not in taken:
            new[key] = name
    for key, binder in owner.items():
        if binder is None or id(binder) not in new:
            continue
        edits[key] = (nodes[key], new[id(binder)])
    # A loop inside a loop that would get the same name is left.
    for outer_key, outer in binders.items():
        for inner in ast.walk(outer):
            if inner is not outer and id(inner) in new and outer_key in new and new[id(inner)] == new[outer_key]:
                edits = {k: v for k, v in edits.items() if owner[k] is not inner}
    return list(edits.values())


def counted(scope: ast.AST) -> set[int]:
    """Names that are bound to a number: by `enumerate`, `range`, a list of indices, arithmetic, or `index`."""
    found: set[int] = set()
    for node in ast.walk(scope):
        if isinstance(node, (ast.For, ast.comprehension)):
            call = node.iter
            first = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
            if first in ("enumerate", "range", "zip") or (base(call) or "").endswith(("places", "indices", "positions", "order")):
                found |= {id(n) for n in ast.walk(node.target)}
        if isinstance(node, ast.AugAssign):
            found.add(id(node.target))
        if isinstance(node, (ast.Assign, ast.NamedExpr)):
            value = node.value
            if isinstance(value, (ast.BinOp, ast.Constant)) or (
                isinstance(value, ast.Call) and (base(value.func) or "") in ("index", "len", "int", "bisect", "bisect_left", "bisect_right", "argmin")
            ):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    found |= {id(n) for n in ast.walk(target)}
    return found


def edits_of_place(scope: ast.AST, taken: set[str]) -> list[tuple[ast.Name, str]]:
    found: list[tuple[ast.Name, str]] = []
    for old, new in (("place", "index"), ("places", "indices")):
        nodes = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == old]
        stored = any(not isinstance(n.ctx, ast.Load) for n in nodes)
        if not nodes or not stored or new in taken or any(isinstance(n, ast.arg) and n.arg == old for n in ast.walk(scope)):
            continue
        if any(isinstance(n, (ast.Global, ast.Nonlocal)) and old in n.names for n in ast.walk(scope)):
            continue
        if any(isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == old for n in ast.walk(scope)):
            continue  # no number
        if old == "place" and not all(id(n) in counted(scope) for n in nodes if not isinstance(n.ctx, ast.Load)):
            continue
        found += [(n, new) for n in nodes]
    return found


def rewritten(text: str) -> str:
    tree = ast.parse(text)
    inside = {id(n) for s in scopes(tree) for n in ast.walk(s)}
    module = {
        name
        for node in ast.walk(tree)
        if id(node) not in inside
        for name in ([node.id] if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else [])
        + ([a.asname or a.name.split(".")[0] for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else [])
        + ([node.name] if isinstance(node, ast.ClassDef) else [])
    } | {s.name for s in scopes(tree)}
    edits: list[tuple[ast.Name, str]] = []
    for scope in scopes(tree):
        taken = names_in(scope) | module
        edits += edits_of_each(scope, taken) + edits_of_place(scope, taken)
    lines = text.encode().splitlines(keepends=True)
    for node, new in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        row = lines[node.lineno - 1]
        assert row[node.col_offset :].startswith(node.id.encode()), (node.lineno, row)
        lines[node.lineno - 1] = row[: node.col_offset] + new.encode() + row[node.col_offset + len(node.id) :]
    return b"".join(lines).decode()


def main() -> None:
    count = 0
    for name in subprocess.check_output(["git", "ls-files", "*.py"], text=True).split("\n")[:-1]:
        path = Path(name)
        if not path.is_file() or name.startswith(("moves/", "tests/fixtures/", "notebooks/", "tests/configurations/test_logs_as_printed.py")):
            continue
        before = path.read_text()
        after = rewritten(before)
        if after != before:
            ast.parse(after)
            path.write_text(after)
            count += 1
    print(count, "files")


if __name__ == "__main__":
    main()
