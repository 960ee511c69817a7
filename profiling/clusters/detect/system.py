"""Information from the system: the output of a command and the text of a file, or None."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

Run = Callable[[Sequence[str]], str | None]
Read = Callable[[str], str | None]

TIMEOUT_S = 10
LARGEST_OUTPUT_BYTES = 2**20


def run_command(command: Sequence[str]) -> str | None:
    """Run a command and return its output, cut at LARGEST_OUTPUT_BYTES; None if it is missing, fails, or takes more than
    TIMEOUT_S."""
    with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as a child of the command lives
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output.seek(0)
        return output.read(LARGEST_OUTPUT_BYTES).decode(errors="replace")


def read_text(path: str) -> str | None:
    """The text of a regular file in UTF-8; None if it cannot be read."""
    try:
        if not os.path.isfile(path):  # a pipe would wait, a device never end
            return None
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
