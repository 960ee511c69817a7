"""Finds the command that starts training in a bash script. The script is parsed with tree-sitter's grammar and evaluated;
nothing of it is run.

    text -> statements (evaluate, compounds, builtins) -> words (scan, words) -> commands that are reached
    -> the one that trains (launchers, commands)

A value that nobody has given stays undecided (marks, state): an environment variable, a positional parameter, the output of a
program. Arguments that depend on such a value are reported with the variable that would decide them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainplan.execution.launch_files.run_configuration import UndecidedValue, affects_plan, example_of
from trainplan.execution.launch_files.settings import ACCELERATE
from trainplan.execution.launch_files.shell import pasted
from trainplan.execution.launch_files.shell.arguments import values_of
from trainplan.execution.launch_files.shell.batch import batch_of
from trainplan.execution.launch_files.shell.commands import Command, UndecidedRun, training_command, undecided_run
from trainplan.execution.launch_files.shell.evaluate import Evaluator
from trainplan.execution.launch_files.shell.marks import MARK, TooMuch
from trainplan.execution.launch_files.shell.scan import Unclosed
from trainplan.execution.launch_files.shell.state import merged
from trainplan.execution.launch_files.shell.variables import ARGUMENT, MOST_BYTES
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of

__all__ = ["Command", "Hangs", "command_of", "command_of_text", "values_of", "words_of_command"]

OPTION = re.compile(r"(?<![\w$})])--?[A-Za-z][\w.-]*")
RECIPES = re.compile(r"(?:run_(?:recipe|script)|pretrain_\w+)\.py$")  # programs of Megatron-Bridge, by recipes
# A variable that a script copies from a positional parameter, such as MODEL=$1.
COPIED = re.compile(
    r"^[ \t]*(?:(?:export|declare|readonly)[ \t]+)?([A-Za-z_]\w*)=[\"']?\$(?:\{(\d+)\b[^}]*\}|(\d))[\"']?[ \t]*(?:[#;].*)?$",
    re.M,
)
WORD = r"[\"']?([A-Za-z0-9][\w.+-]*)"


def command_of(path: Path, variables: Mapping[str, str]) -> Command:
    """The command by which a script starts training; the script is followed and not run. A file that is a plain list of
    arguments counts as a command, too. variables: values of environment variables and, under their numbers, of positional
    parameters. Raises InputError, also if it depends on a value that nobody has given."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(str(path), "", "is larger than 1 MiB", "give the script that starts training")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", f"cannot be read ({error})", "give a text file") from None
    return command_of_text(text, variables, str(path), path.parent)


def words_of_command(text: str, variables: Mapping[str, str] | None = None) -> Command:
    """The training command in a line of bash, as `import-run --command` takes it. variables: values of environment variables;
    None for none. Raises InputError if the line starts no training, or depends on a value that nobody has given."""
    return command_of_text(text, variables or {}, COMMAND_LINE, Path("."))


def command_of_text(text: str, variables: Mapping[str, str], where: str, folder: Path) -> Command:
    """The command by which the text of a script starts training; the script is followed and not run. variables: values of
    environment variables and, under their numbers, of positional parameters. where: the script's name, for errors. folder:
    the folder from which the script reads files. Raises InputError, also if the command depends on a value that nobody has
    given."""
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
        end = merged([state for state, _ in outcomes], shell.marks, frozenset(shell.given), where)
        command = training_command(shell, end.commands, where)
    except Unclosed:
        raise InputError(where, "", "has a quote or a bracket that nothing closes", "mend it") from None
    except UndecidedRun as error:
        raise _missing_positions_error(shell, error.name, text, where) or error from None
    except (TooMuch, RecursionError) as error:
        if isinstance(error, TooMuch) and error.decision is not None:
            if (more := _missing_positions_error(shell, error.decision.cause.name, text, where)) is not None:
                raise more from None
            raise undecided_run(where, error.decision.cause, error.decision.example) from None
        raise InputError(where, "", "takes more steps than are followed", "give the command itself by --command") from None
    for key, open_ in command.open.items():
        if affects_plan(key) and (more := _missing_positions_error(shell, open_.name, text, where)) is not None:
            raise more
    _refuse_unused(shell, command, shell.texts, where)
    return _with_blanks(shell, command)


def _refuse_unused(shell: Evaluator, command: Command, texts: Sequence[str], where: str) -> None:
    """Check that every variable that the user sets by --set is used by the script. shell: the script's evaluator, after it.
    command: the training command that was found. texts: the script and the texts that it evaluates. where: the script, for
    errors. Raises InputError for a variable that no text uses, except as the name of an option."""
    recipes = RECIPES.search(command.program) is not None
    choices = {"recipe"} if recipes else {ACCELERATE} if command.tool not in ("megatron", "torchtitan") else set()
    fields = command.tool == "torchtitan" or recipes  # which --set may be of, too
    plain = [OPTION.sub(" ", text) for text in texts]
    for name in shell.given:
        used = any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) for text in plain)
        if used or name in choices or (fields and "." in name):
            continue
        read = set(re.findall(r"\$\{?([A-Za-z_]\w*)", " ".join(texts)))
        names = sorted(variable for variable in read if variable not in shell.own or variable.isupper())
        names += [str(position) for position in sorted(shell.missing_positions)]
        problem = f"is {name}, which {where} does not use" + " as a variable" * any(name in text for text in texts)
        option = next((key for key in command.values if key.lstrip("-") == name.replace("_", "-")), None)
        if option is not None:
            fix = f"change {option} in it: --set gives variables"
            fix += f", of which it has {', '.join(names)}" * bool(names)
        else:
            fix = one_of(name, names) if names else "leave it out: there is no variable in it that can be given"
        raise InputError(COMMAND_LINE, "--set", problem, fix)


def _with_blanks(shell: Evaluator, command: Command) -> Command:
    """A copy of the training command that notes (in `blank`) every argument without a value because its variable is empty:
    the script sets the variable, but not on the path to the command. shell: the script's evaluator, after it."""
    blank, text = dict[str, UndecidedValue](), "\n".join(shell.texts)
    given = " with " + " and ".join(f"{name}={value}" for name, value in shell.given.items()) if shell.given else ""
    for name, where in shell.blank.items():
        for option in re.findall(rf"(--[A-Za-z][\w-]*)[ \t=]+[\"']?\$\{{?{name}\b", text):
            key = option.replace("_", "-")
            if command.values.get(key) in (True, ""):
                blank.setdefault(key, UndecidedValue(f"has no value: ${name} is empty{given} ({where})", name))
    return replace(command, blank=blank)


def _missing_positions_error(shell: Evaluator, name: str, text: str, where: str) -> InputError | None:
    """The error that lists all positional parameters (such as $1) that the script needs, if the run depends on one of them
    and nobody has given at least two; otherwise None. shell: the script's evaluator, after it. name: the variable that the
    run depends on. text: the script. where: its name."""
    if not name.isdecimal() or len(shell.missing_positions) < 2:
        return None
    problem, values = missing_values(text, shell.missing_positions)
    return InputError(where, "", problem, f"say what they are: {values}")


def _is_list(text: str) -> bool:
    """Whether a text is a plain list of arguments for a training command, such as `--num-layers 24`, and not a script."""
    first = re.search(r"^\s*([^#\s].*)$", text, re.MULTILINE)
    return first is not None and first[1].startswith("--")


def _listed(shell: Evaluator, text: str, where: str) -> Command:
    """The command of a text that is a plain list of arguments for Megatron-LM; the command has no program. shell: an
    evaluator, which expands variables in the text. where: the text's name."""
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


def missing_values(text: str, positions: Collection[int]) -> tuple[str, str]:
    """The problem and the advice for the error about a script that needs positional parameters, such as $1. text: the
    script. positions: the numbers of the parameters that nobody has given. Example of advice: "--set 1=8 (GPUS) --set
    2=..."."""
    names: dict[int, str] = {}
    for match in COPIED.finditer(text):
        names.setdefault(int(match[2] or match[3]), match[1])
    parts = []
    for index in sorted(positions):
        name = names.get(index, "")
        parts.append(f"--set {index}={_value(text, index, name)}" + f" ({name})" * bool(name))
    return f"takes {len(parts)} positional parameters that nobody has given", " ".join(parts)


def _value(text: str, position: int, name: str) -> str:
    """An example value for a positional parameter, such as $1: one that the script compares it with, or else a typical value
    for a variable of that name. text: the script. position: the parameter's number. name: the variable that the script
    copies the parameter to; empty if there is none."""
    spelt = "|".join([rf"\$\{{?{position}\b", *([rf"\$\{{?{name}\b"] if name else [])])
    compared = re.search(rf"(?:{spelt})\}}?[\"']?[ \t]*(?:==?|!=|-eq|-ne)[ \t]*{WORD}", text)
    training_command = re.search(rf"\bcase[ \t]+[\"']?(?:{spelt})\}}?[\"']?[ \t]+in\s+\(?{WORD}", text)
    found = compared or training_command
    if found:
        return found[1]
    return example_of(name.lower().replace("_", "-"), name) if name else "..."
