"""Masks a script: quotes, expansions, arrays, tests and here-documents are replaced by letters of the same length.

The result has the structure of the statements only, which a grammar can parse without knowing what is in words; the words are
taken from the script itself, at the same positions.
"""

from __future__ import annotations

import re
from functools import lru_cache

import tree_sitter_bash
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Unclosed, _closed, end_of
from tree_sitter import Language, Parser, Tree

PARSER = Parser(Language(tree_sitter_bash.language()))
DOCUMENT = re.compile(r"<<-?[ \t]*")
FRAME = " \t;&|()<>!{}_#"  # what a grammar has to see of the letters between words, and of reserved words
BRACED = re.compile(r"\{[^\s{}\"'`$;&|()<>]*\}")


@lru_cache(maxsize=256)
def parsed(text: str) -> tuple[Tree, list[tuple[str, int]]]:
    """The syntax tree of a masked text, and the variables that it assigns with the positions where their values begin. Results
    are cached, since loops run the same texts. Raises Unclosed."""
    assigned: list[tuple[str, int]] = []
    frame = masked(text, assigned)
    return PARSER.parse(frame.encode()), assigned


def masked(text: str, assigned: list[tuple[str, int]]) -> str:
    """The masked text in ASCII, of the same length. assigned: receives the assigned variables and the positions where their
    values begin. Raises Unclosed."""
    result: list[str] = []
    position, starts, fresh = 0, True, True  # whether a word starts here; whether nothing is in the line so far
    waiting: list[
        tuple[str, bool]
    ] = []  # here-documents that begin after this line: the word that ends each, and whether tabs are ignored

    def fill(end: int, keep: str = "") -> None:
        nonlocal position
        result.append("".join(char if char in keep else "x" for char in text[position:end]))
        position = end

    while position < len(text):
        char = text[position]
        if char == "\n":
            result.append(char)
            position += 1
            starts = fresh = True
            for delimiter, tabs in waiting:
                position = _document(text, position, delimiter, tabs, result)
            waiting = []
            continue
        if text.startswith("\\\n", position):
            result.append("  " if starts or fresh else "\\\n")
            position += 2
            continue
        fresh = fresh and char in " \t"
        if char == "!" and starts and text[position + 1 : position + 2] not in (" ", "\t", "\n", "("):
            fill(position + 1)
            starts = False
            continue
        if char == "#" and starts:
            end = text.find("\n", position)
            result.append("#")
            position += 1
            fill(len(text) if end < 0 else end)
            continue
        if starts and (match := ASSIGNED.match(text, position)):
            assigned.append((match[1], match.end()))
            fill(match.end())
            if text[position : position + 1] == "(":
                fill(_closed(text, position + 1, "(", ")"))
            starts = False
            continue
        if starts and text.startswith("[[", position) and text[position + 2 : position + 3] in (" ", "\t", "\n"):
            end = _ending(text, position + 2, "]]")
            result.append("[[ ")
            position += 3
            fill(end - 3)
            result.append(" ]]")
            position = end
            starts = False
            continue
        if (
            starts
            and char == "["
            and text[position + 1 : position + 2] in (" ", "\t")
            and (closed_at := _closing(text, position + 1))
        ):
            result.append("[ ")
            position += 2
            fill(closed_at - 2)
            result.append(" ]")
            position = closed_at
            starts = False
            continue
        if starts and text.startswith("((", position):
            end = _closed(text, position + 1, "(", ")")
            if text[end - 2 : end] == "))":
                result.append("((")
                position += 2
                fill(end - 2, ";")
                result.append("))")
                position = end
                starts = False
                continue
        if text.startswith("<<<", position):
            result.append("<<<")
            position += 3
            starts = True
            continue
        if text.startswith("<<", position) and (match := DOCUMENT.match(text, position)):
            end = match.end()
            while end < len(text) and text[end] not in " \t\n;&|<>()":
                end = end_of(text, end)
            word = text[match.end() : end]
            waiting.append((re.sub(r"[\\'\"]", "", word), match[0].startswith("<<-")))
            result.append(text[position:end] if text[position:end].isascii() else "x" * (end - position))
            position = end
            starts = False
            continue
        if char in "\\'\"`$" or (char in "<>" and end_of(text, position) > position + 1):
            fill(end_of(text, position))
            starts = False
            continue
        if char == "{" and (match := BRACED.match(text, position)) and match[0] != "{}":
            fill(match.end())
            starts = False
            continue
        result.append(char if char.isascii() and (char.isalnum() or char in FRAME) else "x")
        position += 1
        starts = char in " \t;&|()<>!{"
    return "".join(result)


def _document(text: str, position: int, delimiter: str, tabs: bool, result: list[str]) -> int:
    """Masks the body of a here-document, which is appended to `result`. Returns the index of the end of its last line. tabs:
    whether leading tabs are ignored."""
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        if (line.lstrip("\t") if tabs else line) == delimiter:
            result.append(line if line.isascii() else "x" * len(line))
            return end
        result.append("x" * len(line) + "\n" * (end < len(text)))
        position = end + (end < len(text))
    return position


def _closing(text: str, position: int) -> int | None:
    """The index after the `]` of a test; None for a test without one, which is a command that fails."""
    try:
        return _ending(text, position, "]")
    except Unclosed:
        return None


def _ending(text: str, position: int, closes: str) -> int:
    """The index after the word that closes a test. Raises Unclosed."""
    while position < len(text):
        if text[position] in " \t\n" and text.startswith(closes, position + 1):
            after = text[position + 1 + len(closes) : position + 2 + len(closes)]
            if after in ("", " ", "\t", "\n", ";", "&", "|", ")"):
                return position + 1 + len(closes)
        if closes == "]" and text[position] in ";\n" and not text.startswith("\\", position - 1):
            raise Unclosed
        position = end_of(text, position)
    raise Unclosed
