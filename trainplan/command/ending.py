"""How the command ends: an exit code, and at most one line on standard error. This module imports nothing that takes long."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

from trainplan.profiling.base.errors import printable

FINE, BAD_INPUT, STOPPED = 0, 2, 3  # exit codes
LONGEST_LINE = 4000  # letters of a line on standard error at most
OUTPUT = "standard output"
OUTPUT_FIX = "send it to a file, a pipe or a terminal that takes it"


class OutputError(Exception):
    """Raised if standard output cannot be written, for example since the disk is full; not if a pipe's reader has closed the
    pipe, which raises BrokenPipeError.

    Attributes:
        fields: the error as a dict with where, field, problem and fix.
    """

    def __init__(self, error: OSError) -> None:
        self.fields = {"where": OUTPUT, "field": "", "problem": f"cannot be written ({error.strerror})", "fix": OUTPUT_FIX}
        super().__init__(f"{OUTPUT}: {self.fields['problem']}; {OUTPUT_FIX}")


class Output:
    """Wraps the stream `stream` of standard output, so that a failure to write it raises OutputError, which nothing mistakes
    for an error of another file. All other attributes are those of the stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text to standard output, and return the number of its letters. Raises OutputError, or BrokenPipeError if the
        reader has closed the pipe."""
        return int(self._do(self.stream.write, text))

    def flush(self) -> None:
        """Write out what is buffered for standard output. Raises OutputError, or BrokenPipeError if the reader has closed the
        pipe."""
        self._do(self.stream.flush)

    def _do(self, action: Any, *values: str) -> Any:
        """Call a method of the wrapped stream, and return its result.

        action: the method, such as `stream.write`. values: its arguments. Raises OutputError for any OSError of the method
        except BrokenPipeError, which passes through.
        """
        try:
            return action(*values)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from None


def tell(text: str) -> None:
    """Print a text as one line on standard error, with control characters escaped; nothing happens if standard error cannot be
    written."""
    with suppress(OSError):
        print(printable(text, LONGEST_LINE), file=sys.stderr, flush=True)


def stop(text: str, code: int, fields: Mapping[str, str] | None = None) -> NoReturn:
    """End the command: print one line on standard error, and raise SystemExit with the exit code; with `--json` on the command
    line, first print the error as JSON on standard output.

    text: the line. code: the exit code. fields: the error's parts for the JSON (where, field, problem, fix); None if it has
    none.
    """
    if "--json" in sys.argv:
        import json

        print(json.dumps({"error": {"message": text, **(fields or {})}, "exit_code": code}, indent=2))
    tell(f"trainplan: {text}")
    raise SystemExit(code)


def exit_code(module: str) -> int | str | None:
    """Run the function `run` of a module, which ends by raising SystemExit, and return the exit code.

    module: the module's dotted name. A reader that closes the pipe of standard output early, such as `head`, is no error (exit
    code 0); any other failure of standard output is reported in one line (exit code 2). SIGTERM raises KeyboardInterrupt, as
    Ctrl-C does; the caller has to catch it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the command's own processes are ended, too
    stdout = sys.stdout
    try:
        code = _run(module)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        code = FINE
    except OutputError as error:
        _drop_output()
        tell(f"trainplan: {error}")
        code = BAD_INPUT
    finally:
        sys.stdout = stdout
    return code


def _run(module: str) -> int | str | None:
    """Run the function `run` of a module while `sys.stdout` is wrapped in `Output`, and return its exit code; 0 if it does not
    raise SystemExit.

    module: the module's dotted name. Leaves `sys.stdout` wrapped. Raises OutputError and BrokenPipeError if standard output
    cannot be written.
    """
    sys.stderr = sys.stderr or _nowhere()  # None where the caller has closed it; `print` would then use standard output
    if sys.stdout is None:
        sys.stdout = _nowhere()
        raise OutputError(OSError(errno.EBADF, "it is closed"))
    sys.stdout = Output(sys.stdout)
    try:
        import_module(module).run()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        return error.code
    return FINE


def _nowhere() -> TextIO:
    """A text stream that discards everything that is written to it (os.devnull)."""
    return open(os.devnull, "w")


def _drop_output() -> None:
    """Discard what is still in the buffer of standard output, by sending file descriptor 1 to os.devnull, so that Python does
    not fail again when it flushes the buffer at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
