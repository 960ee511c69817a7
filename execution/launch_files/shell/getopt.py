"""Options among the words that a script is given, as `getopt` prints and `getopts` takes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainplan.execution.launch_files.shell.marks import MARK, TooMuch, Unknown
from trainplan.execution.launch_files.shell.state import State

if TYPE_CHECKING:
    from trainplan.execution.launch_files.shell.evaluate import Evaluator, Outcomes, Source

VALUED = ("-o", "--options", "-l", "--longoptions", "--long", "--longoption", "-n", "--name", "-s", "--shell")


def printed(rest: Sequence[str]) -> str | None:
    """What `getopt` prints: options apart and in quotes, then what is left behind `--`. None where it fails, or where a word
    that is not known may be an option."""
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


def getopts(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Takes the next option of the words that are given, or of those behind the name."""
    state.status = False
    if len(rest) < 2:
        return [(state, "")]
    letters, name = rest[0], rest[1]
    words = rest[2:] or shell.arguments(state)
    index, within = state.variables.get("OPTIND", "1"), state.variables.get(" OPTIND", "")
    place = int(index) if isinstance(index, str) and index.isdecimal() else 1
    held, _, at = within.partition(":") if isinstance(within, str) else ("", "", "")
    letter_at = int(at) if held == str(place) else 1  # within a word of several letters
    word = words[place - 1] if 0 < place <= len(words) else ""
    if MARK.search(word):
        raise TooMuch(shell.decided(shell.marks.cause(word) or Unknown("", where)))
    if not re.match(r"-[^-]", word):
        state.variables[name] = "?"
        state.variables["OPTIND"] = str(place + (word == "--"))
        return [(state, "")]
    letter, value = word[letter_at], word[letter_at + 1 :]
    known = letter in letters.replace(":", "")
    valued = known and f"{letter}:" in letters
    state.variables["OPTARG"] = None
    if valued:
        missing = not value and place >= len(words)
        state.variables["OPTARG"] = letter if missing else value or words[place]
        known = not missing
        letter = ":" if missing and letters.startswith(":") else letter
        place += not value
    elif not known and letters.startswith(":"):
        state.variables["OPTARG"] = letter
    state.variables[name] = letter if known or letter == ":" else "?"
    ends = valued or not value
    state.variables["OPTIND"] = str(place + ends)
    state.variables[" OPTIND"] = "" if ends else f"{place}:{letter_at + 1}"
    state.status = True
    return [(state, "")]
