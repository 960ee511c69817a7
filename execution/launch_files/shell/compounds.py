"""Evaluates loops, `case`, `if`, and commands joined by `&&` and `||`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell.conditions import Conditions
from trainplan.execution.launch_files.shell.marks import MARK, TooMuch
from trainplan.execution.launch_files.shell.patterns import Pattern
from trainplan.execution.launch_files.shell.scan import Unclosed, split
from trainplan.execution.launch_files.shell.state import Array, State, Truth
from tree_sitter import Node

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator, Outcomes, Source

MOST_ROUNDS, FOREVER = 1000, 8


def run(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluate a loop (`for`, `while`, `until`, `select`) or a `case`. shell: the script's evaluator. node: the statement's
    syntax tree. source: the script text. Nothing is run: state, the simulated shell, is changed; the result has each
    possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    if node.type == "case_statement":
        return _case(shell, node, state, source)
    if node.type == "for_statement":
        return _for(shell, node, state, source)
    if node.type == "while_statement":
        return _while(shell, node, state, source)
    return _counted(shell, node, state, source)


def _round(shell: Evaluator, body: Callable[[State], Outcomes], state: State, done: Outcomes, where: str) -> State | None:
    """Evaluate one iteration of a loop in the simulated shell. body: a function that evaluates the loop's body, given the
    shell's state. state: the simulated shell before the iteration. done: a list to which states that leave the loop (by
    `break`, `return` or `exit`) are added, each with how it goes on. Returns the state in which the next iteration begins; None
    if there is no next one. shell: the script's evaluator. where: file and line."""
    going: list[tuple[State, str]] = []
    for reached, flow in body(state):
        kind, _, count = flow.partition(" ")
        if not flow or (kind == "continue" and count == "1"):
            going.append((reached, ""))
        elif kind == "break" and count == "1":
            done.append((reached, ""))
        elif kind in ("break", "continue"):
            done.append((reached, f"{kind} {int(count) - 1}"))
        else:
            done.append((reached, flow))
    return shell.collapsed(going, where)[0][0] if going else None


def _for(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluates `for NAME in ..` and `select`. shell: the script's evaluator. node: the statement's syntax tree. source: the
    script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it goes
    on: "" (next statement), exit, return, break N or continue N."""
    where = source.where(node)
    variable = node.child_by_field_name("variable")
    name = source.of(variable) if variable is not None else ""
    words = shell.words(state, where)
    if any(child.type == "in" for child in node.children):
        values = [word for child in node.children_by_field_name("value") for word in words.fields(source.of(child))]
    else:
        values = shell.arguments(state)
    if node.children[0].type == "select":
        values = [shell.marks.unknown(name, where, "is chosen when it runs")]
    if name in shell.given:
        values = [shell.given[name]]
    return _for_values(shell, name, values, node, state, source)


def _for_values(shell: Evaluator, name: str, values: list[str], node: Node, state: State, source: Source) -> Outcomes:
    """Evaluate the body of a `for` loop once per value. name: the loop's variable. values: its values; if an undecided
    condition selects between two lists, both are evaluated. shell: the script's evaluator. node: the statement's syntax
    tree. source: the script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state
    with how it goes on: "" (next statement), exit, return, break N or continue N."""
    where = source.where(node)
    choice = shell.marks.choice_in(" ".join(value for value in values if MARK.search(value)))
    if choice is not None:
        sides = [shell.marks.picked_words(values, {choice.decision.number: side}) for side in (True, False)]
        return shell.fork(
            state,
            (choice.decision, True),
            lambda reached: _for_values(shell, name, sides[0], node, reached, source),
            lambda reached: _for_values(shell, name, sides[1], node, reached, source),
            where,
        )
    body = node.child_by_field_name("body")
    done: Outcomes = []
    going: State | None = state
    if len(values) > MOST_ROUNDS:
        raise TooMuch
    for value in values:
        if going is None:
            break
        shell.assign(going, name, value, where)
        going = _round(shell, lambda reached: _body(shell, body, reached, source), going, done, where)
    return shell.collapsed([*done, (going, "")] if going is not None else done, where)


def _body(shell: Evaluator, body: Node | None, state: State, source: Source) -> Outcomes:
    """Evaluate the body of a loop once; a body that is None (absent) changes nothing. body: its syntax tree. shell: the
    script's evaluator. source: the script text. Nothing is run: state, the simulated shell, is changed; the result has each
    possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    return [(state, "")] if body is None else shell.statement(body, state, source)


def _while(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluates `while` and `until`. shell: the script's evaluator. node: the statement's syntax tree. source: the script
    text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it goes on: ""
    (next statement), exit, return, break N or continue N."""
    until = node.children[0].type == "until"
    conditions = [part for part in node.children_by_field_name("condition") if part.is_named]
    body = node.child_by_field_name("body")
    return _rounds(
        shell,
        lambda reached: shell.tested(lambda inner: shell.block(conditions, inner, source), reached),
        lambda reached: _body(shell, body, reached, source),
        state,
        source.where(node),
        until,
        not until and [source.of(part).strip() for part in conditions] in (["true"], [":"], ["[ 1 ]"], ["((1))"]),
    )


def _counted(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluates `for ((a; b; c))`. shell: the script's evaluator. node: the statement's syntax tree. source: the script
    text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it goes on: ""
    (next statement), exit, return, break N or continue N."""
    text, where = source.of(node), source.where(node)
    begin, end = text.index("((") + 2, text.index("))")
    body = node.child_by_field_name("body")
    if body is not None:
        end = text.rfind("))", 0, len(text) - (node.end_byte - body.start_byte))
    parts = text[begin:end].split(";")
    if len(parts) != 3:
        raise shell.unreadable(node, source)
    shell.words(state, where).number(parts[0])

    def condition(reached: State) -> Outcomes:
        return shell.arithmetic(parts[1] if parts[1].strip() else "1", reached, where)

    def both(reached: State) -> Outcomes:
        outcomes = _body(shell, body, reached, source)
        for inner, flow in outcomes:
            if not flow or flow == "continue 1":
                shell.words(inner, where).number(parts[2])
        return outcomes

    return _rounds(shell, lambda reached: shell.tested(condition, reached), both, state, where, False, not parts[1].strip())


def _rounds(
    shell: Evaluator,
    condition: Callable[[State], Outcomes],
    body: Callable[[State], Outcomes],
    state: State,
    where: str,
    until: bool,
    forever: bool = False,
) -> Outcomes:
    """Evaluate the iterations of a loop. condition, body: evaluate the loop's condition and its body in a state. until:
    whether the loop ends when the condition holds (`until`) instead of when it fails. forever: whether the condition always
    holds, as in loops that start a run again and again; then a few iterations are enough. Raises TooMuch after too many
    iterations. shell: the script's evaluator. where: file and line. Nothing is run: state, the simulated shell, is changed;
    the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    done: Outcomes = []
    going: State | None = state
    begun = len(state.commands)
    for number in range(MOST_ROUNDS):
        assert going is not None
        if forever and number == FOREVER and len(going.commands) > begun:
            return shell.collapsed([*done, (going, "exit")], where)
        outcomes = condition(going)
        done += [(reached, flow) for reached, flow in outcomes if flow]
        state = next((reached for reached, flow in outcomes if not flow), None)  # type: ignore[assignment]
        if state is None:
            return shell.collapsed(done, where)
        truth: Truth = state.status
        if not isinstance(truth, bool) and (known := state.known().get(truth[0].number)) is not None:
            truth = known == truth[1]
        if isinstance(truth, bool):
            if truth == until:
                state.status = True
                return shell.collapsed([*done, (state, "")], where)
            before = dict(state.variables) if forever else {}
            guards, leaving = state.guards, len(done)
            going = _round(shell, body, state, done, where)
            if going is None:
                return shell.collapsed(done, where)
            if forever and len(done) > leaving and going.guards != guards:  # it ends, nobody knows in which round
                for reached, _ in done[leaving:]:
                    _unknown(
                        shell, reached, [name for name in going.variables if going.variables[name] != before.get(name)], where
                    )
                return shell.collapsed([*done, (going, "exit")] if len(going.commands) > begun else done, where)
            continue
        cause = truth[0].cause
        if cause.name.isdecimal() and state.arguments is None and not state.closed:
            return shell.collapsed([*done, (state, "")], where)  # no words are given, so none are read
        return shell.collapsed([*done, *_rounds_of_unknown_number(shell, body, state, truth, where, until)], where)
    raise TooMuch


def _unknown(shell: Evaluator, state: State, changed: list[str], where: str) -> None:
    """Make variables undecided because a loop with an unknown number of iterations changes them. state: the simulated shell,
    whose variables are changed. changed: the names of these variables. where: file and line of the loop. shell: the script's
    evaluator."""
    for name in changed:
        unknown = shell.marks.unknown(name, where, "is changed by a loop, nobody knows how often")
        if isinstance(state.variables.get(name), Array):
            shell.assign_list(state, name, [unknown])
        else:
            state.variables[name] = unknown


def _rounds_of_unknown_number(
    shell: Evaluator, body: Callable[[State], Outcomes], state: State, truth: Truth, where: str, until: bool
) -> Outcomes:
    """Evaluate a loop whose number of iterations is not known: its body is evaluated once, and the variables that it changes
    are unknown afterwards. body: evaluates the loop's body in a state. truth: the undecided condition, as a pair (decision,
    side): it holds exactly where the decision comes out as `side`. until: whether the loop ends when the condition holds.
    shell: the script's evaluator. where: file and line. Nothing is run: state, the simulated shell, is changed; the result
    has each possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    assert not isinstance(truth, bool)
    cause, before = truth[0].cause, state.copy()

    def once(reached: State) -> Outcomes:
        done: Outcomes = []
        going = _round(shell, body, reached, done, where)
        outcomes = [*done, (going, "")] if going is not None else done
        for inner, _ in outcomes:
            for name, value in list(inner.variables.items()):
                if before.variables.get(name) != value or name not in before.variables:
                    unknown = shell.marks.unknown(name, cause.where, f"hangs on {cause.name or 'a loop'}, which {cause.why}")
                    if isinstance(value, Array):
                        shell.assign_list(inner, name, [unknown])
                    else:
                        inner.variables[name] = unknown
        return outcomes

    stay: Callable[[State], Outcomes] = lambda reached: [(reached, "")]  # noqa: E731
    return shell.fork(state, truth, stay if until else once, once if until else stay, where)


def _case(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluates `case`. shell: the script's evaluator. node: the statement's syntax tree. source: the script text. Nothing
    is run: state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next
    statement), exit, return, break N or continue N."""
    where = source.where(node)
    value = node.child_by_field_name("value")
    text = "" if value is None else shell.words(state, where).text(source.of(value))
    items = [child for child in node.named_children if child.type == "case_item"]
    return _items(shell, text, items, state, source)


def _items(shell: Evaluator, text: str, items: list[Node], state: State, source: Source, falls: bool = False) -> Outcomes:
    """Evaluate the items (pattern and statements) of a `case` from the first one that matches. text: the text that is
    matched. items: the syntax trees of the items that are left. falls: whether the first item is entered without a match,
    because the item before it ended with `;&`. shell: the script's evaluator. source: the script text. Nothing is run:
    state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next statement),
    exit, return, break N or continue N."""
    if not items:
        state.status = True
        return [(state, "")]
    item, where = items[0], source.where(items[0])
    ending = next((child.type for child in reversed(item.children) if child.type in (";&", ";;&")), ";;")
    close = next(index for index, child in enumerate(item.children) if child.type == ")")
    body = [child for child in item.children[close + 1 :] if child.is_named]
    begin = item.start_byte + (source.text[item.start_byte : item.start_byte + 1] == "(")
    raw = source.text[begin : item.children[close].start_byte]

    def matched(reached: State) -> Outcomes:
        outcomes = shell.block(body, reached, source)
        if ending == ";;" or len(items) == 1:
            return outcomes
        result: Outcomes = []
        for inner, flow in outcomes:
            result += [(inner, flow)] if flow else _items(shell, text, items[1:], inner, source, ending == ";&")
        return result

    if falls:
        return matched(state)
    truth = _matches(shell, text, raw, state, where)
    return shell.fork(state, truth, matched, lambda reached: _items(shell, text, items[1:], reached, source), where)


def _matches(shell: Evaluator, text: str, raw: str, state: State, where: str) -> Truth:
    """Whether a text matches one of the patterns of a `case` item: True, False or, if that is not known, a pair (decision,
    side): true exactly where the undecided condition `decision` comes out as `side`. raw: the patterns as written, separated
    by |. state: the simulated shell, in which variables in the patterns are expanded. shell: the script's evaluator. where:
    file and line."""
    conditions, words = Conditions(shell, state, where), shell.words(state, where)
    truth: Truth = False
    try:
        alternatives = [[word.text for word in split(part)] for part in _alternatives(raw)]
    except Unclosed:
        return conditions.undecided("", why="is no pattern that can be read")
    for part in alternatives:
        pattern = words.pattern("".join(part))
        joined = "".join(piece for piece, _ in pattern)

        def one(known: list[str], pattern: list[tuple[str, bool]] = pattern, joined: str = joined) -> Truth:
            value = " ".join(known)
            if joined == "*":
                return True
            if MARK.search(joined):
                return conditions.undecided(joined)
            if MARK.search(value):
                if re.search(r"[*?\[(]", "".join(piece for piece, literal in pattern if not literal)):
                    return conditions.undecided(f"{value} matches {joined}", re.sub(r"[*?\[\]()]", "", joined))
                return conditions.binary(value, "=", joined)
            return Pattern(pattern).whole(value)

        other = conditions.lifted([text], one) if text else one([""])
        truth = conditions.both(truth, other, False)
    return truth


def _alternatives(raw: str) -> list[str]:
    """Split the patterns of a `case` item at | outside quotes and brackets: "a|@(b|c)" -> ["a", "@(b|c)"]."""
    from trainplan.execution.launch_files.shell.scan import end_of

    parts, position, begin, depth = list[str](), 0, 0, 0
    while position < len(raw):
        depth += (raw[position] == "(") - (raw[position] == ")")
        if raw[position] == "|" and depth == 0:
            parts.append(raw[begin:position])
            begin = position + 1
        position = end_of(raw, position)
    return [*parts, raw[begin:]]


def branches(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluates `if` with its `elif` and `else`. shell: the script's evaluator. node: the statement's syntax tree. source:
    the script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it
    goes on: "" (next statement), exit, return, break N or continue N."""
    parts: list[tuple[list[Node], list[Node]]] = [([], [])]
    rest: list[Node] = []
    condition = True
    for child in node.children:
        if child.type == "then":
            condition = False
        elif child.type in ("elif_clause", "else_clause"):
            rest.append(child)
        elif child.is_named:
            parts[0][0 if condition else 1].append(child)
    for clause in rest:
        if clause.type == "else_clause":
            parts.append(([], clause.named_children))
            continue
        then = next(index for index, child in enumerate(clause.children) if child.type == "then")
        parts.append(([c for c in clause.children[:then] if c.is_named], [c for c in clause.children[then:] if c.is_named]))
    return chain(shell, parts, state, source, source.where(node))


def chain(shell: Evaluator, parts: list[tuple[list[Node], list[Node]]], state: State, source: Source, where: str) -> Outcomes:
    """Evaluate the first branch of an `if` whose condition holds; if a condition is undecided, its branch and the branches
    after it are evaluated. parts: for each branch, the statements of its condition (empty for `else`) and of its body.
    shell: the script's evaluator. source: the script text. where: file and line. Nothing is run: state, the simulated shell,
    is changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or
    continue N."""
    if not parts:
        state.status = True
        return [(state, "")]
    condition, body = parts[0]
    if not condition:
        return shell.block(body, state, source)
    result: Outcomes = []
    for reached, flow in shell.tested(lambda inner: shell.block(condition, inner, source), state):
        if flow:
            result.append((reached, flow))
            continue
        result += shell.fork(
            reached,
            reached.status,
            lambda inner: shell.block(body, inner, source),
            lambda inner: chain(shell, parts[1:], inner, source, where),
            where,
        )
    return shell.collapsed(result, where)


def listed(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluate `a && b` or `a || b`: the right side is evaluated depending on the status of the left side. shell: the
    script's evaluator. node: the statement's syntax tree. source: the script text. Nothing is run: state, the simulated
    shell, is changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or
    continue N."""
    left, right = node.named_children[0], node.named_children[-1]
    every = any(child.type == "&&" for child in node.children)
    result: Outcomes = []
    for reached, flow in shell.tested(lambda inner: shell.statement(left, inner, source), state):
        if flow:
            result.append((reached, flow))
            continue
        run = lambda inner: shell.statement(right, inner, source)  # noqa: E731

        def kept(inner: State) -> Outcomes:
            inner.status = not every
            return [(inner, "")]

        result += shell.fork(reached, reached.status, run if every else kept, kept if every else run, source.where(node))
    return shell.collapsed(result, source.where(node))
