"""Options that meet equal re-layout costs, found in the tables alone: the integer formulations use their classes.

A transition depends on where the data lies, not on the whole strategy, so many rows and columns of a transition table are
equal. One flow variable per pair of classes, not of options, has the same linear relaxation with far fewer columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.formulations.numbers import Integers

Classes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LayoutBoundary:
    """Between two layers: options of each class before and after, and the cost of each pair of classes (nanoseconds).

    entries_ns: by class after it, where a stage may begin there; else empty.
    """

    before: Classes
    after: Classes
    costs_ns: Classes
    entries_ns: tuple[int, ...] = ()

    @property
    def free(self) -> bool:
        """Whether no transition here costs anything."""
        return not any(map(any, self.costs_ns))


def layout_boundary(table: Integers, entries: Integers | None = None) -> LayoutBoundary:
    """The boundary of a table [option before, option after], and of what an option costs where a stage begins with it."""
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    stacked = rows if entries is None else np.vstack([rows, entries])
    columns, column_of = np.unique(stacked, axis=1, return_inverse=True)
    values = tuple(tuple(row) for row in columns.tolist())
    return LayoutBoundary(
        _classes(row_of, len(rows)), _classes(column_of, columns.shape[1]), values[: len(rows)], sum(values[len(rows) :], ())
    )


def _classes(class_of: Integers, count: int) -> Classes:
    return tuple(tuple(np.flatnonzero(class_of.reshape(-1) == number).tolist()) for number in range(count))


def boundaries(instance: Instance) -> list[LayoutBoundary]:
    """The L-1 boundaries of an instance."""
    return [layout_boundary(table) for table in instance.transitions_ns]
