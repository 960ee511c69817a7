"""Output of programs that filter a text: head, tail, wc, grep, tr, cut, awk, sort, uniq, bc and jq. Each function takes options
(rest) and text, and returns None for options that are not supported."""

from __future__ import annotations

import json
import re
from typing import Any

from trainplan.execution.launch_files.shell import arithmetic, sed
from trainplan.execution.launch_files.shell.edits import ESCAPES
from trainplan.execution.launch_files.shell.patterns import expression

VALUED = {  # letters of options that take a value
    "head": "nc", "tail": "nc", "cut": "dfcb", "awk": "Fvf", "sed": "efl", "grep": "efmABC", "egrep": "efmABC",
    "fgrep": "efmABC", "sort": "ktSo",
}  # fmt: skip
PROGRAMS = ("awk", "sed", "grep", "egrep", "fgrep", "jq")  # what takes a program or a pattern before its files


def split_off_files(name: str, rest: list[str]) -> tuple[list[str], list[str]]:
    """Split the words of a filter (a program that reads a text and prints another) into options and files: for grep, ["-v",
    "x", "f"] -> (["-v", "x"], ["f"]). name: the filter's name, which decides which options have values. rest: the words
    after it."""
    words, paths, position, programs = list[str](), list[str](), 0, name in PROGRAMS
    while position < len(rest):
        word = rest[position]
        count = 1
        if name == "jq" and word in ("--arg", "--argjson"):
            count = 3
        elif re.match(r"-.", word):
            short = re.fullmatch(r"-\w", word[:1] + word[-1:]) if not word.startswith("--") else None
            count += bool(short) and word[-1] in VALUED.get(name, "") and not re.match(r"-[dfFv].", word)
            programs = programs and not (short and word[-1] in "ef") and not word.startswith(("--expression", "--regexp"))
        elif programs:
            programs = False
        elif name not in ("tr", "bc"):
            paths.append(word)
            position += 1
            continue
        words += rest[position : position + count]
        position += count
    return words, paths


def _head(rest: list[str], given: str) -> str | None:
    """The output of `head` for a text: its first lines, 10 unless an option has a number. rest: the options. given: the
    text. Never None; all filters share this signature."""
    count = re.search(r"(\d{1,6})", " ".join(rest))
    return "".join(given.splitlines(True)[: int(count[1]) if count else 10])


def _tail(rest: list[str], given: str) -> str | None:
    """The output of `tail` for a text: its last lines, 10 unless an option has a number, or the lines from number N on for
    `+N`. rest: the options. given: the text. None if that number cannot be read."""
    count = re.search(r"(\d{1,6})", " ".join(rest))
    lines = given.splitlines(True)
    if re.search(r"\+\d", " ".join(rest)):
        return "".join(lines[int(count[1]) - 1 :]) if count else None
    return "".join(lines[-(int(count[1]) if count else 10) :])


def _wc(rest: list[str], given: str) -> str | None:
    """The output of `wc` with one of -l (lines), -w (words) and -c (bytes); None without such an option. rest: the options.
    given: the text that is counted."""
    kind = next((word for word in rest if word in ("-l", "-w", "-c")), "")
    return {"-l": f"{given.count(chr(10))}\n", "-w": f"{len(given.split())}\n", "-c": f"{len(given.encode())}\n"}.get(kind)


def grep(rest: list[str], given: str) -> str | None:
    """The output of `grep` for a text: the lines that have a pattern, or their number with -c. rest: the options and the
    pattern. given: the text. None if an option or the pattern is not supported."""
    letters, words, patterns = "", list[str](), list[str]()
    index = 0
    while index < len(rest):
        if re.fullmatch(r"-[vqEFciwxsheo]+", rest[index]):
            letters += rest[index][1:]
            if rest[index][-1] == "e":
                index += 1
                patterns += rest[index : index + 1]
        elif rest[index].startswith("-"):
            return None
        else:
            words.append(rest[index])
        index += 1
    patterns = patterns or words[:1]
    if len(patterns) != 1:
        return None
    text = patterns[0]
    if "F" in letters:
        text = re.escape(text)
    elif "E" not in letters:
        try:
            text = sed.extended(text, False)
        except sed.Unread:
            return None
    text = f"^(?:{text})$" if "x" in letters else rf"\b(?:{text})\b" if "w" in letters else text
    lines = given.split("\n")
    pattern = expression(text, max(map(len, lines)), len(lines), re.IGNORECASE if "i" in letters else 0)
    if pattern is None:
        return None
    if "o" in letters and not set(letters) & set("vc"):
        return "".join(match[0] + "\n" for line in given.splitlines() for match in pattern.finditer(line) if match[0])
    lines = [line for line in given.splitlines() if (pattern.search(line) is None) == ("v" in letters)]
    return f"{len(lines)}\n" if "c" in letters else "".join(line + "\n" for line in lines)


def _tr(rest: list[str], given: str) -> str | None:
    """The output of `tr` for a text: characters of one set are replaced by those of a second one, or deleted with -d. rest:
    the options and sets. given: the text. None if options are not supported."""
    sets = [re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), word) for word in rest if not re.fullmatch(r"-[dsc]+", word)]
    sets = [
        re.sub(
            r"\[:(upper|lower|digit|space):\]",
            lambda m: {"upper": "A-Z", "lower": "a-z", "digit": "0-9"}.get(m[1], " \t\n"),
            chars,
        )
        for chars in sets
    ]
    sets = [re.sub(r"(\w)-(\w)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), chars) for chars in sets]
    if rest[:1] == ["-d"] and len(sets) == 1:
        return "".join(char for char in given if char not in sets[0])
    if len(sets) != 2 or not sets[1] or any(re.fullmatch(r"-[dsc]+", word) for word in rest):
        return None
    second = sets[1] + sets[1][-1] * max(0, len(sets[0]) - len(sets[1]))
    return given.translate({ord(a): b for a, b in zip(sets[0], second, strict=False)})


def _cut(rest: list[str], given: str) -> str | None:
    """The output of `cut -d SIGN -f N` for a text: field N of every line, or all fields from N on with `N-`. rest: the
    options. given: the text. None if an option is not supported."""
    text = "\0" + "\0".join(rest) + "\0"
    sign, number = re.search(r"\0-d\0?([^\0])(?=\0)", text), re.search(r"\0-f\0?(\d{1,4})(-?)(?=\0)", text)
    known = sum(len(match[0]) for match in (sign, number) if match)
    if number is None or known + 1 != len(text):  # other options, or what cut itself refuses
        return None
    lines = []
    for line in given.splitlines():
        parts, position = line.split(sign[1] if sign else "\t"), int(number[1]) - 1
        lines.append(
            line if len(parts) == 1 else (sign[1] if sign else "\t").join(parts[position : None if number[2] else position + 1])
        )
    return "".join(line + "\n" for line in lines)


def _awk(rest: list[str], given: str) -> str | None:
    """The output of awk for a text. Supported are programs that print a field, the line or a count for lines selected by a
    pattern, the value of a field or a line number. rest: the options and the program. given: the text. None if the program
    is not supported."""
    match = (
        re.fullmatch(
            r"(?:/((?:[^/\\]|\\.)+)/|\$(\d)\s*==\s*\"([^\"]*)\"|NR\s*==\s*(\d+))?\s*\{\s*print(?:\s+(\$?NF|\$\d|NR))?\s*;?\s*(?:exit\s*;?\s*)?\}",
            rest[-1].strip(),
        )
        if rest
        else None
    )
    if rest and re.fullmatch(r"\s*END\s*\{\s*print\s+NR\s*;?\s*\}\s*", rest[-1]):
        return f"{len(given.splitlines())}\n"
    sign = re.search(r"-F\0?([^\0]+)", "\0".join(rest[:-1]))
    if match is None or any(not re.match(r"-F", word) for n, word in enumerate(rest[:-1]) if rest[n - 1 : n] != ["-F"]):
        return None
    lines = given.splitlines()
    pattern = expression(match[1], max(map(len, lines), default=0), len(lines)) if match[1] else None
    if match[1] and pattern is None:
        return None
    result = ""
    for number, line in enumerate(lines, 1):
        row = _columns(line, sign[1].strip("'\"") if sign else None)
        if row is None:
            return None
        if (pattern is not None and not pattern.search(line)) or (match[4] and number != int(match[4])):
            continue
        if match[2] and (line if match[2] == "0" else "".join(row[int(match[2]) - 1 : int(match[2])])) != match[3]:
            continue
        counts = {"NF": str(len(row)), "NR": str(number), "$NF": row[-1] if row else "", "$0": line}
        column = "".join(row[int(match[5][1:]) - 1 : int(match[5][1:])]) if re.fullmatch(r"\$[1-9]", match[5] or "") else ""
        result += counts.get(match[5] or "$0", column) + "\n"
        if "exit" in match[0]:
            break
    return result


def _columns(line: str, sign: str | None) -> list[str] | None:
    """The fields of a line as awk splits it. sign: the separator, or a set such as [:,]; None for any number of blanks. None
    if the separator is a pattern that is not supported."""
    if sign is None or sign == " ":
        return line.split()
    if len(sign) > 1 and not re.fullmatch(r"\[[\w:=,; /-]+\]\+?", sign):
        return None
    return re.split(re.escape(sign) if len(sign) == 1 else sign, line)


def _bc(rest: list[str], given: str) -> str | None:
    """The output of `bc` for an expression of whole numbers. rest: the options, which are ignored. given: the expression.
    None if it is not supported."""
    try:
        return f"{arithmetic.computed(given.strip(), lambda name: 'x x', lambda name, value: None)}\n"
    except arithmetic.Faulty:
        return None


def _sort(rest: list[str], given: str) -> str | None:
    """The output of `sort` for a text, with -u (drop repeated lines), -n (by number) and -r (reversed). rest: the options.
    given: the text. None if an option is not supported."""
    letters = "".join(word[1:] for word in rest)
    odd = "n" in letters and re.search(r"(?m)^(?!\d{1,9}$)", given.strip())
    if odd or any(not re.fullmatch(r"-[unr]+", word) for word in rest):
        return None
    lines = given.splitlines()
    lines = list(dict.fromkeys(lines)) if "u" in letters else lines
    lines.sort(key=(lambda line: int(line or 0)) if "n" in letters else str, reverse="r" in letters)
    return "".join(line + "\n" for line in lines)


def _uniq(rest: list[str], given: str) -> str | None:
    """The output of `uniq` for a text: repeated neighbouring lines are printed once. rest: the options. given: the text.
    None if there is any option, since none is supported."""
    lines = given.splitlines()
    return None if rest else "".join(line + "\n" for n, line in enumerate(lines) if not n or lines[n - 1] != line)


def _jq(rest: list[str], given: str) -> str | None:
    """The output of jq for a JSON text: the value at a path such as .a.b[0], or the whole with a value inserted, as by `.a.b
    = 2`. rest: the options and the program. given: the JSON text. None if the program is not supported or the JSON not
    valid."""
    options, words, position = dict[str, Any](), list[str](), 0
    while position < len(rest):
        if rest[position] in ("--arg", "--argjson") and position + 2 < len(rest):
            name, text = rest[position + 1 : position + 3]
            try:
                options[name] = text if rest[position] == "--arg" else json.loads(text)
            except ValueError:
                return None
            position += 2
        elif rest[position].startswith("-") and not re.fullmatch(r"-[rMcSj]+|--raw-output|--compact-output", rest[position]):
            return None
        elif not rest[position].startswith("-"):
            words.append(rest[position])
        position += 1
    raw = any(re.fullmatch(r"-\w*r\w*|--raw-output", word) for word in rest)
    try:
        value: Any = json.loads(given)
        if len(words) != 1:
            return None
        for part in words[0].split("|"):
            match = re.fullmatch(rf"\s*({PATH})\s*(?:=(?!=)\s*(.+?)\s*)?", part, re.DOTALL)
            if match is None:
                return None
            keys = [int(n) if n else key or text for key, text, n in re.findall(STEP, match[1])]
            if match[2] is None:
                for key in keys:
                    value = None if value is None else value.get(key) if isinstance(value, dict) else value[key]
                continue
            put = options[match[2][1:]] if match[2][:1] == "$" else json.loads(match[2])
            inner = value
            for key in keys[:-1]:
                inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner[key]
            inner[keys[-1]] = put
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    return (value if raw and isinstance(value, str) else json.dumps(value, indent=2)) + "\n"


STEP = r"\.([A-Za-z_]\w*)|\.?\[?\"([^\"]+)\"\]?|\[(\d{1,4})\]"
PATH = rf"(?:\.|(?:{STEP})+)".replace("([A", "(?:[A").replace("([^", "(?:[^").replace(r"(\d", r"(?:\d")
FILTERS = {
    "sort": _sort,
    "uniq": _uniq,
    "jq": _jq,
    "head": _head,
    "tail": _tail,
    "wc": _wc,
    "tr": _tr,
    "cut": _cut,
    "awk": _awk,
    "bc": _bc,
    "sed": sed.edited,
    "grep": grep,
    "egrep": lambda rest, given: grep(["-E", *rest], given),
    "fgrep": lambda rest, given: grep(["-F", *rest], given),
}
