"""Text operations of parameter expansions: parts that are cut off or replaced, and changes of case."""

from __future__ import annotations

import re

from trainplan.execution.launch_files.shell.marks import BREAK, NOTHING, Literal, Piece, quoted
from trainplan.execution.launch_files.shell.patterns import Pattern
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Unclosed, end_of

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b", "0": "\0"}


def end_of_index(text: str) -> int:
    """The index after `[..]=` or `[..]+=` at the start of a text; -1 if there is none."""
    match = ASSIGNED.match("x" + text)
    return match.end() - 1 if match and match[2] else -1


def listed(elements: list[str], double: bool, star: bool, separator: str) -> list[Piece]:
    """The pieces of a list of elements. double: within double quotes. star: whether they are joined to one text by a
    separator."""
    if double and star:
        return [(separator.join(elements), False)]
    result: list[Piece] = []
    for index, element in enumerate(elements):
        whole = double and element == quoted(element)  # else an element that may be several words stays one
        result += [BREAK] * bool(index) + [
            (element, False) if whole else (Literal(element), True) if double else (element, True)
        ]
    return result or [NOTHING]


def balanced(text: str) -> bool:
    """Whether every bracket of a text is closed, and none is closed before it is opened."""
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0


def escaped(text: str) -> str:
    """The text that `$'..'` stands for."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0].isdigit() else ESCAPES.get(code, "\\" + code)

    return re.sub(r"\\(x[\da-fA-F]{1,2}|u[\da-fA-F]{1,4}|[0-7]{1,3}|.)", one, text, flags=re.DOTALL)


def cut(text: str, begin: int, length: int | None) -> str:
    """A part of a text by offset and length; negative ones count from its end."""
    begin = begin if begin >= 0 else len(text) + begin
    if begin < 0:
        return ""
    return text[begin:] if length is None else text[begin : begin + length] if length >= 0 else text[begin:length]


def slash(word: str) -> int:
    """The index of the / between pattern and replacement."""
    position = 1 if word.startswith("//") else 0
    while position < len(word):
        if word[position] == "/":
            return position
        try:
            position = end_of(word, position) if word[position] in "\\'\"`$" else position + 1
        except Unclosed:
            position += 1
    return len(word)


def edited(text: str, sign: str, pattern: list[tuple[str, bool]], replaced: str) -> str:
    """A text after an operator (sign) of a parameter expansion: with matches of a pattern cut off or replaced, or with changed
    case."""
    matched = Pattern(pattern)
    if sign[0] in "^,":
        change = str.upper if sign[0] == "^" else str.lower
        every = not "".join(part for part, _ in pattern)
        return "".join(
            change(c) if (every or matched.whole(c)) and (len(sign) == 2 or not n) else c for n, c in enumerate(text)
        )
    if sign in ("#", "##"):
        ends = matched.ends(text)
        return text[(min if sign == "#" else max)(ends) :] if ends else text
    if sign in ("%", "%%"):
        begins = matched.begins(text)
        return text[: (max if sign == "%" else min)(begins)] if begins else text
    if not "".join(part for part, _ in pattern):
        return replaced + text if sign == "/#" else text + replaced if sign == "/%" else text
    if sign == "/#":
        ends = matched.ends(text)
        return replaced + text[max(ends) :] if ends else text
    if sign == "/%":
        begins = matched.begins(text)
        return text[: min(begins)] + replaced if begins else text
    if not text:
        return replaced if matched.whole(text) else text
    result, position = list[str](), 0
    while position < len(text):
        end = max(matched.ends(text, position), default=-1)
        result += [replaced] * (end >= 0) + [text[position]] * (end <= position)
        position = max(end, position + 1)
        if end >= 0 and sign == "/":
            break
    return "".join(result) + text[position:]
