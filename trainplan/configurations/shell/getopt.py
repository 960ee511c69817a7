"""What `getopt` prints of the words that a script is given: options apart and in quotes, and what is left behind `--`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainplan.configurations.shell.marks import MARK

VALUED = ("-o", "--options", "-l", "--longoptions", "--long", "--longoption", "-n", "--name", "-s", "--shell")


def printed(rest: Sequence[str]) -> str | None:
    """What it prints; None where it fails, or where a word that is not known may be an option."""
    said, place = {"-o": "", "-l": ""}, 0
    alone = quiet = False
    while place < len(rest) and rest[place].startswith("-") and rest[place] != "--":
        name, sign, value = rest[place].partition("=")
        if not sign and re.match(r"-[olns].", name) and not name.startswith("--"):
            name, sign, value = name[:2], "=", name[2:]
        if name in VALUED and not sign:
            place, value = place + 1, "".join(rest[place + 1 : place + 2])
        alone, quiet = alone or name in ("-a", "--alternative"), quiet or name in ("-u", "--unquoted")
        key = "-l" if name.startswith(("-l", "--lo")) else "-o" if name in ("-o", "--options") else name
        said[key] = ",".join(filter(None, [said.get(key, ""), value]))
        place += 1
    if not said["-o"] and not said["-l"]:
        if place >= len(rest) or rest[place] == "--":
            return None
        said["-o"], place, quiet = rest[place], place + 1, True  # as getopt was of old
        words = list(rest[place:])
    else:
        words = list(rest[place + (rest[place : place + 1] == ["--"]) :])
    short, long = said["-o"].replace(",", ""), [each for each in re.split(r"[,\s]+", said["-l"]) if each]
    made, left = list[str](), list[str]()
    quote = (lambda word: word) if quiet else _quoted
    while words:
        word = words.pop(0)
        if MARK.match(word):
            return None
        if word == "--" or (short.startswith("+") and not word.startswith("-")):
            left += words if word == "--" else [word, *words]
            break
        if word.startswith("--") or (alone and re.match(r"-\w\w", word)):
            name, sign, value = word.lstrip("-").partition("=")
            found = [each for each in long if each.rstrip(":") == name] or [each for each in long if each.startswith(name)]
            if len(found) != 1 or (sign and not found[0].endswith(":")):
                return None
            made.append("--" + found[0].rstrip(":"))
            if found[0].endswith(":"):
                if not sign and not found[0].endswith("::"):
                    if not words:
                        return None
                    value = words.pop(0)
                made.append(quote(value))
        elif re.match(r"-.", word):
            for at, letter in enumerate(word[1:], 2):
                takes = re.search(rf"{re.escape(letter)}(:{{0,2}})", short)
                if takes is None or letter == ":":
                    return None
                made.append("-" + letter)
                if takes[1]:
                    value = word[at:]
                    if not value and takes[1] == ":":
                        if not words:
                            return None
                        value = words.pop(0)
                    made.append(quote(value))
                    break
        else:
            left.append(word)
    return " " + " ".join([*made, "--", *map(quote, left)]) + "\n"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
