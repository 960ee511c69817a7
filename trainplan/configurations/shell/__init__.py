"""Scripts of bash as the command that trains, with nothing run: parsed by tree-sitter's grammar, and evaluated.

    text -> statements (evaluate, compounds, builtins) -> words (scan, words) -> commands that are reached
    -> the one that trains (launchers, commands)

What nobody has said stays undecided (marks, state): a variable of the environment, a positional parameter, what a program
prints. Arguments that hang on it are named with the variable that would decide them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainplan.configurations.configuration import Open, bears
from trainplan.configurations.shell import pasted
from trainplan.configurations.shell.arguments import values_of
from trainplan.configurations.shell.batch import batch_of
from trainplan.configurations.shell.commands import Command, Hangs, chosen, hangs
from trainplan.configurations.shell.evaluate import Evaluator
from trainplan.configurations.shell.marks import MARK, TooMuch
from trainplan.configurations.shell.places import asked
from trainplan.configurations.shell.scan import Unclosed
from trainplan.configurations.shell.state import merged
from trainplan.configurations.shell.variables import ARGUMENT, MOST_BYTES
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of

__all__ = ["Command", "Hangs", "command_of", "command_of_text", "values_of", "words_of_command"]

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
            return _listed(shell, text, where)
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
        if bears(key) and (more := _taken_by_place(shell, open_.name, text, where)) is not None:
            raise more
    fields = command.tool == "torchtitan" or RECIPES.search(command.program) is not None  # which --set may be of, too
    own = [name for name in shell.given if not (fields and ("." in name or name == "recipe"))]
    unused = [name for name in own if not any(re.search(rf"\b{name}\b", each) for each in shell.texts)]
    if unused:
        names = sorted(set(re.findall(r"\b[A-Z_][A-Z0-9_]+\b", text)))
        raise InputError(COMMAND_LINE, "--set", f"is {unused[0]}, which {where} does not use", one_of(unused[0], names))
    return command


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
            opened[key] = Open(f"is '{shell.marks.shown(value)}': {cause.name} {cause.why} ({cause.where})", cause.name)
    values = {key: shell.marks.shown(value) if isinstance(value, str) else value for key, value in values.items()}
    return Command("", "megatron", tuple(words), (), where, None, sources, values, opened)
