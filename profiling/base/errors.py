"""The errors and warnings that users see: what is wrong, where, and what would work."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


class InputError(ValueError):
    """Bad input, told in one line.

    where: the file, or the name under which the value came in.
    field: path of the field inside it, such as ``layers[3].options[0].time_ns``; empty for the whole.
    problem: what the value is, or what is wrong with it.
    fix: what would work instead.
    """

    def __init__(self, where: str, field: str, problem: str, fix: str) -> None:
        self.where, self.field, self.problem, self.fix = where, field, problem, fix
        text = f"{where}: {field + ' ' if field else ''}{problem}; {fix}"
        super().__init__(" ".join(text.splitlines()))


class Unsuited(InputError):
    """The instance is larger than a method takes, or of another kind; `compare` passes such a method over."""


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


def shown(value: Any) -> str:
    """A value as it may stand in a one-line message: JSON's spelling, cut at 60 characters."""
    is_nan = isinstance(value, float) and value != value
    text = json.dumps(value) if is_nan or isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
