"""Conditions of bash: `[ .. ]`, `test` and `[[ .. ]]`, some of which cannot be decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell.marks import FAILS, MARK, Unknown
from trainplan.execution.launch_files.shell.patterns import Pattern, expression
from trainplan.execution.launch_files.shell.scan import end_of
from trainplan.execution.launch_files.shell.state import Truth

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator
    from trainplan.execution.launch_files.shell.state import State

NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
TEXTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda a, b: a == b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}  # fmt: skip
FILES = tuple(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")
BINARY = (*NUMBERS, *TEXTS, "-nt", "-ot", "-ef", "=~")


class Conditions:
    """Decides the conditions (`test`, `[ .. ]`, `[[ .. ]]`) of one statement of a script. A Truth is True, False or, if the
    condition depends on a value that nobody has given, a pair (decision, side): true exactly where the undecided condition
    `decision` comes out as `side`. shell: the script's evaluator. state: the simulated shell. where: file and line."""

    def __init__(self, shell: Evaluator, state: State, where: str) -> None:
        self.shell, self.state, self.where, self.marks = shell, state, where, shell.marks

    def undecided(self, text: str, example: str = "", why: str = "has no value") -> Truth:
        """The Truth of a condition that depends on the undecided part of a text: a pair (decision, True). example: a value
        that the text is compared with, for advice. why: what is known of the condition if the text has no undecided part."""
        cause = self.marks.cause(text) or Unknown("", self.where, why)
        return self.shell.decided(cause, example, text), True

    def lifted(self, words: Sequence[str], of: Callable[[list[str]], Truth], depth: int = 0) -> Truth:
        """Apply a condition to words that may have undecided parts: if a choice between two values is among them, the
        condition is decided for both values, and the Truth depends on the choice. words: the words of the condition. of:
        decides the condition for words without such choices. depth: number of choices resolved so far."""
        words = self.marks.picked_words(words, self.state.known())
        choice = self.marks.choice_in(" ".join(words))
        if choice is None or depth > 5:
            return of(words)
        yes, no = (
            self.lifted(self.marks.picked_words(words, {choice.decision.number: side}), of, depth + 1) for side in (True, False)
        )
        if yes == no:
            return yes
        if isinstance(yes, bool) and isinstance(no, bool):
            return choice.decision, yes
        return self.undecided(" ".join(words))

    def both(self, left: Truth, other: Truth, every: bool) -> Truth:
        """The conjunction (every is True) or the disjunction (every is False) of two Truths; if both are undecided and
        differ, a new undecided condition stands for the result."""
        if isinstance(left, bool):
            return other if left == every else left
        if isinstance(other, bool):
            return left if other == every else other
        if left == other:
            return left
        return self.shell.decided(left[0].cause, left[0].example, f"{left} {every} {other}"), True

    def test(self, words: Sequence[str]) -> Truth:
        """The Truth of the command `test`, given its words, such as ["$A", "-eq", "2"] after expansion."""
        return self.lifted(words, lambda known: _Test(self, known).whole())

    def double(self, raw: str) -> Truth:
        """The Truth of `[[ .. ]]`. raw: the text between the brackets, as written."""
        return _Double(self, raw).whole()

    def unary(self, sign: str, value: str) -> Truth:
        """The Truth of a test of one value, such as `-n value` or `-f value`. sign: the operator."""
        if sign in ("-n", "-z"):
            if MARK.search(value) and not MARK.sub("", value):
                return self._not(self.undecided(value)) if sign == "-z" else self.undecided(value)
            return bool(value) == (sign == "-n")
        if sign == "-v":
            name, _, index = value.partition("[")
            if self.shell.is_set(self.state, name, index[:-1] or None):
                return True
            return self.undecided(self.marks.unknown(name, self.where), "1") if self.shell.open(self.state, name) else False
        if sign in ("-o", "-R"):
            return False
        if sign in ("-t", "-s", "-N", "-h", "-L"):
            return self.undecided(value, why=f"asks for {sign} {self.marks.shown(value)}")
        if MARK.search(value):
            return self.undecided(value, "a path")
        if value in ("", "/dev/null"):
            return value != ""
        kind = self.shell.kind_of(self.state, value)
        if kind is not None:
            return {"-d": kind == "folder", "-f": kind == "file"}.get(sign, True)
        return self.shell.decided(Unknown("", self.where, f"asks whether {value} is there"), "", f"{sign} {value}"), True

    def _not(self, truth: Truth) -> Truth:
        """The negation of a Truth: an undecided pair (decision, side) becomes (decision, other side)."""
        return not truth if isinstance(truth, bool) else (truth[0], not truth[1])

    def binary(self, left: str, sign: str, right: str) -> Truth:
        """The Truth of a comparison, such as `a -lt b`, `a == b` or `a -nt b`. left, right: expanded texts, which may have
        undecided parts. sign: the operator; == compares plain texts here, not patterns."""
        if sign in ("-nt", "-ot", "-ef"):
            return self.undecided(left + right, why="asks which file is newer")
        if right == "0" and self._fails(left):
            return sign in ("!=", "-ne", "-gt", "-ge", ">")
        if left == "0" and self._fails(right):
            return sign in ("!=", "-ne", "-lt", "-le", "<")
        if MARK.search(left) or MARK.search(right):
            if left == right and sign in ("=", "=="):
                return True
            example = right if not MARK.search(right) else left if not MARK.search(left) else ""
            if sign in ("=", "==", "!=") and not _may_equal(left, right):
                return sign == "!="
            text = f"{left} {sign} {right}"
            negated = {"!=": "=", "-ne": "-eq"}.get(sign)
            return self._not(self.undecided(f"{left} {negated} {right}", example)) if negated else self.undecided(text, example)
        if sign in NUMBERS:
            if not all(re.fullmatch(r"\s*[-+]?\d{1,18}\s*", side) for side in (left, right)):
                return False
            return NUMBERS[sign](int(left), int(right))
        return TEXTS[sign](left, right)

    def _fails(self, text: str) -> bool:
        """Whether a text stands for the exit status of a command that fails, so that it is known to differ from 0."""
        entry = self.marks.entry(text) if MARK.fullmatch(text) else None
        return isinstance(entry, Unknown) and entry.why == FAILS


def _may_equal(left: str, right: str) -> bool:
    """Whether two texts can be equal, if each undecided part in them may stand for any text."""
    if MARK.search(left) and MARK.search(right):
        return True
    opened, known = (left, right) if MARK.search(left) else (right, left)
    pieces = [piece for part in MARK.split(opened) for piece in ((part, True), ("*", False))]
    return Pattern(pieces[:-1]).whole(known)


class _Test:
    """A recursive-descent parser that decides the words of `test` and `[ .. ]`; there is one method per level of operator
    precedence. words: the expanded words. position: the index of the next word. A Truth is True, False or, if it is not
    known, a pair (decision, side): true exactly where the undecided condition `decision` comes out as `side`."""

    def __init__(self, conditions: Conditions, words: list[str]) -> None:
        self.conditions, self.words, self.position = conditions, words, 0

    def whole(self) -> Truth:
        """The Truth of all words of the test; False if they are not a complete test."""
        words, of = self.words, self.conditions
        if len(words) == 3 and words[1] in BINARY:
            return of.binary(*words)
        if len(words) == 1:
            return of.unary("-n", words[0])
        if not words:
            return False
        truth = self.either()
        return truth if self.position == len(words) else False

    def either(self) -> Truth:
        """Parse tests joined by -o (or) and return their Truth."""
        truth = self.every()
        while self.peek() == "-o":
            self.position += 1
            truth = self.conditions.both(truth, self.every(), False)
        return truth

    def every(self) -> Truth:
        """Parse tests joined by -a (and) and return their Truth."""
        truth = self.one()
        while self.peek() == "-a":
            self.position += 1
            truth = self.conditions.both(truth, self.one(), True)
        return truth

    def peek(self, offset: int = 0) -> str:
        """The word that is `offset` words ahead in the test, without taking it; empty at the end."""
        return self.words[self.position + offset] if self.position + offset < len(self.words) else ""

    def one(self) -> Truth:
        """Parse one test, which may be negated by ! or in brackets, and return its Truth."""
        word = self.peek()
        if self.peek(1) in BINARY and self.position + 2 < len(self.words):
            self.position += 3
            return self.conditions.binary(word, self.words[self.position - 2], self.words[self.position - 1])
        if word == "!":
            self.position += 1
            return self.conditions._not(self.one())
        if word == "(":
            self.position += 1
            truth = self.either()
            self.position += 1
            return truth
        if (word in FILES or word in ("-n", "-z", "-v")) and self.position + 1 < len(self.words):
            self.position += 2
            return self.conditions.unary(word, self.words[self.position - 1])
        self.position += 1
        return self.conditions.unary("-n", word)


class _Double:
    """A recursive-descent parser that decides `[[ .. ]]`, whose words are not split and in which the right side of == is a
    pattern. tokens: the words, operators and brackets as written. position: the index of the next token. A Truth is True,
    False or, if it is not known, a pair (decision, side): true exactly where the undecided condition `decision` comes out as
    `side`."""

    def __init__(self, conditions: Conditions, raw: str) -> None:
        self.conditions, self.tokens, self.position = conditions, _tokens(raw), 0
        self.words = conditions.shell.words(conditions.state, conditions.where)

    def whole(self) -> Truth:
        """The Truth of all tokens of the test."""
        return self.either()

    def peek(self, offset: int = 0) -> str:
        """The token that is `offset` tokens ahead in the test, without taking it; empty at the end."""
        return self.tokens[self.position + offset] if self.position + offset < len(self.tokens) else ""

    def either(self) -> Truth:
        """Parse tests joined by || and return their Truth."""
        truth = self.every()
        while self.peek() == "||":
            self.position += 1
            truth = self.conditions.both(truth, self.every(), False)
        return truth

    def every(self) -> Truth:
        """Parse tests joined by && and return their Truth."""
        truth = self.one()
        while self.peek() == "&&":
            self.position += 1
            truth = self.conditions.both(truth, self.one(), True)
        return truth

    def one(self) -> Truth:
        """Parse one test, which may be negated by ! or in brackets, and return its Truth."""
        token = self.peek()
        if token == "!":
            self.position += 1
            return self.conditions._not(self.one())
        if token == "(":
            self.position += 1
            truth = self.either()
            self.position += 1
            return truth
        if self.peek(1) in BINARY and self.position + 2 < len(self.tokens):
            self.position += 3
            return self.compared(token, self.tokens[self.position - 2], self.tokens[self.position - 1])
        if re.fullmatch(r"-[a-zA-Z]", token) and self.position + 1 < len(self.tokens):
            self.position += 2
            value = self.words.text(self.tokens[self.position - 1])
            return self.conditions.lifted([value], lambda known: self.conditions.unary(token, " ".join(known)))
        self.position += 1
        value = self.words.text(token)
        return self.conditions.lifted([value], lambda known: self.conditions.unary("-n", " ".join(known)))

    def compared(self, raw: str, sign: str, other: str) -> Truth:
        """The Truth of a comparison of two words. raw: the left word as written. sign: the operator. other: the right word
        as written, which is a pattern for ==, = and !=, and a regular expression for =~."""
        of, left = self.conditions, self.words.text(raw)
        if sign in NUMBERS:
            numbers = [
                self.words.number(side) if not MARK.search(text := self.words.text(side)) else text for side in (raw, other)
            ]
            return of.lifted([numbers[0], numbers[1]], lambda known: of.binary(_pair(known)[0], sign, _pair(known)[1]))
        if sign in ("=", "==", "!=", "=~"):
            pattern = self.words.pattern(other)
            joined = "".join(text for text, _ in pattern)
            if MARK.search(joined):
                return of.lifted([left, joined], lambda known: of.binary(known[0], "==" if sign == "=~" else sign, known[-1]))

            def matched(known: list[str]) -> Truth:
                value = " ".join(known)
                if MARK.search(value):
                    if sign != "=~" and all(literal or not re.search(r"[*?\[(]", text) for text, literal in pattern):
                        return of.binary(value, sign, joined)
                    if sign != "=~" and joined == "*":
                        return sign != "!="
                    plain = re.sub(r"^\^|\$$", "", joined) if sign == "=~" else joined.replace("*", "")  # which it matches
                    truth = of.undecided(f"{value} matches {joined}", plain if re.fullmatch(r"[\w-]+", plain) else "")
                    return of._not(truth) if sign == "!=" else truth
                if sign == "=~":
                    return self.searched(pattern, value)
                return Pattern(pattern).whole(value) == (sign != "!=")

            return of.lifted([left], matched) if left else matched([""])
        right = self.words.text(other)
        return of.lifted([left, right], lambda known: of.binary(_pair(known)[0], sign, _pair(known)[1]))

    def searched(self, pattern: list[tuple[str, bool]], value: str) -> Truth:
        """Whether a regular expression is found in a value, as a Truth; if it is, the matched groups are assigned to the
        script's BASH_REMATCH. pattern: pieces of the expression, each with whether its characters stand for themselves.
        value: the text to search. Undecided if the expression is not supported or the search would take too long."""
        text = "".join(re.escape(text) if literal else text for text, literal in pattern)
        result = expression(text, len(value))
        if result is None:
            return self.conditions.undecided("", why=f"asks for the regular expression {text[:40]}, which is not tried")
        found = result.search(value)
        if found is not None:
            groups = [found[0], *(group or "" for group in found.groups())]
            self.conditions.shell.assign_list(self.conditions.state, "BASH_REMATCH", groups)
        return found is not None


def _pair(words: list[str]) -> tuple[str, str]:
    """The first two words of a list; missing ones are empty: ["a"] -> ("a", "")."""
    return words[0] if words else "", words[1] if len(words) > 1 else ""


def _tokens(raw: str) -> list[str]:
    """The tokens of the text inside `[[ .. ]]`, as written: words, operators and brackets. '$a == "x y" && ! $b' -> ['$a',
    '==', '"x y"', '&&', '!', '$b']."""
    tokens, position = list[str](), 0
    while position < len(raw):
        if raw[position] in " \t\n":
            position += 1
            continue
        if raw.startswith("\\\n", position):
            position += 2
            continue
        right = bool(tokens) and tokens[-1] in ("=~", "==", "=", "!=")
        if not right and (found := re.compile(r"&&|\|\||[()]|[<>](?!\()").match(raw, position)):
            tokens.append(found[0])
            position = found.end()
            continue
        begin, depth = position, 0
        while position < len(raw) and (raw[position] not in " \t\n" or depth):
            if not depth and raw.startswith(("&&", "||"), position):
                break
            if raw[position] == ")" and not depth:
                break
            depth += (raw[position] == "(") - (raw[position] == ")")
            position = end_of(raw, position)
        tokens.append(raw[begin:position])
        if begin == position:
            position += 1
    return tokens
