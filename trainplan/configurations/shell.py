"""Arguments of a command in a bash script, or in a plain list, without running anything.

Variables, arrays and `source`d files are followed as far as they are written out: `NAME=value`, `NAME=( .. )`, `NAME+=( .. )`,
`$NAME`, `${NAME}`, `${NAME:-default}`, `"${NAME[@]}"`, `$((A * B))`. Of branches, the last one counts. What stays open keeps
its `$NAME`; variables given by name go before the script's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from trainplan.profiling.base.errors import InputError

MOST_FILES, MOST_BYTES = 8, 2**20
ASSIGNMENT = re.compile(r"^(?:export\s+|local\s+|declare\s+(?:-\w+\s+)*)?(\w+)(\+?)=(.*)$", re.DOTALL)
EXPANSION = re.compile(r"\$\(\(([^()]*)\)\)|\$\{(\w+)(\[[@*]\])?(?::?[-=]([^}]*)|:?\?[^}]*)?\}|\$(\w+)")
PRODUCT = re.compile(r"\s*\$?\{?(\w+)\}?\s*(?:([*/+-])\s*\$?\{?(\w+)\}?\s*)?")


def command_words(path: Path, variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The words of the training command behind its script, and those before it, of the launcher; of a plain list of arguments,
    all words, and none. Raises InputError."""
    script = _Script(dict(variables), set(variables))
    script.read(path)
    for words in script.commands:
        place = next((p for p, word in enumerate(words) if word.endswith(".py")), None)
        if place is not None and any(word.startswith("--") for word in words[place + 1 :]):
            return words[place + 1 :], words[:place]
    loose = [word for words in script.commands for word in words]
    starts = [place for place, word in enumerate(loose) if word.startswith("--")]
    if not starts:
        raise InputError(str(path), "", "has no arguments", "give a script that starts training, or a list of --arguments")
    return loose[starts[0] :], []


class _Script:
    def __init__(self, variables: dict[str, str], fixed: set[str]) -> None:
        self.variables: dict[str, list[str]] = {name: [value] for name, value in variables.items()}
        self.fixed, self.commands, self.files = fixed, list[list[str]](), 0

    def read(self, path: Path) -> None:
        """The statements of a file, in order."""
        self.files += 1
        try:
            if path.stat().st_size > MOST_BYTES:
                raise InputError(str(path), "", "is larger than 1 MiB", "give the script that starts training")
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(str(path), "", f"cannot be read ({error})", "give a text file") from None
        for statement in _statements(text):
            self.take(statement, path)

    def take(self, statement: str, path: Path) -> None:
        """One statement: an assignment, a sourced file, or a command."""
        match = ASSIGNMENT.match(statement)
        if match:
            name, more, value = match[1], match[2], match[3].strip()
            inner = value[1:-1] if value.startswith("(") and value.endswith(")") else None
            if inner is not None or _one_word(value):
                if name not in self.fixed:
                    words = self.words(value if inner is None else inner)
                    self.variables[name] = (self.variables.get(name, []) if more else []) + words
                return
        words = self.words(statement)
        if len(words) == 2 and words[0] in ("source", ".") and self.files < MOST_FILES:
            other = path.parent / words[1]
            if other.is_file():
                self.read(other)
                return
        if words:
            self.commands.append(words)

    def words(self, text: str) -> list[str]:
        """The words of a text, with what is known of its variables."""
        words: list[str] = []
        for raw in _split(text):
            whole = EXPANSION.fullmatch(raw.strip("\"'"))
            if raw.startswith("'"):
                words += shlex.split(raw)
            elif whole and not whole[1] and (values := self.value(whole)) is not None:
                quoted = raw.startswith('"')
                words += values if whole[3] or len(values) > 1 else values if quoted else " ".join(values).split()
            else:
                expanded = EXPANSION.sub(lambda match: self.text(match), raw)
                words += _split_plain(expanded)
        return words

    def text(self, match: re.Match[str]) -> str:
        """What an expansion stands for as one text; itself where that is not known."""
        values = self.value(match)
        return match[0] if values is None else " ".join(values)

    def value(self, match: re.Match[str]) -> list[str] | None:
        """What an expansion stands for; None where that is not known."""
        if match[1] is not None:
            number = self.computed(match[1])
            return None if number is None else [str(number)]
        name, default = match[2] or match[5], match[4]
        if name in self.variables:
            return self.variables[name]
        return None if default is None else self.words(default)

    def computed(self, text: str) -> int | None:
        """A product, quotient, sum or difference of two numbers or variables."""
        match = PRODUCT.fullmatch(text)
        if match is None:
            return None
        numbers = []
        for word in (match[1], match[3] or "0"):
            known = self.variables.get(word, [word])
            if len(known) != 1 or not known[0].isdecimal() or len(known[0]) > 12:
                return None
            numbers.append(int(known[0]))
        a, b = numbers
        if match[2] == "/":
            return a // b if b else None
        return {"*": a * b, "+": a + b, "-": a - b, None: a}[match[2]]


def _statements(text: str) -> list[str]:
    """Statements of a script: comments gone, continued lines and arrays in one piece."""
    text = re.sub(r"\\\r?\n", " ", text)
    statements, held, depth = [], "", 0
    for line in text.splitlines():
        plain = re.sub(r"(^|\s)#.*$", "", line) if not re.search(r"['\"][^'\"]*#", line) else line
        if not plain.strip() and not held:
            continue
        held += (" " if held else "") + plain.strip()
        bare = re.sub(r"\$\(\([^()]*\)\)|'[^']*'|\"[^\"]*\"", "", held)
        depth = bare.count("(") - bare.count(")")
        odd = len(re.sub(r"'[^']*'", "", held).replace('\\"', "").split('"')) % 2 == 0
        if depth > 0 or odd:
            continue
        assigned = ASSIGNMENT.match(held)
        if assigned and assigned[3].lstrip().startswith("("):
            statements.append(held)
        else:
            statements += [part.strip() for part in re.split(r"&&|\|\||;(?![^\"']*[\"'][^\"']*$)", held) if part.strip()]
        held = ""
    return statements + ([held] if held else [])


def _one_word(value: str) -> bool:
    return len(_split(value)) <= 1


def _split(text: str) -> list[str]:
    """Words with their quotes; `${A:-b c}` and `$((A * B))` are parts of words."""
    return re.findall(r"(?:\$\(\([^()]*\)\)|\$\{[^}]*\}|\$\([^()]*\)|'[^']*'|\"(?:\\.|[^\"])*\"|[^\s'\"])+", text)


def _split_plain(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
