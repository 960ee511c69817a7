"""The results of a study, read from its folder: rows, a DataFrame, queries in SQL, pictures and the page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

from trainplan.pictures import drawn
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, printable
from trainplan.profiling.base.files import FilePath, read_data
from trainplan.profiling.base.quantities import plural
from trainplan.reports.study import study_page
from trainplan.studies.queries import Answer, Database
from trainplan.studies.rows import COLUMNS, row_of
from trainplan.studies.storage import STUDY, current_rows, read_rows
from trainplan.studies.summary import Summary, contradictions, failures, summary
from trainplan.tabular import frame_of

FOLDER_FIX = "name the folder that `trainplan study -o` has written"
FORMATS = {".csv": "FORMAT csv, HEADER", ".json": "FORMAT json, ARRAY true", ".parquet": "FORMAT parquet"}
LONGEST_NAME = 60  # letters of a study's name in a repr
DTYPES = {"BIGINT": "Int64", "DOUBLE": "float64", "BOOLEAN": "bool"}  # of pandas, by type in DuckDB; other columns are objects
PICTURES = {
    "profile": "trainplan.pictures.study_profiles:draw_performance",
    "gap": "trainplan.pictures.study_profiles:draw_gaps",
    "step": "trainplan.pictures.studies:draw_steps",
    "heat": "trainplan.pictures.studies:draw_heat",
}


class Study:
    """The results of a study: one row for each of its cells, with the columns of `trainplan.studies.rows.COLUMNS`.

    folder: the study's folder. name: the study's name. A study that still runs is read as it was at that moment.
    """

    def __init__(self, folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """rows: all rows of the folder in the order in which they were written."""
        self.folder, self.name = folder, name
        self._current = [dict(row) for row in current_rows(rows).values()]
        self._all = rows

    @cached_property
    def _database(self) -> Database:
        """The database that queries read, made at the first one."""
        return Database(self._all, [row["key"] for row in self._current])

    def rows(self) -> list[dict[str, Any]]:
        """The current row of each cell, as a dict by column."""
        return [dict(row) for row in self._current]

    def frame(self) -> Any:
        """The current rows as a pandas DataFrame, in which whole numbers that may be absent are of type Int64. Raises
        MissingExtra if pandas is not installed."""
        return frame_of_rows(self.rows())

    def sql(self, query: str) -> Answer:
        """The answer to a query in DuckDB's SQL over the tables `cells` (the current row of each cell) and `all_rows` (every
        row, also those of earlier versions).

        Raises InputError for a query that is wrong, that is no single SELECT, or that reads anything but these tables.
        """
        return self._database.answer(query)

    def export(self, query: str, ending: str) -> bytes:
        """The content of a file with the answer to a query. ending: .csv, .json or .parquet. Raises InputError as `sql` does,
        and for another ending."""
        if ending not in FORMATS:
            raise InputError(COMMAND_LINE, "--output", f"ends in {ending!r}", f"give a name that ends in {', '.join(FORMATS)}")
        return self._database.export(query, FORMATS[ending], ending)

    def summary(self) -> Summary:
        """The current rows summed up by problem and method."""
        return summary(self.rows())

    def failures(self) -> list[dict[str, Any]]:
        """The current cells without a solution, by status and reason (`trainplan.studies.summary.failures`)."""
        return failures(self.rows())

    def contradictions(self) -> list[str]:
        """Texts about results that cannot all be right (`trainplan.studies.summary.contradictions`)."""
        return contradictions(self.rows())

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """The history of each current row's search by the row's key: dicts with `seconds`, `value_ns`, `bound_ns` and `source`.

        Rows without a history, or whose file is absent or torn, are left out.
        """
        found = {}
        for key, path in [(row["key"], row["history_path"]) for row in self._current if row["history_path"] is not None]:
            target = (self.folder / path).resolve()
            if target.is_relative_to(self.folder.resolve()):
                with suppress(OSError, ValueError):
                    found[key] = json.loads(target.read_text(encoding="utf-8"))
        return found

    def picture(self, kind: str = "profile", **options: Any) -> Any:
        """The study as a matplotlib Figure.

        kind: profile (performance profiles), gap (gap over time), step (step time against devices, memory or batch) or heat (a
        heat map of two axes). options: keywords of the function that draws it (PICTURES), which names axes where the study's
        own choice does not do. Raises InputError for an unknown kind, or if the study has nothing to draw, and MissingExtra if
        matplotlib is not installed.
        """
        if kind not in PICTURES:
            raise InputError(COMMAND_LINE, "--kind", f"is {kind!r}", one_of(kind, PICTURES))
        if kind == "gap":
            options = {"histories": self.histories(), **options}
        return drawn(PICTURES[kind])(self.rows(), **options)

    def report(self, command: str = "") -> str:
        """One self-contained HTML page of the study: summary, pictures, failures, contradictions and all cells.

        command: the command line that makes the page, which it states. Raises InputError for a study without cells, and
        MissingExtra if matplotlib is not installed.
        """
        rows = self.rows()
        if not rows:
            raise InputError(str(self.folder), "", "has no finished cell yet", "run the study first: `trainplan study`")
        return study_page(
            name=self.name,
            rows=rows,
            histories=self.histories(),
            summary=summary(rows),
            failures=failures(rows),
            contradictions=contradictions(rows),
            command=command or f"trainplan report {quote(str(self.folder))} -o report.html",
        )

    def __repr__(self) -> str:
        counts = Counter(row["status"] for row in self._current)
        parts = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        name = self.name if len(self.name) <= LONGEST_NAME else self.name[: LONGEST_NAME - 3] + "..."
        return f"<Study {name}: {plural(counts.total(), 'cell')}{': ' * bool(parts)}{parts}>"

    def _repr_html_(self) -> str:
        """The summary as an HTML table, with the contradictions below it; notebooks call this method."""
        notes = "".join(f"<p>{escape(printable(text))}</p>" for text in [repr(self).strip("<>"), *self.contradictions()])
        return self.summary()._repr_html_() + notes


def frame_of_rows(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows of a study as a pandas DataFrame, in which whole numbers that may be absent are of type Int64. Raises MissingExtra
    if pandas is not installed."""
    frame = frame_of(rows).reindex(columns=[*COLUMNS])
    return frame.astype({name: DTYPES[column.type] for name, column in COLUMNS.items() if column.type in DTYPES})


def read(folder: FilePath) -> Study:
    """Read the results of a study from its folder, also while the study runs.

    Raises InputError for a folder that holds no study, or a file of it that cannot be read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InputError(str(folder), "", "is no folder", FOLDER_FIX)
    rows = read_rows(path)
    if not rows and not (path / STUDY).exists():
        raise InputError(str(folder), "", "holds no study", FOLDER_FIX)
    return Study(path, _name(path), [row_of({name: row.get(name) for name in COLUMNS}) for row in rows])


def _name(folder: Path) -> str:
    """The name of the study in a folder: that of its study.yaml; the folder's own if the file is absent or states none."""
    try:
        return str(read_data(folder / STUDY)["name"])
    except (InputError, KeyError, TypeError):
        return folder.resolve().name
