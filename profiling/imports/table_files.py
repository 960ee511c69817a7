"""Tables in `.npy` and `.csv` files: columns, and cells by line."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import LARGEST_FILE_BYTES

SUFFIXES = (".npy", ".csv")
HEADER = "layer,tp1,tp2 or layer,tp,seconds"
MOST_CELLS = 320_000


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a table from a `.npy` or `.csv` file: {"columns": [...], "cells": [[...], ...]}.

    Columns are names or, without a header, indices from 0. Cells are by line: numbers, or texts if they are no numbers. Raises
    InputError for a file that cannot be read or has no cells.
    """
    where = os.fspath(path)
    try:
        if Path(path).stat().st_size > LARGEST_FILE_BYTES:
            raise InputError(where, "", "is too large", f"give at most {LARGEST_FILE_BYTES // 2**20} MiB")
        columns, cells = _array(where) if where.lower().endswith(".npy") else _lines(where)
    except FileNotFoundError:
        raise InputError(where, "", "does not exist", "name an existing file") from None
    except OSError as error:
        raise InputError(where, "", f"cannot be read ({error.strerror})", "name a readable file") from None
    if not cells or not columns:
        raise InputError(where, "", "has no layers", "give a row of seconds for each layer")
    if len(cells) * len(columns) > MOST_CELLS:
        raise InputError(where, "", f"has {len(cells)} x {len(columns)} cells", f"give at most {MOST_CELLS}")
    return {"columns": columns, "cells": cells}


def _array(where: str) -> tuple[list[Any], list[list[Any]]]:
    """Read a `.npy` file with one or two dimensions. Returns its columns (indices from 0) and its cells line by line. where:
    its path. Raises InputError if it cannot be read.
    """
    try:
        table = np.load(where, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy's reader of headers raises many kinds of errors
        raise InputError(where, "", f"is no array of numbers ({error})", "save one with numpy.save") from None
    if not isinstance(table, np.ndarray):
        raise InputError(where, "", "is an archive of arrays", "save one array with numpy.save")
    if table.dtype.kind not in "fiu" or table.ndim not in (1, 2) or table.size > MOST_CELLS:
        problem = f"holds {table.dtype} in the shape {table.shape}"
        raise InputError(where, "", problem, "give seconds by layer, or by layer and tensor-parallel degree")
    matrix = table.reshape(len(table), -1) if table.size else table.reshape(0, 0)
    return list(range(matrix.shape[1])), matrix.astype(float).tolist()


def _lines(where: str) -> tuple[list[Any], list[list[Any]]]:
    """Read a CSV file. Returns its columns (names of the header, or indices from 0 without one) and its cells line by line.
    where: its path. Raises InputError if it cannot be read.
    """
    try:
        with open(where, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            where, "", f"is no CSV text ({error})", f"give rows of seconds, or a header such as {HEADER}"
        ) from None
    if not rows:
        return [], []
    named = any(isinstance(_value(cell), str) for cell in rows[0])
    columns = [_column(name) for name in rows[0]] if named else list(range(len(rows[0])))
    for line, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise InputError(where, f"row {line}", f"has {len(row)} cells", f"give {len(columns)}, as in the first")
    return columns, [list(map(_value, row)) for row in rows[named:]]


def _value(text: str) -> float | str:
    """The number in a cell, or its text if it is no number."""
    try:
        return float(text)
    except ValueError:
        return text


def _column(name: str) -> str:
    """Normalise the name of a column: lower case, and `tp4` for any spelling of a column with seconds at that tensor-parallel
    degree, such as "TP_4".
    """
    digits = name.lower().removeprefix("tp").lstrip("_= ")
    return f"tp{int(digits)}" if digits.isdecimal() and len(digits) < 8 else name.lower()
