"""Evaluates simple commands: assignments, commands of the shell itself, and commands that run another script or text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell import files, getopt, launchers, printing, reading
from trainplan.execution.launch_files.shell.assigning import DECLARES, assign, declare
from trainplan.execution.launch_files.shell.conditions import Conditions
from trainplan.execution.launch_files.shell.marks import MARK, TooMuch
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Raw
from trainplan.execution.launch_files.shell.state import ABSENT, Array, State, Value
from trainplan.profiling.models.families.fields import names

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator, Outcomes, Source

Own = Callable[["Evaluator", list[str], State, str, "Source"], "Outcomes"]
LONG = {"errexit": "e", "allexport": "a"}  # options of `set` by their long names
# Commands that succeed, and commands that print nothing which is read.
SUCCEED = names("true : trap umask ulimit alias unalias shopt sleep sync hash complete history jobs disown tee date free df du")
SILENT = names(
    """
    true : trap umask ulimit alias unalias shopt sleep sync complete disown wait module ml mkdir rm cp mv ln touch
    chmod chown bind kill pkill killall cat tee
    """
)
# Scripts that set paths and no sizes of a run.
ENVIRONMENTS = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|profile|\.?bash_?rc|\.bash_profile|modules?\.sh|setvars\.sh|set_env\.sh|bashrc|hpcx-init\.sh|lmod\.sh|bash|nccl\w*\.sh|\.env_\w+)$|^/(?:etc|opt|usr)/"
)


def run(shell: Evaluator, raws: Sequence[Raw], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate a simple command of a script, which may consist of assignments, a program and its words: expand the words and
    carry out what is known of the command. raws: the words as written. shell: the script's evaluator. where: file and line.
    source: the script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with
    how it goes on: "" (next statement), exit, return, break N or continue N."""
    words = shell.words(state, where)
    index = 0
    assigned: dict[str, Value] = {}
    while index < len(raws) and ASSIGNED.match(raws[index].text):
        index += 1
    if index == len(raws):
        before = shell.outputs
        for raw in raws:
            assign(shell, raw.text, state, where)
        if shell.outputs == before:
            state.status = True
        return [(state, "")]
    first = raws[index].text
    if first in DECLARES:
        return declare(shell, first, raws[index + 1 :], state, where)
    argv = [word for raw in raws[index:] for word in words.fields(raw.text)]
    for raw in raws[:index]:
        match = ASSIGNED.match(raw.text)
        assert match is not None
        assigned[match[1]] = words.text(raw.text[match.end() :]) if not raw.text[match.end() :].startswith("(") else ""
    return command(shell, argv, state, where, source, assigned)


def command(
    shell: Evaluator,
    argv: list[str],
    state: State,
    where: str,
    source: Source,
    environment: dict[str, Value] | None = None,
    plain: bool = False,
) -> Outcomes:
    """Evaluate a command whose words are expanded: a function of the script, a command of the shell, a program whose effect is
    known, or the start of another script or a training program, which is recorded. argv: the words. environment: values of
    variables set in front of the command, as in `A=1 run`; None for none. plain: whether functions of the script with the
    command's name are ignored. shell: the script's evaluator. where: file and line. source: the script text. Nothing is run:
    state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next statement), exit,
    return, break N or continue N."""
    environment = environment or {}
    argv = shell.marks.picked_words(argv, state.known())
    if not argv:
        return [(state, "")]
    if (choice := shell.marks.choice_in(argv[0])) is not None:
        sides = [shell.marks.picked_words(argv, {choice.decision.number: side}) for side in (True, False)]
        return shell.fork(
            state,
            (choice.decision, True),
            lambda reached: command(shell, sides[0], reached, where, source, environment, plain),
            lambda reached: command(shell, sides[1], reached, where, source, environment, plain),
            where,
        )
    name, rest = argv[0], argv[1:]
    if name in state.functions and not plain:
        return _called(shell, name, rest, state, where, environment)
    state.code = state.code if name in ("return", "exit") else "1"
    own = OWN.get(name)
    if own is not None:
        if name == "read" and "IFS" in environment:
            held = state.variables.get("IFS", ABSENT)
            state.variables["IFS"] = environment["IFS"]
            outcomes = own(shell, rest, state, where, source)
            shell.restore(state, "IFS", held)
            return outcomes
        return own(shell, rest, state, where, source)
    state.status = True
    if name == "xargs":
        return _one_after_another(shell, reading.started(shell, rest, state, where), state, where, source, environment)
    if files.changed(shell, name, rest, state, where):
        return [(state, "")]
    printed = printing.output_of(shell, name, rest, state, where)
    if printed is not None:
        if MARK.search(printed) and name not in ("echo", "printf", "pwd"):
            shell.uncertain(state, where, argv)
        elif name == "expr":
            state.status = printed.strip() not in ("", "0")
        state.printed += printed if state.captures else ""
        if len(state.printed) > 2**20:
            raise TooMuch
        return [(state, "")]
    texts = {key: value for key, value in environment.items() if isinstance(value, str)}
    if launchers.start(shell, argv, texts, state, where):
        if state.captures and not state.printed:
            state.printed = shell.marks.unknown("", where, f"is what {shell.marks.shown(name)} prints") + "\n"
        return [(state, "")]
    if name not in SUCCEED:
        shell.uncertain(state, where, argv)
    if state.captures and name not in SILENT:
        state.printed += shell.marks.unknown("", where, f"is what {shell.marks.shown(name)} prints") + "\n"
    return [(state, "")]


def _one_after_another(
    shell: Evaluator, lines: list[list[str]], state: State, where: str, source: Source, environment: dict[str, Value]
) -> Outcomes:
    """Evaluate several commands one after another, each in a process of its own, as xargs starts them. lines: the words of
    each command. environment: values of variables set in front of xargs. shell: the script's evaluator. where: file and
    line. source: the script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state
    with how it goes on: "" (next statement), exit, return, break N or continue N."""
    for argv in lines:

        def run(inner: State, argv: list[str] = argv) -> Outcomes:
            return command(shell, argv, inner, where, source, environment, True)

        shell.in_subshell(state, run, where)
    return [(state, "")]


def _called(shell: Evaluator, name: str, rest: list[str], state: State, where: str, environment: dict[str, Value]) -> Outcomes:
    """Call a function of the script. name: the function. rest: its arguments. environment: values of variables that are set
    for the call alone. shell: the script's evaluator. where: file and line. Nothing is run: state, the simulated shell, is
    changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue
    N."""
    held = {variable: state.variables.get(variable, ABSENT) for variable in environment}
    state.origins = {name: at for name, at in state.origins.items() if name not in environment}
    state.variables.update(environment)
    outcomes = shell.called(name, rest, state, where)
    for reached, _ in outcomes:
        for variable, old in held.items():
            shell.restore(reached, variable, old)
    return outcomes


def _exit(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `exit`, with or without a status. shell: the script's evaluator. rest: the words after the command's
    name. where: file and line. source: the script text. Nothing is run: state, the simulated shell, is changed; the result
    has each possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    if not state.commands:
        shell.left.append(where)
    return [(state, "exit")] if not rest else [(reached, "exit") for reached, _ in _return(shell, rest, state, where, source)]


def _return(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `return`, with or without a status. shell: the script's evaluator. rest: the words after the command's
    name. where: file and line. source: unused, for a common signature. Nothing is run: state, the simulated shell, is
    changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue
    N."""
    if rest:
        code = rest[0]
        conditions = Conditions(shell, state, where)
        state.status, state.code = conditions.lifted([code], lambda known: conditions.binary(known[0], "-eq", "0")), code
    return [(state, "return")]


def _leaves(kind: str) -> Own:
    """The function that evaluates `break` or `continue` of a loop. kind: which of the two. The result has the signature of
    all commands: evaluator, words, state of the simulated shell, file and line, and script text."""

    def run(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
        return [(state, f"{kind} {rest[0] if rest and rest[0].isdecimal() and rest[0] != '0' else 1}")]

    return run


def _shift(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `shift`, which drops positional parameters. shell: the script's evaluator. rest: the words after the
    command's name. where, source: unused, for a common signature. Nothing is run: state, the simulated shell, is changed;
    the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    count = int(rest[0]) if rest and rest[0].isdecimal() and len(rest[0]) < 6 else 1
    state.status = True
    if state.arguments is None:
        state.shifted += 0 if state.closed else count
    elif count <= len(state.arguments):
        state.arguments = shell.arguments(state)[count:]
        state.shifted += count
    else:
        state.status = False
    return [(state, "")]


def _set(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `set`, which changes options of the shell (`set -e`) and positional parameters (`set -- a b`). shell:
    the script's evaluator. rest: the words after the command's name. where, source: unused, for a common signature. Nothing
    is run: state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next
    statement), exit, return, break N or continue N."""
    index = 0
    state.status = True
    while index < len(rest) and re.fullmatch(r"[-+][a-zA-Z]+", rest[index]):
        options = set(rest[index][1:]) - {"o"}
        if rest[index][-1] == "o" and index + 1 < len(rest):
            options.add(LONG.get(rest[index + 1], rest[index + 1]))
        state.options = state.options | options if rest[index][0] == "-" else state.options - options
        index += 2 if rest[index][-1] == "o" else 1
    if index < len(rest) and (rest[index] in ("--", "-") or rest[index][:1] not in ("-", "+")):
        state.arguments, state.shifted, state.closed = rest[index + (rest[index] in ("--", "-")) :], 0, True
    return [(state, "")]


def _shopt(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `shopt`, which turns options of the shell on (-s) or off (-u). shell: the script's evaluator. rest:
    the words after the command's name. where, source: unused, for a common signature. Nothing is run: state, the simulated
    shell, is changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or
    continue N."""
    state.status = True
    options = {word for word in rest if not word.startswith("-")}
    state.options = state.options | options if "-s" in rest else state.options - options if "-u" in rest else state.options
    return [(state, "")]


def _alias(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `alias`, which defines abbreviations of commands. shell: the script's evaluator. rest: the words after
    the command's name. where, source: unused, for a common signature. Nothing is run: state, the simulated shell, is
    changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or continue
    N."""
    state.status = True
    state.aliases |= {word.partition("=")[0]: word.partition("=")[2] for word in rest if "=" in word}
    return [(state, "")]


def _source(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate `source FILE` or `. FILE`: the file's text, if the script wrote the file or it exists; otherwise it is noted
    as missing. shell: the script's evaluator. rest: the words after the command's name. where: file and line. source:
    unused, for a common signature. Nothing is run: state, the simulated shell, is changed; the result has each possible
    state with how it goes on: "" (next statement), exit, return, break N or continue N."""
    state.status = True
    if not rest:
        return [(state, "")]
    path = rest[0]
    text = state.files.get(shell.named(state, path)) if shell.marks.names_one_file(path) else None
    text = shell.text_of(state, path) if text is None else text
    if text is None or files.undecided(text):
        shown = shell.marks.shown(path)
        if not ENVIRONMENTS.search(shown) and shown not in state.missing:
            state.missing = (*state.missing, shown)
        shell.uncertain(state, where, ["source", path])
        return [(state, "")]
    held = (state.arguments, state.shifted, state.closed)
    if rest[1:]:
        state.arguments, state.shifted, state.closed = rest[1:], 0, True
    found = shell.on_disk(state, path)
    outcomes = shell.text(text, state, str(found or path))
    for reached, _ in outcomes:
        if rest[1:]:
            reached.arguments, reached.shifted, reached.closed = held
    return shell.collapsed([(reached, "" if flow == "return" else flow) for reached, flow in outcomes], where)


def _eval(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `eval`: its words, joined, as a text of the script. shell: the script's evaluator. rest: the words
    after the command's name. where: file and line. source: unused, for a common signature. Nothing is run: state, the
    simulated shell, is changed; the result has each possible state with how it goes on: "" (next statement), exit, return,
    break N or continue N."""
    return shell.worded(" ".join(rest), state, where)


def _cd(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate `cd` or `pushd`: the working directory changes; it is not known whether that succeeds if there is no such
    folder. shell: the script's evaluator. rest: the words after the command's name. where: file and line. source: unused,
    for a common signature. Nothing is run: state, the simulated shell, is changed; the result has each possible state with
    how it goes on: "" (next statement), exit, return, break N or continue N."""
    state.status = True
    words = [word for word in rest if word not in ("-P", "-L", "--")]
    if not words or words[0] == "-":
        state.directory = shell.marks.unknown("", where, "is the folder")
    elif MARK.search(words[0]):
        state.directory = words[0]
    else:
        state.directory = shell.named(state, words[0]) if not MARK.search(state.directory) else words[0]
    state.variables.pop("PWD", None)
    if words and not state.captures and (MARK.search(words[0]) or shell.kind_of(state, state.directory) != "folder"):
        shell.uncertain(state, where, ["cd", *rest])
    return [(state, "")]


def _unset(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `unset` for variables, elements of arrays and functions. shell: the script's evaluator. rest: the
    words after the command's name. where, source: unused, for a common signature. Nothing is run: state, the simulated
    shell, is changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or
    continue N."""
    state.status = True
    for word in rest:
        name, _, index = word.partition("[")
        value = state.variables.get(name)
        if index and isinstance(value, Array):
            key = index[:-1].strip("'\"")
            value.pop(key if value.named else int(key) if key.isdecimal() else key, None)
        elif re.fullmatch(r"[A-Za-z_]\w*", name):
            state.variables[name] = None
            state.functions.pop(name, None)
    return [(state, "")]


def _test(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate the command `test`: its words are a condition, whose truth becomes the status. shell: the script's evaluator.
    rest: the words after the command's name. where: file and line. source: unused, for a common signature. Nothing is run:
    state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next statement),
    exit, return, break N or continue N."""
    state.status = Conditions(shell, state, where).test(rest)
    return [(state, "")]


def _bracket(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate the command `[ .. ]`, whose status is the truth of the words before the closing bracket; without that bracket
    it fails. shell: the script's evaluator. rest: the words after the command's name. where: file and line. source: the
    script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it goes
    on: "" (next statement), exit, return, break N or continue N."""
    if rest[-1:] != ["]"]:  # `[ -z $A]`: a command that fails, unless the word is `]` alone
        state.status = Conditions(shell, state, where).undecided(rest[-1]) if rest and MARK.search(rest[-1]) else False
        return [(state, "")]
    return _test(shell, rest[:-1], state, where, source)


def _status(value: bool) -> Own:
    """The function that evaluates a command which does nothing and always succeeds (value True) or always fails (value
    False). It has the signature of all commands: evaluator, words, state of the simulated shell, file and line, and script
    text."""

    def run(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
        state.status = value
        return [(state, "")]

    return run


def _let(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `let`: every word is an arithmetic expression, and the value of the last one decides the status.
    shell: the script's evaluator. rest: the words after the command's name. where: file and line. source: unused, for a
    common signature. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it
    goes on: "" (next statement), exit, return, break N or continue N."""
    outcomes: Outcomes = [(state, "")]
    for word in rest:
        outcomes = shell.arithmetic(word, state, where)
    return outcomes


def _prefix(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate the command that follows `exec`, `builtin` or `command` and their options; functions of the script with its
    name are ignored. shell: the script's evaluator. rest: the words after the command's name. where: file and line. source:
    the script text. Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it
    goes on: "" (next statement), exit, return, break N or continue N."""
    words = list(rest)
    while words and words[0].startswith("-"):
        words.pop(0)
    return command(shell, words, state, where, source, None, True)


def _command(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate `command NAME ..`, which ignores functions of the script, or `command -v NAME`, whose success is not known.
    shell: the script's evaluator. rest: the words after the command's name. where: file and line. source: the script text.
    Nothing is run: state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next
    statement), exit, return, break N or continue N."""
    if rest and rest[0] in ("-v", "-V"):
        shell.uncertain(state, where, ["command", *rest])
        return [(state, "")]
    return _prefix(shell, rest, state, where, source)


def _exec(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `exec`: the command that it names, after which the script ends; without a command, nothing. shell: the
    script's evaluator. rest: the words after the command's name. where: file and line. source: the script text. Nothing is
    run: state, the simulated shell, is changed; the result has each possible state with how it goes on: "" (next statement),
    exit, return, break N or continue N."""
    outcomes = _prefix(shell, rest, state, where, source)
    return [(reached, flow or "exit") for reached, flow in outcomes] if rest else outcomes


OWN: dict[str, Own] = {
    "exit": _exit, "return": _return, "break": _leaves("break"), "continue": _leaves("continue"), "shift": _shift, "set": _set,
    "source": _source, ".": _source, "eval": _eval, "cd": _cd, "pushd": _cd, "popd": _status(True), "unset": _unset,
    "test": _test, "[": _bracket, "true": _status(True), ":": _status(True), "false": _status(False), "let": _let,
    "builtin": _prefix, "command": _command, "exec": _exec, "read": reading.read, "mapfile": reading.mapfile,
    "readarray": reading.mapfile, "getopts": getopt.getopts, "shopt": _shopt,
    "alias": _alias,
}  # fmt: skip
