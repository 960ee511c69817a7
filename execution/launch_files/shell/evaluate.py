"""Evaluates the syntax tree of a script statement by statement, without running anything.

The tree is that of tree-sitter's grammar of bash. If a condition cannot be decided, both sides are evaluated and their final
states are merged into one, whose values depend on the condition. Sides that only leave the script are dropped, since the run is
assumed to start. Steps, iterations of loops, depth and length of texts are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.shell import builtins, compounds, redirections
from trainplan.execution.launch_files.shell.conditions import Conditions
from trainplan.execution.launch_files.shell.marks import FAILS, MARK, Decision, TooMuch, Unknown
from trainplan.execution.launch_files.shell.mask import parsed
from trainplan.execution.launch_files.shell.scan import Raw, Unclosed, split
from trainplan.execution.launch_files.shell.state import ReachedCommand, State, Truth, Value, merged
from trainplan.execution.launch_files.shell.variables import ARGUMENT, Variables
from trainplan.execution.launch_files.shell.words import Words
from trainplan.profiling.base.errors import InputError, shown
from tree_sitter import Node

META = re.compile("[]['\"\\\\`;&|<>(){}$#*?!~]")  # what a shell looks at when it reads a text again
EVERY_PLACE = re.compile(r"\bfor[ \t]+([A-Za-z_]\w*)[ \t]+do\b")  # a loop without `in`, which the grammar does not know
HOLDS = re.compile(r"(?:=|(?:\s|\\\n)+)[\"']?\$\{?([A-Za-z_]\w*|\d)\b")  # an argument whose value is that of a variable
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
MOST_STEPS, MOST_ROUNDS, DEEPEST = 20000, 1000, 40
FAILING = ("command", "declaration_command", "variable_assignment", "test_command", "pipeline", "subshell")
Outcomes = list[tuple[State, str]]  # states, and where each goes on: "", exit, return, break or continue with a number


@dataclass(frozen=True)
class Source:
    """A text of bash that is evaluated. text: the text with one byte per character, as the syntax tree counts positions.
    path: its file. line: the line of the file at which it begins."""

    text: str
    path: str
    line: int = 1

    def of(self, node: Node) -> str:
        """The part of the text that a node of its syntax tree covers."""
        return self.text[node.start_byte : node.end_byte]

    def at(self, node: Node) -> int:
        """The line of a node of the syntax tree in its file."""
        return self.line + self.text.count("\n", 0, node.start_byte)

    def where(self, node: Node) -> str:
        """The file and line of a node of the syntax tree, as "file:line"."""
        return f"{self.path}:{self.at(node)}"


class Evaluator(Variables):
    """Evaluates a bash script statement by statement without running anything, to find the commands that it reaches. A State is
    a simulated shell: variables, files that the script writes, commands reached so far. If a condition depends on a value that
    nobody has given, both sides are evaluated and their states merged into one, whose values depend on the condition.

    given: variables and, by number, positional parameters that the user gives. folder: the script's folder. In methods, node is
    a statement's syntax tree, source the text that the tree is of, where the statement's file and line, and state the simulated
    shell before it, which is changed. Outcomes are the possible states afterwards, each paired with how it goes on (flow): ""
    at the next statement, or exit, return, break N or continue N (out of N loops). Methods raise InputError for what is not
    valid bash, and TooMuch for scripts that take too many steps.
    """

    def __init__(self, given: Mapping[str, str], folder: Path) -> None:
        super().__init__(given, folder)
        self.steps, self.depth, self.serial = 0, 0, 0
        self.outputs = 0  # of commands that stood in $(..)
        self.left: list[str] = []  # where the script leaves before it starts anything
        self.texts: list[str] = []
        self.settled: frozenset[str] = frozenset()  # arguments whose lines are known, of a text that words are put together to
        self.absent: list[tuple[str, str]] = []  # scripts that were to be run and are not there, and where

    def words(self, state: State, where: str) -> Words:
        """An object that expands the words of one statement (variables, `$(..)`, quotes). state: the simulated shell that it
        reads and changes. where: file and line of the statement."""
        return Words(self, state, where)

    def decided(self, cause: Unknown, example: str = "", text: str = "") -> Decision:
        """The undecided condition that stands for a text, created on first use, so that the same condition of a script is
        decided only once. cause: the value that it depends on. example: a value that the script compares with. text: the
        condition as a text; if empty, a new condition is created."""
        return self.marks.decision_of(cause, example, text)

    def uncertain(self, state: State, where: str, argv: Sequence[str]) -> None:
        """Set the status of the simulated shell to undecided, because it is not known whether a command succeeds. state: the
        simulated shell, which is changed. where: the command's file and line. argv: its words."""
        shown = self.marks.shown(" ".join(argv))
        cause = Unknown("", where, f"hangs on whether `{shown if len(shown) <= 60 else shown[:57] + '...'}` succeeds")
        read = "" if state.given is None else f" <<< {state.given}"
        state.status = (self.decided(cause, "", f"$ {' '.join(argv)}{read}"), True)
        state.code = self.marks.unknown("", where, FAILS)

    def text(self, text: str, state: State, path: str, line: int = 1) -> Outcomes:
        """Parse and evaluate a text of bash. text: the text. path, line: the file and line at which it begins. Raises
        InputError if it is not valid bash."""
        choice = self.marks.choice_in(text, META)
        if choice is not None:
            sides = [self.marks.picked(text, {choice.decision.number: side}) for side in (True, False)]
            return self.fork(
                state,
                (choice.decision, True),
                lambda reached: self.text(sides[0], reached, path, line),
                lambda reached: self.text(sides[1], reached, path, line),
                f"{path}:{line}",
            )
        text = EVERY_PLACE.sub(r'for \1 in "$@"; do', re.sub(r"\\\s*\Z", "", text) + "\n")
        self.texts.append(text)
        source = Source(text, path, line)
        try:
            tree, assigned = parsed(text)
        except Unclosed:
            fix = "mend it, or give the command itself by --command"
            raise InputError(f"{path}:{line}", "", "has a quote or a bracket that nothing closes", fix) from None
        root = tree.root_node
        if root.has_error:
            raise self.unreadable(_faulty(root), source)
        self.owns(assigned, text)
        return self.deeper(lambda: self.block(root.children, state, source))

    def deeper(self, run: Callable[[], Outcomes]) -> Outcomes:
        """Call a function that evaluates a nested part of the script, such as a function's body. run: the function. Raises
        TooMuch if parts are nested too deeply."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooMuch
        try:
            return run()
        finally:
            self.depth -= 1

    def unreadable(self, node: Node, source: Source) -> InputError:
        """The error for a node of a syntax tree whose text is not valid bash. source: the text that the tree is of."""
        near = shown(source.of(node).strip().split("\n")[0][:60])
        fix = "mend it, or give the command itself by --command"
        return InputError(source.where(node), "", f"is no bash that can be read, near {near}", fix)

    def fork(
        self, state: State, truth: Truth, yes: Callable[[State], Outcomes], no: Callable[[State], Outcomes], where: str
    ) -> Outcomes:
        """Continue with one of two functions, depending on a condition; if the condition is undecided, with both, each on a
        copy of the state that assumes its side, and merge the results. truth: True, False or a pair (decision, side): true
        exactly where the undecided condition `decision` comes out as `side`. yes, no: evaluate what follows if the condition
        holds, or fails."""
        if not isinstance(truth, bool) and (known := state.known().get(truth[0].number)) is not None:
            truth = known == truth[1]
        if isinstance(truth, bool):
            return yes(state) if truth else no(state)
        decision, sense = truth
        outcomes: Outcomes = []
        for side in (True, False):
            reached = state.copy()
            reached.guards = (*reached.guards, (decision.number, side))
            outcomes += (yes if side == sense else no)(reached)
        return self.collapsed(outcomes, where)

    def collapsed(self, outcomes: Outcomes, where: str) -> Outcomes:
        """Merge states that go on in the same way, such as all that return from a function. States that leave the script
        before any command is reached are dropped, since the run is assumed to start. outcomes: the states, each with how it
        goes on."""
        if any(flow != "exit" or reached.commands for reached, flow in outcomes):
            outcomes = [(reached, flow) for reached, flow in outcomes if flow != "exit" or reached.commands]
        result: Outcomes = []
        for flow in dict.fromkeys(flow for _, flow in outcomes):
            states = [reached for reached, other in outcomes if other == flow]
            result.append((merged(states, self.marks, frozenset(self.given), where), flow))
        return result

    def block(self, nodes: Sequence[Node], state: State, source: Source) -> Outcomes:
        """Evaluate statements one after another. nodes: their syntax trees."""
        going: list[State] = [state]
        done: Outcomes = []
        for node in nodes:
            if not node.is_named or node.type == "comment":
                continue
            outcomes = self.statement(node, going[0], source)
            done += [(reached, flow) for reached, flow in outcomes if flow]
            going = [reached for reached, flow in outcomes if not flow]
            if not going:
                return self.collapsed(done, source.where(node)) if len(done) > 1 else done
            if len(going) > 1:
                going = [merged(going, self.marks, frozenset(self.given), source.where(node))]
        outcomes = [*done, (going[0], "")]
        return self.collapsed(outcomes, source.path) if done else outcomes

    def statement(self, node: Node, state: State, source: Source) -> Outcomes:
        """Evaluate one statement, and apply `set -e` if it failed. Raises InputError if it is not valid bash, and TooMuch
        after too many statements."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooMuch
        try:
            outcomes = self._statement(node, state, source)
        except Unclosed:
            raise self.unreadable(node, source) from None
        return self.failing(outcomes, node, source)

    def failing(self, outcomes: Outcomes, node: Node, source: Source) -> Outcomes:
        """Apply `set -e` after a statement: states in which the statement failed leave the script, except inside a
        condition. outcomes: the states after the statement, each with how it goes on."""
        body = node.child_by_field_name("body") if node.type == "redirected_statement" else node
        if body is None or not (body.type in FAILING or (body.children and body.children[0].type == "((")):
            return outcomes
        result: Outcomes = []
        for reached, flow in outcomes:
            ends = not flow and reached.status is False and "e" in reached.options and not reached.tested
            if ends and not reached.commands:
                self.left.append(source.where(node))
            result.append((reached, "exit" if ends else flow))
        return result

    def tested(self, run: Callable[[State], Outcomes], state: State) -> Outcomes:
        """Call a function that evaluates a condition, in which a failing command does not leave the script (`set -e`). run:
        the function."""
        state.tested += 1
        outcomes = run(state)
        for reached, _ in outcomes:
            reached.tested -= 1
        return outcomes

    def _statement(self, node: Node, state: State, source: Source) -> Outcomes:
        """Evaluate one statement by the kind of its syntax node: a command, condition, loop, function definition and so on."""
        kind = node.type
        if kind in ("command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments"):
            return self.simple(source.of(node), [], state, source, node)
        if kind == "test_command":
            return self.condition(node, state, source)
        if kind == "compound_statement":
            if node.children[0].type == "((":
                return self.arithmetic(source.of(node)[2:-2], state, source.where(node))
            return self.block(node.children, state, source)
        if kind in ("program", "do_group"):
            return self.block(node.children, state, source)
        if kind == "if_statement":
            return self.deeper(lambda: compounds.branches(self, node, state, source))
        if kind == "list":
            return compounds.listed(self, node, state, source)
        if kind == "negated_command":
            outcomes = self.tested(lambda reached: self.statement(node.named_children[-1], reached, source), state)
            for reached, _ in outcomes:
                reached.status = (
                    not reached.status if isinstance(reached.status, bool) else (reached.status[0], not reached.status[1])
                )
                reached.code = "1"
            return outcomes
        if kind == "subshell":
            return self.in_subshell(state, lambda inner: self.block(node.children, inner, source), source.where(node))
        if kind == "pipeline":
            return self.pipeline([child for child in node.named_children if child.type != "comment"], state, source)
        if kind == "redirected_statement":
            return redirections.redirected(self, node, state, source)
        if kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                state.functions[source.of(name)] = (body, source)
            return [(state, "")]
        if kind in ("for_statement", "c_style_for_statement", "while_statement", "case_statement"):
            return self.deeper(lambda: compounds.run(self, node, state, source))
        raise self.unreadable(node, source)

    def condition(self, node: Node, state: State, source: Source) -> Outcomes:
        """Evaluate `[ .. ]`, `[[ .. ]]` or `(( .. ))` as a statement: its truth becomes the status."""
        raw, where = source.of(node), source.where(node)
        if raw.startswith("(("):
            return self.arithmetic(raw[2:-2], state, where)
        conditions = Conditions(self, state, where)
        if raw.startswith("[["):
            state.status = conditions.double(raw[2:-2])
        else:
            words = self.words(state, where)
            state.status = conditions.test([field for raw_word in self.raw(raw[1:-1]) for field in words.fields(raw_word.text)])
        state.code = "1"
        return [(state, "")]

    def raw(self, text: str) -> list[Raw]:
        """Split a text of bash into its words as they are written, with redirections marked. Raises Unclosed for an open
        quote or bracket."""
        return split(text)

    def arithmetic(self, raw: str, state: State, where: str) -> Outcomes:
        """Evaluate `(( .. ))`: whether the value differs from 0 becomes the status. raw: the expression as written."""
        value = self.words(state, where).number(raw)
        state.status = Conditions(self, state, where).lifted(
            [value],
            lambda known: Conditions(self, state, where).undecided(known[0], "1") if MARK.search(known[0]) else known[0] != "0",
        )
        state.code = "1"
        return [(state, "")]

    def in_subshell(self, state: State, run: Callable[[State], Outcomes], where: str) -> Outcomes:
        """Call a function that evaluates commands in a subshell: their output, reached commands, written files and status
        stay, their changes of variables do not. run: the function."""
        inner = state.copy()
        outcomes = self.deeper(lambda: run(inner))
        end = merged([reached for reached, _ in outcomes], self.marks, frozenset(), where)
        state.commands, state.files, state.printed = end.commands, end.files, end.printed
        state.status, state.code = end.status, end.code
        state.lines |= end.lines
        return [(state, "")]

    def pipeline(self, nodes: Sequence[Node], state: State, source: Source) -> Outcomes:
        """Evaluate `a | b | ..`: the output of a command is the input of the next one. nodes: the syntax trees of the
        commands."""
        given: str | None = state.given
        captured, before = state.captures, state.printed
        status: Truth = True
        for index, node in enumerate(nodes):
            last = index == len(nodes) - 1
            state.captures, state.printed, state.given = True, "", given
            self.in_subshell(state, partial(self.statement, node, source=source), source.where(node))
            given = state.printed
            if last and (status is True or "pipefail" not in state.options):
                status = state.status
            elif last or "pipefail" in state.options:
                status = Conditions(self, state, source.where(node)).both(status, state.status, True)
        state.captures, state.given, state.status = captured, None, status
        state.printed = before + (given or "") if captured else before
        return [(state, "")]

    def simple(self, text: str, more: Sequence[Raw], state: State, source: Source, node: Node) -> Outcomes:
        """Evaluate a simple command: assignments, words and redirections. text: the command as written. more: written words
        in addition to those in the text, from a redirection around the command."""
        raws = [*self.raw(text), *more]
        if "expand_aliases" in state.options and raws and (alias := state.aliases.get(raws[0].text)) is not None:
            text = alias + text[raws[0].position + len(raws[0].text) :]
            if re.search(r"[;&|\n]", alias):
                return self.text(text, replace(state, aliases={}), source.path, source.at(node))
            raws = [*self.raw(text), *more]
        where, first = source.where(node), source.at(node)
        for part in (text, *(raw.text for raw in more)):
            self.note(part, source.path, first, state)
        targets = [word for word in raws if word.redirects]
        rest = [word for word in raws if not word.redirects]

        def run(inner: State) -> Outcomes:
            return builtins.run(self, rest, inner, where, source)

        return redirections.streamed(self, targets, None, run, state, where) if targets else run(state)

    def note(self, raw: str, path: str, line: int, state: State) -> None:
        """Record the lines at which arguments such as --lr are written, for messages. raw: the text of a command. path,
        line: the file and line at which it begins. state: the simulated shell, whose `lines` are changed."""
        raw = COMMENT.sub(lambda found: " " * len(found[0]), raw)
        for match in ARGUMENT.finditer(raw):
            if match[0].replace("_", "-") in self.settled:
                continue
            used = HOLDS.match(raw, match.end())
            origin = self.origin(state, used[1], path) if used else ""
            state.lines[match[0].replace("_", "-")] = f"{path}:{line + raw.count(chr(10), 0, match.start())}{origin}"

    def output(self, text: str, state: State, where: str) -> str:
        """The text that replaces `$(..)` in a word: what its commands print, without newlines at the end. text: the
        commands. state: the simulated shell, whose status and reached commands are changed."""
        return self.printed(text, state, where).replace("\0", "").rstrip("\n")

    def printed(self, text: str, state: State, where: str) -> str:
        """The text that the commands of `$(..)` or `<(..)` print. text: the commands. state: the simulated shell, whose
        status and reached commands are changed."""
        inner = state.copy()
        inner.captures, inner.printed, inner.commands, inner.options = True, "", [], inner.options - {"e"}
        path, _, line = where.rpartition(":")
        outcomes = self.text(text, inner, path, int(line) if line.isdecimal() else 1)
        end = merged([reached for reached, _ in outcomes], self.marks, frozenset(), where)
        state.status, state.code = end.status, end.code
        self.outputs += 1
        state.commands = [*state.commands, *end.commands]
        return end.printed

    def found(self, words: Sequence[str], environment: dict[str, str], state: State, where: str) -> None:
        """Record in the state a command that the script reaches, together with the conditions on the way, the exported
        variables and the written files. words: its words. environment: variables set in front of it. state: the simulated
        shell, whose `commands` grow."""
        exported = {name: value for name in state.exported if isinstance(value := state.variables.get(name), str)}
        lines = {**state.lines, **{name: state.origins[name] for name in exported if name in state.origins}}
        self.serial += 1
        state.commands.append(
            ReachedCommand(
                tuple(self.marks.picked_words(words, state.known())), where, state.guards, lines,
                exported | environment, dict(state.files), dict(state.batch), state.directory, self.serial,
            )
        )  # fmt: skip

    def called(self, name: str, words: Sequence[str], state: State, where: str) -> Outcomes:
        """Call a function of the script. name: the function. words: its arguments."""
        body, source = state.functions[name]
        saved = (state.arguments, state.shifted, state.closed)
        state.arguments, state.shifted, state.closed = list(words), 0, True
        state.locals.append({})
        outcomes = self.deeper(lambda: self.statement(body, state, source))
        for reached, _ in outcomes:
            for local, old in reached.locals.pop().items():
                reached.kinds.pop(local, None)
                self.restore(reached, local, old)
            reached.arguments, reached.shifted, reached.closed = saved
        return self.collapsed([(reached, "" if flow.startswith("return") else flow) for reached, flow in outcomes], where)

    def child(
        self, text: str, state: State, name: str, words: Sequence[str], where: str, environment: Mapping[str, Value],
        worded: bool = False,
    ) -> Outcomes:  # fmt: skip
        """Evaluate a text in a new shell that sees only exported variables, as a script that is started. text: the text.
        name: the value of `$0`. words: the positional parameters. environment: variables set in front of the command.
        worded: whether the text consists of words of the command that starts the shell, as with `bash -c`."""

        def run(inner: State) -> Outcomes:
            inner.variables = {
                variable: inner.variables[variable] for variable in inner.exported if variable in inner.variables
            }
            inner.variables.update(environment)
            inner.origins = {name: where for name, where in inner.origins.items() if name not in environment}
            inner.exported |= set(environment)
            inner.arguments, inner.shifted, inner.closed, inner.name, inner.locals = list(words), 0, True, name, []
            inner.functions, inner.kinds, inner.aliases, inner.options, inner.tested = {}, {}, {}, frozenset(), 0
            if worded:
                return self.worded(text, inner, where)
            path, _, line = where.rpartition(":")
            return self.text(text, inner, path, int(line) if line.isdecimal() else 1)

        return self.in_subshell(state, run, where)

    def worded(self, text: str, state: State, where: str) -> Outcomes:
        """Evaluate a text that consists of words of a command, as with `eval`; arguments in it keep the lines at which those
        words are written."""
        path, _, line = where.rpartition(":")
        held, self.settled = self.settled, frozenset(state.lines)
        try:
            return self.text(text, state, path, int(line) if line.isdecimal() else 1)
        finally:
            self.settled = held


def _faulty(node: Node) -> Node:
    """The innermost node of a syntax tree that has errors at which the text is not valid bash. node: the root of the tree."""
    while True:
        inner: Any = next((child for child in node.children if child.has_error or child.is_missing or child.is_error), None)
        if inner is None or node.is_error:
            return node
        node = inner
