"""Commands that take what they are given, line by line or word by word: read, mapfile and xargs."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell.marks import MARK, TooMuch, Unknown, delimiter, fields, unsplit
from trainplan.execution.launch_files.shell.state import Array, State

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator, Outcomes, Source

MOST_STARTS = 100
LETTERS = {
    "arg-file": "a", "max-args": "n", "max-lines": "L", "replace": "I", "delimiter": "d", "null": "0", "max-procs": "P",
    "no-run-if-empty": "r", "verbose": "t", "exit": "x", "max-chars": "s", "eof": "E", "interactive": "p",
}  # fmt: skip


def read(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Takes a line of what is given, and gives its words to variables."""
    names, array, whole, raw, place = list[str](), "", False, False, 0
    while place < len(rest):
        word = rest[place]
        if re.fullmatch(r"-[a-zA-Z]+", word):
            raw = raw or "r" in word
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
    found = re.match(r"(?s:.*)" if whole else r"[^\n]*" if raw else r"(?:[^\\\n]|\\(?s:.))*", state.given)
    assert found is not None
    line, state.given = found[0], state.given[found.end() :]
    state.status, state.given = state.given.startswith("\n"), state.given.removeprefix("\n")
    if not raw:
        line = re.sub(r"\\(?:\n|(.))", lambda match: match[1] or "", line)
    separators = shell.words(state, where)._separators()
    if array:
        shell.assign_list(state, array, fields([(line, True)], separators))
        return [(state, "")]
    for place, name in enumerate(names):

        def part(text: str, place: int = place) -> str:
            return _parts(text, len(names), separators)[place]

        one = len(names) == 1
        shell.assign(state, name, part(line) if one else shell.marks.lifted(line, part, where), where)
    return [(state, "")]


def _parts(line: str, count: int, separators: str) -> list[str]:
    """The fields of a line, of which the last has the rest; empty ones behind the line's end."""
    blanks = "".join(char for char in " \t\n" if char in separators)
    made, rest = list[str](), line.lstrip(blanks)
    while len(made) < count - 1:
        found = re.search(delimiter(separators), rest) if separators else None
        made.append(rest[: found.start()] if found else rest)
        rest = rest[found.end() :] if found else ""
    rest = rest.rstrip(blanks)
    if rest and rest[-1] in separators and not re.search(delimiter(separators), rest[:-1]):
        rest = rest[:-1].rstrip(blanks)
    return [*made, rest]


def mapfile(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """The lines of what is given, as elements of an array: -n so many at most, -s behind so many, -O from an index on."""
    said, name, place = {"n": "0", "s": "0", "O": "", "d": "\n"}, "MAPFILE", 0
    while place < len(rest):
        match = re.fullmatch(r"-(t*)([nsOduCc]?)(.*)", rest[place])
        if match is None:
            name = rest[place]
        elif match[2]:
            place += not match[3]
            said[match[2]] = match[3] or (rest[place] if place < len(rest) else "")
        place += 1
    state.status = True
    given, sign = state.given, said["d"] or "\0"
    if given is None or "u" in said or MARK.search("".join(said.values())):
        shell.assign_list(state, name, [unsplit(shell.marks.unknown("", where, "is read when it runs"))])
        return [(state, "")]
    lines = given.removesuffix(sign).split(sign) if given else []
    if MARK.search(given):  # the unknown may be several lines
        lines = [unsplit(line) for line in lines]
    first, most, begin = (int(said[key]) if said[key].isdecimal() else 0 for key in "snO")
    lines = lines[first : first + most if most else None]
    old = state.variables.get(name)
    if said["O"] and isinstance(old, Array):
        old.update(enumerate(lines, begin))
    else:
        shell.assign_list(state, name, [""] * begin + lines)
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
