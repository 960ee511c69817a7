"""Expands words of bash: quotes, parameters, arithmetic and command substitution."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell import arithmetic
from trainplan.execution.launch_files.shell.edits import balanced, cut, edited, end_of_index, escaped, listed, slash
from trainplan.execution.launch_files.shell.marks import (
    BREAK,
    MARK,
    NOTHING,
    Literal,
    Marks,
    Piece,
    TooMuch,
    fields,
    quoted,
    unsplit,
)
from trainplan.execution.launch_files.shell.patterns import braced
from trainplan.execution.launch_files.shell.scan import end_of, split
from trainplan.execution.launch_files.shell.state import Array, Value

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator
    from trainplan.execution.launch_files.shell.state import State

LONGEST = 2**18
PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*#?$!_-])(?:\[((?:[^\[\]]|\[[^\]]*\]|\$\{[^}]*\})*)\])?", re.DOTALL)
OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//|/[#%]?|\^\^?|,,?|@[A-Za-z]|:")


class Words:
    """Expands the words of one statement as bash does: variables, `$(..)`, arithmetic, quotes and braces. A word as written
    (raw) is turned into pieces: texts, each with whether it is still to be split at blanks because it was not quoted. shell:
    the script's evaluator. state: the simulated shell, which expansions such as ${A:=1} may change. where: file and line,
    for values that are not known. Methods raise TooMuch for texts that are too long."""

    def __init__(self, shell: Evaluator, state: State, where: str) -> None:
        self.shell, self.state, self.where = shell, state, where
        self.marks: Marks = shell.marks

    def fields(self, raw: str) -> list[str]:
        """The words that one word, as it is written, expands to; an unquoted $A may give none or several."""
        words: list[str] = []
        for word in braced(raw):
            words += fields(self.pieces(word), self._separators())
        if sum(map(len, words)) > LONGEST:
            raise TooMuch
        return words

    def text(self, raw: str) -> str:
        """A written word expanded to one text, as in an assignment: it is not split into words."""
        return self._joined(self.pieces(raw))

    def _joined(self, pieces: list[Piece]) -> str:
        """Join the pieces of a word to one text. Raises TooMuch if it is too long."""
        parts: list[str] = []
        for piece in pieces:
            if piece is BREAK:
                parts.append(" ")
            elif piece is not NOTHING:
                parts.append(quoted(piece[0]))
        result = "".join(parts)
        if len(result) > LONGEST:
            raise TooMuch
        return result

    def pattern(self, raw: str) -> list[tuple[str, bool]]:
        """Expand a pattern as it is written, and return it in pieces: each text, with whether its characters stand for
        themselves because they were quoted."""
        result = []
        for piece in self.pieces(raw):
            if piece is BREAK:
                result.append((" ", True))
            elif piece is not NOTHING:
                text, plain = piece
                result.append((quoted(text), not plain))
        return result

    def _separators(self) -> str:
        """The characters at which words are split (the script's IFS; blanks if it is not known)."""
        value = self.state.variables.get("IFS", " \t\n")
        return value if isinstance(value, str) and not MARK.search(value) else " \t\n"

    def pieces(self, raw: str, double: bool = False, heredoc: bool = False) -> list[Piece]:
        """Expand a written word into pieces: texts, each with whether it is to be split into words (True for unquoted text).
        raw: the word. double: whether it stands within double quotes. heredoc: whether it stands within a here-document."""
        result: list[Piece] = []
        position, plain = 0, ""
        while position < len(raw):
            char = raw[position]
            end = end_of(raw, position) if char in "\\`$" or (not double and char in "'\"<>") else position + 1
            part = raw[position:end]
            position = end
            if len(part) == 1 and char != "\\":
                plain += char
                continue
            if plain:
                result.append((Literal(plain), not double))
                plain = ""
            if char == "\\":
                after = part[1:]
                if double:
                    text = (
                        "" if after == "\n" else after if after in ("$", "`", "\\") or (after == '"' and not heredoc) else part
                    )
                else:
                    text = "" if after == "\n" else after or "\\"
                if text or not double:
                    result.append((text, False))
            elif char == "'":
                result.append((part[1:-1], False))
            elif char == '"':
                inner = self.pieces(part[1:-1], True)
                result += inner or [("", False)]
            elif part.startswith("$'"):
                result.append((escaped(part[2:-1]), False))
            elif part.startswith('$"'):
                result += self.pieces(part[2:-1], True) or [("", False)]
            elif char == "`":
                result.append((self.shell.output(re.sub(r"\\([`$\\])", r"\1", part[1:-1]), self.state, self.where), not double))
            elif part.startswith("$((") and part.endswith("))") and balanced(part[3:-2]):
                result.append((self.number(part[3:-2]), not double))
            elif part.startswith("$["):
                result.append((self.number(part[2:-1]), not double))
            elif part.startswith("$("):
                result.append((self.shell.output(part[2:-1], self.state, self.where), not double))
            elif part.startswith("${"):
                result += self.parameter(part[2:-1], double)
            elif char == "$":
                result += self._value(part[1:], None, double)
            elif part[1] != "(":
                result.append((part, False))
            elif char == "<":
                path = f"/dev/fd/{self.shell.outputs + 63}"
                self.state.files[path] = self.shell.printed(part[2:-1], self.state, self.where)
                result.append((path, False))
            else:
                result.append((self.marks.unknown("", self.where, "is what a command prints"), False))
        if plain:
            result.append((Literal(plain), not double))
        return result

    def number(self, raw: str) -> str:
        """The value of an arithmetic expression as a text; unknown if it depends on values that nobody has given. raw: the
        expression as written."""
        text = self._joined(self.pieces(raw, True)).replace('"', "")
        return self.marks.lifted(text, self._computed, self.where)

    def _computed(self, text: str) -> str:
        """The value of an arithmetic expression as a text. text: the expression, without undecided parts of its own;
        variables in it may be undecided, and then the value is."""
        causes: list[str] = []

        def get(name: str) -> str:
            bare, _, index = name.partition("[")
            value = self.scalar(bare, index[:-1] if index else None)
            if MARK.search(value):
                causes.append(value)
                return "1"
            return value

        def put(name: str, value: str) -> None:
            bare, _, index = name.partition("[")
            written = self.marks.unknown(bare, self.where) if causes else value
            self.shell.assign(self.state, bare, written, self.where, index[:-1] if index else None)

        known = {
            name: value for name in set(re.findall(r"[A-Za-z_]\w*", text)) if MARK.search(value := self.scalar(name, None))
        }
        for name, value in known.items():
            if (
                self.marks.choice_in(value)
                and len(value) <= 64
                and not re.search(rf"\b{name}\b\s*(?:[-+*/%]?=(?!=)|\+\+|--)", text)
            ):
                replaced = re.sub(rf"\b{name}\b", f"({value})", text)
                return self.marks.lifted(replaced, self._computed, self.where)
        try:
            value = str(arithmetic.computed(text, get, put))
        except (arithmetic.Faulty, RecursionError):
            cause = self.marks.cause("".join(causes))
            return self.marks.unknown(cause.name if cause else "", self.where, "is no arithmetic that can be computed")
        if causes:
            cause = self.marks.cause(causes[0])
            return causes[0] if len(causes[0]) == 1 and cause else self.marks.unknown(cause.name if cause else "", self.where)
        return value

    def scalar(self, name: str, index: str | None) -> str:
        """The value of a variable as one text; unknown if nobody has given it. index: the element of an array; None for its
        first element, or for a plain variable."""
        value = self.shell.value(self.state, name, self.where)
        if isinstance(value, Array):
            return self._element(value, index if index is not None else "0")
        return "" if value is None else value

    def _element(self, array: Array, index: str) -> str:
        """An element of an array, as a text; empty if there is none, unknown if the array may have another number of
        elements. index: the index or name as written."""
        undecided = next((element for element in array.values() if self.marks.several(element)), None)
        if undecided is not None and not array.named:
            cause = self.marks.cause(undecided)
            return self.marks.unknown(cause.name if cause else "", self.where)
        if array.named:
            return array.get(self.text(index), "")
        number = self.number(index)
        if MARK.search(number):
            return number
        position = int(number)
        keys = list(array)
        return array.get(position if position >= 0 or not keys else int(max(keys)) + 1 + position, "")

    def _value(self, name: str, index: str | None, double: bool) -> list[Piece]:
        """The pieces of a plain expansion, `$NAME` or `${NAME[index]}`. index: None without brackets. double: whether it
        stands within double quotes."""
        elements = self.elements(name, index)
        if elements is None:
            return [(self.scalar(name, index), not double)]
        return listed(elements, double, (name if index is None else index) == "*", self._separators()[:1])

    def elements(self, name: str, index: str | None) -> list[str] | None:
        """All elements of an array, or all positional parameters, if the expansion requests all (@ or *); otherwise None.
        name: the variable, or @ or *. index: the text in brackets; None without brackets."""
        if name in ("@", "*") and index is None:
            return self.shell.arguments(self.state)
        if index not in ("@", "*"):
            return None
        value = self.shell.value(self.state, name, self.where)
        if value is None or (name in self.shell.own and name not in self.state.variables):
            return []
        return list(value.values()) if isinstance(value, Array) else [unsplit(value) if MARK.fullmatch(value) else value]

    def parameter(self, inner: str, double: bool) -> list[Piece]:
        """The pieces of an expansion `${..}`. inner: the text between the braces. double: whether it stands within double
        quotes."""
        if inner.startswith("#") and (match := PARAMETER.fullmatch(inner, 1)):
            return [(self._length(match[1], match[2]), not double)]
        if inner.startswith("!") and (match := PARAMETER.match(inner, 1)):
            rest = inner[match.end() :]
            value = self.shell.value(self.state, match[1], self.where)
            if match[2] in ("@", "*"):
                return listed([str(key) for key in value] if isinstance(value, Array) else [], double, False, " ")
            if rest in ("*", "@"):
                return listed(
                    sorted(variable for variable in self.state.variables if variable.startswith(match[1])), double, False, " "
                )
            name = self.scalar(match[1], match[2])
            if MARK.search(name) or not PARAMETER.fullmatch(name):
                cause = self.marks.cause(name)
                return [(self.marks.unknown(cause.name if cause else match[1], self.where), not double)]
            inner = name + rest
        match = PARAMETER.match(inner)
        if match is None:
            return [(self.marks.unknown("", self.where, "is no expansion that is read"), not double)]
        name, index, rest = match[1], match[2], inner[match.end() :]
        operator = OPERATOR.match(rest)
        if not rest:
            return self._value(name, index, double)
        if operator is None:
            return [(self.marks.unknown(name, self.where, "is no expansion that is read"), not double)]
        word, sign = rest[operator.end() :], operator[0]
        if sign.lstrip(":") in ("-", "=", "?", "+"):
            return self._default(name, index, sign, word, double)
        elements = self.elements(name, index)
        if elements is None:
            return [(self._changed(self.scalar(name, index), sign, word), not double)]
        if sign == ":":
            if name in ("@", "*"):
                elements = [self.shell.script_name(self.state), *elements]
            begin, length = self._bounds(word)
            if begin is None or (length is None and ":" in word) or any(map(self.marks.several, elements)):
                return [(self.marks.unknown(name, self.where), not double)]
            begin = begin if begin >= 0 else max(0, len(elements) + begin)
            elements = elements[begin : None if length is None else begin + length if length >= 0 else length]
        else:
            elements = [self._changed(element, sign, word) for element in elements]
        return listed(elements, double, (name if index is None else index) == "*", self._separators()[:1])

    def _length(self, name: str, index: str | None) -> str:
        """The value of `${#NAME}` or `${#NAME[index]}` as a text: the length of a text, or the number of elements of an array.
        index: the text in brackets; None without brackets."""
        elements = self.elements(name, index)
        if name == "#" and index is None:
            return self.marks.unknown("#", self.where)
        if elements is not None:
            undecided = next((element for element in elements if self.marks.several(element)), None)
            if undecided is None:
                return str(len(elements))
            cause = self.marks.cause(undecided)
            return self.marks.unknown(cause.name if cause else "", self.where, "is how many there are")
        return self.marks.lifted(self.scalar(name, index), lambda text: str(len(text)), self.where)

    def _bounds(self, word: str) -> tuple[int | None, int | None]:
        """Offset and length in `${NAME:offset:length}`; each is None if it is not known or not given. word: the text after
        the first colon."""
        depth, ends = 0, len(word)
        for index, char in enumerate(word):
            depth += (char in "({?") - (char in ")}")
            if char == ":" and depth <= 0:
                ends = index
                break
            if char == ":":
                depth -= 1
        numbers = [self.number(part) for part in (word[:ends], word[ends + 1 :] if ends < len(word) else "")]
        known = [None if MARK.search(number) else int(number) for number in numbers]
        return known[0], known[1] if ends < len(word) else None

    def _default(self, name: str, index: str | None, sign: str, word: str, double: bool) -> list[Piece]:
        """The pieces of an expansion with `:-`, `:=`, `:?` or `:+`, such as `${NAME:-word}`. index: the text in brackets;
        None without brackets. sign: the operator, with or without the colon. word: the text after the operator. double:
        whether it stands within double quotes."""
        colon, kind = sign.startswith(":"), sign[-1]
        elements = self.elements(name, index)
        there = self.shell.is_set(self.state, name, index)
        if elements is not None:
            present: bool | None = bool(elements) and (not colon or elements != [""])
            value, held = "", self._value(name, index, double)
        else:
            value = "" if there is False else self.scalar(name, index)
            held = [(value, not double)]
            present = (
                there if not colon or not there else None if not MARK.sub("", value) and MARK.search(value) else value != ""
            )
        if there is False and kind == "+" and self.shell.open(self.state, name):
            cause = self.marks.cause(self.scalar(name, index))
            assert cause is not None
            decision = self.shell.decided(cause, "1")
            return [(self.marks.choice(decision, self._joined(self.pieces(word, double)), "", ""), not double)]
        if there is False and kind in "-=" and self.state.missing and self.shell.open(self.state, name):
            return [
                (self.marks.unknown(name, self.where, f"may be set by {self.state.missing[0]}, which is not there"), not double)
            ]
        if present is None:
            if self.marks.choice_in(value):

                def of(text: str) -> str:
                    return self._joined(self._chosen(text, kind, name, index, word, double, [(text, False)]))

                return [(self.marks.lifted(value, of, self.where), not double)]
            if kind != "+":
                return held
            cause = self.marks.cause(value)
            assert cause is not None
            decision = self.shell.decided(cause, "1")
            return [(self.marks.choice(decision, self._joined(self.pieces(word, double)), "", ""), not double)]
        return self._chosen("x" if present else "", kind, name, index, word, double, held)

    def _chosen(
        self, value: str, kind: str, name: str, index: str | None, word: str, double: bool, held: list[Piece]
    ) -> list[Piece]:
        """The pieces of an expansion with a default, such as `${NAME:-word}`, once it is known whether the variable has a
        value. value: not empty if the variable has a value. kind: the operator without the colon. name, index: the variable,
        and the element of it (None without brackets), to which = assigns. word: the text after the operator. double: whether it
        stands within double quotes. held: the pieces of the variable's value."""
        if kind == "+":
            return self._split(word, double) if value else [] if not double else [("", False)]
        if value:
            return held
        if kind == "?":
            return [(self.marks.unknown(name, self.where), not double)]
        if kind == "=":
            text = self._joined(self.pieces(word, double))
            self.shell.assign(self.state, name, text, self.where, index)
            return [(self.scalar(name, index), not double)]
        return self._split(word, double)

    def _split(self, word: str, double: bool) -> list[Piece]:
        """The pieces of the word inside an expansion such as `${NAME:-word}`. Unlike other written text, it is split at
        blanks if it is not quoted. double: whether it stands within double quotes."""
        return [piece if not piece[1] else (str(piece[0]), True) for piece in self.pieces(word, double)]

    def _changed(self, value: str, sign: str, word: str) -> str:
        """A value after a substring, case or pattern operator, as in `${NAME%.py}`. value: the variable's value. sign: the
        operator. word: the text after the operator, as written."""
        if sign == ":":
            begin, length = self._bounds(word)
            if begin is None or (length is None and ":" in word.replace("::", "")):
                return self.marks.unknown("", self.where)
            return self.marks.lifted(value, lambda text: cut(text, begin, length), self.where)
        if sign[0] == "@":
            return (
                value
                if sign == "@Q"
                else self.marks.lifted(value, {"@U": str.upper, "@L": str.lower}.get(sign, str), self.where)
            )
        replaced, pattern = "", self.pattern(word)
        if sign[0] == "/":
            end = slash(word)
            pattern, replaced = self.pattern(word[:end]), self._joined(self.pieces(word[end + 1 :]))
        joined = "".join(text for text, _ in pattern)
        if MARK.search(joined):
            return self.marks.lifted(joined, lambda _: value, self.where) if not value else self.marks.unknown(
                getattr(self.marks.cause(joined), "name", ""), self.where
            )  # fmt: skip
        return self.marks.lifted(value, lambda text: edited(text, sign, pattern, replaced), self.where)

    def array(self, raw: str, old: Value, more: bool, named: bool = False) -> Array:
        """The array that an assignment such as `NAME=(a b)` makes. raw: the text between the brackets. old: the variable's
        previous value. more: whether the elements are added to the previous ones (`+=`). named: whether the array is
        declared with names (`declare -A`)."""
        array = Array(named or (isinstance(old, Array) and old.named))
        if more and isinstance(old, Array):
            array.update(old)
        elif more and isinstance(old, str):
            array[0] = old
        following = max([key for key in array if isinstance(key, int)], default=-1) + 1
        for word in split(raw, assignments=False):
            match = re.match(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](\+?)=", word.text)
            if match and end_of_index(word.text) == match.end():
                value = self.text(word.text[match.end() :])
                if array.named:
                    key: str | int = self.text(match[1])
                else:
                    number = self.number(match[1])
                    key = following if MARK.search(number) else int(number)
                array[key] = array.get(key, "") + value if match[2] else value
                following = key + 1 if isinstance(key, int) else following
                continue
            for field in self.fields(word.text):
                array[str(following) if array.named else following] = field
                following += 1
        return array
