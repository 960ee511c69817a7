"""The output of commands that only work on texts: echo, printf, seq, expr, paths, and filters of their input."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell import arithmetic, files, filters, getopt
from trainplan.execution.launch_files.shell.batch import hostnames
from trainplan.execution.launch_files.shell.edits import ESCAPES
from trainplan.execution.launch_files.shell.marks import MARK, TooMuch

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator
    from trainplan.execution.launch_files.shell.state import State

MOST_LINES = 10000


def output_of(shell: Evaluator, name: str, rest: list[str], state: State, where: str) -> str | None:
    """The text that a command prints, if it is one of the programs whose output is computed here: echo, printf, cat, seq,
    grep and similar ones; None for other commands and unsupported options. name: the command. state: the simulated shell,
    which has the input and the files; printf -v and tee change it. shell: the script's evaluator. rest: the words after the
    command's name. where: file and line."""
    if name == "echo":
        return _echo(rest)
    if name == "printf":
        return _printf(shell, rest, state, where)
    if name == "getopt":
        return getopt.printed(rest)
    if name == "scontrol" and rest[:2] in (["show", "hostnames"], ["show", "hostname"]):
        named = not rest[2:] or any(
            variable in shell.marks.shown(rest[2]) for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
        )
        return hostnames(state.batch) if named else None
    if name == "pwd":
        return state.directory + "\n"
    if name in ("basename", "dirname", "seq", "expr", "realpath", "readlink"):
        joined = "\0".join(rest)
        lines = shell.marks.lifted(
            joined, lambda text: _path(name, text.split("\0") if text else [], state.directory) or "\1", where
        )
        return None if lines == "\1" else lines + "\n" * bool(lines)
    given, paths = state.given, [word for word in rest if not word.startswith("-")]
    if name in ("cat", "tee"):
        if name == "cat" and paths:
            return "".join(shell.content(state, path, where) for path in paths)
        if name == "tee":
            for path in paths:
                shell.written(state, path, given or "", "-a" in rest or "--append" in rest)
            return given or ""
        return given if given is not None else ""
    if name == "envsubst" and given is not None:
        return files.substituted(shell, rest, given, state, where)
    if name not in filters.FILTERS:
        return None
    rest, paths = filters.split_off_files(name, rest)
    if paths:
        given = "".join(shell.content(state, path, where) if path != "-" else state.given or "" for path in paths)
    if given is None:
        return None
    return _found(rest, given, state) if name == "grep" else _filtered(shell, name, rest, given, where)


def _filtered(shell: Evaluator, name: str, rest: list[str], given: str, where: str) -> str | None:
    """The output of a filter (a program such as sort or sed that reads a text and prints another); unknown if it depends on
    values that nobody has given. name: the filter. rest: its options. given: its input. None if options are not supported.
    shell: the script's evaluator. where: file and line."""
    known = not MARK.search("".join(rest))
    if name != "sed" and not (known and not MARK.search(given)):
        choice = shell.marks.choice_in(given)
        if choice is None or not known:
            cause = shell.marks.cause(given + "".join(rest))
            return shell.marks.unknown(cause.name if cause else "", where, f"is what {name} makes of it") + "\n"
        return shell.marks.lifted(given, lambda text: filters.FILTERS[name](rest, text) or "", where)
    return filters.FILTERS[name](rest, given)


def _found(rest: list[str], given: str, state: State) -> str | None:
    """The output of grep; the status of the simulated shell becomes whether a line is found. rest: the options and the
    pattern. given: the text that is searched. state: the simulated shell, whose status is changed. None if text or options
    are not known or not supported."""
    if MARK.search(given) or MARK.search("".join(rest)):
        return None
    lines = filters.grep(rest, given)
    if lines is None:
        return None
    state.status = bool(lines) and lines != "0\n"
    return "" if any(re.fullmatch(r"-\w*q\w*", word) for word in rest) else lines


def _echo(rest: list[str]) -> str:
    """The output of `echo` for its words (rest), with the options -n, -e and -E."""
    newline, escapes = "\n", False
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        newline = "" if "n" in rest[0] else newline
        escapes = "e" in rest[0]
        rest = rest[1:]
    text = " ".join(rest)
    return (re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[0]), text) if escapes else text) + newline


def _printf(shell: Evaluator, rest: list[str], state: State, where: str) -> str:
    """The output of `printf`; empty with -v, which assigns it to a variable instead. rest: the format and the values. state:
    the simulated shell, which -v changes. shell: the script's evaluator. where: file and line."""
    variable = ""
    if len(rest) > 2 and rest[0] == "-v":
        variable, rest = rest[1], rest[2:]
    if rest and rest[0] == "--":
        rest = rest[1:]
    if not rest:
        return ""
    form, values, result = rest[0], list(rest[1:]), ""
    while True:
        before = len(values)

        def one(match: re.Match[str]) -> str:
            if match[1]:
                return ESCAPES.get(match[1], match[0])
            if match[3] == "%":
                return "%"
            value = values.pop(0) if values else ""
            if MARK.search(value) or match[3] in "sbqc":
                return value if not re.search(r"\d", match[2]) or MARK.search(value) else f"%{match[2]}s" % value
            try:
                number = float(value or 0) if match[3] in "eEfgG" else int(value or "0", 0)
                return f"%{match[2]}{match[3]}" % number
            except (ValueError, OverflowError):
                return "0"

        result += re.sub(r"\\(.)|%([-+ 0#]{0,4}\d{0,3}(?:\.\d{0,3})?)([sbqcdiuxXoeEfgG%])", one, form, flags=re.DOTALL)
        if not values or len(values) == before:
            break
        if len(result) > 2**18:
            raise TooMuch
    if variable:
        name, _, index = variable.partition("[")
        shell.assign(state, name, result, where, shell.words(state, where).text(index[:-1]) if index else None)
        return ""
    return result


def _path(name: str, words: list[str], folder: str) -> str | None:
    """The output of basename, dirname, realpath, readlink, seq or expr, without the newline at the end; None if options are
    not supported. name: the program. words: its words. folder: the working directory."""
    plain = [word for word in words if not (word.startswith("-") and name in ("basename", "realpath", "readlink"))]
    if name == "basename" and plain:
        text = plain[0].rstrip("/").rsplit("/", 1)[-1]
        return text.removesuffix(plain[1]) if len(plain) > 1 and text != plain[1] else text
    if name == "dirname" and plain:
        return os.path.dirname(plain[0].rstrip("/")) or ("/" if plain[0].startswith("/") else ".")
    if name in ("realpath", "readlink") and plain:
        inside = os.path.normpath(os.path.join(folder, plain[-1]))
        return inside if os.path.exists(inside) or not os.path.exists(plain[-1]) else os.path.abspath(plain[-1])
    if name == "seq" and words and words[0].startswith("-s"):
        sign, rest = (words[0][2:], words[1:]) if words[0] != "-s" else ("".join(words[1:2]), words[2:])
        lines = _path(name, rest, folder)
        return None if lines is None else lines.replace("\n", sign)
    if name == "seq" and 1 <= len(words) <= 3 and all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        numbers = [int(word) for word in words]
        first, step, last = (
            (1, 1, numbers[0]) if len(numbers) == 1 else (numbers[0], 1 if len(numbers) == 2 else numbers[1], numbers[-1])
        )
        if step == 0 or abs(last - first) // abs(step) > MOST_LINES:
            raise TooMuch
        return "\n".join(map(str, range(first, last + (1 if step > 0 else -1), step)))
    if name == "expr":
        if len(words) == 3 and words[1] in ("=", "!="):
            return str(int((words[0] == words[2]) == (words[1] == "=")))
        try:
            return str(arithmetic.computed(" ".join(words), lambda name: "x x", lambda name, value: None))
        except arithmetic.Faulty:
            return None
    return None
