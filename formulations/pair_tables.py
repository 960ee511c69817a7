"""Tables of re-layout costs [option before, option after] in files, where equal tables and equal rows are written only once.

A re-layout depends on where the data of two strategies lies; therefore such a table has many equal rows and columns, and many
boundaries have equal tables. A file may give a table in one of three forms:

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
    """A table of costs of pairs of options in short form: options with equal costs are one class.

    Attributes:
        before, after: the class of each option before and after the boundary between two layers, numbered from 0.
        costs_ns: (classes before, classes after), the cost in ns.
    """

    before: list[Class]
    after: list[Class]
    costs_ns: list[list[TimeNs]]


def _form(value: Any) -> str:
    """The tag that tells pydantic in which of three forms a file gives a table of costs: rows (a list), the index of an equal
    table (a whole number), or classes of options.

    Tags begin with "list[", which error messages leave out of a field's path.
    """
    if isinstance(value, list):
        return "list[rows]"
    return "list[index]" if isinstance(value, int) and not isinstance(value, bool) else "list[classes]"


Rows = Annotated[list[list[TimeNs]], Tag("list[rows]")]
TableIndex = Annotated[int, Field(ge=0, description="index of an equal table before this one"), Tag("list[index]")]
PairTable = Annotated[Rows | TableIndex | Annotated[ClassTable, Tag("list[classes]")], Discriminator(_form)]


def check_tables(
    field: str, tables: Sequence[Any], sizes: Sequence[tuple[int, int]], meanings: Sequence[tuple[str, str]]
) -> None:
    """Raise InputError if tables of costs do not have the sizes that the options in the same file imply. A table has a cost for
    each pair of an option before and an option after a boundary between layers.

    field: the name of the list that holds the tables, for errors. tables: in any of the three forms of files. sizes: for each
    table, the numbers of options before (rows) and after (columns). meanings: for each table, what one row and one column stand
    for, for errors.
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
    """All costs in ns of one table in a file, in any order, as one list; empty if the file gives only the index of an equal
    table."""
    rows = () if isinstance(table, int) else table if isinstance(table, list) else table.costs_ns
    return [ns for row in rows for ns in row]


def arrays_of(tables: Sequence[Any]) -> list[Integers]:
    """The arrays of costs in ns that a file's checked tables stand for, (options before, options after) a boundary between
    layers; tables that are equal share one array."""
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
    """The form that a file has for arrays of costs in ns, (options before, options after): for an array equal to an earlier one
    that one's index, for large arrays classes of options with equal costs, if these take less than half of the numbers,
    otherwise lists of rows."""
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
    """One array of costs in the shorter of two forms for a file: lists of rows, or, for arrays of at least SMALL numbers that
    repeat rows and columns, a dict with the fields of `ClassTable`."""
    if array.size < SMALL:
        return array.tolist()
    rows, before = np.unique(array, axis=0, return_inverse=True)
    costs, after = np.unique(rows, axis=1, return_inverse=True)
    if 2 * (costs.size + sum(array.shape)) >= array.size:
        return array.tolist()
    return {"before": before.reshape(-1).tolist(), "after": after.reshape(-1).tolist(), "costs_ns": costs.tolist()}
