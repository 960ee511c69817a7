"""Refuses commands that were pasted from documents, web pages or chats: a shell takes their dashes, blanks and quotes for
letters, and ends a command at a backslash followed by a blank."""

from __future__ import annotations

import re

from trainplan.profiling.base.errors import InputError

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
BLANKS = "\u00a0\u1680\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff"
QUOTES = {"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'"}
DASHED = re.compile(rf"(?:^|(?<=[\s\"'=(]))-?[{DASHES}][-{DASHES}]?([A-Za-z][\w-]*)")
ODD = re.compile(rf"[{BLANKS}{''.join(QUOTES)}]")
QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'")
ENDED = re.compile(r"\\[ \t]+\n(?=[ \t]*--?[A-Za-z])")


def refuse(text: str, where: str) -> None:
    """Check that a script has no characters that only documents produce, such as a typographic dash for -- or curly quotes,
    and no blank after a backslash at the end of a line. where: the script, for errors. Comments are exempt, and so are
    quoted texts, except for dashes in front of names made of several words. Raises InputError with the line."""
    if (ended := ENDED.search(text)) is not None:
        at = f"{where}:{text.count(chr(10), 0, ended.start()) + 1}"
        problem = "ends in a backslash and a blank, which ends the command: what follows is no part of it"
        raise InputError(at, "", problem, "take the blank away")
    if text.isascii():
        return
    for number, line in enumerate(text.split("\n"), 1):
        masked = QUOTED.sub(lambda quoted: "x" * len(quoted[0]), line)
        outside = re.split(r"(?:^|\s)#", masked, maxsplit=1)[0]
        at = f"{where}:{number}"
        for found in DASHED.finditer(line[: len(outside)]):
            name, dash = found[1], next(letter for letter in found[0] if letter in DASHES)
            if found[0] in outside or re.search(r"[-_]", name):
                problem = f"has {found[0]!r}, with a dash (U+{ord(dash):04X}) for hyphens, as documents write it"
                raise InputError(at, "", problem, f"write {'-' if len(name) == 1 else '--'}{name}")
        if (odd := ODD.search(outside)) is not None:
            plain = QUOTES.get(odd[0], "a plain blank")
            what = "quote" if odd[0] in QUOTES else "blank"
            problem = f"has a {what} that is none to a shell (U+{ord(odd[0]):04X}), as documents write it"
            raise InputError(at, "", problem, f"write {plain}")
