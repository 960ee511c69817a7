"""The folder of a study: finished cells in a journal and in Parquet files, and the files of plans, solutions and histories.

A row is first appended to journal-NNNNN.jsonl, which is flushed to the disk. Once the journal has BATCH rows, or the study
ends, cells-NNNNN.parquet is written with the same rows under a temporary name and renamed, and then the journal is removed;
where both are there, the journal counts for nothing. So a process may be killed at any moment, and nothing but the cells that
were running is lost. The order of the files and of the rows in them is the order in which rows were written: of rows with one
key, and of rows with one name, the last one counts.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

import duckdb

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath, to_disk, write_whole
from trainplan.profiling.base.yaml_files import yaml_text
from trainplan.studies.rows import COLUMNS, row_of

BATCH = 1000  # rows of a Parquet file
STUDY, LOCK = "study.yaml", ".lock"
FILES = {"plan_path": "plans", "solution_path": "solutions", "history_path": "history"}  # folders of the columns' files
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # the system's error numbers for a full disk
_NUMBER = re.compile(r"(?:journal|cells)-(\d{5,})\.(?:jsonl|parquet)")
_open: set[str] = set()  # folders that this process writes: locks of files do not keep a process from itself


class StudyStopped(Exception):
    """A study cannot go on, such as since the disk is full: one line for users, who can resume it. Nothing is half written."""


def read_rows(folder: FilePath) -> list[dict[str, Any]]:
    """All rows in a study's folder in the order in which they were written, also while the study runs; of rows with one key the
    last. A torn last line of the journal is left out. Raises InputError for a file that cannot be read."""
    path = Path(folder)
    journals = {
        _number(file): (file, _content(file)) for file in path.glob("journal-*.jsonl")
    }  # before the batches, which follow
    batches = {_number(file): file for file in path.glob("cells-*.parquet")}
    rows: dict[str, dict[str, Any]] = {}
    for number in sorted({*journals, *batches}):
        for row in _batch_rows(batches[number]) if number in batches else _journal_rows(*journals[number]):
            rows.pop(row["key"], None)  # so that the row's position is that of the last one
            rows[row["key"]] = row
    return list(rows.values())


def _batch_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file. Raises InputError if it cannot be read."""
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            table = connection.execute("SELECT * FROM read_parquet(?)", [str(file)])
            names = [column[0] for column in table.description or ()]
            return [dict(zip(names, values, strict=True)) for values in table.fetchall()]
    except duckdb.Error as error:
        fix = "restore it, or remove it: its cells are then solved again"
        raise InputError(str(file), "", f"cannot be read ({str(error).splitlines()[0]})", fix) from None


def current_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last row of each cell, by the cell's name. rows: in the order in which they were written."""
    return {row["name"]: row for row in rows}


class Storage:
    """The only writer of a study's folder, as a context manager; another one is refused meanwhile.

    Files that a killed writer has left half written are removed at the beginning.
    """

    def __init__(self, folder: FilePath, content: Mapping[str, Any]) -> None:
        """folder: made if it does not exist. content: the study as plain data, of which the folder gets a copy. Raises
        InputError if the folder cannot be written, or another process writes it."""
        self.folder, self.content = Path(folder), content
        self._rows = 0  # of the journal

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(str(self.folder), "", f"cannot be made ({error.strerror})", "name a folder to write to") from None
        self._lock()
        try:
            self._clean()
            self._write_study()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Put the journal's rows into a Parquet file, unless the disk was full, and let others write."""
        try:
            self._journal.close()
            if not self._rows:
                self._path.unlink(missing_ok=True)
            elif kind is None:
                self._seal(self._path)
        finally:
            self._unlock()

    def append(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Store finished cells: the files of each, and then all rows. They are on the disk when this returns.

        results: rows, in which "files" may have the contents of files by column (the keys of FILES). Raises StudyStopped where
        the disk is full; none of the rows is stored then.
        """
        if not results:
            return
        before = os.fstat(self._journal.fileno()).st_size
        try:
            lines = [json.dumps(with_files(self.folder, result), ensure_ascii=False) + "\n" for result in results]
            rest = memoryview("".join(lines).encode())
            while rest:
                rest = rest[self._journal.write(rest) :]
            os.fsync(self._journal.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._path, before)
            raise self._stopped(error) from None
        self._rows += len(results)
        if self._rows >= BATCH:
            self._journal.close()
            self._seal(self._path)
            self._begin(_number(self._path) + 1)

    def _seal(self, journal: Path) -> None:
        """Write a journal's rows as a Parquet file, and remove the journal. Raises StudyStopped where the disk is full; the
        journal stays then."""
        target = self.folder / f"cells-{_number(journal):05}.parquet"
        temporary = target.with_name(f".{token_hex(8)}.part")
        types = ", ".join(f"{name}: '{column.type}'" for name, column in COLUMNS.items())
        source = f"read_json(?, format='newline_delimited', columns={{{types}}}, maximum_object_size=268435456)"
        try:
            with duckdb.connect(config={"threads": 1}) as connection:
                named = str(temporary).replace("'", "''")
                connection.execute(f"COPY (FROM {source}) TO '{named}' (FORMAT parquet)", [str(journal)])
            to_disk(temporary)
            temporary.replace(target)
            to_disk(self.folder)
            journal.unlink()
        except (OSError, duckdb.Error) as error:
            temporary.unlink(missing_ok=True)
            raise self._stopped(error) from None

    def _clean(self) -> None:
        """Remove what a killed writer has left: temporary files, a journal whose rows are in a Parquet file, and a torn last
        line of the journal; and open the journal."""
        for path in self.folder.rglob(".*.part"):
            path.unlink(missing_ok=True)
        batches = {_number(file) for file in self.folder.glob("cells-*.parquet")}
        journals = sorted(self.folder.glob("journal-*.jsonl"), key=_number)
        for journal in [file for file in journals if _number(file) in batches]:
            journal.unlink()
        journals = [file for file in journals if _number(file) not in batches]
        for journal in journals:
            content = journal.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(journal, len(whole))
        for journal in journals[:-1]:
            self._seal(journal)
        self._begin(max([*batches, *map(_number, journals[-1:])], default=0) + (not journals))

    def _begin(self, number: int) -> None:
        """Open the journal of a number to append rows; it is made if it does not exist."""
        self._path = self.folder / f"journal-{number:05}.jsonl"
        try:
            self._journal = self._path.open("ab", buffering=0)
            self._rows = len(_journal_rows(self._path, _content(self._path)))
        except OSError as error:
            raise self._stopped(error) from None

    def _write_study(self) -> None:
        """Write the copy of the study into the folder, unless it is there already."""
        text, target = yaml_text(dict(self.content)), self.folder / STUDY
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            write_whole(target, text)

    def _lock(self) -> None:
        """Keep others from writing the folder. Raises InputError if another writer is there."""
        name = str(self.folder.resolve())
        refusal = InputError(str(self.folder), "", "is being written by another study", "wait for it, or name another folder")
        if name in _open:
            raise refusal
        try:
            self._lock_file = (self.folder / LOCK).open("a")
        except OSError as error:
            raise InputError(str(self.folder), "", f"cannot be written ({error.strerror})", "name a writable folder") from None
        try:
            import fcntl

            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # on Windows only this process keeps itself from the folder
            pass
        except OSError:
            self._lock_file.close()
            raise refusal from None
        _open.add(name)

    def _unlock(self) -> None:
        """Let others write the folder."""
        _open.discard(str(self.folder.resolve()))
        self._lock_file.close()

    def _stopped(self, error: Exception) -> StudyStopped:
        """The line for users about a failure to write."""
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        full = isinstance(error, OSError) and error.errno in FULL
        fix = "free some space, and give the same line again" if full else "give the same line again when it can be written"
        return StudyStopped(f"{self.folder}: cannot be written ({reason}); what is finished is kept: {fix}")


def with_files(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose files are written, with their paths, relative to the study's folder, in the place of their contents.

    result: a row, in which "files" may have the contents of files by column (the keys of FILES). Raises OSError.
    """
    values = dict(result)
    for column, content in values.pop("files", {}).items():
        path = Path(FILES[column], values["key"][:2], f"{values['key']}.json")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{token_hex(8)}.part")
        try:
            temporary.write_text(content, encoding="utf-8")
            temporary.replace(target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        values[column] = str(path)
    return row_of(values)


def _number(file: Path) -> int:
    """The number in the name of a journal or a Parquet file; 0 for a file of another name."""
    match = _NUMBER.fullmatch(file.name)
    return int(match[1]) if match else 0


def _content(file: Path) -> bytes:
    """The content of a journal; empty if it has just been removed."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _journal_rows(file: Path, content: bytes) -> list[dict[str, Any]]:
    """The rows of a journal with the given content; a torn last line is left out. Raises InputError for another line that is no
    row."""
    rows = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            _ = row["key"], row["name"]
        except (ValueError, KeyError, TypeError):
            raise InputError(str(file), f"line {number}", "is no row of a study", "remove the line") from None
        rows.append(row)
    return rows
