"""Lines of logs: without what launchers and loggers put in front of them, and the values that are printed in them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

# What launchers and loggers put in front of a line: a rank, a time, a level.
PREFIX = re.compile(
    r"^(?:>\s+)?(?:\[?(?:default|rank)?\s?\d+\]?:\s?)?(?:\[[^\]]*\]\s?)*(?:\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?\s*)?"
    r"(?:-?\s*[\w.]+\s+-\s+)*(?:\[?(?:INFO|I)\]?\s*(?:\|[^|]*\|)?)?"
)


def first(pattern: re.Pattern[str], lines: Sequence[str]) -> int | None:
    """The number of the first line, from 0 on, in which a pattern is found; None where there is none."""
    return next((number for number, line in enumerate(lines) if pattern.search(line)), None)


def last(pattern: re.Pattern[str], lines: Sequence[str]) -> int | None:
    """The number of the last such line: a file may have several runs, one after the other."""
    return next((number for number in range(len(lines) - 1, -1, -1) if pattern.search(lines[number])), None)


def bare(line: str) -> str:
    """A line without what launchers and loggers put in front of it."""
    return PREFIX.sub("", line, count=1)


def value_of(text: str) -> Any:
    """What Python's print made of a value."""
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def mapping_at(lines: Sequence[str], number: int, text: str, where: str) -> dict[str, Any] | None:
    """The mapping that begins with a text, the rest of a line, and may go on over lines; None where it never ends."""
    gathered = ""
    for line in (text, *lines[number + 1 : number + 20000]):
        gathered += line + "\n"
        if not line.rstrip().endswith("}"):
            continue
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(gathered)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict):
                return value
    return None
