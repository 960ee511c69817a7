"""Lines of logs without the prefixes of launchers and loggers, and the values that are printed in them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from trainplan.execution.launch_files.logs.text import Mark

MOST_LINES = 20_000  # of one configuration
TOKEN = re.compile(r"\d+|\D")
TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
SPECIAL = re.compile(TEXT.pattern + r"|(?<![\w.])(-?inf|nan|[A-Za-z_][\w]*(?:\.\w+)+|<[^<>\n]*>)(?![\w.])")
IN_JSON = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
IN_PYTHON = {"inf": "1e999", "-inf": "-1e999", "nan": "None"}

# What launchers and loggers put in front of a line: a rank, a time, a level.
PREFIX = re.compile(
    r"^(?:>\s+)?(?:\[?(?:default|rank)?\s?\d+\]?:\s?)?(?:\[[^\]]*\]\s?)*(?:\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?\s*)?"
    r"(?:-?\s*[\w.]+\s+-\s+)*(?:\[?(?:INFO|I)\]?\s*(?:\|[^|]*\|)?)?"
)


def first(mark: Mark, lines: Sequence[str], begin: int = 0) -> tuple[int, re.Match[str]] | None:
    """The index of the first line that has a mark, with its match; None if there is none. begin: the index to start from."""
    found = ((n, mark.pattern.search(lines[n])) for n in range(begin, len(lines)) if mark.part in lines[n])
    return next(((number, match) for number, match in found if match is not None), None)


def last(mark: Mark, lines: Sequence[str]) -> tuple[int, re.Match[str]] | None:
    """The index of the last line that has a mark, with its match; None if there is none. The last one counts because a job may
    start several times before it makes a step."""
    found = ((n, mark.pattern.search(lines[n])) for n in range(len(lines) - 1, -1, -1) if mark.part in lines[n])
    return next(((number, match) for number, match in found if match is not None), None)


def bare(line: str) -> str:
    """A line without the prefixes of launchers and loggers."""
    return PREFIX.sub("", line, count=1)


def value_of(text: str) -> Any:
    """The value whose printed form is this text; the text itself if it is no Python literal."""
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def front_of(line: str, after: str) -> re.Pattern[str]:
    """A pattern of the prefix that two consecutive lines share, such as a rank, a host or a time; any numbers match."""
    front = ""
    for one, other in zip(TOKEN.findall(line), TOKEN.findall(after), strict=False):
        if one != other and not (one.isdecimal() and other.isdecimal()):
            break
        front += r"\d+" if one.isdecimal() else re.escape(one)
    return re.compile(front)


def block_at(lines: Sequence[str], number: int) -> Iterator[tuple[int, str]]:
    """The lines after one line with their indices, without the prefix that launchers put in front of all of them. number: the
    index of that line."""
    front = front_of(lines[number], lines[number + 1]) if number + 1 < len(lines) else re.compile("")
    for line_number in range(number + 1, min(len(lines), number + MOST_LINES)):
        yield line_number, front.sub("", lines[line_number], count=1) if front.match(lines[line_number]) else lines[line_number]


def mapping_at(lines: Sequence[str], number: int, text: str) -> dict[str, Any] | None:
    """The mapping that begins with a text at the end of a line and may continue on the following lines; None if it never ends.
    number: the index of the line."""
    gathered, open_, after = text, _depth(text), block_at(lines, number)
    while open_ > 0 and (line := next(after, None)) is not None:
        gathered += "\n" + line[1]
        open_ += _depth(line[1])
    gathered = gathered[: gathered.rfind("}") + 1]
    for parse, words in ((json.loads, IN_JSON), (ast.literal_eval, IN_PYTHON)):
        try:
            value = parse(SPECIAL.sub(partial(_plain, words), gathered))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            return {key: _whole(item) for key, item in value.items()}
    return None


def _depth(line: str) -> int:
    """By how many brackets a line opens more than it closes, not counting those in quoted texts."""
    outside = TEXT.sub("", line)
    return sum(outside.count(sign) for sign in "{[(") - sum(outside.count(sign) for sign in "}])")


def _plain(words: Mapping[str, str], match: re.Match[str]) -> str:
    """A token in the form that a parser accepts: names of numbers (inf, nan) as `words` says, other names as quoted texts."""
    return match[0] if match[1] is None else words.get(match[1], repr(match[1]))


def _whole(value: Any) -> Any:
    """A value with whole numbers restored that DeepSpeed prints with exponents (those above 1000)."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    whole = isinstance(value, float) and abs(value) > 1e3 and value.is_integer()
    return int(value) if whole else value
