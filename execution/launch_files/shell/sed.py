"""What `sed` makes of a text: substitutions and deleted, printed, changed or added lines, with addresses."""

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
    """One command of a program. addresses: none, one or the two ends of a range: numbers, `$` or patterns; others: whether
    it is for all other lines; pattern, text, nth: of s, where nth is 0 for every place."""

    addresses: tuple[Address, ...]
    others: bool
    name: str
    text: str = ""
    pattern: re.Pattern[str] | None = None
    nth: int = 1
    prints: bool = False


class Unread(Exception):
    """A program that is not read."""


def extended(text: str, extends: bool) -> str:
    """A pattern of sed or grep as an extended regular expression. extends: whether it is one (-E). Raises Unread."""
    made, place = "", 0
    while place < len(text):
        char = text[place]
        if char == "[" and (found := SETS.match(text, place)):
            made, place = made + found[0], found.end()
            continue
        if char == "\\" and place + 1 < len(text):
            after, place = text[place + 1], place + 2
            if after in "<>":
                made += r"\b"
            elif not extends and after in "(){}+?|":
                made += after
            elif after.isalnum() and after not in "swbSWBnt123456789":
                raise Unread
            else:
                made += "\\" + after
            continue
        made += "\\" + char if not extends and char in "(){}+?|" else char
        place += 1
    return made


def edited(rest: Sequence[str], given: str) -> str | None:
    """What sed prints of a text. rest: its options and programs, without files; None where these are not read."""
    programs, letters, place = list[str](), "", 0
    while place < len(rest):
        word = rest[place]
        if re.fullmatch(r"-[nErsuz]*e|--expression", word):
            place, letters = place + 1, letters + word[1:-1] * (word[1] != "-")
            programs += rest[place : place + 1]
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
        place += 1
    try:
        edits = _edits("\n".join(programs), bool(set(letters) & set("Er")), given)
    except Unread:
        return None
    return _run(edits, given, "n" in letters)


def _run(edits: Sequence[Edit], given: str, quiet: bool) -> str:
    lines, made = given.split("\n"), list[str]()
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
                made.append(line)
            elif edit.name == "c":
                made.append(edit.text)
                kept = False
                break
            elif edit.name == "i":
                made.append(edit.text)
            elif edit.name == "a":
                after.append(edit.text)
            elif edit.pattern is not None:
                before, line = line, _replaced(edit, line)
                made += [line] if edit.prints and before != line else []
        made += [line] if kept and not quiet else []
        made += after
    return "\n".join(made) + "\n" * bool(made and ends)


def _selected(edit: Edit, inside: list[bool], place: int, number: int, last: bool, line: str) -> bool:
    def at(address: Address) -> bool:
        if isinstance(address, re.Pattern):
            return address.search(line) is not None
        return last if address == "$" else number == address

    if not edit.addresses:
        return True
    if len(edit.addresses) == 1:
        return at(edit.addresses[0])
    first, end = edit.addresses
    if inside[place]:
        inside[place] = not (number >= end if isinstance(end, int) else at(end))
        return True
    if at(first):
        inside[place] = not (isinstance(end, int) and end <= number)
        return True
    return False


def _replaced(edit: Edit, line: str) -> str:
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
    """The commands of a program. Raises Unread."""
    lines = given.split("\n")
    longest = max(map(len, lines))

    def compiled(text: str, flags: str) -> re.Pattern[str]:
        if MARK.search(text) or (META.search(re.sub(r"\\[./\-]", "", text).strip("^$")) and MARK.search(given)):
            raise Unread  # what is not known may be what the pattern finds
        made = expression(extended(text, extends), longest, len(lines), re.IGNORECASE if flags else 0)
        if made is None or not text:
            raise Unread
        return made

    made: list[Edit] = []
    place = 0
    while place < len(program):
        if program[place] in " \t\n;":
            place += 1
            continue
        addresses: list[Address] = []
        while len(addresses) < 2 and (found := ADDRESS.match(program, place)):
            text, flags = (found[5], found[6]) if found[4] else (found[2], found[3])
            number = int(found[1]) if found[1] and found[1] != "$" else found[1]
            addresses.append(number if number else compiled(text, flags))
            place = found.end()
            if program[place : place + 1] != ",":
                break
            place += 1
        others = program[place : place + 1] == "!"
        place += others
        name = program[place : place + 1].strip()
        place += 1
        if name and name in "dp" and re.match(r"[ \t]*(?:[;\n]|$)", program[place:]):
            made.append(Edit(tuple(addresses), others, name))
        elif name and name in "cia" and len(addresses) < 2:
            end = program.find("\n", place) if "\n" in program[place:].removeprefix("\\\n") else len(program)
            text = program[place:end]
            if text.endswith("\\") and end < len(program):
                end = (program + "\n").find("\n", end + 1)
                text = program[place:end]
            text = re.sub(r"^[ \t]*(?:\\\n?)?[ \t]*", "", text)
            made.append(Edit(tuple(addresses), others, name, text))
            place = end
        elif name == "s" and place < len(program):
            sign = re.escape(program[place])
            part = rf"((?:(?!{sign})[^\\]|\\(?s:.))*){sign}"
            found = re.compile(rf"{sign}{part}{part}([gpI\d]*)[ \t]*(?=[;\n}}]|$)").match(program, place)
            if found is None or re.search(r"\\[A-Za-mo-su-z]", found[2]):
                raise Unread
            unescaped = found[1] if program[place] in "./|()+?*[]^$" and program[place] != "/" else None
            text = found[1].replace(f"\\{program[place]}", program[place]) if unescaped is None else unescaped
            if unescaped is not None and f"\\{program[place]}" in unescaped:
                raise Unread  # whether the sign is meant as itself hangs on the kind of pattern
            replaced = found[2].replace(f"\\{program[place]}", program[place]) if program[place] != "&" else found[2]
            pattern = compiled(text, "I" if "I" in found[3] or "i" in found[3] else "")
            groups = [int(each) for each in re.findall(r"\\(\d)", replaced)]
            if any(group > pattern.groups for group in groups):
                raise Unread
            count = re.search(r"\d+", found[3])
            nth = 0 if "g" in found[3] else int(count[0]) if count else 1
            made.append(Edit(tuple(addresses), others, "s", replaced, pattern, nth, "p" in found[3]))
            place = found.end()
        else:
            raise Unread
    return made
