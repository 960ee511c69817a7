"""Options that meet equal re-layout costs form a class, found in the tables alone: the integer formulations use these classes.

A transition depends on where the data lies, not on the whole strategy; therefore a transition table has many equal rows and
columns. One flow variable per pair of classes, instead of options, has the same linear relaxation with far fewer columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.formulations.numbers import Integers

Classes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LayoutBoundary:
    """The boundary between two neighbouring layers, with each layer's options (strategies) grouped into classes that have
    equal re-layout costs.

    Attributes:
        before, after: for each class, the indices of its options, of the layer before and of the layer after the boundary.
        costs_ns: (classes before, classes after), the re-layout cost of each pair of classes.
        entries_ns: for each class after, the cost of a pipeline stage that begins there; empty if no stage may begin there.
    """

    before: Classes
    after: Classes
    costs_ns: Classes
    entries_ns: tuple[int, ...] = ()

    @property
    def free(self) -> bool:
        """Whether no re-layout between the two layers costs anything, whatever their options."""
        return not any(map(any, self.costs_ns))


def layout_boundary(table: Integers, entries: Integers | None = None) -> LayoutBoundary:
    """Group the options (strategies) of two neighbouring layers into classes: options of one layer are in one class if they
    have equal re-layout costs with every option of the other layer and, in the layer after, equal `entries`. table: (options
    before, options after), the costs in ns. entries: (options after,), the cost in ns of beginning a stage with each option of
    the layer after; None if no stage may begin there.
    """
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    stacked = rows if entries is None else np.vstack([rows, entries])
    columns, column_of = np.unique(stacked, axis=1, return_inverse=True)
    values = tuple(tuple(row) for row in columns.tolist())
    return LayoutBoundary(
        _classes(row_of, len(rows)), _classes(column_of, columns.shape[1]), values[: len(rows)], sum(values[len(rows) :], ())
    )


def _classes(class_of: Integers, count: int) -> Classes:
    """For each of `count` classes, the indices of the options (strategies) that belong to it. class_of: for each option, the
    number of its class.
    """
    return tuple(tuple(np.flatnonzero(class_of.reshape(-1) == number).tolist()) for number in range(count))


def boundaries(instance: Instance) -> list[LayoutBoundary]:
    """The boundaries between neighbouring layers of an instance (one fewer than layers), in order, each with the options on
    both sides grouped into classes of equal re-layout costs. instance: the costs of each layer under each of its options
    (strategies), and the memory limit.
    """
    return [layout_boundary(table) for table in instance.transitions_ns]
