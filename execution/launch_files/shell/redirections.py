"""Evaluates statements whose input or output is redirected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell.scan import Raw
from trainplan.execution.launch_files.shell.state import State
from trainplan.execution.launch_files.shell.words import Words
from tree_sitter import Node

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator, Outcomes, Source


def redirected(shell: Evaluator, node: Node, state: State, source: Source) -> Outcomes:
    """Evaluate a statement with redirections, such as `cmd > file`, `cmd < file` or a here-document. shell: the script's
    evaluator. node: the statement's syntax tree. source: the script text. Nothing is run: state, the simulated shell, is
    changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue
    N."""
    body = node.child_by_field_name("body")
    more: list[Raw] = []
    targets: list[Raw] = []
    given: str | None = None
    piped: list[Node] = []
    where, words = source.where(node), shell.words(state, source.where(node))
    for child in node.children:
        if child.type == "heredoc_redirect":
            given = document(child, words, source)
            for inner in child.named_children:
                if inner.type == "pipeline" or (inner.type in ("command", "list") and inner.type != "heredoc_body"):
                    piped.append(inner)
                elif inner.type == "file_redirect":
                    targets += shell.raw(source.of(inner))
                elif inner.type not in ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor"):
                    more.append(Raw(source.of(inner), 0))
        elif child.type in ("file_redirect", "herestring_redirect"):
            targets += shell.raw(source.of(child))
    more = [target for target in targets if not target.redirects] + more

    def run(inner: State) -> Outcomes:
        if body is None:
            return [(inner, "")]
        if body.type in ("command", "declaration_command", "variable_assignment", "variable_assignments"):
            return shell.simple(source.of(body), more, inner, source, body)
        return shell.statement(body, inner, source)

    captured, before = state.captures, state.printed
    if piped:
        state.captures, state.printed = True, ""
    outcomes = streamed(shell, [target for target in targets if target.redirects], given, run, state, where, body is None)
    if piped:
        following = [child for node in piped for child in (node.named_children if node.type == "pipeline" else [node])]
        for reached, flow in outcomes:
            reached.given, reached.captures, reached.printed = reached.printed, captured, before
            if not flow:
                shell.pipeline(following, reached, source)
    return outcomes


def document(node: Node, words: Words, source: Source) -> str:
    """The text of a here-document (`<< END`) of a script, with its variables expanded unless its delimiter is quoted. node:
    the here-document in the syntax tree. words: expands the variables. source: the text that the tree is of."""
    start = next((child for child in node.named_children if child.type == "heredoc_start"), None)
    body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
    text = "" if body is None else source.of(body)
    if any(child.type == "<<-" for child in node.children):
        text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
    if start is not None and any(quote in source.of(start) for quote in "'\"\\"):
        return text
    return words._joined(words.pieces(text, True, True))


def streamed(
    shell: Evaluator,
    targets: Sequence[Raw],
    given: str | None,
    run: Callable[[State], Outcomes],
    state: State,
    where: str,
    prints: bool = False,
) -> Outcomes:
    """Call a function that evaluates a command with redirected input and output. targets: the words after redirection
    operators. given: the input from a here-document, if any. run: the function. prints: whether the input itself is printed,
    as by `$(< file)`. shell: the script's evaluator. where: file and line. Nothing is run: state, the simulated shell, is
    changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue
    N."""
    words = shell.words(state, where)
    into: tuple[str, bool] | None = None
    for target in targets:
        sign = target.redirects.lstrip("0123456789")
        if sign == "<<<":
            given = words.text(target.text) + "\n"
        elif sign == "<":
            given = shell.content(state, words.text(target.text), where)
        elif sign in (">", ">>", ">|", "&>", "&>>") and (target.redirects[0] not in "23456789"):
            into = (words.text(target.text), sign in (">>", "&>>"))
    state.given = given if given is not None else state.given
    if prints and given is not None and state.captures:
        state.printed += given
    if into is None:
        return run(state)
    captured, before, state.captures, state.printed = state.captures, state.printed, True, ""
    outcomes = run(state)
    path, adds = into
    for end, _ in outcomes:
        if not path.startswith("/dev/"):
            shell.written(end, path, end.printed, adds)
        end.captures, end.printed = captured, before
    return outcomes
