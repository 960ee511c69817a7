"""What expansions make of texts: parts cut off, replaced, or in other letters."""

from __future__ import annotations

import re

from trainplan.execution.launch_files.shell.marks import BREAK, NOTHING, Literal, Piece, quoted
from trainplan.execution.launch_files.shell.patterns import Pattern
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Unclosed, end_of

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b", "0": "\0"}


def end_of_index(text: str) -> int:
    """The place behind `[..]=` or `[..]+=`; -1 where there is none."""
    match = ASSIGNED.match("x" + text)
    return match.end() - 1 if match and match[2] else -1


def listed(elements: list[str], double: bool, star: bool, separator: str) -> list[Piece]:
    """The pieces of a list of elements. double: in double quotes; star: as one text, joined by a separator."""
    if double and star:
        return [(separator.join(elements), False)]
    made: list[Piece] = []
    for index, element in enumerate(elements):
        whole = double and element == quoted(element)  # else an element that may be several words stays one
        made += [BREAK] * bool(index) + [(element, False) if whole else (Literal(element), True) if double else (element, True)]
    return made or [NOTHING]


def balanced(text: str) -> bool:
    """Whether every bracket of a text is closed, and none before it is opened."""
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0


def escaped(text: str) -> str:
    """What `$'..'` stands for."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0].isdigit() else ESCAPES.get(code, "\\" + code)

    return re.sub(r"\\(x[\da-fA-F]{1,2}|u[\da-fA-F]{1,4}|[0-7]{1,3}|.)", one, text, flags=re.DOTALL)


def cut(text: str, begin: int, length: int | None) -> str:
    """A part of a text, by offset and length; negative ones count from its end."""
    begin = begin if begin >= 0 else len(text) + begin
    if begin < 0:
        return ""
    return text[begin:] if length is None else text[begin : begin + length] if length >= 0 else text[begin:length]


def slash(word: str) -> int:
    """The place of the / between pattern and replacement."""
    place = 1 if word.startswith("//") else 0
    while place < len(word):
        if word[place] == "/":
            return place
        try:
            place = end_of(word, place) if word[place] in "\\'\"`$" else place + 1
        except Unclosed:
            place += 1
    return len(word)


def edited(text: str, sign: str, pattern: list[tuple[str, bool]], replaced: str) -> str:
    """A text with what a pattern finds cut off or replaced, or in other letters, as the operator says."""
    matched = Pattern(pattern)
    if sign[0] in "^,":
        change = str.upper if sign[0] == "^" else str.lower
        every = not "".join(each for each, _ in pattern)
        return "".join(
            change(c) if (every or matched.whole(c)) and (len(sign) == 2 or not n) else c for n, c in enumerate(text)
        )
    if sign in ("#", "##"):
        ends = matched.ends(text)
        return text[(min if sign == "#" else max)(ends) :] if ends else text
    if sign in ("%", "%%"):
        begins = matched.begins(text)
        return text[: (max if sign == "%" else min)(begins)] if begins else text
    if not "".join(each for each, _ in pattern):
        return replaced + text if sign == "/#" else text + replaced if sign == "/%" else text
    if sign == "/#":
        ends = matched.ends(text)
        return replaced + text[max(ends) :] if ends else text
    if sign == "/%":
        begins = matched.begins(text)
        return text[: min(begins)] + replaced if begins else text
    if not text:
        return replaced if matched.whole(text) else text
    made, place = list[str](), 0
    while place < len(text):
        end = max(matched.ends(text, place), default=-1)
        made += [replaced] * (end >= 0) + [text[place]] * (end <= place)
        place = max(end, place + 1)
        if end >= 0 and sign == "/":
            break
    return "".join(made) + text[place:]
