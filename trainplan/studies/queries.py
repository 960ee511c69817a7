"""Queries of a study's rows in SQL: a database in memory that queries can only read, and their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Thread
from typing import Any, TypeVar
from weakref import finalize

import duckdb

from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.studies.rows import COLUMNS
from trainplan.tabular import Tabular, cell_text

Found = TypeVar("Found")
VIEWS = "`cells` (the current result of each cell) or `all_rows` (earlier ones, too)"
LONGEST_ROW = 2**28  # bytes of a row as JSON
MOST_ROWS = 1_000_000  # of an answer
MEMORY = "4GiB"  # of a query


@dataclass(frozen=True, repr=False)
class Answer(Tabular):
    """The answer to a query: `columns`, the distinct names of its columns, and `values`, a tuple of values for each row."""

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @property
    def headings(self) -> dict[str, str]:  # type: ignore[override]
        """The columns' names by themselves: a query's own names are its headings."""
        return dict(zip(self.columns, self.columns, strict=True))

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.values]

    def cells(self) -> list[list[str]]:
        """The texts of the table's cells, formatted for people: the end of a column's name (such as `_ns`) states its unit."""
        return [[_text(name, value) for name, value in zip(self.columns, row, strict=True)] for row in self.values]


def _text(name: str, value: Any) -> str:
    """A value of a query's answer as text, formatted by its column's name if that states a unit that the value can have."""
    try:
        text = cell_text(name, value)
    except (KeyError, TypeError, ValueError, OverflowError):
        return str(value)
    return f"{value:.6g}" if isinstance(value, float) and text == str(value) else text


class Database:
    """A DuckDB database in memory with a study's rows in the tables `cells` and `all_rows`.

    Its queries can read no file, and write none but those that `export` makes of their answers.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], current: Sequence[str]) -> None:
        """rows: all rows, with the columns of COLUMNS. current: the keys of those that are in the table `cells`."""
        folder = mkdtemp(prefix="trainplan-")
        finalize(self, rmtree, folder, ignore_errors=True)
        self._folder, self._connection = Path(folder), duckdb.connect()
        source = self._folder / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        columns = ", ".join(f"{name}: '{column.type}'" for name, column in COLUMNS.items())
        reading = f"read_json(?, format = 'newline_delimited', columns = {{{columns}}}, maximum_object_size = {LONGEST_ROW})"
        self._connection.execute(f"CREATE TABLE all_rows AS FROM {reading}", [str(source)])
        source.unlink()
        query = "CREATE TABLE cells AS FROM all_rows WHERE key IN (SELECT unnest(?)) ORDER BY rowid"
        self._connection.execute(query, [list(current)])
        for setting in (
            f"allowed_directories = [{_quoted(folder)}]",
            "temp_directory = ''",
            f"memory_limit = '{MEMORY}'",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def answer(self, query: str) -> Answer:
        """The answer to a query. Raises InputError for a query that is wrong, that is no single SELECT, that reads anything but
        the two tables, or that has more than MOST_ROWS rows."""
        _check_reads(query)
        names, values = self._interruptible(lambda: self._fetched(query))
        if len(values) > MOST_ROWS:
            raise InputError(COMMAND_LINE, "query", f"has more than {MOST_ROWS:,} rows", "add a LIMIT to it")
        return Answer(_distinct(names), tuple(values))

    def export(self, query: str, form: str, ending: str) -> bytes:
        """The content of a file with the answer to a query. form: options of COPY, such as "FORMAT parquet". ending: of
        the file's name. Raises InputError as `answer` does."""
        _check_reads(query)
        target = self._folder / f"answer{ending}"
        copy = f"COPY ({query.strip().rstrip(';')}\n) TO {_quoted(str(target))} ({form})"
        try:
            self._interruptible(lambda: self._connection.execute(copy))
            return target.read_bytes()
        finally:
            target.unlink(missing_ok=True)

    def _fetched(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of a query's columns and its rows, at most one more than MOST_ROWS."""
        cursor = self._connection.execute(query)
        return [column[0] for column in cursor.description or ()], cursor.fetchmany(MOST_ROWS + 1)

    def _interruptible(self, work: Callable[[], Found]) -> Found:
        """The result of a function that runs a query; Ctrl-C ends the query. Raises InputError if DuckDB refuses the query."""
        running = _Running(work)
        try:
            running.start()
            result: Found = running.ended.result()
        except duckdb.Error as error:
            raise _refusal(error) from None
        except BaseException:
            while running.ident is not None and not running.ended.done():  # a query that has not begun is not interrupted
                self._connection.interrupt()
                wait([running.ended], 0.05)
            raise
        return result


class _Running(Thread):
    """A thread that runs a function, whose result or error is in the attribute `ended`."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.ended = work, Future[Any]()

    def run(self) -> None:
        """Run the function, as the thread does once it is started."""
        try:
            self.ended.set_result(self.work())
        except BaseException as error:
            self.ended.set_exception(error)


def _quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _check_reads(query: str) -> None:
    """Raise InputError unless a query is a single statement that only reads (a SELECT)."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise _refusal(error) from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        problem = f"has {len(statements)} statements" if len(statements) != 1 else "is no SELECT"
        raise InputError(COMMAND_LINE, "query", problem, f"give one SELECT from {VIEWS}")


def _refusal(error: duckdb.Error) -> InputError:
    """The one-line error for a query that DuckDB refuses, with the columns that it proposes if there are any."""
    if isinstance(error, duckdb.PermissionException):
        return InputError(COMMAND_LINE, "query", "reads outside of the study", f"select from {VIEWS}")
    near = re.search(r"Candidate bindings: (.*)", str(error))
    listed = f"did you mean one of {near[1]}?" if near else f"select from {VIEWS}; `describe cells` lists the columns"
    return InputError(COMMAND_LINE, "query", f"is refused by DuckDB ({_first_line(error)})", listed)


def _first_line(error: Exception) -> str:
    """The first line of an exception's text, without a full stop."""
    return str(error).partition("\n")[0].rstrip(".! ")


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names of columns made distinct: a repeated one gets a number, such as `value_1`."""
    found: list[str] = []
    for name in names:
        number = 0
        while (candidate := f"{name}_{number}" if number else name) in found:
            number += 1
        found.append(candidate)
    return tuple(found)
