"""How the command ends: an exit code, and at most one line on standard error. It imports nothing that takes long."""

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

FINE, BAD_INPUT, STOPPED = 0, 2, 3
LONGEST_LINE = 4000  # letters on standard error
OUTPUT = "standard output"
OUTPUT_FIX = "send it to a file, a pipe or a terminal that takes it"


class OutputError(Exception):
    """Standard output takes no more, though a reader has not closed it."""

    def __init__(self, error: OSError) -> None:
        self.fields = {"where": OUTPUT, "field": "", "problem": f"cannot be written ({error.strerror})", "fix": OUTPUT_FIX}
        super().__init__(f"{OUTPUT}: {self.fields['problem']}; {OUTPUT_FIX}")


class Output:
    """Standard output, whose failures are OutputErrors, so that nothing takes them for those of another file."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """As of any text stream. Raises OutputError; BrokenPipeError where the reader has gone."""
        return int(self._do(self.stream.write, text))

    def flush(self) -> None:
        """As of any text stream. Raises OutputError; BrokenPipeError where the reader has gone."""
        self._do(self.stream.flush)

    def _do(self, action: Any, *values: str) -> Any:
        try:
            return action(*values)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from None


def tell(text: str) -> None:
    """One line on standard error, where there is one that takes it."""
    with suppress(OSError):
        print(printable(text, LONGEST_LINE), file=sys.stderr, flush=True)


def stop(text: str, code: int, fields: Mapping[str, str] | None = None) -> NoReturn:
    """End with one line on standard error; where JSON is asked for, with that on standard output, too."""
    if "--json" in sys.argv:
        import json

        print(json.dumps({"error": {"message": text, **(fields or {})}, "exit_code": code}, indent=2))
    tell(f"trainplan: {text}")
    raise SystemExit(code)


def exit_code(module: str) -> int | str | None:
    """Run the command of a module (its function `run`), and say with which code it ends.

    A reader that closes the pipe early, such as `head`, is no error. Raises KeyboardInterrupt.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends its processes as Ctrl-C does
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
    sys.stderr = sys.stderr or _nowhere()  # None where the caller has closed it: `print` would take standard output then
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
    """A stream that keeps nothing."""
    return open(os.devnull, "w")


def _drop_output() -> None:
    """What is left in the buffer of standard output goes nowhere, so that Python does not try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
