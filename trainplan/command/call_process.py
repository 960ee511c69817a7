"""One call of a command in a process of its own, for a program that reads JSON.

`python -m trainplan.command.call_process WORD...` runs `trainplan WORD...` and prints JSON objects, one a line. While the
command works, they have `progress`, a text. The last one has `text`, as the command prints it for people; `content`, as it
prints it with --json; `written`, the files that it wrote; and `code`, its exit code. Where the command failed it has `error`,
one line, and `code`. The process opens files in the current folder alone, and in those of Python, of this package and of the
system.
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
    """Run the words of this process' command line as a command line of `trainplan`, and print its progress and its answer as
    JSON objects on standard output, one a line.

    While the command works, a line is {"progress": text}. The last line has "text", "content", "written" and "code", or "error"
    and "code" if the command failed; the module's docstring describes these fields.
    """
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # so that whatever a library prints to standard output cannot mix with the JSON lines
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
    bars.LISTENER.set(lambda text: say({"progress": text}))
    folders = [Path.cwd(), tempfile.gettempdir(), sys.prefix, sys.base_prefix, *filter(None, sys.path), *_package(), *SYSTEM]
    sys.addaudithook(_only_here(folders))
    output, errors = StringIO(), StringIO()
    code: Any = 0
    try:
        with redirect_stdout(output), redirect_stderr(errors):
            run()
    except SystemExit as ended:
        code = ended.code
    notes = errors.getvalue().strip()
    if given:
        text = "\n".join(filter(None, (output.getvalue().rstrip(), notes)))
        say({"text": text, **given, "code": code})
    else:
        say({"error": _as_of_arguments(notes.splitlines()[-1]) if notes else "ended without an answer", "code": code})


def _as_of_arguments(line: str) -> str:
    """An error's line for a caller that has no command line: it names options as arguments, and does not advise `--help`.

    For example "trainplan: command line: --batch is 0; give 1. See `trainplan plan --help`." becomes "batch is 0; give 1."
    """
    text = line.removeprefix("trainplan: ").removeprefix(f"{COMMAND_LINE}: ")
    return as_arguments(re.sub(r" See `[^`]*--help(-all)?`\.?$", "", text))


def _package() -> list[Path]:
    """The folders that hold the modules of the package trainplan, with symbolic links followed."""
    import trainplan

    return [Path(folder).resolve() for folder in trainplan.__path__] + [Path(__file__).resolve().parents[2]]


def _only_here(folders: list[Any]) -> Any:
    """An audit hook for `sys.addaudithook` that lets Python open files only inside the given folders.

    folders: paths, also as texts. The hook raises PermissionError when any other file is opened, including one whose path is a
    symbolic link inside a folder to a file outside it.
    """
    roots = [Path(folder).resolve() for folder in folders]

    def check(event: str, values: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(values[0], str | bytes | os.PathLike):
            return  # a descriptor belongs to a file that was opened before
        path = Path(os.path.realpath(os.fsdecode(values[0])))
        if not any(path.is_relative_to(root) for root in roots):
            raise PermissionError(13, "is outside the folder of this server", str(path))

    return check


if __name__ == "__main__":
    main()
