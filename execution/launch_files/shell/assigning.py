"""Assignments of variables, elements and arrays, and `export`, `local`, `declare` and similar commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell.marks import MARK
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Raw
from trainplan.execution.launch_files.shell.state import ABSENT, Array, State

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator, Outcomes

DECLARES = ("export", "declare", "typeset", "local", "readonly")


def assign(shell: Evaluator, raw: str, state: State, where: str, named: bool = False) -> str:
    """Evaluate one assignment, such as `a=1`, `a[2]+=x` or `a=(x y)`, in the simulated shell, and return the variable's
    name. raw: the assignment as it is written. state: the simulated shell, whose variable is changed. where: file and line,
    for messages. named: whether an array's elements have names, as with `declare -A`. shell: the script's evaluator."""
    match = ASSIGNED.match(raw)
    assert match is not None
    name, index, more, value = shell.target(state, match[1]), match[2], match[3], raw[match.end() :]
    words, kind = shell.words(state, where), state.kinds.get(name, "")
    if "r" in kind:
        return name
    if value.startswith("(") and value.endswith(")"):
        old = shell.value(state, name, where) if more and (name in state.variables or name in shell.given) else None
        before = state.variables.get(name)
        by_name = named or (isinstance(before, Array) and before.named)
        state.variables[name] = words.array(value[1:-1], old, bool(more), by_name)
        return name
    text = words.text(value)
    if index is not None:
        held = state.variables.get(name)
        key = words.text(index[1:-1]) if isinstance(held, Array) and held.named else words.number(index[1:-1])
        if MARK.search(key):
            state.variables[name] = shell.marks.unknown(name, where, "has an element that is not known")
            return name
        if more:
            text = words.scalar(name, index[1:-1]) + text
        shell.assign(state, name, text, where, key)
        return name
    if more:
        text = words.scalar(name, None) + "+" * ("i" in kind) + text
    if "i" in kind:
        text = words.number(text)
    elif "u" in kind or "l" in kind:
        text = shell.marks.lifted(text, str.upper if "u" in kind else str.lower, where)
    derived = bool(more) or re.search(rf"\b{name}\b", value) is not None
    shell.assign(state, name, text, where, None, derived)
    return name


def declare(shell: Evaluator, name: str, raws: Sequence[Raw], state: State, where: str) -> Outcomes:
    """Evaluate `export`, `local`, `declare`, `typeset` or `readonly`. name: which of these commands. raws: its words as
    written. shell: the script's evaluator. where: file and line. Nothing is run: state, the simulated shell, is changed; the
    result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    words, flags = shell.words(state, where), ""
    targets: list[str] = []
    for raw in raws:
        if ASSIGNED.match(raw.text):
            targets.append(raw.text)
            continue
        for word in words.fields(raw.text):
            if re.fullmatch(r"[-+][a-zA-Z]+", word):
                flags += word[1:] if word[0] == "-" else ""
            elif ASSIGNED.match(word):
                targets.append(f"{word.partition('=')[0]}={_quoted(word.partition('=')[2])}")
            elif re.fullmatch(r"[A-Za-z_]\w*", word):
                targets.append(word)
    if "f" in flags or "p" in flags:
        targets = []
    for target in targets:
        match = ASSIGNED.match(target)
        variable = match[1] if match else target
        inside = bool(state.locals) and name in ("local", "declare", "typeset") and "g" not in flags
        old = state.variables.get(variable, ABSENT)
        if inside and variable not in state.locals[-1]:
            state.locals[-1][variable] = old.copy() if isinstance(old, Array) else old
        if inside:
            state.kinds.pop(variable, None)
        if "n" in flags and name != "export":
            state.variables[variable] = words.text(target[match.end() :]) if match else None
            state.kinds[variable] = "n"
            continue
        kinds = "".join(letter for letter in "iul" if letter in flags)
        state.kinds[variable] = kinds + state.kinds.get(variable, "")
        if match:
            if inside and target[match.end() : match.end() + 1] == "(":
                state.variables.pop(variable, None)
            assign(shell, target, state, where, "A" in flags)
        elif "A" in flags or "a" in flags:
            if not isinstance(old, Array):
                state.variables[variable] = Array("A" in flags)
        elif inside:
            state.variables[variable] = None
        elif name == "export" and variable not in state.variables and shell.is_set(state, variable):
            state.variables[variable] = shell.value(state, variable, where)
        if name == "readonly" or "r" in flags:
            state.kinds[variable] += "r"
        if name == "export" and "n" in flags:
            state.exported.discard(variable)
        elif name == "export" or "x" in flags:
            state.exported.add(variable)
    state.status = True
    return [(state, "")]


def _quoted(text: str) -> str:
    r"""A text in single quotes, as bash writes it: it's -> 'it'\''s'."""
    return "'" + text.replace("'", "'\\''") + "'"
