"""Options among the words that a script is given, as `getopt` prints them and `getopts` takes them."""

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
    """The output of the program `getopt`: the options separated and quoted, then `--` and the other words, as in " -a '1' --
    'x'". rest: the arguments of getopt. None if getopt would fail, or if a word that is not known may be an option."""
    options, position = {"-o": "", "-l": ""}, 0
    alone = quiet = False
    while position < len(rest) and rest[position].startswith("-") and rest[position] != "--":
        name, sign, value = rest[position].partition("=")
        if not sign and re.match(r"-[olns].", name) and not name.startswith("--"):
            name, sign, value = name[:2], "=", name[2:]
        if name in VALUED and not sign:
            position, value = position + 1, "".join(rest[position + 1 : position + 2])
        alone, quiet = alone or name in ("-a", "--alternative"), quiet or name in ("-u", "--unquoted")
        key = "-l" if name.startswith(("-l", "--lo")) else "-o" if name in ("-o", "--options") else name
        options[key] = ",".join(filter(None, [options.get(key, ""), value]))
        position += 1
    if not options["-o"] and not options["-l"]:
        if position >= len(rest) or rest[position] == "--":
            return None
        options["-o"], position, quiet = rest[position], position + 1, True  # as getopt was of old
        words = list(rest[position:])
    else:
        words = list(rest[position + (rest[position : position + 1] == ["--"]) :])
    short, long = options["-o"].replace(",", ""), [option for option in re.split(r"[,\s]+", options["-l"]) if option]
    result, left = list[str](), list[str]()
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
            found = [option for option in long if option.rstrip(":") == name] or [
                option for option in long if option.startswith(name)
            ]
            if len(found) != 1 or (sign and not found[0].endswith(":")):
                return None
            result.append("--" + found[0].rstrip(":"))
            if found[0].endswith(":"):
                if not sign and not found[0].endswith("::"):
                    if not words:
                        return None
                    value = words.pop(0)
                result.append(quote(value))
        elif re.match(r"-.", word):
            for at, letter in enumerate(word[1:], 2):
                takes = re.search(rf"{re.escape(letter)}(:{{0,2}})", short)
                if takes is None or letter == ":":
                    return None
                result.append("-" + letter)
                if takes[1]:
                    value = word[at:]
                    if not value and takes[1] == ":":
                        if not words:
                            return None
                        value = words.pop(0)
                    result.append(quote(value))
                    break
        else:
            left.append(word)
    return " " + " ".join([*result, "--", *map(quote, left)]) + "\n"


def _quoted(word: str) -> str:
    r"""A text in single quotes, as bash writes it: it's -> 'it'\''s'."""
    return "'" + word.replace("'", "'\\''") + "'"


def getopts(shell: Evaluator, rest: list[str], state: State, where: str, source: Source) -> Outcomes:
    """Evaluate bash's `getopts LETTERS NAME`: take the next option from the positional parameters, or from the words after
    NAME, and assign its letter to NAME and its value to OPTARG. shell: the script's evaluator. rest: the words after the
    command's name. where: file and line. source: unused, for a common signature. Nothing is run: state, the simulated shell,
    is changed; the result has each possible state with how it goes on: "" (next statement), exit, return, break N or
    continue N."""
    state.status = False
    if len(rest) < 2:
        return [(state, "")]
    letters, name = rest[0], rest[1]
    words = rest[2:] or shell.arguments(state)
    index, within = state.variables.get("OPTIND", "1"), state.variables.get(" OPTIND", "")
    position = int(index) if isinstance(index, str) and index.isdecimal() else 1
    held, _, at = within.partition(":") if isinstance(within, str) else ("", "", "")
    letter_at = int(at) if held == str(position) else 1  # within a word of several letters
    word = words[position - 1] if 0 < position <= len(words) else ""
    if MARK.search(word):
        raise TooMuch(shell.decided(shell.marks.cause(word) or Unknown("", where)))
    if not re.match(r"-[^-]", word):
        state.variables[name] = "?"
        state.variables["OPTIND"] = str(position + (word == "--"))
        return [(state, "")]
    letter, value = word[letter_at], word[letter_at + 1 :]
    known = letter in letters.replace(":", "")
    valued = known and f"{letter}:" in letters
    state.variables["OPTARG"] = None
    if valued:
        missing = not value and position >= len(words)
        state.variables["OPTARG"] = letter if missing else value or words[position]
        known = not missing
        letter = ":" if missing and letters.startswith(":") else letter
        position += not value
    elif not known and letters.startswith(":"):
        state.variables["OPTARG"] = letter
    state.variables[name] = letter if known or letter == ":" else "?"
    ends = valued or not value
    state.variables["OPTIND"] = str(position + ends)
    state.variables[" OPTIND"] = "" if ends else f"{position}:{letter_at + 1}"
    state.status = True
    return [(state, "")]
