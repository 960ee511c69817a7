"""Thousands of scripts that are slightly broken: each is read, or refused in a line; none on what is not decided."""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.launch_files.shell import Command, command_of, values_of
from trainplan.execution.runtimes.megatron.reader import KNOWN, of_command
from trainplan.profiling.base.errors import InputError

from tests.helpers import bash
from tests.helpers.sizes import of_all

LAUNCH = Path(__file__).parent / "launch"
NAMES = sorted(path.name for path in LAUNCH.glob("*.sh"))
MOST_S = 20.0  # of one script: a bound on what is followed, not a measure of speed
# What a mutated script may do under bash, where it is run: write where it is, at most.
UNSAFE = re.compile(r">\s*['\"]?[/~$.]|/dev/tcp|:\(\)|&\s*&\s*&|\bkill\b|\bexec\b|/proc|/sys|\bwhile\b|\buntil\b|for \(\(")
INSERTED = ["$", '"', "'", "(", ")", "{", "}", "`", ";", "|", "\\", "$X", "${Y", "\0", "é", "fi", "done", "<<E"]
VALUES = ("", "1", "large")


def mutated(text: str, rng: random.Random) -> str:
    """One to three deletions, copies or swaps of characters, words or lines."""
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(["character", "word", "line"])
        parts = list(text) if kind == "character" else re.split(r"(\s+)", text) if kind == "word" else text.splitlines(True)
        if len(parts) < 2:
            continue
        a, b = rng.randrange(len(parts)), rng.randrange(len(parts))
        how = rng.choice(["delete", "copy", "swap", "insert"])
        if how == "delete":
            del parts[a]
        elif how == "copy":
            parts.insert(a, parts[b])
        elif how == "swap":
            parts[a], parts[b] = parts[b], parts[a]
        else:
            parts.insert(a, rng.choice(INSERTED))
        text = "".join(parts)
    return text


def read(path: Path) -> tuple[Command | None, RunConfiguration | None]:
    """The command and the configuration of a script; None where it is refused, in one line."""
    command = None
    try:
        command = command_of(path, {})
        return command, of_command(command, str(path), UserSettings())
    except InputError as error:
        assert "\n" not in error.command_text and error.problem and error.fix
        return command, None


def bearing(words: list[str]) -> dict[str, object]:
    """The words of a command that bear on the run: all but the keys that change no plan."""
    index = next((index for index, word in enumerate(words) if word.endswith(".py")), len(words))
    return {key: value for key, value in values_of(words[index + 1 :]).items() if key not in KNOWN.names}


def test_some_mutated_scripts_are_read_or_refused(tmp_path: Path) -> None:
    held(tmp_path, range(100), None)


@pytest.mark.long
@pytest.mark.skipif(bash.bash() is None, reason="there is no bash")
def test_mutated_scripts_are_read_or_refused_as_bash_reads_them(tmp_path: Path) -> None:
    """Where one is read, bash starts a run of the same words whatever variables that it does not set are in the environment.
    Five hundred scripts; `make test-all` has two thousand."""
    bash.opened(tmp_path)
    count = of_all(500, 2000)
    compared = held(tmp_path, range(count), bash.stubs(tmp_path / "bin"))
    assert compared > count / 10


def held(folder: Path, seeds: range, programs: Path | None) -> int:
    compared = 0
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice(NAMES)
        index = folder / f"seed{seed}"
        shutil.copytree(LAUNCH, index)
        text = mutated((LAUNCH / name).read_text(), rng)
        (index / name).write_text(text)
        begun = time.process_time()
        command, configuration = read(index / name)
        assert time.process_time() - begun < MOST_S, (seed, name)
        if programs is not None and command is not None and configuration is not None and not UNSAFE.search(text):
            compared += alike(index / name, programs, command, text, (seed, name))
        shutil.rmtree(index)
    return compared


def alike(path: Path, programs: Path, command: Command, text: str, of: tuple[int, str]) -> int:
    """Holds a command that was read against those that bash starts, with variables that the script only reads unset and set."""
    if not command.launcher or command.launcher[0].rsplit("/", 1)[-1] not in bash.STUBS:
        return 0  # a program that is not here: bash does not find it
    bash.opened(path.parent)
    named = set(re.findall(r"\$\{?([A-Za-z_]\w*)\}?(?![:\w+=?-])", text))
    sets = r"(?:^|[\s;(\"'{{]){name}(?:\+?=|\b(?=[ ;]*(?:do|in|<|;)))|\$\{{{name}:?[-=]"
    unset = sorted(name for name in named if not re.search(sets.format(name=name), text, re.M))
    ours = bearing([*command.launcher, command.program, *command.words])
    opened = set(command.open)
    count = 0
    for value in VALUES if unset else VALUES[:1]:
        theirs = bash.runs(path, programs, dict.fromkeys(unset, value) if value else {})
        if not theirs:
            continue
        made = [bearing(words) for words in theirs]
        kept = [{key: entry for key, entry in run.items() if key not in opened} for run in made]
        assert {key: our for key, our in ours.items() if key not in opened} in kept, (of, ours, made, unset, value)
        count = 1
    return count
