"""Patterns of bash, regular expressions that are safe to try, and braces.

Patterns are matched by following all places at which they may end at once, so that none takes more than a bounded number of
steps, as regular expressions may that try one way after another.
"""

from __future__ import annotations

import re
from math import comb

from trainplan.execution.launch_files.shell.marks import TooMuch

MOST_WORDS, MOST_STEPS, MOST_TRIES = 10000, 2 * 10**6, 2 * 10**7
CLASSES = {
    "digit": "0-9",
    "alpha": "a-zA-Z",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "blank": r" \t",
    "space": r"\s",
    "punct": r"!-/:-@\[-`{-~",
}
ANY, STAR = object(), object()
Part = object  # a text, ANY, STAR, a set of characters, or alternatives with their sign
SETS = re.compile(r"\[(?:\^|!)?\]?(?:\[:\w+:\]|[^]])*\]")


class Pattern:
    """A pattern in pieces: texts, and whether their characters stand for themselves."""

    def __init__(self, pieces: list[tuple[str, bool]]) -> None:
        self.parts = [part for text, literal in pieces for part in ([text] if literal else _parts_of(text))]
        self.steps = 0

    def whole(self, text: str) -> bool:
        """Whether it matches a text."""
        return len(text) in self.ends(text)

    def ends(self, text: str, begin: int = 0) -> set[int]:
        """The places at which what it matches from a place on may end. Raises TooMuch."""
        return self._ends(self.parts, text, {begin})

    def begins(self, text: str) -> set[int]:
        """The places from which on it matches all the rest of a text."""
        return {len(text) - end for end in self._ends(_turned(self.parts), text[::-1], {0})}

    def _ends(self, parts: list[Part], text: str, places: set[int]) -> set[int]:
        for part in parts:
            if not places:
                break
            if part is STAR:
                places = set(range(min(places), len(text) + 1))
            elif part is ANY:
                places = {index + 1 for index in places if index < len(text)}
            elif isinstance(part, str):
                places = {index + len(part) for index in places if text.startswith(part, index)}
            elif isinstance(part, re.Pattern):
                places = {index + 1 for index in places if part.match(text, index)}
            else:
                places = self._alternatives(part, text, places)
            self.steps += len(places) + 1
            if self.steps > MOST_STEPS:
                raise TooMuch
        return places

    def _alternatives(self, part: Part, text: str, places: set[int]) -> set[int]:
        assert isinstance(part, tuple)
        sign, alternatives = part
        if sign == "!":
            return {
                end
                for index in places
                for end in range(index, len(text) + 1)
                if end not in {e for alternative in alternatives for e in self._ends(alternative, text, {index})}
            }
        made = set(places) if sign in "?*" else set[int]()
        going = places
        while going:
            going = {end for alternative in alternatives for end in self._ends(alternative, text, going)} - made
            made |= going
            if sign in "?@":
                break
        return made


def _turned(parts: list[Part]) -> list[Part]:
    """The parts that match a text read backwards."""
    made: list[Part] = []
    for part in reversed(parts):
        if isinstance(part, tuple):
            made.append((part[0], [_turned(each) for each in part[1]]))
        else:
            made.append(part[::-1] if isinstance(part, str) else part)
    return made


def _parts_of(text: str) -> list[Part]:
    made: list[Part] = []
    place = 0
    while place < len(text):
        char = text[place]
        if char in "?*+@!" and text[place + 1 : place + 2] == "(" and (end := _closing(text, place + 1)) > 0:
            made.append((char, [_parts_of(part) for part in _alternatives_of(text[place + 2 : end])]))
            place = end + 1
            continue
        if char == "[" and (found := SETS.match(text, place)) and (one := _set(found[0][1:-1])):
            made.append(one)
            place = found.end()
            continue
        if char == "*":
            made += [STAR] if not made or made[-1] is not STAR else []
        elif char == "?":
            made.append(ANY)
        elif made and isinstance(made[-1], str):
            made[-1] += char
        else:
            made.append(char)
        place += 1
    return made


def _set(inner: str) -> re.Pattern[str] | None:
    """The characters of `[..]`; None where it is none."""
    sign = "^" if inner[:1] in ("!", "^") else ""
    try:
        return re.compile(f"[{sign}{_classes(inner[len(sign) :])}]", re.DOTALL)
    except re.error:
        return None


def _classes(inner: str) -> str:
    """What stands between the brackets of a set, as Python's regular expressions have it."""
    parts = re.split(r"(\[:\w+:\])", inner)
    texts = [
        re.sub(r"([\\\[\]^&~|])", r"\\\1", part) if not n % 2 else CLASSES.get(part[2:-2], "") for n, part in enumerate(parts)
    ]
    return "".join(texts)


def expression(text: str, longest: int, count: int = 1, flags: int = 0) -> re.Pattern[str] | None:
    """An extended regular expression, to be searched in so many texts of no more than a length; None for one that cannot be
    read, or may try too many ways."""
    if len(text) > 512 or "(?" in text:
        return None
    bare = SETS.sub("x", re.sub(r"\\.", "x", text))
    depth, varied, nested = list[bool](), False, False
    for index, char in enumerate(bare):
        if char == "(":
            depth.append(varied)
            varied = False
        elif char == ")":
            nested = nested or (varied and bare[index + 1 : index + 2] in tuple("*+{"))
            varied = varied or (depth.pop() if depth else False)
        else:
            varied = varied or char in "*+?{|"
    many = len(re.findall(r"[*+{]", bare))
    tries = comb(longest + many + 1, many + 1) * 2 ** min(64, len(re.findall(r"[?|]", bare))) * count
    if tries * (2 ** min(64, longest) if nested else 1) > MOST_TRIES:
        return None
    try:
        return re.compile(SETS.sub(lambda found: _expanded(found[0]), text), flags)
    except (re.error, OverflowError, RecursionError):
        return None


def _expanded(found: str) -> str:
    sign = "^" if found[1:2] == "^" else ""
    return f"[{sign}{_classes(found[1 + len(sign) : -1])}]"


def _closing(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return -1


def _alternatives_of(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


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
