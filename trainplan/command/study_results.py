"""`trainplan results`: the results of a study as a table, and as a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import options
from trainplan.command.options import Command, Outcome, command_with, flag, output, word
from trainplan.command.printing import fitting, line, pairs, table
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.quantities import plural
from trainplan.studies.queries import Answer
from trainplan.studies.results import FORMATS, PICTURES, Study

EVERYTHING = "SELECT * FROM cells"
MOST_FAILURES = 8  # reasons that the summary lists


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `results`. name: the command's name. words: the command line, without
    the program's name; unused."""
    return results


@command_with(
    [
        word("folder", Path, "The folder of a study."),
        word(
            "query",
            str | None,
            "A SELECT in DuckDB's SQL, from cells (the current result of each cell) or all_rows (earlier ones, too). "
            "[default: a summary by problem and method]",
            None,
        ),
        output("Write the answer here: .csv, .parquet or .json. Without a query: every cell."),
        flag("picture", Path | None, "Draw the study here (.png, .svg or .pdf); needs the plot extra."),
        flag("kind", str, f"The picture: {', '.join(PICTURES)}.", "profile", values=lambda: PICTURES),
    ]
)
def results(folder: Path, query: str | None, output: Path | None, picture: Path | None, kind: str) -> Outcome:
    """Print the results of a study: a summary by problem and method with what failed and why, or the answer to a query.

    The columns are listed by `trainplan results FOLDER "describe cells"`. The query can only read, and only the study.
    """
    if output is not None and output.suffix not in FORMATS:
        raise InputError(COMMAND_LINE, "--output", f"is {str(output)!r}", f"give a name that ends in {', '.join(FORMATS)}")
    study = api.read_study(folder)
    files: dict[str, Callable[[], Any]] = {}
    if output is not None:
        written = study.export(query or EVERYTHING, output.suffix)
        files["output"] = lambda: written
    if picture is not None:
        drawing = study.picture(kind)
        files["picture"] = lambda: drawing
    if query is not None:
        answer = study.sql(query)
        return Outcome(
            {"columns": list(answer.columns), "rows": [_plain(row) for row in answer.rows()]}, partial(_show, answer), files
        )
    wrong, counted = study.contradictions(), study.summary()
    content = {"study": study.name, "cells": len(study.rows()), "summary": counted.rows(), "failures": study.failures()}
    code = options.INFEASIBLE if wrong else options.FINE
    content["contradictions"] = wrong
    return Outcome(content, partial(_show_summary, study), files, code)


def _plain(value: Any) -> Any:
    """A value of a query's answer as JSON has it: numbers that JSON does not have become None, moments and others texts."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)


def _show(answer: Answer) -> None:
    """Print the answer to a query as a table, with the number of its rows; columns that have texts are aligned left."""
    left = [name for index, name in enumerate(answer.columns) if any(isinstance(row[index], str) for row in answer.values)]
    table(answer.columns, answer.cells(), left=left)
    line(plural(len(answer.values), "row"))


def _show_summary(study: Study) -> None:
    """Print a study's summary: its cells by status, a table by problem and method, failures by reason, and contradictions."""
    summary, failures, wrong = study.summary(), study.failures(), study.contradictions()
    line(repr(study).strip("<>"))
    headings, words = list(summary.headings.values()), ("problem", "method", summary.headings["failures"])
    spare = [summary.headings[name] for name in ("cells", "above", "median_seconds")]
    table(*fitting(headings, summary.cells(), spare, words), left=words)
    if failures:
        rows = [[str(row["cells"]), row["status"], row["reason"] or "-"] for row in failures[:MOST_FAILURES]]
        table(("cells", "status", "reason"), rows, left=("status", "reason"))
        if len(failures) > MOST_FAILURES:
            line(f"and {len(failures) - MOST_FAILURES} further reasons, which --json lists")
    pairs([("contradiction", text) for text in wrong] or [("agreement", "no bound is above another method's value")])
