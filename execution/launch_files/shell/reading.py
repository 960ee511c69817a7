"""Commands that take their input line by line or word by word: read, mapfile and xargs."""

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
    """Evaluate bash's `read`: take a line of the input and assign its words to variables; they are unknown if the input is
    not known. shell: the script's evaluator. rest: the words after the command's name. where: file and line. source: unused,
    for a common signature. Nothing is run: state, the simulated shell, is changed; the result has each possible state with
    how it goes on: "" (next statement), exit, return, break N or continue N."""
    names, array, whole, raw, position = list[str](), "", False, False, 0
    while position < len(rest):
        word = rest[position]
        if re.fullmatch(r"-[a-zA-Z]+", word):
            raw = raw or "r" in word
            if word[-1] in "adinNptu":
                position += 1
                value = rest[position] if position < len(rest) else ""
                array = value if word[-1] == "a" else array
                whole = whole or (word[-1] == "d" and value == "")
        else:
            names.append(word)
        position += 1
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
    for position, name in enumerate(names):

        def part(text: str, position: int = position) -> str:
            return _parts(text, len(names), separators)[position]

        one = len(names) == 1
        shell.assign(state, name, part(line) if one else shell.marks.lifted(line, part, where), where)
    return [(state, "")]


def _parts(line: str, count: int, separators: str) -> list[str]:
    """Split a line into fields, the last of which holds the rest; missing fields are empty. For two fields: "a b c" -> ["a",
    "b c"]. count: number of fields. separators: the characters at which bash splits (IFS)."""
    blanks = "".join(char for char in " \t\n" if char in separators)
    result, rest = list[str](), line.lstrip(blanks)
    while len(result) < count - 1:
        found = re.search(delimiter(separators), rest) if separators else None
        result.append(rest[: found.start()] if found else rest)
        rest = rest[found.end() :] if found else ""
    rest = rest.rstrip(blanks)
    if rest and rest[-1] in separators and not re.search(delimiter(separators), rest[:-1]):
        rest = rest[:-1].rstrip(blanks)
    return [*result, rest]


def mapfile(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `mapfile` (or `readarray`): assign the lines of the input to an array. Options: -n at most this number
    of lines, -s skip this number, -O index of the first element, -d delimiter. shell: the script's evaluator. rest: the
    words after the command's name. where: file and line. source: unused, for a common signature. Nothing is run: state, the
    simulated shell, is changed; the result has each possible state with how it goes on: "" (next statement), exit, return,
    break N or continue N."""
    options, name, position = {"n": "0", "s": "0", "O": "", "d": "\n"}, "MAPFILE", 0
    while position < len(rest):
        match = re.fullmatch(r"-(t*)([nsOduCc]?)(.*)", rest[position])
        if match is None:
            name = rest[position]
        elif match[2]:
            position += not match[3]
            options[match[2]] = match[3] or (rest[position] if position < len(rest) else "")
        position += 1
    state.status = True
    given, sign = state.given, options["d"] or "\0"
    if given is None or "u" in options or MARK.search("".join(options.values())):
        shell.assign_list(state, name, [unsplit(shell.marks.unknown("", where, "is read when it runs"))])
        return [(state, "")]
    lines = given.removesuffix(sign).split(sign) if given else []
    if MARK.search(given):  # the unknown may be several lines
        lines = [unsplit(line) for line in lines]
    first, most, begin = (int(options[key]) if options[key].isdecimal() else 0 for key in "snO")
    lines = lines[first : first + most if most else None]
    old = state.variables.get(name)
    if options["O"] and isinstance(old, Array):
        old.update(enumerate(lines, begin))
    else:
        shell.assign_list(state, name, [""] * begin + lines)
    return [(state, "")]


def started(shell: Evaluator, rest: list[str], state: State, where: str) -> list[list[str]]:
    """The commands that `xargs` starts, each as its words, with words from its input or from a file added. state: the
    simulated shell, whose input is used up. shell: the script's evaluator. rest: the words after the command's name. where:
    file and line. Raises TooMuch if there are too many."""
    options, argv = _options(rest)
    argv = argv or ["echo"]
    given = shell.content(state, options["a"], where) if "a" in options else state.given
    state.given = ""
    if given is None:
        given = shell.marks.unknown("", where, "is what xargs reads")
    if MARK.search("".join(options.values())) or "?" in options:
        return [[*argv, shell.marks.unknown("", where, "is what xargs makes of its options")]]
    if "I" in options:
        lines = [line.lstrip() for line in given.split("\n") if line.strip()]
        if len(lines) > MOST_STARTS:
            raise TooMuch
        return [[word.replace(options["I"] or "{}", _unquoted(line)) for word in argv] for line in lines]
    if "0" in options or "d" in options:
        sign = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}.get(options.get("d", "\0"), options.get("d", "\0"))
        rows = [given.removesuffix(sign).split(sign)] if given else []
    elif "L" in options:
        rows = [_words(line) for line in given.split("\n") if line.strip()]
    else:
        rows = [_words(given)]
    words = [word for row in rows for word in row]
    if "r" in options and not words:
        return []
    if "L" in options or "n" in options:
        count, parts = int(options.get("L") or options.get("n") or 1), rows if "L" in options else [[word] for word in words]
        if count < 1 or len(parts) > count * MOST_STARTS:
            raise TooMuch
        groups = [parts[begin : begin + count] for begin in range(0, len(parts), count)]
        return [[*argv, *(word for part in group for word in part)] for group in groups] or [argv]
    return [[*argv, *words]]


def _options(rest: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split the words of xargs into options, by letter, and the words of the command that it starts: ["-n", "1", "echo"] ->
    ({"n": "1"}, ["echo"]). The letter ? stands for an option that is not supported. rest: the words after the command's
    name."""
    options: dict[str, str] = {}
    position = 0
    while position < len(rest) and re.match(r"-.", rest[position]):
        word, position = rest[position], position + 1
        if word == "--":
            break
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            letter = LETTERS.get(name, "?")
            if not sign and letter in "andPsE":
                value, position = rest[position] if position < len(rest) else "", position + 1
            options[letter] = value
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in "anILdPsE":
                options[letter] = word[at:]
                if not word[at:]:
                    options[letter], position = rest[position] if position < len(rest) else "", position + 1
                break
            if letter in "il":
                options[letter.upper()] = word[at:]
                break
            options[letter if letter in "0rtxp" else "?"] = ""
    if any(not options.get(letter, "1").isdecimal() for letter in "n") or not (options.get("L") or "1").isdecimal():
        options["?"] = ""
    return options, rest[position:]


def _words(given: str) -> list[str]:
    """The words of a text as xargs splits it, at blanks and with quotes and backslashes: 'a "b c"' -> ["a", "b c"]."""
    if not re.search(r"[\'\"\\\\]", given):
        return fields([(given, True)])
    try:
        return shlex.split(given)
    except ValueError:
        return fields([(given, True)])


def _unquoted(line: str) -> str:
    """A line without quotes and backslashes, as `xargs -I` inserts it into a command: 'a "b c"' -> 'a b c'."""
    return " ".join(_words(line)) if re.search(r"[\'\"\\\\]", line) else line
