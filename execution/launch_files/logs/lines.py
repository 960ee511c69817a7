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
    """Find the first line of a log that matches a pattern. mark: the pattern, together with a text that every matching line
    contains. begin: the index of the line to start from. Returns the line's index and its match; None if no line matches."""
    found = ((n, mark.pattern.search(lines[n])) for n in range(begin, len(lines)) if mark.part in lines[n])
    return next(((number, match) for number, match in found if match is not None), None)


def last(mark: Mark, lines: Sequence[str]) -> tuple[int, re.Match[str]] | None:
    """Find the last line of a log that matches a pattern; the last one counts because a job may start several times before
    it makes a step. mark: the pattern, together with a text that every matching line contains. Returns the line's index and
    its match; None if no line matches."""
    found = ((n, mark.pattern.search(lines[n])) for n in range(len(lines) - 1, -1, -1) if mark.part in lines[n])
    return next(((number, match) for number, match in found if match is not None), None)


def bare(line: str) -> str:
    """A line of a log without the prefixes of launchers and loggers: "[rank0]:2025-01-01 10:00:00,1 INFO loss 2" -> "loss
    2"."""
    return PREFIX.sub("", line, count=1)


def value_of(text: str) -> Any:
    """The value that Python printed as this text: "[1, 2]" -> [1, 2]. Text that is not a Python literal is returned as it
    is, without surrounding blanks."""
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def front_of(line: str, after: str) -> re.Pattern[str]:
    """A pattern of the prefix that two consecutive lines of a log share, such as a rank, a host or a time. line: the earlier
    line. after: the line after it. Numbers may differ: the pattern accepts any number where a line has one."""
    front = ""
    for one, other in zip(TOKEN.findall(line), TOKEN.findall(after), strict=False):
        if one != other and not (one.isdecimal() and other.isdecimal()):
            break
        front += r"\d+" if one.isdecimal() else re.escape(one)
    return re.compile(front)


def block_at(lines: Sequence[str], number: int) -> Iterator[tuple[int, str]]:
    """The lines of a log that follow the line with index `number`, as pairs of index and text, at most a fixed number of
    them. The prefix that a launcher puts in front of every line is removed."""
    front = front_of(lines[number], lines[number + 1]) if number + 1 < len(lines) else re.compile("")
    for line_number in range(number + 1, min(len(lines), number + MOST_LINES)):
        yield line_number, front.sub("", lines[line_number], count=1) if front.match(lines[line_number]) else lines[line_number]


def mapping_at(lines: Sequence[str], number: int, text: str) -> dict[str, Any] | None:
    """The printed mapping (dict or JSON object) that begins at the end of a line of a log and may continue on the following
    lines. number: the index of that line. text: the end of that line, from the opening brace. Returns the mapping; None if
    it never ends or cannot be parsed."""
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
    """The number of brackets that a line opens minus the number that it closes, without brackets in quoted texts."""
    outside = TEXT.sub("", line)
    return sum(outside.count(sign) for sign in "{[(") - sum(outside.count(sign) for sign in "}])")


def _plain(words: Mapping[str, str], match: re.Match[str]) -> str:
    """Replace a bare name in printed data by a form that a parser accepts. words: the parser's spelling of names of numbers,
    such as inf and nan. match: a match whose group 1 is the name (None for quoted text, which is returned unchanged). Names
    that are not in `words` become quoted texts: torch.float32 -> 'torch.float32'."""
    return match[0] if match[1] is None else words.get(match[1], repr(match[1]))


def _whole(value: Any) -> Any:
    """A printed value in which floats above 1000 that are whole become integers, because DeepSpeed prints whole numbers with
    exponents: 5e8 -> 500000000. In mappings this applies to the values."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    whole = isinstance(value, float) and abs(value) > 1e3 and value.is_integer()
    return int(value) if whole else value
