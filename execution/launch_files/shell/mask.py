"""A script whose quotes, expansions, arrays, tests and here-documents are filled with letters, place for place.

What is left is the frame of statements alone, which a grammar reads without having to know what is in words; words are taken
from the script itself, at the same places.
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
    """The tree of a text's frame, and the variables that are given values, with the places where these begin; kept, since loops
    run the same scripts. Raises Unclosed."""
    assigned: list[tuple[str, int]] = []
    frame = masked(text, assigned)
    return PARSER.parse(frame.encode()), assigned


def masked(text: str, assigned: list[tuple[str, int]]) -> str:
    """The frame of a script, of the same length, in ASCII. assigned: gets the variables that are given values, and where these
    begin. Raises Unclosed."""
    made: list[str] = []
    place, starts, fresh = 0, True, True  # whether a word starts here; whether nothing is in the line so far
    waiting: list[tuple[str, bool]] = []  # here-documents whose bodies begin behind this line: the end, and whether of tabs

    def fill(end: int, keep: str = "") -> None:
        nonlocal place
        made.append("".join(char if char in keep else "x" for char in text[place:end]))
        place = end

    while place < len(text):
        char = text[place]
        if char == "\n":
            made.append(char)
            place += 1
            starts = fresh = True
            for delimiter, tabs in waiting:
                place = _document(text, place, delimiter, tabs, made)
            waiting = []
            continue
        if text.startswith("\\\n", place):
            made.append("  " if starts or fresh else "\\\n")
            place += 2
            continue
        fresh = fresh and char in " \t"
        if char == "!" and starts and text[place + 1 : place + 2] not in (" ", "\t", "\n", "("):
            fill(place + 1)
            starts = False
            continue
        if char == "#" and starts:
            end = text.find("\n", place)
            made.append("#")
            place += 1
            fill(len(text) if end < 0 else end)
            continue
        if starts and (match := ASSIGNED.match(text, place)):
            assigned.append((match[1], match.end()))
            fill(match.end())
            if text[place : place + 1] == "(":
                fill(_closed(text, place + 1, "(", ")"))
            starts = False
            continue
        if starts and text.startswith("[[", place) and text[place + 2 : place + 3] in (" ", "\t", "\n"):
            end = _ending(text, place + 2, "]]")
            made.append("[[ ")
            place += 3
            fill(end - 3)
            made.append(" ]]")
            place = end
            starts = False
            continue
        if starts and char == "[" and text[place + 1 : place + 2] in (" ", "\t") and (behind := _closing(text, place + 1)):
            made.append("[ ")
            place += 2
            fill(behind - 2)
            made.append(" ]")
            place = behind
            starts = False
            continue
        if starts and text.startswith("((", place):
            end = _closed(text, place + 1, "(", ")")
            if text[end - 2 : end] == "))":
                made.append("((")
                place += 2
                fill(end - 2, ";")
                made.append("))")
                place = end
                starts = False
                continue
        if text.startswith("<<<", place):
            made.append("<<<")
            place += 3
            starts = True
            continue
        if text.startswith("<<", place) and (match := DOCUMENT.match(text, place)):
            end = match.end()
            while end < len(text) and text[end] not in " \t\n;&|<>()":
                end = end_of(text, end)
            word = text[match.end() : end]
            waiting.append((re.sub(r"[\\'\"]", "", word), match[0].startswith("<<-")))
            made.append(text[place:end] if text[place:end].isascii() else "x" * (end - place))
            place = end
            starts = False
            continue
        if char in "\\'\"`$" or (char in "<>" and end_of(text, place) > place + 1):
            fill(end_of(text, place))
            starts = False
            continue
        if char == "{" and (match := BRACED.match(text, place)) and match[0] != "{}":
            fill(match.end())
            starts = False
            continue
        made.append(char if char.isascii() and (char.isalnum() or char in FRAME) else "x")
        place += 1
        starts = char in " \t;&|()<>!{"
    return "".join(made)


def _document(text: str, place: int, delimiter: str, tabs: bool, made: list[str]) -> int:
    """Fills the body of a here-document; the place of the line that ends it."""
    while place < len(text):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        line = text[place:end]
        if (line.lstrip("\t") if tabs else line) == delimiter:
            made.append(line if line.isascii() else "x" * len(line))
            return end
        made.append("x" * len(line) + "\n" * (end < len(text)))
        place = end + (end < len(text))
    return place


def _closing(text: str, place: int) -> int | None:
    """The place behind the `]` of a test; None for one without: a command that fails."""
    try:
        return _ending(text, place, "]")
    except Unclosed:
        return None


def _ending(text: str, place: int, closes: str) -> int:
    """The place behind the word that closes a test. Raises Unclosed."""
    while place < len(text):
        if text[place] in " \t\n" and text.startswith(closes, place + 1):
            after = text[place + 1 + len(closes) : place + 2 + len(closes)]
            if after in ("", " ", "\t", "\n", ";", "&", "|", ")"):
                return place + 1 + len(closes)
        if closes == "]" and text[place] in ";\n" and not text.startswith("\\", place - 1):
            raise Unclosed
        place = end_of(text, place)
    raise Unclosed
