"""Commands that take what they are given, line by line or word by word: read, mapfile and xargs."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from trainplan.configurations.shell.marks import MARK, TooMuch, Unknown, fields
from trainplan.configurations.shell.state import State

if TYPE_CHECKING:
    from trainplan.configurations.shell.evaluate import Evaluator, Outcomes, Source

MOST_STARTS = 100
LETTERS = {
    "arg-file": "a", "max-args": "n", "max-lines": "L", "replace": "I", "delimiter": "d", "null": "0", "max-procs": "P",
    "no-run-if-empty": "r", "verbose": "t", "exit": "x", "max-chars": "s", "eof": "E", "interactive": "p",
}  # fmt: skip


def read(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Takes a line of what is given, and gives its words to variables."""
    names, array, whole, place = list[str](), "", False, 0
    while place < len(rest):
        word = rest[place]
        if re.fullmatch(r"-[a-zA-Z]+", word):
            if word[-1] in "adinNptu":
                place += 1
                value = rest[place] if place < len(rest) else ""
                array = value if word[-1] == "a" else array
                whole = whole or (word[-1] == "d" and value == "")
        else:
            names.append(word)
        place += 1
    names = names or ([] if array else ["REPLY"])
    if state.given is None:
        for name in [*names, *([array] if array else [])]:
            shell.assign(state, name, shell.marks.unknown(name, where, "is read when it runs"), where)
        state.status = (shell.decided(Unknown(names[0] if names else array, where, "is read when it runs"), "", ""), True)
        return [(state, "")]
    line, newline, state.given = (state.given, "", "") if whole else state.given.partition("\n")
    state.status = bool(newline)
    separators = shell.words(state, where)._separators()
    if array:
        shell.assign_list(state, array, fields([(line, True)], separators))
        return [(state, "")]
    if len(names) == 1:
        shell.assign(state, names[0], line.strip(" \t\n") if separators == " \t\n" else line, where)
        return [(state, "")]
    parts = (
        re.split("[" + re.escape(separators) + "]+", line.strip(separators), maxsplit=len(names) - 1) if separators else [line]
    )
    for name, value in zip(names, [*parts, *[""] * len(names)], strict=False):
        shell.assign(state, name, value, where)
    return [(state, "")]


def mapfile(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """The lines of what is given, as elements of an array."""
    name = next((word for word in reversed(rest) if not word.startswith("-")), "MAPFILE")
    lines = [shell.marks.unknown(name, where, "is read when it runs")] if state.given is None else state.given.splitlines()
    shell.assign_list(state, name, lines)
    state.status = True
    return [(state, "")]


def started(shell: Evaluator, rest: list[str], state: State, where: str) -> list[list[str]]:
    """The commands that `xargs` starts, with the words that it takes from what it is given or from a file."""
    said, argv = _options(rest)
    argv = argv or ["echo"]
    given = shell.content(state, said["a"], where) if "a" in said else state.given
    state.given = ""
    if given is None:
        given = shell.marks.unknown("", where, "is what xargs reads")
    if MARK.search("".join(said.values())) or "?" in said:
        return [[*argv, shell.marks.unknown("", where, "is what xargs makes of its options")]]
    if "I" in said:
        lines = [line.lstrip() for line in given.split("\n") if line.strip()]
        if len(lines) > MOST_STARTS:
            raise TooMuch
        return [[word.replace(said["I"] or "{}", _unquoted(line)) for word in argv] for line in lines]
    if "0" in said or "d" in said:
        sign = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}.get(said.get("d", "\0"), said.get("d", "\0"))
        rows = [given.removesuffix(sign).split(sign)] if given else []
    elif "L" in said:
        rows = [_words(line) for line in given.split("\n") if line.strip()]
    else:
        rows = [_words(given)]
    words = [word for row in rows for word in row]
    if "r" in said and not words:
        return []
    if "L" in said or "n" in said:
        count, parts = int(said.get("L") or said.get("n") or 1), rows if "L" in said else [[word] for word in words]
        if count < 1 or len(parts) > count * MOST_STARTS:
            raise TooMuch
        groups = [parts[begin : begin + count] for begin in range(0, len(parts), count)]
        return [[*argv, *(word for part in group for word in part)] for group in groups] or [argv]
    return [[*argv, *words]]


def _options(rest: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options by their letters (`?`: one that is not read), and the command behind them."""
    said: dict[str, str] = {}
    place = 0
    while place < len(rest) and re.match(r"-.", rest[place]):
        word, place = rest[place], place + 1
        if word == "--":
            break
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            letter = LETTERS.get(name, "?")
            if not sign and letter in "andPsE":
                value, place = rest[place] if place < len(rest) else "", place + 1
            said[letter] = value
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in "anILdPsE":
                said[letter] = word[at:]
                if not word[at:]:
                    said[letter], place = rest[place] if place < len(rest) else "", place + 1
                break
            if letter in "il":
                said[letter.upper()] = word[at:]
                break
            said[letter if letter in "0rtxp" else "?"] = ""
    if any(not said.get(letter, "1").isdecimal() for letter in "n") or not (said.get("L") or "1").isdecimal():
        said["?"] = ""
    return said, rest[place:]


def _words(given: str) -> list[str]:
    """Words as xargs takes them: apart at blanks, with quotes and backslashes."""
    if not re.search(r"[\'\"\\\\]", given):
        return fields([(given, True)])
    try:
        return shlex.split(given)
    except ValueError:
        return fields([(given, True)])


def _unquoted(line: str) -> str:
    return " ".join(_words(line)) if re.search(r"[\'\"\\\\]", line) else line
