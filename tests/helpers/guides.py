"""Runs the commands in pages of the documentation, and writes their output into the pages: `python -m tests.helpers.guides`.

In a page, a block of `sh` may be followed by a block of `text`, the output of its trainplan commands. All commands of a page
run in one folder, in order. `python -m tests.helpers.guides PAGE...` writes some pages alone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
CHANGES = ROOT / "docs" / "before-and-after.md"
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *GUIDES, CHANGES]
PICTURES = {  # by page, the files that its commands write and that are kept in docs/pictures, with their names there
    "docs/index.md": {"plan.png": "plan.png"},
    "docs/guides/engineer.md": {"plan.png": "plan-8b.png", "step.png": "step-8b.png"},
}
Run = Callable[[Sequence[str], Path], subprocess.CompletedProcess[str]]  # a command's words, and the folder that it runs in
MOST_LINES = 40  # lines of an output that are shown
COLUMNS = "100"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": COLUMNS}
LINES = r"(?:(?!```)[^\n]*\n)*"
BLOCKS = re.compile(rf"^```sh\n(?P<commands>{LINES})```\n(?:{LINES}```text\n(?P<output>{LINES})```\n)?", re.MULTILINE)
# Output that depends on the machine and its load: lines about what was found in some seconds, numbers that were measured or
# that another processor rounds otherwise, and the seconds at the end of a row of a table.
TIMED = re.compile(r"in any runtime|without --|planning |price of|not known in the time|interrupted|^ *(milp|cpsat) ")
MEASURED = re.compile(r"measured|median|seconds|took|loss|largest")
PROVEN = re.compile(r"^BEST\?.*\n(?: {11}.*\n)*", re.M)  # within a limit of time, a bound is as good as the machine is fast
SECONDS = re.compile(r"\d+\.\d+(, with theirs \d+\.\d+)?$")


@dataclass(frozen=True)
class Block:
    """A block of commands in a page.

    Attributes:
        commands: the words of each trainplan command.
        output: the output that the page shows below the block; None where it shows none.
        span: where that output begins and ends in the page's text.
    """

    commands: list[list[str]]
    output: str | None
    span: tuple[int, int]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of commands in a page's text."""
    for found in BLOCKS.finditer(text):
        lines = found["commands"].replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        yield Block([word[1:] for word in words if word[:1] == ["trainplan"]], found["output"], found.span("output"))


def as_users_do(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a `trainplan` command in a folder, by a new Python; its exit code and its outputs. words: those after `trainplan`."""
    command = [sys.executable, "-m", "trainplan", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=ENVIRONMENT, check=False)


def printed(block: Block, folder: Path, run: Run = as_users_do) -> str:
    """The output of a block's commands, run in a folder; of a long output, the end is replaced by the number of its lines.
    run: what runs a command.

    Raises AssertionError where a command fails; that no plan fits is no failure.
    """
    texts = []
    for words in block.commands:
        done = run(words, folder)
        assert done.returncode == 0 or "no plan fits" in done.stdout, (words, done.stderr)
        texts.append(done.stdout)
    lines = [line.rstrip() for line in "".join(texts).strip("\n").splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"... {len(lines) - MOST_LINES + 1} more lines"]
    return "".join(f"{line}\n" for line in lines)


def comparable(text: str) -> list[str]:
    """The lines of an output that are the same on every machine, measured numbers masked; columns, which are as wide as the
    longest number of seconds, a space apart."""
    lines = [line.rstrip() for line in PROVEN.sub("", text).splitlines() if not TIMED.search(line)]
    kept = [re.sub(r"(?<=\S) {2,}", " ", line) for line in lines]
    return [re.sub(r"\d[\d.,e+-]*", "N", line) if MEASURED.search(line) else SECONDS.sub("N", line) for line in kept]


def written(page: Path, run: Run = as_users_do) -> str:
    """The page's text with the output that its commands print now; its pictures are written to docs/pictures. run: what runs a
    command."""
    text, parts, end = page.read_text(), [], 0
    with TemporaryDirectory() as folder:
        for block in blocks(text):
            output = printed(block, Path(folder), run)
            if block.output is not None:
                parts += [text[end : block.span[0]], output]
                end = block.span[1]
        for name, picture in PICTURES.get(page.relative_to(ROOT).as_posix(), {}).items():
            shutil.copy(Path(folder, name), ROOT / "docs" / "pictures" / picture)
    return "".join([*parts, text[end:]])


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        print(page.relative_to(ROOT), flush=True)
        page.write_text(written(page))
