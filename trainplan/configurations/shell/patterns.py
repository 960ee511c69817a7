"""Patterns of bash as regular expressions, and braces."""

from __future__ import annotations

import re

from trainplan.configurations.shell.marks import TooMuch

MOST_WORDS = 10000
CLASSES = {
    "digit": "0-9",
    "alpha": "a-zA-Z",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "punct": r"!-/:-@\[-`{-~",
}


def translated(pattern: list[tuple[str, bool]], greedy: bool = True) -> str:
    """A regular expression for a pattern, given in pieces: a text, and whether its characters stand for themselves."""
    made = ""
    for text, literal in pattern:
        made += re.escape(text) if literal else _translated(text, greedy)
    return made


def _translated(text: str, greedy: bool) -> str:
    made, place = "", 0
    any_text = ".*" if greedy else ".*?"
    while place < len(text):
        char = text[place]
        if char in "?*+@!" and text[place + 1 : place + 2] == "(" and (end := _closing(text, place + 1)) > 0:
            inner = "|".join(_translated(part, greedy) for part in _parts(text[place + 2 : end]))
            made += f"(?:(?!(?:{inner})$).*)" if char == "!" else f"(?:{inner})" + {"@": ""}.get(char, char)
            place = end + 1
            continue
        if char == "[" and (end := text.find("]", place + 3 if text[place + 1 : place + 2] in ("!", "^") else place + 2)) > 0:
            while text.count("[:", place, end) > text.count(":]", place, end + 1) and text.find("]", end + 1) > 0:
                end = text.find("]", end + 1)
            inner = text[place + 1 : end]
            sign = "^" if inner[:1] in ("!", "^") else ""
            inner = re.sub(r"\[:(\w+):\]", lambda match: CLASSES.get(match[1], ""), inner[len(sign) :].replace("\\", "\\\\"))
            made += f"[{sign}{inner}]" if inner else r"\["
            place = end + 1
            continue
        made += {"*": any_text, "?": "."}.get(char, re.escape(char))
        place += 1
    return made


def _closing(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return -1


def _parts(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def compiled(pattern: list[tuple[str, bool]], greedy: bool = True, flags: int = re.DOTALL) -> re.Pattern[str] | None:
    """The regular expression; None where there is none."""
    try:
        return re.compile(translated(pattern, greedy), flags)
    except (re.error, OverflowError):
        return None


def braced(raw: str) -> list[str]:
    """The words that braces of a word make, outside quotes: `a{b,c}` and `{1..8}`."""
    if "{" not in raw:
        return [raw]
    place, depth, start, commas, quote = 0, 0, -1, list[int](), ""
    while place < len(raw):
        char = raw[place]
        if char == "\\" and quote != "'":
            place += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif raw.startswith(("${", "$("), place):
            place = _skipped(raw, place + 1)
            continue
        elif char == "{":
            depth += 1
            if depth == 1:
                start, commas = place, []
        elif char == "," and depth == 1:
            commas.append(place)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and (found := _alternatives(raw[start + 1 : place], [comma - start - 1 for comma in commas])):
                rest = braced(raw[place + 1 :])
                inner = [each for alternative in found for each in braced(alternative)]
                if len(inner) * len(rest) > MOST_WORDS:
                    raise TooMuch
                return [raw[:start] + each + more for each in inner for more in rest]
        place += 1
    return [raw]


def _skipped(raw: str, place: int) -> int:
    """The place behind what opens at a place."""
    opened = raw[place]
    closed, depth = {"{": "}", "(": ")"}[opened], 0
    while place < len(raw):
        depth += (raw[place] == opened) - (raw[place] == closed)
        place += 1
        if depth == 0:
            break
    return place


def _alternatives(inner: str, commas: list[int]) -> list[str]:
    if commas:
        ends = [*commas, len(inner)]
        return [inner[begin:end] for begin, end in zip([0, *(comma + 1 for comma in commas)], ends, strict=True)]
    match = re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?", inner)
    if match:
        first, last, step = int(match[1]), int(match[2]), abs(int(match[3] or 1)) or 1
        if abs(last - first) // step > MOST_WORDS:
            raise TooMuch
        width = max(len(match[1]), len(match[2])) if re.match(r"-?0\d", match[1]) or re.match(r"-?0\d", match[2]) else 0
        numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
        return [f"{number:0{width}d}" for number in numbers]
    match = re.fullmatch(r"([a-zA-Z])\.\.([a-zA-Z])", inner)
    if match:
        a, b = ord(match[1]), ord(match[2])
        return [chr(code) for code in (range(a, b + 1) if b >= a else range(a, b - 1, -1))]
    return []
