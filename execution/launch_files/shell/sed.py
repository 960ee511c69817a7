"""Output of `sed` for a text: substitutions and deleted, printed, changed or added lines, with addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.execution.launch_files.shell.marks import MARK
from trainplan.execution.launch_files.shell.patterns import SETS, expression

ADDRESS = re.compile(r"(\d{1,6}|\$)|/((?:[^/\\\n]|\\.)*)/(I?)|\\(.)((?:(?!\4)[^\\\n]|\\.)*)\4(I?)")
META = re.compile(r"[][\\.*^$+?(){}|]")
Address = int | str | re.Pattern[str]


@dataclass(frozen=True)
class Edit:
    """One command of a sed program, such as `2,5s/a/b/g`.

    addresses: none, one, or the two ends of a range: line numbers, `$` (the last line) or patterns. others: whether the command
    applies to all lines that the addresses do not select (`!`). name: the command's letter. text: the text of the command, or
    the replacement of `s`. pattern, nth, prints: for `s`, the pattern, which match of a line is replaced (0 for all), and
    whether a changed line is printed.
    """

    addresses: tuple[Address, ...]
    others: bool
    name: str
    text: str = ""
    pattern: re.Pattern[str] | None = None
    nth: int = 1
    prints: bool = False


class Unread(Exception):
    """Raised for a sed program, or a pattern in it, that is not supported."""


def extended(text: str, extends: bool) -> str:
    r"""Translate a pattern of sed or grep into an extended regular expression: "a\+(" -> "a+\(". extends: whether the
    pattern already is an extended one (-E). Raises Unread if it is not supported."""
    result, position = "", 0
    while position < len(text):
        char = text[position]
        if char == "[" and (found := SETS.match(text, position)):
            result, position = result + found[0], found.end()
            continue
        if char == "\\" and position + 1 < len(text):
            after, position = text[position + 1], position + 2
            if after in "<>":
                result += r"\b"
            elif not extends and after in "(){}+?|":
                result += after
            elif after.isalnum() and after not in "swbSWBnt123456789":
                raise Unread
            else:
                result += "\\" + after
            continue
        result += "\\" + char if not extends and char in "(){}+?|" else char
        position += 1
    return result


def edited(rest: Sequence[str], given: str) -> str | None:
    """The output of sed for a text; None if options or programs are not supported. rest: sed's options and programs, without
    files. given: the text."""
    programs, letters, position = list[str](), "", 0
    while position < len(rest):
        word = rest[position]
        if re.fullmatch(r"-[nErsuz]*e|--expression", word):
            position, letters = position + 1, letters + word[1:-1] * (word[1] != "-")
            programs += rest[position : position + 1]
        elif word.startswith("--expression="):
            programs.append(word.partition("=")[2])
        elif re.fullmatch(r"-[nErsu]+", word):
            letters += word[1:]
        elif word in ("--quiet", "--silent", "--regexp-extended"):
            letters += "E" if word == "--regexp-extended" else "n"
        elif word.startswith("-") or programs:
            return None
        else:
            programs.append(word)
        position += 1
    try:
        edits = _edits("\n".join(programs), bool(set(letters) & set("Er")), given)
    except Unread:
        return None
    return _run(edits, given, "n" in letters)


def _run(edits: Sequence[Edit], given: str, quiet: bool) -> str:
    """Apply the commands of a sed program to a text, and return the text that sed prints. edits: the commands. given: the
    text. quiet: whether lines are printed on request only (-n)."""
    lines, result = given.split("\n"), list[str]()
    ends = lines[-1] == ""
    lines = lines[:-1] if ends else lines
    inside = [False] * len(edits)
    for number, line in enumerate(lines, 1):
        kept, after = True, list[str]()
        for index, edit in enumerate(edits):
            if _selected(edit, inside, index, number, number == len(lines), line) == edit.others:
                continue
            if edit.name == "d":
                kept = False
                break
            if edit.name == "p":
                result.append(line)
            elif edit.name == "c":
                result.append(edit.text)
                kept = False
                break
            elif edit.name == "i":
                result.append(edit.text)
            elif edit.name == "a":
                after.append(edit.text)
            elif edit.pattern is not None:
                before, line = line, _replaced(edit, line)
                result += [line] if edit.prints and before != line else []
        result += [line] if kept and not quiet else []
        result += after
    return "\n".join(result) + "\n" * bool(result and ends)


def _selected(edit: Edit, inside: list[bool], position: int, number: int, last: bool, line: str) -> bool:
    """Whether the addresses of a sed command select a line. edit: the command. inside: for each command of the program, whether
    its range of lines is open, which is updated. position: the command's index. number: the line's number, from 1. last:
    whether it is the last line. line: the line's text."""

    def at(address: Address) -> bool:
        if isinstance(address, re.Pattern):
            return address.search(line) is not None
        return last if address == "$" else number == address

    if not edit.addresses:
        return True
    if len(edit.addresses) == 1:
        return at(edit.addresses[0])
    first, end = edit.addresses
    if inside[position]:
        inside[position] = not (number >= end if isinstance(end, int) else at(end))
        return True
    if at(first):
        inside[position] = not (isinstance(end, int) and end <= number)
        return True
    return False


def _replaced(edit: Edit, line: str) -> str:
    """A line after the substitution of an `s` command."""
    count = 0

    def one(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        if edit.nth and count != edit.nth:
            return match[0]
        return re.sub(
            r"\\(.)|&",
            lambda part: match[0] if part[1] is None else (match[int(part[1])] or "") if part[1].isdecimal() else
            {"n": "\n", "t": "\t"}.get(part[1], part[1]),
            edit.text,
            flags=re.DOTALL,
        )  # fmt: skip

    assert edit.pattern is not None
    return edit.pattern.sub(one, line)


def _edits(program: str, extends: bool, given: str) -> list[Edit]:
    """The commands of a sed program, parsed. extends: whether patterns are extended regular expressions (-E). given: the
    text that the program is applied to; its size bounds which patterns are tried. Raises Unread if the program is not
    supported."""
    lines = given.split("\n")
    longest = max(map(len, lines))

    def compiled(text: str, flags: str) -> re.Pattern[str]:
        if MARK.search(text) or (META.search(re.sub(r"\\[./\-]", "", text).strip("^$")) and MARK.search(given)):
            raise Unread  # what is not known may be what the pattern finds
        result = expression(extended(text, extends), longest, len(lines), re.IGNORECASE if flags else 0)
        if result is None or not text:
            raise Unread
        return result

    result: list[Edit] = []
    position = 0
    while position < len(program):
        if program[position] in " \t\n;":
            position += 1
            continue
        addresses: list[Address] = []
        while len(addresses) < 2 and (found := ADDRESS.match(program, position)):
            text, flags = (found[5], found[6]) if found[4] else (found[2], found[3])
            number = int(found[1]) if found[1] and found[1] != "$" else found[1]
            addresses.append(number if number else compiled(text, flags))
            position = found.end()
            if program[position : position + 1] != ",":
                break
            position += 1
        others = program[position : position + 1] == "!"
        position += others
        name = program[position : position + 1].strip()
        position += 1
        if name and name in "dp" and re.match(r"[ \t]*(?:[;\n]|$)", program[position:]):
            result.append(Edit(tuple(addresses), others, name))
        elif name and name in "cia" and len(addresses) < 2:
            end = program.find("\n", position) if "\n" in program[position:].removeprefix("\\\n") else len(program)
            text = program[position:end]
            if text.endswith("\\") and end < len(program):
                end = (program + "\n").find("\n", end + 1)
                text = program[position:end]
            text = re.sub(r"^[ \t]*(?:\\\n?)?[ \t]*", "", text)
            result.append(Edit(tuple(addresses), others, name, text))
            position = end
        elif name == "s" and position < len(program):
            sign = re.escape(program[position])
            part = rf"((?:(?!{sign})[^\\]|\\(?s:.))*){sign}"
            found = re.compile(rf"{sign}{part}{part}([gpI\d]*)[ \t]*(?=[;\n}}]|$)").match(program, position)
            if found is None or re.search(r"\\[A-Za-mo-su-z]", found[2]):
                raise Unread
            unescaped = found[1] if program[position] in "./|()+?*[]^$" and program[position] != "/" else None
            text = found[1].replace(f"\\{program[position]}", program[position]) if unescaped is None else unescaped
            if unescaped is not None and f"\\{program[position]}" in unescaped:
                raise Unread  # whether the sign is meant as itself hangs on the kind of pattern
            replaced = found[2].replace(f"\\{program[position]}", program[position]) if program[position] != "&" else found[2]
            pattern = compiled(text, "I" if "I" in found[3] or "i" in found[3] else "")
            groups = [int(group) for group in re.findall(r"\\(\d)", replaced)]
            if any(group > pattern.groups for group in groups):
                raise Unread
            count = re.search(r"\d+", found[3])
            nth = 0 if "g" in found[3] else int(count[0]) if count else 1
            result.append(Edit(tuple(addresses), others, "s", replaced, pattern, nth, "p" in found[3]))
            position = found.end()
        else:
            raise Unread
    return result
