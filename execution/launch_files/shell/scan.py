"""Finds where words of bash begin and end, before anything in them is expanded."""

from __future__ import annotations

import re
from dataclasses import dataclass

REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|&>>?|>>|<>|>&|<&|>\||<(?!\()|>(?!\())")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[(?:[^\[\]]|\[[^\]]*\])*\])?(\+?)=", re.DOTALL)

PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./,:()-]*>(?=[\s\\/\"'._]|$)")  # what people write for a value that is to be filled in


class Unclosed(Exception):
    """Raised for a quote or a bracket in a text of bash that nothing closes."""


@dataclass(frozen=True)
class Raw:
    """A word of bash as it is written. text: the word. position: its index in the text of the command. redirects: the
    operator, such as ">", if the word is the target of a redirection; otherwise empty."""

    text: str
    position: int
    redirects: str = ""


def end_of(text: str, position: int) -> int:
    """The index after the construct that begins at the index `position`: a quoted text, an expansion such as ${..}, an
    escaped character, or else one character. Raises Unclosed if nothing closes it."""
    char = text[position]
    if char == "<" and (match := PLACEHOLDER.match(text, position)):
        return match.end()
    if char == "\\":
        return min(len(text), position + 2)
    if char == "'":
        return _found(text, "'", position + 1)
    if char == '"':
        return _double(text, position + 1)
    if char == "`":
        position += 1
        while position < len(text) and text[position] != "`":
            position += 1 + (text[position] == "\\")
        return _checked(text, position + 1)
    if char == "$" and position + 1 < len(text):
        after = text[position + 1]
        if after == "'":
            position += 2
            while position < len(text) and text[position] != "'":
                position += 1 + (text[position] == "\\")
            return _checked(text, position + 1)
        if after == '"':
            return _double(text, position + 2)
        if after == "{":
            return _closed(text, position + 2, "{", "}")
        if after == "(":
            return _closed(text, position + 2, "(", ")")
        if after == "[":
            return _closed(text, position + 2, "[", "]")
        if match := re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!_-])").match(text, position):
            return match.end()
    if char in "<>" and text[position + 1 : position + 2] == "(":
        return _closed(text, position + 2, "(", ")")
    return position + 1


def _found(text: str, what: str, position: int) -> int:
    """The index after the next occurrence of a character (what), searched from the index `position`. Raises Unclosed if
    there is none."""
    found = text.find(what, position)
    return _checked(text, len(text) + 1 if found < 0 else found + 1)


def _checked(text: str, position: int) -> int:
    """Return the index `position` unchanged if it is within the text or at its end. Raises Unclosed if it is beyond."""
    if position > len(text):
        raise Unclosed
    return position


def _double(text: str, position: int) -> int:
    """The index after the double quote that ends a quoted text. position: the index after the opening quote. Raises Unclosed
    if nothing closes it."""
    while position < len(text) and text[position] != '"':
        position = (
            end_of(text, position) if text[position] in "\\`" or text.startswith(("$(", "${"), position) else position + 1
        )
    return _checked(text, position + 1)


def _closed(text: str, position: int, opens: str, closes: str) -> int:
    """The index after the bracket that closes one opened just before the index `position`. opens, closes: the two brackets.
    Raises Unclosed if nothing closes it."""
    depth = 1
    while position < len(text):
        char = text[position]
        if char == "#" and opens == "(" and text[position - 1] in " \t\n;":
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
            continue
        if char in "\\'\"`" or (char == "$" and text[position + 1 : position + 2] in ("{", "(", "'", '"')):
            position = end_of(text, position)
            continue
        depth += (char == opens) - (char == closes)
        position += 1
        if depth == 0:
            return position
    raise Unclosed


def split(text: str, assignments: bool = True) -> list[Raw]:
    """Split a text of bash into words as they are written, without comments; targets of redirections are marked by their
    operator. assignments: whether `NAME=( .. )` is one word. Raises Unclosed for an open quote or bracket."""
    words, position, begin = list[Raw](), 0, -1
    redirects = ""

    def ended() -> None:
        nonlocal begin, redirects
        if begin >= 0:
            words.append(Raw(text[begin:position], begin, redirects))
            redirects, begin = "", -1

    while position < len(text):
        char = text[position]
        if char in " \t\n" or text.startswith("\\\n", position):
            if char == "\\" and begin >= 0:
                position += 2
                continue
            ended()
            position += 1 + (char == "\\")
            continue
        if begin < 0:
            if char == "#":
                position = text.find("\n", position) if "\n" in text[position:] else len(text)
                continue
            if not PLACEHOLDER.match(text, position) and (match := REDIRECTION.match(text, position)):
                redirects, position = match[0], match.end()
                continue
            begin = position
            if assignments and (match := ASSIGNED.match(text, position)):
                position = match.end()
                if text[position : position + 1] == "(":
                    position = _closed(text, position + 1, "(", ")")
                continue
        elif char in "<>" and text[position + 1 : position + 2] != "(" and not PLACEHOLDER.match(text, position):
            ended()
            continue
        if char in ";&|":
            ended()
            words.append(Raw(char, position))
            position += 1
            continue
        position = end_of(text, position)
    ended()
    return words
