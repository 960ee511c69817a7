"""Arithmetic of bash: whole numbers of 64 bits, with assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

TOKEN = re.compile(
    r"\s*(0[xX][\da-fA-F]+|\d+#[\w@]+|\d+|[A-Za-z_]\w*(?:\[[^\]]*\])?|\*\*|<<=|>>=|\+\+|--|&&|\|\||[<>=!]=|<<|>>|[-+*/%&|^]="
    r"|[-+*/%<>=!~&|^?:(),])"
)
LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
NAME = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?$")


class Faulty(Exception):
    """Raised for a text that is not an arithmetic expression of bash, or whose value cannot be computed."""


def computed(text: str, get: Callable[[str], str], put: Callable[[str, str], None], depth: int = 0) -> int:
    """The value of an arithmetic expression of bash, such as `a + 2 * b`, as a signed 64-bit number. get: function from a
    variable's name to its value as text. put: function that assigns a variable, given name and value. depth: how deeply the
    expression is nested in values of variables that are expressions themselves (`a=b+1; b=c+1`); too deep ones are refused.
    Raises Faulty for a text that is not arithmetic, or is nested too deeply."""
    if depth > 10 or len(text) > 4096:
        raise Faulty
    tokens, position = [], 0
    text = text.strip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise Faulty
        tokens.append(match[1])
        position = match.end()
    if not tokens:
        return 0
    parser = _Parser(tokens, get, put, depth)
    value = parser.comma()
    if parser.position != len(tokens):
        raise Faulty
    return value


class _Parser:
    """A recursive-descent parser that evaluates the tokens of an arithmetic expression of bash; there is one method per
    level of operator precedence. get, put: functions that read and assign a variable. position: the index of the next token.
    runs: whether what is parsed takes effect; it is off in the branch of `a ? b : c`, `&&` or `||` that is not selected.
    Methods raise Faulty for a text that is not arithmetic."""

    def __init__(self, tokens: list[str], get: Callable[[str], str], put: Callable[[str, str], None], depth: int) -> None:
        self.tokens, self.get, self.put, self.depth, self.position = tokens, get, put, depth, 0
        self.runs = True  # whether what is parsed takes effect

    def peek(self, offset: int = 0) -> str:
        """The token that is `offset` tokens ahead in the expression, without taking it; empty at the end."""
        index = self.position + offset
        return self.tokens[index] if index < len(self.tokens) else ""

    def take(self) -> str:
        """Return the next token and move past it; an empty text at the end."""
        self.position += 1
        return self.tokens[self.position - 1] if self.position <= len(self.tokens) else ""

    def comma(self) -> int:
        """Parses and evaluates arithmetic expressions separated by commas; returns the value of the last."""
        value = self.assigned()
        while self.peek() == ",":
            self.take()
            value = self.assigned()
        return value

    def assigned(self) -> int:
        """Parses and evaluates an assignment such as `a += 2`, or a conditional expression; returns its value."""
        if NAME.match(self.peek()) and self.peek(1) in ASSIGNS:
            name, operator = self.take(), self.take()
            value = self.assigned()
            if operator != "=":
                value = self.of(operator[:-1], self.variable(name), value)
            return self.set(name, value)
        return self.chosen()

    def chosen(self) -> int:
        """Parses and evaluates `a ? b : c`, of which only the selected side takes effect; returns its value."""
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take()
        runs = self.runs
        self.runs = runs and bool(condition)
        yes = self.assigned()
        if self.take() != ":":
            raise Faulty
        self.runs = runs and not condition
        no = self.assigned()
        self.runs = runs
        return yes if condition else no

    def binary(self, level: int) -> int:
        """Parse and evaluate binary operators, and return the value. level: an index into LEVELS, the groups of operators
        from loosest to tightest binding; the operators of this level and of all later ones are parsed."""
        if level == len(LEVELS):
            return self.power()
        left = self.binary(level + 1)
        while self.peek() in LEVELS[level]:
            operator, runs = self.take(), self.runs
            if operator in ("&&", "||"):
                self.runs = runs and bool(left) == (operator == "&&")
            right = self.binary(level + 1)
            self.runs = runs
            left = self.of(operator, left, right)
        return left

    def power(self) -> int:
        """Parses and evaluates `a ** b`; returns its value."""
        base = self.unary()
        if self.peek() != "**":
            return base
        self.take()
        exponent = self.power()
        if exponent < 0:
            raise Faulty
        return wrapped(pow(base, exponent, 2**64)) if self.runs else 0

    def unary(self) -> int:
        """Parses and evaluates signs, increments, brackets, numbers and variables; returns the value."""
        token = self.take()
        if token in ("++", "--"):
            name = self.take()
            return self.set(name, self.variable(name) + (1 if token == "++" else -1))
        if token in ("-", "+", "!", "~"):
            value = self.unary()
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[token]
        if token == "(":
            value = self.comma()
            if self.take() != ")":
                raise Faulty
            return value
        if token[:1].isdigit():
            return number(token)
        value = self.variable(token)
        if self.peek() in ("++", "--"):
            self.set(token, value + (1 if self.take() == "++" else -1))
        return value

    def variable(self, name: str) -> int:
        """The value of a variable, whose text may itself be an expression; 0 in a branch that takes no effect. Raises Faulty
        if the name is no variable's."""
        if not NAME.match(name):
            raise Faulty
        if not self.runs:
            return 0
        return computed(self.get(name), self.get, self.put, self.depth + 1)

    def set(self, name: str, value: int) -> int:
        """Assign a variable, unless the expression is in a branch that takes no effect, and return the value, wrapped to 64
        bits."""
        if not NAME.match(name):
            raise Faulty
        value = wrapped(value)
        if self.runs:
            self.put(name, str(value))
        return value

    def of(self, operator: str, a: int, b: int) -> int:
        """The result of a binary operator, such as "+", for the numbers a (left) and b (right). Raises Faulty for a division
        by zero."""
        if operator in ("/", "%"):
            if b == 0:
                if self.runs:
                    raise Faulty
                return 0
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if operator == "/" else a - b * quotient
        if operator in ("<<", ">>"):
            return wrapped(a << (b & 63)) if operator == "<<" else a >> (b & 63)
        result: int = {
            "+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b, "==": a == b, "!=": a != b, "<": a < b,
            ">": a > b, "<=": a <= b, ">=": a >= b, "&&": bool(a and b), "||": bool(a or b),
        }[operator]  # fmt: skip
        return wrapped(int(result))


def wrapped(value: int) -> int:
    """A number wrapped around to the range of signed 64-bit integers, as bash computes: 2**63 -> -2**63."""
    return (value + 2**63) % 2**64 - 2**63


def number(token: str) -> int:
    """The value of a number as bash writes it: decimal, octal (010), hexadecimal (0x10) or with a base (2#101). Raises
    Faulty for other texts."""
    try:
        if "#" in token:
            base, digits = token.split("#", 1)
            return wrapped(int(digits, int(base)))
        if token[:2] in ("0x", "0X"):
            return wrapped(int(token, 16))
        return wrapped(int(token, 8) if token[0] == "0" and len(token) > 1 else int(token))
    except ValueError:
        raise Faulty from None
