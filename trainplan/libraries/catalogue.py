"""The library's entries by name: those that come with the package, or those in a folder.

A small file, `index.json`, has the fields that lists show, so that a list need not read every entry. An entry whose file is
newer than the index, or not in it, is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar

from trainplan.formulations.problem import problem_names
from trainplan.libraries.records import SUFFIX, Entry, compressed, file_name, read_entry
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import FilePath, write_whole
from trainplan.tabular import Tabular

INDEX = "index.json"
STATUSES = ("easy", "hard", "open")


class Library(Tabular):
    """The library, or a part of it: a table with a row for each entry, an iterable of entries, and entries by name:
    `tp.library()["chain/bert-huge-32-titan-8"].best`.
    """

    headings: ClassVar = {
        "name": "name",
        "layers": "layers",
        "devices": "devices",
        "status": "status",
        "best_ns": "best known",
        "bound_ns": "lower bound",
        "gap": "gap",
        "checked_gap": "gap by evidence",
    }

    def __init__(self, folder: Path, rows: Sequence[dict[str, Any]]) -> None:
        """folder: where the files are. rows: the entries' fields, as `row_of` gives them."""
        self.folder = folder
        self._rows = list(rows)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each entry, in the order of the names. Keys: name, problem, status, infeasible, best_ns, bound_ns,
        checked_bound_ns (None if unknown), gap (of best_ns and bound_ns), checked_gap (of best_ns and checked_bound_ns),
        evidence (its kind), method (which found the best solution), layers, devices, memory_bytes (None where the problem has
        none), source, about and instance_hash."""
        return [dict(row) for row in self._rows]

    @property
    def names(self) -> list[str]:
        """The names of the entries, sorted."""
        return [row["name"] for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Entry]:
        return map(self.__getitem__, self.names)

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name. Raises InputError if there is none, or if its file has that of another."""
        if name not in self:
            near = get_close_matches(str(name), self.names, n=1, cutoff=0.3)
            fix = f"give one that `trainplan library list` has{', such as ' + near[0] if near else ''}"
            raise InputError("library", "name", f"is {name!r}", fix)
        path = self.folder / file_name(name)
        entry = read_entry(path)
        if entry.name != name:
            raise InputError(str(path), "name", f"is {entry.name!r}", f"give {name!r}, or rename the file")
        return entry

    def matching(self, pattern: str = "*", problem: str | None = None, status: str | None = None) -> Library:
        """The entries whose name matches a pattern with the wildcards * and ?, or begins with it, such as `joint/`.

        problem, status: only entries of this problem, or with this status. Raises InputError if nothing is left, or for a
        problem or a status that does not exist.
        """
        for field, value, possible in (("--problem", problem, problem_names()), ("--status", status, STATUSES)):
            if value is not None and value not in possible:
                raise InputError("command line", field, f"is {value!r}", one_of(value, list(possible)))
        wanted = {"problem": problem, "status": status}
        named = [
            row
            for row in self._rows
            if fnmatchcase(row["name"], pattern) or (pattern.endswith("/") and row["name"].startswith(pattern))
        ]
        rows = [row for row in named if all(value in (None, row[field]) for field, value in wanted.items())]
        if not rows:
            given = " and ".join([repr(pattern), *(f"--{name} {value}" for name, value in wanted.items() if value)])
            fix = f"`trainplan library list` has {len(self)} names, such as {self.names[0]}" if len(self) else "add entries"
            if not named and any(name.startswith(pattern) for name in self.names):
                fix = f"give '{pattern}*' for the names that begin with it"
            raise InputError("command line", "PATTERN", f"is {given}, which no entry has", fix)
        return Library(self.folder, rows)

    def notes(self) -> list[str]:
        """The number of entries by status, as a line below the table."""
        counts = {status: sum(row["status"] == status for row in self._rows) for status in STATUSES}
        return [", ".join(f"{count} {status}" for status, count in counts.items() if count)] if self._rows else []


def row_of(entry: Entry) -> dict[str, Any]:
    """The fields of an entry that lists show, by name; see `Library.rows`."""
    checked, best = entry.checked_lower_bound, entry.upper_bound
    size = {name: entry.size.get(name) for name in ("devices", "memory_bytes")}
    layers = next((entry.size[name] for name in ("layers", "units", "sublayers") if name in entry.size), None)
    return {
        "name": entry.name,
        "problem": entry.problem,
        "status": entry.status,
        "infeasible": entry.infeasible,
        "best_ns": entry.best,
        "bound_ns": entry.bound,
        "checked_bound_ns": None if checked is None else checked.value,
        "gap": 0.0 if entry.infeasible else entry.gap,
        "checked_gap": None if checked is None or not entry.best else (entry.best - checked.value) / entry.best,
        "evidence": None if checked is None else checked.kind,
        "method": None if best is None else best.method,
        "layers": layers,
        **size,
        "source": ", ".join(f"{kind} {value}" for kind, value in entry.source.items()),
        "about": entry.about,
        "instance_hash": entry.instance_hash,
    }


@cache
def shipped_folder() -> Path:
    """The folder of the entries that come with the package."""
    with as_file(files("trainplan.data") / "library") as folder:
        return folder


def library(folder: FilePath | None = None) -> Library:
    """The entries in a folder, or those that come with the package. Raises InputError for a folder that does not exist, or a
    file in it that is no entry."""
    target = shipped_folder() if folder is None else Path(folder)
    if not target.is_dir():
        raise InputError(
            str(target), "", "is no folder", "name a folder with entries, or leave it out for those of the package"
        )
    return Library(target, _rows(target))


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of all entries in a folder: from its index, as far as the index has the files' present sizes."""
    indexed = _indexed(folder)
    rows = []
    for found in sorted(os.scandir(folder), key=lambda found: found.name):
        if not found.name.endswith(SUFFIX):
            continue
        size, row = indexed.get(found.name, (None, {}))
        rows.append(row if size == found.stat().st_size else row_of(read_entry(Path(found.path))))
    return sorted(rows, key=lambda row: str(row["name"]))


def _indexed(folder: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """The content of a folder's index: by name of a file, its size in bytes and its entry's row; nothing if there is no
    readable index."""
    try:
        content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return {name: (int(held["bytes"]), dict(held["row"])) for name, held in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_entry(folder: Path, entry: Entry) -> Path:
    """Write an entry's file into a folder, with its row in the folder's index, and return the file. An entry of the same name
    is replaced. Nothing is checked: see `adding.add`."""
    target = folder / file_name(entry.name)
    write_whole(target, compressed(entry.model_dump(mode="json")))
    write_index(folder, [entry])
    return target


def write_index(folder: Path, changed: Sequence[Entry] = ()) -> None:
    """Write the index of a folder. changed: entries that are in their files, and need not be read."""
    fresh = {file_name(entry.name): row_of(entry) for entry in changed}
    indexed, content = _indexed(folder), {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        size, (known, row) = path.stat().st_size, indexed.get(path.name, (None, {}))
        if path.name in fresh or known != size:
            row = fresh.get(path.name) or row_of(read_entry(path))
        content[path.name] = {"bytes": size, "row": row}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(held)}" for name, held in content.items())
    write_whole(folder / INDEX, f'{{"files": {{\n{lines}\n}}}}\n')
