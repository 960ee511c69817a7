"""Texts of which parts are undecided: values that a script takes from where nobody has said them.

An undecided part is one character of a private plane of Unicode, which stands for an entry of a table: a value that is not
known (`Unknown`), or one of two that a condition chooses between (`Choice`). Such texts are joined and copied like others; what
would have to look inside asks first. A character is of one of two kinds: in quotes, or to be split into words once
it is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FIRST = 0xF0000
FAILS = "is a status that is not 0"  # what is known of the status of a command that fails
MARK = re.compile("[\U000f0000-\U000ffffd]")
MOST, MOST_DECISIONS = 30000, 10
Piece = tuple[str, bool]  # a text, and whether it is split at blanks


class Literal(str):
    """A text that stands in the script itself: quoted or not, it is never split."""


BREAK: Piece = ("a word ends here", False)  # among pieces, told apart by identity
NOTHING: Piece = ("a list without elements", False)


@dataclass(frozen=True)
class Unknown:
    """A value that nobody has said. name: what may be given by --set (empty: nothing of the kind). where: file and line of its
    use. why: what is known of it."""

    name: str
    where: str
    why: str = "has no value"


@dataclass(frozen=True)
class Decision:
    """A condition that is not decided. cause: the value that it hangs on. example: a value that it asks for."""

    number: int
    cause: Unknown
    example: str = ""


@dataclass(frozen=True)
class Choice:
    """One of two values: texts, or lists of words. variable: whose value it is."""

    decision: Decision
    yes: str | tuple[str, ...]
    no: str | tuple[str, ...]
    variable: str = ""


class TooMuch(Exception):
    """A script that takes more steps or more memory than any that starts training, or hangs on too many conditions. decision:
    the first of these, if so."""

    def __init__(self, decision: Decision | None = None) -> None:
        super().__init__()
        self.decision = decision


class Marks:
    """The table of undecided parts."""

    def __init__(self) -> None:
        self.entries: list[Unknown | Choice] = []
        self.numbers: dict[Unknown | Choice, int] = {}
        self.decisions: list[Decision] = []
        self.own: set[str] = set()  # variables that the script sets itself somewhere: empty where it has not
        self.asked: dict[str, Decision] = {}
        self.live: dict[int, Decision] = {}  # conditions whose sides end differently

    def unknown(self, name: str, where: str, why: str = "has no value") -> str:
        """The text of an unknown value."""
        return self._mark(Unknown(name, where, why))

    def decision(self, cause: Unknown, example: str = "") -> Decision:
        """A new condition that is not decided."""
        self.decisions.append(Decision(len(self.decisions), cause, example))
        return self.decisions[-1]

    def decision_of(self, cause: Unknown, example: str, text: str) -> Decision:
        """The condition that a text stands for: one, however often it is asked."""
        if not text:
            return self.decision(cause, example)
        if text not in self.asked:
            self.asked[text] = self.decision(cause, example)
        return self.asked[text]

    def choice(self, decision: Decision, yes: str | tuple[str, ...], no: str | tuple[str, ...], variable: str = "") -> str:
        """The text of a choice; of texts, what both begin and end with stays known."""
        if yes == no and isinstance(yes, str):
            return yes
        if not isinstance(yes, str) or not isinstance(no, str):
            return self._mark(Choice(decision, yes, no, variable))
        begin = 0
        while begin < min(len(yes), len(no)) and yes[begin] == no[begin]:
            begin += 1
        begin = yes.rfind(" ", 0, begin) + 1 if begin < max(len(yes), len(no)) else begin
        return yes[:begin] + self._mark(Choice(decision, yes[begin:], no[begin:], variable))

    def lives(self, decision: Decision) -> None:
        """Notes that the sides of a condition end differently. Raises TooMuch behind too many."""
        self.live[decision.number] = decision
        if len(self.live) > MOST_DECISIONS:
            raise TooMuch(next(iter(self.live.values())))

    def _mark(self, entry: Unknown | Choice) -> str:
        number = self.numbers.get(entry)
        if number is None:
            if len(self.entries) >= MOST:
                raise TooMuch
            if isinstance(entry, Choice):
                self.lives(entry.decision)
            number = self.numbers[entry] = len(self.entries)
            self.entries.append(entry)
        return chr(FIRST + 2 * number)

    def entry(self, mark: str) -> Unknown | Choice:
        """What a character stands for."""
        return self.entries[(ord(mark) - FIRST) // 2]

    def cause(self, text: str) -> Unknown | None:
        """The first value that a text hangs on; None where it is known."""
        found = MARK.search(text)
        if found is None:
            return None
        entry = self.entry(found[0])
        return entry if isinstance(entry, Unknown) else entry.decision.cause

    def tells(self, path: str) -> bool:
        """Whether a path names one file, by values that are known and variables that hold one value all along."""
        entries = map(self.entry, MARK.findall(path))
        return all(isinstance(entry, Unknown) and bool(entry.name) for entry in entries)

    def several(self, word: str) -> bool:
        """Whether a word may be another number of words once it is known."""
        found = MARK.search(word)
        if found is None:
            return False
        entry = self.entry(found[0])
        if isinstance(entry, Choice):
            sides = (entry.yes, entry.no)
            return any(not isinstance(side, str) or (ord(found[0]) % 2 == 1 and len(side.split()) != 1) for side in sides)
        return ord(found[0]) % 2 == 1

    def choice_in(self, text: str, of: re.Pattern[str] | None = None) -> Choice | None:
        """The first choice in a text; of those alone whose sides have what a pattern finds."""
        for entry in map(self.entry, MARK.findall(text)):
            if isinstance(entry, Choice) and (of is None or of.search("".join([*entry.yes, *entry.no]))):
                return entry
        return None

    def picked(self, text: str, known: Mapping[int, bool]) -> str:
        """A text with what some conditions choose; lists of words joined by blanks."""

        def one(found: re.Match[str]) -> str:
            entry = self.entry(found[0])
            if isinstance(entry, Choice) and entry.decision.number in known:
                value = entry.yes if known[entry.decision.number] else entry.no
                return self.picked(value if isinstance(value, str) else " ".join(value), known)
            return found[0]

        return MARK.sub(one, text) if known else text

    def picked_words(self, words: Sequence[str], known: Mapping[int, bool]) -> list[str]:
        """Words with what some conditions choose, split where they were not in quotes."""
        made: list[str] = []
        for word in words:
            made += [word] if not MARK.search(word) else self._fields(word, known)
        return made

    def _fields(self, word: str, known: Mapping[int, bool]) -> list[str]:
        if len(word) == 1 and isinstance(entry := self.entry(word), Choice) and entry.decision.number in known:
            value = entry.yes if known[entry.decision.number] else entry.no
            if not isinstance(value, str):
                return self.picked_words(value, known)
        pieces: list[Piece] = []
        for part in re.split(f"({MARK.pattern})", word):
            again = self.picked(part, known)
            split = bool(MARK.fullmatch(part)) and ord(part) % 2 == 1
            pieces += [(again, split)] if part else []
        return fields(pieces)

    def shown(self, text: str) -> str:
        """A text for people: unknown parts by their names."""

        def one(found: re.Match[str]) -> str:
            entry = self.entry(found[0])
            return f"${(entry if isinstance(entry, Unknown) else entry.decision.cause).name or '(..)'}"

        return MARK.sub(one, text)

    def lifted(self, text: str, of: Callable[[str], str], where: str, depth: int = 0) -> str:
        """What a function makes of a text; where parts are chosen, of both; unknown where parts are unknown."""
        cause = self.cause(text)
        if cause is None:
            return of(text)
        choice = self.choice_in(text)
        if choice is None or depth > 5:
            return self._mark(cause)
        yes, no = (
            self.lifted(self.picked(text, {choice.decision.number: side}), of, where, depth + 1) for side in (True, False)
        )
        return self.choice(choice.decision, yes, no, choice.variable)


def quoted(text: str) -> str:
    """A text whose undecided parts are not split."""
    return MARK.sub(lambda found: chr(ord(found[0]) & ~1), text) if MARK.search(text) else text


def unsplit(text: str) -> str:
    """A text whose undecided parts may be several words."""
    return MARK.sub(lambda found: chr(ord(found[0]) | 1), text) if MARK.search(text) else text


def fields(pieces: Sequence[Piece], separators: str = " \t\n") -> list[str]:
    """The words that pieces make: those that are split break at separators, and are no word where nothing is left."""
    words: list[str] = []
    held: str | None = None
    for piece in pieces:
        if piece is BREAK:
            words += [] if held is None else [held]
            held = None
            continue
        if piece is NOTHING:
            continue
        text, split = piece
        if not split or isinstance(text, Literal):
            held = (held or "") + (text if split else quoted(text))
            continue
        text = unsplit(text)
        for index, part in enumerate(re.split(f"({delimiter(separators)})", text) if separators else [text]):
            if index % 2 == 0:
                held = (held or "") + part if part else held
            elif held is not None or part.strip(" \t\n"):
                words.append(held or "")
                held = None
    return words if held is None else [*words, held]


def delimiter(separators: str) -> str:
    """The pattern of what stands between two fields: blanks in any number, or one other separator with blanks around it."""
    blanks = "".join(char for char in " \t\n" if char in separators)
    others = "".join(char for char in separators if char not in " \t\n")
    patterns = [rf"[{blanks}]*[{re.escape(others)}][{blanks}]*" if blanks else f"[{re.escape(others)}]"] if others else []
    return "|".join([*patterns, *([f"[{blanks}]+"] if blanks else [])])
