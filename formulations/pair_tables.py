"""Tables of re-layout costs [option before, option after] in files, where equal tables and equal rows are written only once.

A re-layout depends on where the data of two strategies lies, so many rows and columns of such a table are equal, and so are the
tables of many boundaries. A file may give a table in one of three forms:

    [[0, 5], [5, 0]]                                             a row for each option before, with a number for each after
    {"before": [0, 1], "after": [0, 1], "costs_ns": [[0, 5], [5, 0]]}    the class of each option, and the costs of classes
    3                                                            the table of index 3 in the same list, which is before it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Discriminator, Field, Tag
from trainplan.formulations.numbers import Integers, TimeNs, check_length
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record

SMALL = 256  # numbers of a table that is written in full

Class = Annotated[int, Field(ge=0)]


class ClassTable(Record):
    """Costs by classes of options.

    Attributes:
        before, after: the class of each option, numbered from 0.
        costs_ns: a row for each class before, with one number for each class after.
    """

    before: list[Class]
    after: list[Class]
    costs_ns: list[list[TimeNs]]


def _form(value: Any) -> str:
    """The tag of the form that a table is written in. The tags are of a kind that errors leave out of a field's path."""
    if isinstance(value, list):
        return "list[rows]"
    return "list[index]" if isinstance(value, int) and not isinstance(value, bool) else "list[classes]"


Rows = Annotated[list[list[TimeNs]], Tag("list[rows]")]
TableIndex = Annotated[int, Field(ge=0, description="index of an equal table before this one"), Tag("list[index]")]
PairTable = Annotated[Rows | TableIndex | Annotated[ClassTable, Tag("list[classes]")], Discriminator(_form)]


def check_tables(
    field: str, tables: Sequence[Any], sizes: Sequence[tuple[int, int]], meanings: Sequence[tuple[str, str]]
) -> None:
    """Raise InputError where tables of a file do not fit the options of the same file.

    field: the list of tables that errors name.
    sizes: of each table, the numbers of options before and after.
    meanings: of each table, what its rows and its columns are, for the error's text.
    """
    for index, (table, (rows, columns), (of_rows, of_columns)) in enumerate(zip(tables, sizes, meanings, strict=True)):
        where = f"{field}[{index}]"
        if isinstance(table, int):
            if table >= index or isinstance(tables[table], int):
                raise InputError("", where, f"is {table}", "give the index of a table that stands in full before it")
            if sizes[table] != (rows, columns):
                problem = f"is {table}, a table of {' by '.join(map(str, sizes[table]))} options"
                raise InputError("", where, problem, f"give one of {rows} by {columns}")
        elif isinstance(table, list):
            check_length(where, table, rows, of_rows, "rows")
            for row, costs in enumerate(table):
                check_length(f"{where}[{row}]", costs, columns, of_columns)
        else:
            check_length(f"{where}.before", table.before, rows, of_rows)
            check_length(f"{where}.after", table.after, columns, of_columns)
            check_length(f"{where}.costs_ns", table.costs_ns, max(table.before) + 1, "one for each class before", "rows")
            for row, costs in enumerate(table.costs_ns):
                check_length(f"{where}.costs_ns[{row}]", costs, max(table.after) + 1, "one for each class after")


def costs_of(table: Any) -> list[int]:
    """All costs of a table of a file as one list; empty for an index, which refers to the numbers of another table."""
    rows = () if isinstance(table, int) else table if isinstance(table, list) else table.costs_ns
    return [ns for row in rows for ns in row]


def arrays_of(tables: Sequence[Any]) -> list[Integers]:
    """Checked tables of a file as arrays (options before, options after); equal tables are one object."""
    arrays: list[Integers] = []
    for table in tables:
        if isinstance(table, int):
            arrays.append(arrays[table])
        elif isinstance(table, list):
            arrays.append(np.array(table, np.int64))
        else:
            arrays.append(np.array(table.costs_ns, np.int64)[np.ix_(table.before, table.after)])
    return arrays


def tables_in_file(arrays: Sequence[Integers]) -> list[Any]:
    """Arrays as files hold them: equal ones once, and large ones by classes where that takes less than half of the numbers."""
    indices: dict[tuple[Any, ...], int] = {}
    index_of: dict[int, int] = {}  # by the identity of an array
    written: list[Any] = []
    for index, array in enumerate(arrays):
        first = index_of.get(id(array))
        if first is None:
            first = index_of[id(array)] = indices.setdefault((array.shape, array.tobytes()), index)
        written.append(_written(array) if first == index else first)
    return written


def _written(array: Integers) -> Any:
    """One array in its shorter form: in full, or by classes."""
    if array.size < SMALL:
        return array.tolist()
    rows, before = np.unique(array, axis=0, return_inverse=True)
    costs, after = np.unique(rows, axis=1, return_inverse=True)
    if 2 * (costs.size + sum(array.shape)) >= array.size:
        return array.tolist()
    return {"before": before.reshape(-1).tolist(), "after": after.reshape(-1).tolist(), "costs_ns": costs.tolist()}
