"""The errors and warnings that users see: what is wrong, where, and what would work."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

COMMAND_LINE = "command line"  # where an option of the command, or an argument in Python, comes in
LONGEST_TEXT, LONGEST_FIELD = 1000, 120  # letters of the parts of a message
LISTED = 8  # names that a message lists beside those that are near
_OPTION = re.compile(r"(?<![\w-])--option (\w+)=?")
_FLAG = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9-]*)")


class InputError(ValueError):
    """Bad input, told in one line.

    Where users name a value as an option of the command or as an argument in Python, `where` is COMMAND_LINE, and the field is
    made of the command's flag, `command_field`: `field` and `str` name the argument, as Python's users gave it;
    `command_text`, what the command prints, the flag.

    Args:
        where: the file, or the name under which the value came in.
        field: path of the field inside it, such as ``layers[3].options[0].time_ns``; empty for the whole.
        problem: what the value is, or what is wrong with it.
        fix: what would work instead.
    """

    def __init__(self, where: str, field: str, problem: str, fix: str) -> None:
        self.where, self.command_field = printable(where), printable(field, LONGEST_FIELD)
        self.field = as_arguments(self.command_field) if where == COMMAND_LINE else self.command_field
        self.problem, self.fix = (printable(" ".join(text.splitlines())) for text in (problem, fix))
        self.command_text = f"{self.where}: {self.command_field + ' ' if field else ''}{self.problem}; {self.fix}"
        super().__init__(as_arguments(self.command_text.removeprefix(f"{COMMAND_LINE}: ")))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.command_field, self.problem, self.fix)

    @property
    def argument(self) -> str | None:
        """The argument of a Python function that was wrong, such as ``memory``; None where it was not one."""
        return self.field if self.where == COMMAND_LINE else None


class Unsuited(InputError):
    """The instance is larger than a method takes, or of another kind; `compare-methods` passes such a method over."""


class TooLarge(Unsuited):
    """A model of the instance would be too large to build; who states models has what it begins from instead."""


class InputWarning(UserWarning):
    """Input that is taken as it is, though it may not say what was meant; told in one line, as an InputError is.

    error: what would be raised were it refused.
    """

    def __init__(self, error: InputError) -> None:
        self.error = error
        super().__init__(str(error))


def caution(where: str, field: str, problem: str, fix: str) -> None:
    """Warn of input, in the words of an InputError: once for each text, at the line that called trainplan."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("trainplan."):
        level, frame = level + 1, frame.f_back
    warnings.warn(InputWarning(InputError(where, field, problem, fix)), stacklevel=level)


class MissingExtra(ImportError):
    """An optional dependency is absent; the message names the line that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: pip install 'trainplan[{extra}]'")


def as_arguments(text: str) -> str:
    """A text with the command's flags as the arguments that they are in Python, such as ``--micro-batches`` as
    ``micro_batches``, and ``--option workers=`` as ``workers``; commands quoted in backticks stay as they are."""

    def argument(match: re.Match[str]) -> str:
        name = match[2].replace("-", "_")
        return f"{name}=False" if match[1] else name

    return "`".join(
        part if index % 2 else _FLAG.sub(argument, _OPTION.sub(r"\1", part)) for index, part in enumerate(text.split("`"))
    )


def printable(text: str, most: int = LONGEST_TEXT) -> str:
    """A text that is safe to print, whatever file it comes from: what is no letter, sign or blank is escaped, as line breaks,
    control codes and changes of direction are; and it is cut at so many letters."""
    text = text if len(text) <= most else text[: most - 3] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """A value as it may stand in a one-line message: JSON's spelling, cut at 60 characters."""
    is_nan = isinstance(value, float) and value != value
    text = json.dumps(value) if is_nan or isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def named(value: Any, names: Collection[str], aliases: Mapping[str, str] | None = None) -> str | None:
    """Which of the names a value is, in upper or lower case, or by an alias (in lower case); None where it is none."""
    if not isinstance(value, str) or value in names:
        return value if isinstance(value, str) else None
    folded = (aliases or {}).get(value.lower(), value.lower())
    return next((name for name in names if name.lower() == folded), None)


def one_of(value: Any, names: Iterable[str], listing: str | None = None) -> str:
    """What would work in place of a value that is none of the names: those near to it, and all if they are few.

    listing: a command that lists all of them.
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
