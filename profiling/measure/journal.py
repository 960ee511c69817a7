"""A file of finished measurements: a first line that identifies the measurement, then one JSON line per task."""

from __future__ import annotations

import json
import os
from math import isfinite
from pathlib import Path
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import unwritable, write_whole
from trainplan.profiling.profiles import NUMBERS

# The sets of fields that a result can have. A field's value is a number, or a number and its spread.
LARGEST = 1e15
RESULTS = (
    {"out_of_memory"},
    set(NUMBERS),
    {"seconds", "spread", "message_bytes"},
    {"to_device", "to_host", "spread"},
    {"ns_per_parameter", "spread"},
    {"compute", "communication", "spread"},
)
POSITIVE = {"seconds", "message_bytes", "to_device", "to_host"}


class Journal:
    """Results of finished measuring tasks (such as timing one sub-layer) by the task's title, kept in a file if a path is
    given, so that a measurement can be resumed.

    identity: a digest of everything that results depend on, such as model, cluster and machine; a file with another digest is
    refused. spread: the relative spread to which results are measured. results: for each title, numbers by field, as the
    tasks return them. Raises InputError if the file is not a journal, or is of another measurement.
    """

    def __init__(self, path: str | os.PathLike[str] | None, identity: str, spread: float) -> None:
        self.path, self.spread = None if path is None else Path(path), spread
        self.head = {"journal": identity, "spread": float(spread)}
        self.results: dict[str, Any] = {} if path is None else self._read()

    def _read(self) -> dict[str, Any]:
        """Read the results in the journal's file, by the tasks' titles; empty if there is no file yet. A last line that is
        incomplete, because writing was interrupted, is removed from the file.

        Raises InputError if the file is no journal, is of another measurement, or was measured to a wider spread.
        """
        assert self.path is not None
        where = os.fspath(self.path)
        if not self.path.exists():
            return {}
        try:
            if not self.path.is_file():
                raise OSError
            *lines, rest = self.path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            raise InputError(where, "", "cannot be read", "name a journal written by an earlier measurement") from None
        if rest:
            write_whole(self.path, "".join(f"{line}\n" for line in lines))
        results: dict[str, Any] = {}
        head = self.head
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line)
                if number == 1:
                    head = {name: value[name] for name in self.head}
                else:
                    results[str(value["task"])] = _checked(value["result"])
            except (ValueError, KeyError, TypeError):
                problem = f"is {shown(line)}, not a finished task"
                raise InputError(where, f"line {number}", problem, "remove the file to measure anew") from None
        if head["journal"] != self.head["journal"]:
            problem = "is of another model, cluster, machine or seed"
            raise InputError(where, "line 1", problem, "remove the file, or name another one")
        if not isinstance(head["spread"], float) or head["spread"] > self.spread:
            fix = f"use --spread {head['spread']}, or name another file"
            raise InputError(where, "line 1", f"was measured to a spread of {shown(head['spread'])}", fix)
        return results

    def add(self, title: str, result: Any) -> None:
        """Keep a task's result under the task's title, and append it to the journal's file at once. Raises InputError if the
        file is not writable.
        """
        self.results[title] = result
        if self.path is None:
            return
        new = not self.path.exists() or not self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                if new:
                    stream.write(json.dumps(self.head) + "\n")
                stream.write(json.dumps({"task": title, "result": result}) + "\n")
        except OSError as error:
            raise unwritable(self.path, error.errno) from None


def _checked(result: Any) -> Any:
    """Check a task's result as read from a journal: return it if its fields and numbers are valid; raise ValueError
    otherwise.
    """
    if not isinstance(result, dict) or set(result) not in RESULTS:
        raise ValueError
    for name, value in result.items():
        for number in value if isinstance(value, list) and len(value) == 2 else [value]:
            if not isinstance(number, int | float) or not isfinite(number) or not 0 <= number <= LARGEST:
                raise ValueError
        if isinstance(value, list) != (name in NUMBERS) or (name in POSITIVE and not value > 0):
            raise ValueError
    return result
