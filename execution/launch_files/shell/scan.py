"""Where words of bash begin and end, before anything in them is expanded."""

from __future__ import annotations

import re
from dataclasses import dataclass

REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|&>>?|>>|<>|>&|<&|>\||<(?!\()|>(?!\())")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[(?:[^\[\]]|\[[^\]]*\])*\])?(\+?)=", re.DOTALL)

PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./,:()-]*>(?=[\s\\/\"'._]|$)")  # what people write for a value that is to be filled in


class Unclosed(Exception):
    """A quote or a bracket that nothing closes."""


@dataclass(frozen=True)
class Raw:
    """A word as it is written, at a place of its text. redirects: the operator, where the word is a redirection's target."""

    text: str
    place: int
    redirects: str = ""


def end_of(text: str, place: int) -> int:
    """The place behind the quote, expansion or character at a place. Raises Unclosed."""
    char = text[place]
    if char == "<" and (match := PLACEHOLDER.match(text, place)):
        return match.end()
    if char == "\\":
        return min(len(text), place + 2)
    if char == "'":
        return _found(text, "'", place + 1)
    if char == '"':
        return _double(text, place + 1)
    if char == "`":
        place += 1
        while place < len(text) and text[place] != "`":
            place += 1 + (text[place] == "\\")
        return _checked(text, place + 1)
    if char == "$" and place + 1 < len(text):
        after = text[place + 1]
        if after == "'":
            place += 2
            while place < len(text) and text[place] != "'":
                place += 1 + (text[place] == "\\")
            return _checked(text, place + 1)
        if after == '"':
            return _double(text, place + 2)
        if after == "{":
            return _closed(text, place + 2, "{", "}")
        if after == "(":
            return _closed(text, place + 2, "(", ")")
        if after == "[":
            return _closed(text, place + 2, "[", "]")
        if match := re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!_-])").match(text, place):
            return match.end()
    if char in "<>" and text[place + 1 : place + 2] == "(":
        return _closed(text, place + 2, "(", ")")
    return place + 1


def _found(text: str, what: str, place: int) -> int:
    found = text.find(what, place)
    return _checked(text, len(text) + 1 if found < 0 else found + 1)


def _checked(text: str, place: int) -> int:
    if place > len(text):
        raise Unclosed
    return place


def _double(text: str, place: int) -> int:
    while place < len(text) and text[place] != '"':
        place = end_of(text, place) if text[place] in "\\`" or text.startswith(("$(", "${"), place) else place + 1
    return _checked(text, place + 1)


def _closed(text: str, place: int, opens: str, closes: str) -> int:
    """The place behind what closes a bracket that was opened before a place."""
    depth = 1
    while place < len(text):
        char = text[place]
        if char == "#" and opens == "(" and text[place - 1] in " \t\n;":
            place = text.find("\n", place) if "\n" in text[place:] else len(text)
            continue
        if char in "\\'\"`" or (char == "$" and text[place + 1 : place + 2] in ("{", "(", "'", '"')):
            place = end_of(text, place)
            continue
        depth += (char == opens) - (char == closes)
        place += 1
        if depth == 0:
            return place
    raise Unclosed


def split(text: str, assignments: bool = True) -> list[Raw]:
    """The words of a text, and its redirections; comments are left out. assignments: whether `NAME=( .. )` is one word.
    Raises Unclosed."""
    words, place, begin = list[Raw](), 0, -1
    redirects = ""

    def ended() -> None:
        nonlocal begin, redirects
        if begin >= 0:
            words.append(Raw(text[begin:place], begin, redirects))
            redirects, begin = "", -1

    while place < len(text):
        char = text[place]
        if char in " \t\n" or text.startswith("\\\n", place):
            if char == "\\" and begin >= 0:
                place += 2
                continue
            ended()
            place += 1 + (char == "\\")
            continue
        if begin < 0:
            if char == "#":
                place = text.find("\n", place) if "\n" in text[place:] else len(text)
                continue
            if not PLACEHOLDER.match(text, place) and (match := REDIRECTION.match(text, place)):
                redirects, place = match[0], match.end()
                continue
            begin = place
            if assignments and (match := ASSIGNED.match(text, place)):
                place = match.end()
                if text[place : place + 1] == "(":
                    place = _closed(text, place + 1, "(", ")")
                continue
        elif char in "<>" and text[place + 1 : place + 2] != "(" and not PLACEHOLDER.match(text, place):
            ended()
            continue
        if char in ";&|":
            ended()
            words.append(Raw(char, place))
            place += 1
            continue
        place = end_of(text, place)
    ended()
    return words
