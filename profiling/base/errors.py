"""Errors and warnings for users: each message names what is wrong, where, and a value that would work."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

COMMAND_LINE = "command line"  # origin of an option of the command, or of an argument in Python
LONGEST_TEXT, LONGEST_FIELD = 1000, 120  # characters of the parts of a message
LISTED = 8  # most names that a message lists in full
_OPTION = re.compile(r"(?<![\w-])--option (\w+)=?")
_FLAG = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9-]*)")


class InputError(ValueError):
    """Bad input, explained in one line.

    Users give a value as an option of the command or as an argument in Python. In both cases `where` is COMMAND_LINE and the
    field is given as the command's flag. `command_field` and `command_text`, which the command prints, name the flag; `field`
    and `str`, which users of Python see, name the argument.

    Args:
        where: the file, or a name for the input that did not come from a file.
        field: path of the field inside it, such as ``layers[3].options[0].time_ns``; empty for the whole.
        problem: the value, or what is wrong with it.
        fix: what would work instead.
    """

    def __init__(self, where: str, field: str, problem: str, fix: str) -> None:
        self.where, self.command_field = printable(where), printable(field, LONGEST_FIELD)
        self.field = as_arguments(self.command_field) if where == COMMAND_LINE else self.command_field
        self.problem, self.fix = (printable(" ".join(text.splitlines())) for text in (problem, fix))
        self.command_text = f"{self.where}: {self.command_field + ' ' if field else ''}{self.problem}; {self.fix}"
        super().__init__(as_arguments(self.command_text.removeprefix(f"{COMMAND_LINE}: ")))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error by its four parts, so that worker processes can send it."""
        return type(self), (self.where, self.command_field, self.problem, self.fix)

    @property
    def argument(self) -> str | None:
        """The name of the argument of a Python function (such as ``memory``) that the error is about; None if the input came
        from a file.
        """
        return self.field if self.where == COMMAND_LINE else None


class Unsupported(InputError):
    """The instance (one problem to solve, with its sizes and costs) is too large for a solution method, or of a kind that the
    method does not solve; `compare-methods` skips such a method.
    """


class TooLarge(Unsupported):
    """A mathematical model (MILP or CP-SAT) of the instance (one problem to solve) would be too large to build."""


class InputWarning(UserWarning):
    """Input that is accepted although it may not be what the user meant; explained in one line, as an InputError.

    error: the InputError that would be raised if the input were refused.
    """

    def __init__(self, error: InputError) -> None:
        self.error = error
        super().__init__(str(error))


def caution(where: str, field: str, problem: str, fix: str) -> None:
    """Warn of input that is accepted although it may be wrong. where: the file. field: the field in it. problem: what is
    wrong. fix: what would work. Python shows a warning once per text, at the line of the user's code that called trainplan.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("trainplan."):
        level, frame = level + 1, frame.f_back
    warnings.warn(InputWarning(InputError(where, field, problem, fix)), stacklevel=level)


class MissingExtra(ImportError):
    """An optional dependency is absent; the message names the line that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: pip install 'trainplan[{extra}]'")


def as_arguments(text: str) -> str:
    """Rewrite the command's flags in a message as Python arguments: ``--micro-batches`` becomes ``micro_batches``,
    ``--no-search`` becomes ``search=False``, and ``--option workers=`` becomes ``workers``. Commands quoted in backticks
    stay as they are.
    """

    def argument(match: re.Match[str]) -> str:
        """The Python argument for one flag of the command."""
        name = match[2].replace("-", "_")
        return f"{name}=False" if match[1] else name

    return "`".join(
        part if index % 2 else _FLAG.sub(argument, _OPTION.sub(r"\1", part)) for index, part in enumerate(text.split("`"))
    )


def printable(text: str, most: int = LONGEST_TEXT) -> str:
    """Make a text safe to print, whatever file it comes from: line breaks, control codes and changes of writing direction are
    escaped, and the text is cut after `most` characters.
    """
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """A value as text for a one-line error message: as Python spells it, but true, false, null and NaN as in JSON; cut at 60
    characters.
    """
    is_nan = isinstance(value, float) and value != value
    text = json.dumps(value) if is_nan or isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def named(value: Any, names: Collection[str], aliases: Mapping[str, str] | None = None) -> str | None:
    """Find the name among `names` that a user's value means: the name itself in upper or lower case, or an alias of it; None
    if it means none of them.

    value: the user's value, of any type. aliases: names by alias in lower case, such as {"bf16": "bfloat16"}. An alias of a
    name that is not in `names` also gives None.
    """
    if not isinstance(value, str) or value in names:
        return value if isinstance(value, str) else None
    folded = (aliases or {}).get(value.lower(), value.lower())
    return next((name for name in names if name.lower() == folded), None)


def one_of(value: Any, names: Iterable[str], listing: str | None = None) -> str:
    """The advice in an error about a value that is none of the allowed names: the names that are similar to it, and all names
    if they are few.

    names: the allowed names. listing: a command that lists all names, which the text mentions instead if there are many.
    """
    every = list(names)
    by_folded = {name.lower(): name for name in reversed(every)}
    near = [by_folded[match] for match in get_close_matches(str(value).lower(), by_folded, n=2, cutoff=0.6)]
    everything = f"give one of: {', '.join(every)}"
    if not near:
        return everything if listing is None or len(every) <= LISTED else f"`{listing}` lists all names"
    meant = f"did you mean {' or '.join(map(repr, near))}?"
    if listing is not None and len(every) > LISTED:
        return f"{meant} (`{listing}` lists all)"
    return f"{meant} {everything[0].upper()}{everything[1:]}"
