"""One command, called by a program: `python -m trainplan.command.called WORD...` prints JSON objects, one a line.

While it works, lines have `progress`, a text. The last has either `text`, what the command prints for people, `content`, what
it prints with --json, `written`, the files, and `code`, its exit code; or `error`, one line, and `code`. Files are read in the
current folder alone, and in those of Python and of this package.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from trainplan.command import bars, options
from trainplan.command.app import run
from trainplan.command.render import pairs
from trainplan.profiling.base.errors import COMMAND_LINE, as_arguments

SYSTEM = ("/proc", "/sys", "/dev", "/usr")


def main() -> None:
    """The words of the command line as those of `trainplan`."""
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints goes nowhere but to standard error
    given: dict[str, Any] = {}

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=wire)

    def present(outcome: options.Outcome, written: list[Path], as_json: bool) -> None:
        outcome.show()
        pairs([("written", str(path)) for path in written])
        files = [str(path) for path in written]
        content = options.content_of(outcome)
        given.update(content=content, written=files or (content.get("written", []) if isinstance(content, dict) else []))

    options.PRESENT.set(present)
    bars.HEARD.set(lambda text: say({"progress": text}))
    folders = [Path.cwd(), tempfile.gettempdir(), sys.prefix, sys.base_prefix, *filter(None, sys.path), *_package(), *SYSTEM]
    sys.addaudithook(_only_here(folders))
    shown, told = StringIO(), StringIO()
    code: Any = 0
    try:
        with redirect_stdout(shown), redirect_stderr(told):
            run()
    except SystemExit as ended:
        code = ended.code
    notes = told.getvalue().strip()
    if given:
        text = "\n".join(filter(None, (shown.getvalue().rstrip(), notes)))
        say({"text": text, **given, "code": code})
    else:
        say({"error": _as_of_arguments(notes.splitlines()[-1]) if notes else "ended without an answer", "code": code})


def _as_of_arguments(line: str) -> str:
    """An error's line without what only a command line has: options are arguments here, and there is no --help."""
    text = line.removeprefix("trainplan: ").removeprefix(f"{COMMAND_LINE}: ")
    return as_arguments(re.sub(r" See `[^`]*--help(-all)?`\.?$", "", text))


def _package() -> list[Path]:
    """Where this package lies: the folders of its modules, links followed."""
    import trainplan

    return [Path(folder).resolve() for folder in trainplan.__path__] + [Path(__file__).resolve().parents[2]]


def _only_here(folders: list[Any]) -> Any:
    """An audit hook that refuses to open files outside of some folders, wherever their names come from."""
    roots = [Path(folder).resolve() for folder in folders]

    def look(event: str, values: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(values[0], str | bytes | os.PathLike):
            return  # a descriptor is of a file that was opened before
        path = Path(os.path.realpath(os.fsdecode(values[0])))
        if not any(path.is_relative_to(root) for root in roots):
            raise PermissionError(13, "is outside the folder of this server", str(path))

    return look


if __name__ == "__main__":
    main()
