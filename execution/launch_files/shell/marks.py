"""Texts with undecided parts: values that depend on what nobody has given.

An undecided part is one character of a private plane of Unicode, which refers to an entry of a table: a value that is not known
(`Unknown`), or one of two values that a condition selects (`Choice`). Such texts are joined and copied like others; code that
looks inside a text has to check for such characters. There are two kinds of them: for quoted values, and for values that are
split into words once they are known.
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
    """A text that is written in the script itself; it is never split, quoted or not."""


BREAK: Piece = ("a word ends here", False)  # separators among pieces, recognised by identity
NOTHING: Piece = ("a list without elements", False)


@dataclass(frozen=True)
class Unknown:
    """A value that nobody has given. name: the variable that the user may give by --set; empty if there is none. where: file
    and line of its use. why: what is known of it, as the end of a sentence."""

    name: str
    where: str
    why: str = "has no value"


@dataclass(frozen=True)
class Decision:
    """A condition of the script that is undecided, because it depends on a value that nobody has given. number: its index.
    cause: this value. example: a value that the script compares the cause with."""

    number: int
    cause: Unknown
    example: str = ""


@dataclass(frozen=True)
class Choice:
    """One of two values, depending on an undecided condition: texts, or lists of words. decision: the condition. yes, no:
    the value where the condition holds, and where it does not. variable: the variable that has the value, if any."""

    decision: Decision
    yes: str | tuple[str, ...]
    no: str | tuple[str, ...]
    variable: str = ""


class TooMuch(Exception):
    """Raised for a script that takes more steps or memory than scripts which start training do, or that depends on too many
    conditions. decision: the first of these conditions, in the latter case; otherwise None."""

    def __init__(self, decision: Decision | None = None) -> None:
        super().__init__()
        self.decision = decision


class Marks:
    """The table of the undecided parts of all texts of a script. An undecided part is one private character of Unicode (a
    mark) in a text, which stands for an entry of the table: a value that nobody has given (Unknown), or one of two values
    that an undecided condition selects (Choice). Every entry has two marks: an even one for values within quotes, and an odd
    one for values that are split into words once they are known. In methods, `known` says by number of a condition whether
    it is assumed to hold."""

    def __init__(self) -> None:
        self.entries: list[Unknown | Choice] = []
        self.numbers: dict[Unknown | Choice, int] = {}
        self.decisions: list[Decision] = []
        self.own: set[str] = set()  # variables that the script sets itself somewhere: empty where it has not
        self.decision_of_text: dict[str, Decision] = {}
        self.live: dict[int, Decision] = {}  # conditions whose sides end differently

    def unknown(self, name: str, where: str, why: str = "has no value") -> str:
        """A text (one mark) that stands for a value which nobody has given. name: the variable that the user may give; empty
        if there is none. where: file and line of its use. why: what is known of it, as the end of a sentence."""
        return self._mark(Unknown(name, where, why))

    def decision(self, cause: Unknown, example: str = "") -> Decision:
        """Create an undecided condition. cause: the value that it depends on. example: a value that the script compares the
        cause with."""
        self.decisions.append(Decision(len(self.decisions), cause, example))
        return self.decisions[-1]

    def decision_of(self, cause: Unknown, example: str, text: str) -> Decision:
        """The undecided condition that stands for a text, so that the same condition of a script is decided only once;
        created on first use. cause: the value that it depends on. example: a value that the script compares the cause with.
        text: the condition as a text; if empty, a new condition is created."""
        if not text:
            return self.decision(cause, example)
        if text not in self.decision_of_text:
            self.decision_of_text[text] = self.decision(cause, example)
        return self.decision_of_text[text]

    def choice(self, decision: Decision, yes: str | tuple[str, ...], no: str | tuple[str, ...], variable: str = "") -> str:
        """A text that stands for one of two values, depending on an undecided condition; if both are texts, a beginning that
        they share stays known. decision: the condition. yes, no: the values where it holds, and where it does not. variable:
        the variable that has the value, if any."""
        if yes == no and isinstance(yes, str):
            return yes
        if not isinstance(yes, str) or not isinstance(no, str):
            return self._mark(Choice(decision, yes, no, variable))
        begin = 0
        while begin < min(len(yes), len(no)) and yes[begin] == no[begin]:
            begin += 1
        begin = yes.rfind(" ", 0, begin) + 1 if begin < max(len(yes), len(no)) else begin
        return yes[:begin] + self._mark(Choice(decision, yes[begin:], no[begin:], variable))

    def record_live(self, decision: Decision) -> None:
        """Record that the two sides of an undecided condition lead to different results. Raises TooMuch if there are too
        many such conditions."""
        self.live[decision.number] = decision
        if len(self.live) > MOST_DECISIONS:
            raise TooMuch(next(iter(self.live.values())))

    def _mark(self, entry: Unknown | Choice) -> str:
        """The mark (character) for an entry of the table; the entry is added if it is new. Raises TooMuch if the table is
        full."""
        number = self.numbers.get(entry)
        if number is None:
            if len(self.entries) >= MOST:
                raise TooMuch
            if isinstance(entry, Choice):
                self.record_live(entry.decision)
            number = self.numbers[entry] = len(self.entries)
            self.entries.append(entry)
        return chr(FIRST + 2 * number)

    def entry(self, mark: str) -> Unknown | Choice:
        """The entry of the table that a mark (a character of a text) stands for."""
        return self.entries[(ord(mark) - FIRST) // 2]

    def cause(self, text: str) -> Unknown | None:
        """The value that nobody has given and on which the first undecided part of a text depends; None if all of the text
        is known."""
        found = MARK.search(text)
        if found is None:
            return None
        entry = self.entry(found[0])
        return entry if isinstance(entry, Unknown) else entry.decision.cause

    def names_one_file(self, path: str) -> bool:
        """Whether a path names one and the same file whenever it is used: all of its undecided parts are variables that the
        user may give, and not choices or outputs of commands."""
        entries = map(self.entry, MARK.findall(path))
        return all(isinstance(entry, Unknown) and bool(entry.name) for entry in entries)

    def several(self, word: str) -> bool:
        """Whether a word may become no word or several words once its undecided parts are known."""
        found = MARK.search(word)
        if found is None:
            return False
        entry = self.entry(found[0])
        if isinstance(entry, Choice):
            sides = (entry.yes, entry.no)
            return any(not isinstance(side, str) or (ord(found[0]) % 2 == 1 and len(side.split()) != 1) for side in sides)
        return ord(found[0]) % 2 == 1

    def choice_in(self, text: str, of: re.Pattern[str] | None = None) -> Choice | None:
        """The first choice between two values in a text; None if there is none. of: if given, only choices count in which a
        value matches this pattern."""
        for entry in map(self.entry, MARK.findall(text)):
            if isinstance(entry, Choice) and (of is None or of.search("".join([*entry.yes, *entry.no]))):
                return entry
        return None

    def picked(self, text: str, known: Mapping[int, bool]) -> str:
        """A text with choices replaced by the values that assumed conditions select; lists of words are joined by blanks.
        known: by number of a condition, whether it is assumed to hold."""

        def one(found: re.Match[str]) -> str:
            entry = self.entry(found[0])
            if isinstance(entry, Choice) and entry.decision.number in known:
                value = entry.yes if known[entry.decision.number] else entry.no
                return self.picked(value if isinstance(value, str) else " ".join(value), known)
            return found[0]

        return MARK.sub(one, text) if known else text

    def picked_words(self, words: Sequence[str], known: Mapping[int, bool]) -> list[str]:
        """Words with choices replaced by the values that assumed conditions select, and split into several words where they
        were not quoted. known: by number of a condition, whether it is assumed to hold."""
        result: list[str] = []
        for word in words:
            result += [word] if not MARK.search(word) else self._fields(word, known)
        return result

    def _fields(self, word: str, known: Mapping[int, bool]) -> list[str]:
        """The words that one word becomes when its choices are replaced by the values that assumed conditions select. known:
        by number of a condition, whether it is assumed to hold."""
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
        """A text for messages, in which every undecided part is shown as $NAME, or $(..) if it has no name."""

        def one(found: re.Match[str]) -> str:
            entry = self.entry(found[0])
            return f"${(entry if isinstance(entry, Unknown) else entry.decision.cause).name or '(..)'}"

        return MARK.sub(one, text)

    def lifted(self, text: str, of: Callable[[str], str], where: str, depth: int = 0) -> str:
        """Apply a function of texts to a text that may have undecided parts: for a choice, both values are tried and the
        result is a choice again; a value that nobody has given stays unknown. of: the function for known texts. where:
        unused. depth: number of choices resolved so far."""
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
    """A text whose undecided parts are changed to the kind that is not split into words once it is known, as within quotes."""
    return MARK.sub(lambda found: chr(ord(found[0]) & ~1), text) if MARK.search(text) else text


def unsplit(text: str) -> str:
    """A text whose undecided parts are changed to the kind that is split into words once it is known, as outside quotes."""
    return MARK.sub(lambda found: chr(ord(found[0]) | 1), text) if MARK.search(text) else text


def fields(pieces: Sequence[Piece], separators: str = " \t\n") -> list[str]:
    """The words that the pieces of a written word form: [("a b", True), ("c", False)] -> ["a", "bc"]. pieces: texts, each
    with whether it is to be split at separators. separators: the characters at which bash splits (IFS). Empty words are
    dropped as in bash."""
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
    """The regular expression for the text between two fields of a line: any number of blanks, or one other separator with
    blanks around it. separators: the characters at which bash splits (IFS)."""
    blanks = "".join(char for char in " \t\n" if char in separators)
    others = "".join(char for char in separators if char not in " \t\n")
    patterns = [rf"[{blanks}]*[{re.escape(others)}][{blanks}]*" if blanks else f"[{re.escape(others)}]"] if others else []
    return "|".join([*patterns, *([f"[{blanks}]+"] if blanks else [])])
