"""Scripts of bash as the command that trains, with nothing run: parsed by tree-sitter's grammar, and evaluated.

    text -> statements (evaluate, compounds, builtins) -> words (scan, words) -> commands that are reached
    -> the one that trains (launchers, commands)

What nobody has said stays undecided (marks, state): a variable of the environment, a positional parameter, what a program
prints. Arguments that hang on it are named with the variable that would decide them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainplan.execution.launch_files.run_configuration import UndecidedValue, affects_plan
from trainplan.execution.launch_files.settings import ACCELERATE
from trainplan.execution.launch_files.shell import pasted
from trainplan.execution.launch_files.shell.arguments import values_of
from trainplan.execution.launch_files.shell.batch import batch_of
from trainplan.execution.launch_files.shell.commands import Command, Hangs, chosen, hangs
from trainplan.execution.launch_files.shell.evaluate import Evaluator
from trainplan.execution.launch_files.shell.marks import MARK, TooMuch
from trainplan.execution.launch_files.shell.places import asked
from trainplan.execution.launch_files.shell.scan import Unclosed
from trainplan.execution.launch_files.shell.state import merged
from trainplan.execution.launch_files.shell.variables import ARGUMENT, MOST_BYTES
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of

__all__ = ["Command", "Hangs", "command_of", "command_of_text", "values_of", "words_of_command"]

OPTION = re.compile(r"(?<![\w$})])--?[A-Za-z][\w.-]*")
RECIPES = re.compile(r"(?:run_(?:recipe|script)|pretrain_\w+)\.py$")  # programs of Megatron-Bridge, by recipes


def command_of(path: Path, variables: Mapping[str, str]) -> Command:
    """The command that a script starts training by, or a plain list of arguments as one. variables: of its environment, and
    positional parameters by number. Raises InputError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(str(path), "", "is larger than 1 MiB", "give the script that starts training")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", f"cannot be read ({error})", "give a text file") from None
    return command_of_text(text, variables, str(path), path.parent)


def words_of_command(text: str, variables: Mapping[str, str] | None = None) -> Command:
    """The command of a line of text, as `import-run --command` takes it. Raises InputError."""
    return command_of_text(text, variables or {}, COMMAND_LINE, Path("."))


def command_of_text(text: str, variables: Mapping[str, str], where: str, folder: Path) -> Command:
    """The command that the text of a script starts training by. where: its name; folder: of files that it reads. Raises
    InputError."""
    if MARK.search(text) or "\0" in text:
        raise InputError(where, "", "holds characters that no script has", "give the script that starts training")
    text = text.replace("\r\n", "\n")
    pasted.refuse(text, where)
    shell = Evaluator(variables, folder)
    try:
        if _is_list(text):
            command = _listed(shell, text, where)
            _refuse_unused(shell, command, [text], where)
            return command
        state = shell.start(where)
        state.batch = batch_of(text)
        outcomes = shell.text(text, state, where)
        end = merged([each for each, _ in outcomes], shell.marks, frozenset(shell.given), where)
        command = chosen(shell, end.commands, where)
    except Unclosed:
        raise InputError(where, "", "has a quote or a bracket that nothing closes", "mend it") from None
    except Hangs as error:
        raise _taken_by_place(shell, error.name, text, where) or error from None
    except (TooMuch, RecursionError) as error:
        if isinstance(error, TooMuch) and error.decision is not None:
            if (more := _taken_by_place(shell, error.decision.cause.name, text, where)) is not None:
                raise more from None
            raise hangs(where, error.decision.cause, error.decision.example) from None
        raise InputError(where, "", "takes more steps than are followed", "give the command itself by --command") from None
    for key, open_ in command.open.items():
        if affects_plan(key) and (more := _taken_by_place(shell, open_.name, text, where)) is not None:
            raise more
    _refuse_unused(shell, command, shell.texts, where)
    return _with_blanks(shell, command)


def _refuse_unused(shell: Evaluator, command: Command, texts: Sequence[str], where: str) -> None:
    """Raises InputError for a variable that is given, and that no text of a script has but as the name of an option."""
    recipes = RECIPES.search(command.program) is not None
    choices = {"recipe"} if recipes else {ACCELERATE} if command.tool not in ("megatron", "torchtitan") else set()
    fields = command.tool == "torchtitan" or recipes  # which --set may be of, too
    plain = [OPTION.sub(" ", text) for text in texts]
    for name in shell.given:
        used = any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) for text in plain)
        if used or name in choices or (fields and "." in name):
            continue
        read = set(re.findall(r"\$\{?([A-Za-z_]\w*)", " ".join(texts)))
        names = sorted(each for each in read if each not in shell.own or each.isupper())
        names += [str(place) for place in sorted(shell.asked)]
        problem = f"is {name}, which {where} does not use" + " as a variable" * any(name in text for text in texts)
        option = next((key for key in command.values if key.lstrip("-") == name.replace("_", "-")), None)
        if option is not None:
            fix = f"change {option} in it: --set gives variables"
            fix += f", of which it has {', '.join(names)}" * bool(names)
        else:
            fix = one_of(name, names) if names else "leave it out: there is no variable in it that can be given"
        raise InputError(COMMAND_LINE, "--set", problem, fix)


def _with_blanks(shell: Evaluator, command: Command) -> Command:
    """The command, with what is known of arguments that are given nothing, since a variable that the script sets elsewhere is
    empty there."""
    blank, text = dict[str, UndecidedValue](), "\n".join(shell.texts)
    given = " with " + " and ".join(f"{name}={value}" for name, value in shell.given.items()) if shell.given else ""
    for name, where in shell.blank.items():
        for option in re.findall(rf"(--[A-Za-z][\w-]*)[ \t=]+[\"']?\$\{{?{name}\b", text):
            key = option.replace("_", "-")
            if command.values.get(key) in (True, ""):
                blank.setdefault(key, UndecidedValue(f"has no value: ${name} is empty{given} ({where})", name))
    return replace(command, blank=blank)


def _taken_by_place(shell: Evaluator, name: str, text: str, where: str) -> InputError | None:
    """An error that names all values which a script takes by place, where it hangs on one of several that nobody has said."""
    if not name.isdecimal() or len(shell.asked) < 2:
        return None
    problem, values = asked(text, shell.asked)
    return InputError(where, "", problem, f"say what they are: {values}")


def _is_list(text: str) -> bool:
    """Whether a text is a list of arguments and no script."""
    first = re.search(r"^\s*([^#\s].*)$", text, re.MULTILINE)
    return first is not None and first[1].startswith("--")


def _listed(shell: Evaluator, text: str, where: str) -> Command:
    """A list of arguments as a command without a program."""
    words: list[str] = []
    sources: dict[str, str] = {}
    state = shell.start(where)
    for number, line in enumerate(re.sub(r"\\\n", " \n", text).split("\n")):
        plain = re.sub(r"(^|\s)#.*$", "", line)
        for raw in re.findall(r"(?:\$\{[^}]*\}|\$\(\([^()]*\)\)|'[^']*'|\"(?:\\.|[^\"])*\"|[^\s'\"])+", plain):
            words += shell.words(state, f"{where}:{number + 1}").fields(raw)
        for match in ARGUMENT.finditer(plain):
            sources[match[0].replace("_", "-")] = f"{where}:{number + 1}"
    values = values_of(words)
    opened = {}
    for key, value in values.items():
        cause = shell.marks.cause(value) if isinstance(value, str) else None
        if cause is not None:
            opened[key] = UndecidedValue(
                f"is '{shell.marks.shown(value)}': {cause.name} {cause.why} ({cause.where})", cause.name
            )
    values = {key: shell.marks.shown(value) if isinstance(value, str) else value for key, value in values.items()}
    return Command("", "megatron", tuple(words), (), where, None, sources, values, opened)
