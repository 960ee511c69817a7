"""Patterns of bash, regular expressions that are safe to search for, and brace expansion.

Patterns are matched by following all positions at once at which they may end, so that the number of steps is bounded; regular
expressions that try alternatives one after another have no such bound.
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
    """A pattern of bash, as in `case` and `${name#pattern}`, that is matched against texts. It is given in pieces: texts,
    each with whether its characters stand for themselves (because they were quoted). parts: the parsed pattern: plain texts,
    sets of characters, `*`, `?`, and alternatives such as @(a|b). Methods raise TooMuch if matching takes too many steps."""

    def __init__(self, pieces: list[tuple[str, bool]]) -> None:
        self.parts = [part for text, literal in pieces for part in ([text] if literal else _parts_of(text))]
        self.steps = 0

    def whole(self, text: str) -> bool:
        """Whether the pattern matches a whole text."""
        return len(text) in self.ends(text)

    def ends(self, text: str, begin: int = 0) -> set[int]:
        """The indices of a text at which a match that starts at the index `begin` may end."""
        return self._ends(self.parts, text, {begin})

    def begins(self, text: str) -> set[int]:
        """The indices of a text from which the pattern matches the whole rest."""
        return {len(text) - end for end in self._ends(_turned(self.parts), text[::-1], {0})}

    def _ends(self, parts: list[Part], text: str, positions: set[int]) -> set[int]:
        """The indices of a text at which a sequence of parts of the pattern may end, if it starts at any of the given
        indices (positions)."""
        for part in parts:
            if not positions:
                break
            if part is STAR:
                positions = set(range(min(positions), len(text) + 1))
            elif part is ANY:
                positions = {index + 1 for index in positions if index < len(text)}
            elif isinstance(part, str):
                positions = {index + len(part) for index in positions if text.startswith(part, index)}
            elif isinstance(part, re.Pattern):
                positions = {index + 1 for index in positions if part.match(text, index)}
            else:
                positions = self._alternatives(part, text, positions)
            self.steps += len(positions) + 1
            if self.steps > MOST_STEPS:
                raise TooMuch
        return positions

    def _alternatives(self, part: Part, text: str, positions: set[int]) -> set[int]:
        """The indices of a text at which an extended pattern may end, if it starts at any of the given indices (positions).
        part: the pattern, such as @(a|b), as its sign (one of ?*+@!) and its alternatives."""
        assert isinstance(part, tuple)
        sign, alternatives = part
        if sign == "!":
            return {
                end
                for index in positions
                for end in range(index, len(text) + 1)
                if end not in {e for alternative in alternatives for e in self._ends(alternative, text, {index})}
            }
        result = set(positions) if sign in "?*" else set[int]()
        going = positions
        while going:
            going = {end for alternative in alternatives for end in self._ends(alternative, text, going)} - result
            result |= going
            if sign in "?@":
                break
        return result


def _turned(parts: list[Part]) -> list[Part]:
    """The parts of a bash pattern in reversed order, with their texts reversed, so that they match reversed texts."""
    result: list[Part] = []
    for part in reversed(parts):
        if isinstance(part, tuple):
            result.append((part[0], [_turned(alternative) for alternative in part[1]]))
        else:
            result.append(part[::-1] if isinstance(part, str) else part)
    return result


def _parts_of(text: str) -> list[Part]:
    """Parse a pattern of bash into parts: plain texts, `*`, `?`, sets of characters such as [a-z], and alternatives such as
    @(a|b). text: the pattern, without quoted characters."""
    result: list[Part] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char in "?*+@!" and text[position + 1 : position + 2] == "(" and (end := _closing(text, position + 1)) > 0:
            result.append((char, [_parts_of(part) for part in _alternatives_of(text[position + 2 : end])]))
            position = end + 1
            continue
        if char == "[" and (found := SETS.match(text, position)) and (one := _set(found[0][1:-1])):
            result.append(one)
            position = found.end()
            continue
        if char == "*":
            result += [STAR] if not result or result[-1] is not STAR else []
        elif char == "?":
            result.append(ANY)
        elif result and isinstance(result[-1], str):
            result[-1] += char
        else:
            result.append(char)
        position += 1
    return result


def _set(inner: str) -> re.Pattern[str] | None:
    """Compile a set of characters such as `[a-z]` of a bash pattern to a regular expression; None if it is not valid. inner:
    the text between the brackets."""
    sign = "^" if inner[:1] in ("!", "^") else ""
    try:
        return re.compile(f"[{sign}{_classes(inner[len(sign) :])}]", re.DOTALL)
    except re.error:
        return None


def _classes(inner: str) -> str:
    """The inside of a set of characters in the syntax of Python's regular expressions: "[:digit:]_" -> "0-9_". inner: the
    inside in bash's syntax."""
    parts = re.split(r"(\[:\w+:\])", inner)
    texts = [
        re.sub(r"([\\\[\]^&~|])", r"\\\1", part) if not n % 2 else CLASSES.get(part[2:-2], "") for n, part in enumerate(parts)
    ]
    return "".join(texts)


def expression(text: str, longest: int, count: int = 1, flags: int = 0) -> re.Pattern[str] | None:
    """Compile an extended regular expression of bash, grep, sed or awk; None if it is not supported or if searching may take
    too many steps. longest: the length of the longest text to be searched. count: the number of these texts. flags: those of
    Python's `re`."""
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
    """A set of characters of an extended regular expression in Python's syntax: "[^[:digit:]]" -> "[^0-9]". found: the set
    with its brackets."""
    sign = "^" if found[1:2] == "^" else ""
    return f"[{sign}{_classes(found[1 + len(sign) : -1])}]"


def _closing(text: str, start: int) -> int:
    """The index of the round bracket that closes the one at the index `start`; -1 if there is none."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return -1


def _alternatives_of(text: str) -> list[str]:
    """Split the inside of an extended pattern at |, outside inner brackets: "a|@(b|c)" -> ["a", "@(b|c)"]."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def braced(raw: str) -> list[str]:
    """The words that the braces of a word expand to, outside quotes: "a{b,c}" -> ["ab", "ac"], "{1..3}" -> ["1", "2", "3"].
    raw: the word as written. Raises TooMuch if there are too many words."""
    if "{" not in raw:
        return [raw]
    position, depth, start, commas, quote = 0, 0, -1, list[int](), ""
    while position < len(raw):
        char = raw[position]
        if char == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif raw.startswith(("${", "$("), position):
            position = _skipped(raw, position + 1)
            continue
        elif char == "{":
            depth += 1
            if depth == 1:
                start, commas = position, []
        elif char == "," and depth == 1:
            commas.append(position)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and (found := _alternatives(raw[start + 1 : position], [comma - start - 1 for comma in commas])):
                rest = braced(raw[position + 1 :])
                inner = [word for alternative in found for word in braced(alternative)]
                if len(inner) * len(rest) > MOST_WORDS:
                    raise TooMuch
                return [raw[:start] + word + more for word in inner for more in rest]
        position += 1
    return [raw]


def _skipped(raw: str, position: int) -> int:
    """The index after the bracket that closes the one at the index `position`, which is { or (."""
    opened = raw[position]
    closed, depth = {"{": "}", "(": ")"}[opened], 0
    while position < len(raw):
        depth += (raw[position] == opened) - (raw[position] == closed)
        position += 1
        if depth == 0:
            break
    return position


def _alternatives(inner: str, commas: list[int]) -> list[str]:
    """The words that the inside of braces stands for: "b,c" -> ["b", "c"], "1..3" -> ["1", "2", "3"]; empty if it is neither
    a list nor a range. inner: the text between the braces. commas: indices of the commas outside inner braces. Raises
    TooMuch if the range is too long."""
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
