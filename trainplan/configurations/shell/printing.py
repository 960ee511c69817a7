"""What commands print that only work on texts: echo, printf, seq, expr, paths, and filters of what they read."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from trainplan.configurations.shell import arithmetic
from trainplan.configurations.shell.marks import MARK, TooMuch
from trainplan.configurations.shell.patterns import expression

if TYPE_CHECKING:
    from trainplan.configurations.shell.evaluate import Evaluator
    from trainplan.configurations.shell.state import State

ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "a": "\a", "b": "\b", "r": "\r", "0": "\0", '"': '"'}
MOST_LINES = 10000


def of(shell: Evaluator, name: str, rest: list[str], state: State, where: str) -> str | None:
    """What a command prints; None where it is none of these."""
    if name == "echo":
        return _echo(rest)
    if name == "printf":
        return _printf(shell, rest, state, where)
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
                if shell.marks.tells(path):
                    state.files[shell.named(state, path)] = given or ""
            return given or ""
        return given if given is not None else ""
    if name in FILTERS and (given is not None or (name in ("head", "tail", "sed", "awk", "cut", "wc", "grep") and paths)):
        if name == "grep":
            return _found(shell, rest, state, where)
        if given is None:
            given, rest = shell.content(state, paths[-1], where), [word for word in rest if word != paths[-1]]
        if MARK.search(given) or MARK.search("".join(rest)):
            cause = shell.marks.cause(given + "".join(rest))
            choice = shell.marks.choice_in(given)
            if choice is not None and not MARK.search("".join(rest)):
                return shell.marks.lifted(given, lambda text: FILTERS[name](rest, text) or "", where)
            return shell.marks.unknown(cause.name if cause else "", where, f"is what {name} makes of it") + "\n"
        return FILTERS[name](rest, given)
    return None


def _found(shell: Evaluator, rest: list[str], state: State, where: str) -> str | None:
    """What grep prints, of one file or of what it is given; its status says whether it finds anything."""
    words = [word for word in rest if not word.startswith("-")]
    given = state.given
    if len(words) > 1:
        if len(words) > 2 or not shell.marks.tells(words[-1]):
            return None
        given = shell.content(state, words[-1], where)
        rest = [word for word in rest if word != words[-1]]
    if given is None or MARK.search(given) or MARK.search("".join(rest)):
        return None
    lines = _grep(rest, given)
    if lines is None:
        return None
    state.status = bool(lines) and lines != "0\n"
    return "" if any(re.fullmatch(r"-\w*q\w*", word) for word in rest) else lines


def _echo(rest: list[str]) -> str:
    newline, escapes = "\n", False
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        newline = "" if "n" in rest[0] else newline
        escapes = "e" in rest[0]
        rest = rest[1:]
    text = " ".join(rest)
    return (re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[0]), text) if escapes else text) + newline


def _printf(shell: Evaluator, rest: list[str], state: State, where: str) -> str:
    variable = ""
    if len(rest) > 2 and rest[0] == "-v":
        variable, rest = rest[1], rest[2:]
    if rest and rest[0] == "--":
        rest = rest[1:]
    if not rest:
        return ""
    form, values, made = rest[0], list(rest[1:]), ""
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

        made += re.sub(r"\\(.)|%([-+ 0#]{0,4}\d{0,3}(?:\.\d{0,3})?)([sbqcdiuxXoeEfgG%])", one, form, flags=re.DOTALL)
        if not values or len(values) == before:
            break
        if len(made) > 2**18:
            raise TooMuch
    if variable:
        name, _, index = variable.partition("[")
        shell.assign(state, name, made, where, shell.words(state, where).text(index[:-1]) if index else None)
        return ""
    return made


def _path(name: str, words: list[str], folder: str) -> str | None:
    plain = [word for word in words if not (word.startswith("-") and name in ("basename", "realpath", "readlink"))]
    if name == "basename" and plain:
        text = plain[0].rstrip("/").rsplit("/", 1)[-1]
        return text.removesuffix(plain[1]) if len(plain) > 1 and text != plain[1] else text
    if name == "dirname" and plain:
        return os.path.dirname(plain[0].rstrip("/")) or ("/" if plain[0].startswith("/") else ".")
    if name in ("realpath", "readlink") and plain:
        inside = os.path.normpath(os.path.join(folder, plain[-1]))
        return inside if os.path.exists(inside) or not os.path.exists(plain[-1]) else os.path.abspath(plain[-1])
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


def _head(rest: list[str], given: str) -> str | None:
    count = re.search(r"(\d{1,6})", " ".join(rest))
    return "".join(given.splitlines(True)[: int(count[1]) if count else 10])


def _tail(rest: list[str], given: str) -> str | None:
    count = re.search(r"(\d{1,6})", " ".join(rest))
    lines = given.splitlines(True)
    if re.search(r"\+\d", " ".join(rest)):
        return "".join(lines[int(count[1]) - 1 :]) if count else None
    return "".join(lines[-(int(count[1]) if count else 10) :])


def _wc(rest: list[str], given: str) -> str | None:
    kind = next((word for word in rest if word in ("-l", "-w", "-c")), "")
    return {"-l": f"{given.count(chr(10))}\n", "-w": f"{len(given.split())}\n", "-c": f"{len(given.encode())}\n"}.get(kind)


def _grep(rest: list[str], given: str) -> str | None:
    """Lines that a pattern finds, of the options that are known; None where they, or the pattern, are not."""
    letters, words, patterns = "", list[str](), list[str]()
    place = 0
    while place < len(rest):
        if re.fullmatch(r"-[vqEFciwxshe]+", rest[place]):
            letters += rest[place][1:]
            if rest[place][-1] == "e":
                place += 1
                patterns += rest[place : place + 1]
        elif rest[place].startswith("-"):
            return None
        else:
            words.append(rest[place])
        place += 1
    patterns = patterns or words[:1]
    if len(patterns) != 1:
        return None
    text = patterns[0]
    if "F" in letters:
        text = re.escape(text)
    elif "E" not in letters:
        if re.search(r"\\[^.\-/*\[\]^$\\]", text):
            return None
        text = re.sub(r"(?<!\\)[+?{}()|]", r"\\\g<0>", text)
    text = f"^(?:{text})$" if "x" in letters else rf"\b(?:{text})\b" if "w" in letters else text
    lines = given.split("\n")
    pattern = expression(text, max(map(len, lines)), len(lines), re.IGNORECASE if "i" in letters else 0)
    if pattern is None:
        return None
    lines = [line for line in given.splitlines() if (pattern.search(line) is None) == ("v" in letters)]
    return f"{len(lines)}\n" if "c" in letters else "".join(line + "\n" for line in lines)


def _tr(rest: list[str], given: str) -> str | None:
    sets = [re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), word) for word in rest if not re.fullmatch(r"-[dsc]+", word)]
    sets = [
        re.sub(
            r"\[:(upper|lower|digit|space):\]",
            lambda m: {"upper": "A-Z", "lower": "a-z", "digit": "0-9"}.get(m[1], " \t\n"),
            each,
        )
        for each in sets
    ]
    sets = [re.sub(r"(\w)-(\w)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), each) for each in sets]
    if rest[:1] == ["-d"] and len(sets) == 1:
        return "".join(char for char in given if char not in sets[0])
    if len(sets) != 2 or not sets[1] or any(re.fullmatch(r"-[dsc]+", word) for word in rest):
        return None
    second = sets[1] + sets[1][-1] * max(0, len(sets[0]) - len(sets[1]))
    return given.translate({ord(a): b for a, b in zip(sets[0], second, strict=False)})


def _cut(rest: list[str], given: str) -> str | None:
    text = "\0" + "\0".join(rest) + "\0"
    sign, number = re.search(r"\0-d\0?([^\0])(?=\0)", text), re.search(r"\0-f\0?(\d{1,4})(-?)(?=\0)", text)
    known = sum(len(match[0]) for match in (sign, number) if match)
    if number is None or known + 1 != len(text):  # other options, or what cut itself refuses
        return None
    lines = []
    for line in given.splitlines():
        parts, place = line.split(sign[1] if sign else "\t"), int(number[1]) - 1
        lines.append(
            line if len(parts) == 1 else (sign[1] if sign else "\t").join(parts[place : None if number[2] else place + 1])
        )
    return "".join(line + "\n" for line in lines)


def _awk(rest: list[str], given: str) -> str | None:
    match = re.fullmatch(r"\{\s*print\s+\$(\d|NF)\s*;?\s*\}", rest[-1]) if rest else None
    sign = re.search(r"-F\0?([^\0]+)", "\0".join(rest[:-1]))
    if match is None:
        return None
    rows = [line.split(sign[1].strip("'\"")) if sign else line.split() for line in given.splitlines()]
    place = -1 if match[1] == "NF" else int(match[1]) - 1
    return "".join((row[place] if -len(row) <= place < len(row) else "") + "\n" for row in rows)


def _bc(rest: list[str], given: str) -> str | None:
    try:
        return f"{arithmetic.computed(given.strip(), lambda name: 'x x', lambda name, value: None)}\n"
    except arithmetic.Faulty:
        return None


def _sed(rest: list[str], given: str) -> str | None:
    words = [word for word in rest if word not in ("-e", "-E", "-r")]
    match = (
        re.fullmatch(r"s([/|#,])((?:(?!\1)[^\\]|\\.)*)\1((?:(?!\1)[^\\]|\\.)*)\1(g?)", words[0]) if len(words) == 1 else None
    )
    if match is None or re.search(r"[\\&]", match[3]) or re.search(r"\\[^./\-]|[+?{}()|]", match[2]):
        return None
    lines = given.split("\n")
    pattern = expression(match[2], max(map(len, lines)), len(lines))
    if pattern is None:
        return None
    return "".join(pattern.sub(lambda _: match[3], line, count=0 if match[4] else 1) for line in given.splitlines(True))


FILTERS = {
    "head": _head,
    "tail": _tail,
    "wc": _wc,
    "tr": _tr,
    "cut": _cut,
    "awk": _awk,
    "bc": _bc,
    "sed": _sed,
    "grep": _grep,
    "egrep": lambda rest, given: _grep(["-E", *rest], given),
    "fgrep": lambda rest, given: _grep(["-F", *rest], given),
}
