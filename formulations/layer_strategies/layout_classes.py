"""Options that meet equal re-layout costs form a class, found in the tables alone: the integer formulations use these classes.

A transition depends on where the data lies, not on the whole strategy, so many rows and columns of a transition table are
equal. One flow variable per pair of classes, instead of options, has the same linear relaxation with far fewer columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.formulations.numbers import Integers

Classes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LayoutBoundary:
    """The boundary between two layers, with options grouped into classes of equal costs.

    Attributes:
        before, after: the options of each class, of the layer before and of the layer after.
        costs_ns: the re-layout cost of each pair of classes.
        entries_ns: for each class after, the cost of beginning a stage there; empty where no stage may begin there.
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
    """The boundary with a table of costs (options before, options after). entries: the cost of beginning a stage with each
    option after, where a stage may begin there."""
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    stacked = rows if entries is None else np.vstack([rows, entries])
    columns, column_of = np.unique(stacked, axis=1, return_inverse=True)
    values = tuple(tuple(row) for row in columns.tolist())
    return LayoutBoundary(
        _classes(row_of, len(rows)), _classes(column_of, columns.shape[1]), values[: len(rows)], sum(values[len(rows) :], ())
    )


def _classes(class_of: Integers, count: int) -> Classes:
    """The members of each of `count` classes. class_of: the class of each option."""
    return tuple(tuple(np.flatnonzero(class_of.reshape(-1) == number).tolist()) for number in range(count))


def boundaries(instance: Instance) -> list[LayoutBoundary]:
    """The L - 1 boundaries of an instance, in order."""
    return [layout_boundary(table) for table in instance.transitions_ns]
