"""Text operations of parameter expansions: parts that are cut off or replaced, and changes of case."""

from __future__ import annotations

import re

from trainplan.execution.launch_files.shell.marks import BREAK, NOTHING, Literal, Piece, quoted
from trainplan.execution.launch_files.shell.patterns import Pattern
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Unclosed, end_of

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b", "0": "\0"}


def end_of_index(text: str) -> int:
    """The length of `[..]=` or `[..]+=` at the start of a text, which begins an element of an array such as `[2]=x`; -1 if
    the text has no such start."""
    match = ASSIGNED.match("x" + text)
    return match.end() - 1 if match and match[2] else -1


def listed(elements: list[str], double: bool, star: bool, separator: str) -> list[Piece]:
    """Turn the elements of an array or the positional parameters into pieces of a word. A piece is a text and whether it is
    still to be split at blanks. elements: the texts. double: whether they stand within double quotes. star: whether they
    were requested by * and not by @; within double quotes they are then joined to one text. separator: the text between
    joined elements."""
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
    """Whether every round bracket of a text is closed and none is closed before it is opened."""
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0


def escaped(text: str) -> str:
    r"""The text that the inside of `$'..'` stands for, with escapes such as \n or \x41 replaced."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0].isdigit() else ESCAPES.get(code, "\\" + code)

    return re.sub(r"\\(x[\da-fA-F]{1,2}|u[\da-fA-F]{1,4}|[0-7]{1,3}|.)", one, text, flags=re.DOTALL)


def cut(text: str, begin: int, length: int | None) -> str:
    """The part of a text that `${NAME:begin:length}` selects. begin: offset; a negative one counts from the end. length: number
    of characters, None for all; a negative one is an end counted from the text's end."""
    begin = begin if begin >= 0 else len(text) + begin
    if begin < 0:
        return ""
    return text[begin:] if length is None else text[begin : begin + length] if length >= 0 else text[begin:length]


def slash(word: str) -> int:
    """The index of the / between pattern and replacement in the rest of `${NAME/pattern/replacement}`; the text's length if
    there is none. word: the text after the operator."""
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
    """The text that `${NAME<sign>pattern}` expands to: # and % cut off a match at the start or end, / replaces matches, ^
    and , change the case of letters. text: the variable's value. sign: the operator, such as "##" or "//". pattern: pieces
    of the pattern, each with whether its characters stand for themselves. replaced: the replacement, for / alone."""
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
