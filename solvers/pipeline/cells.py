"""Options by what re-layout sees of them: those that are entered and left at equal costs lie in one interface cell.

A transition depends on where the samples lie, not on the whole strategy. So with S options in C cells, a step of a cheapest
chain costs C^2 + S sums, not S^2: of each cell only the cheapest option counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.strategy_tables import Tables

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class InterfaceCells:
    """The cells of S options, with E ways to be entered and D ways to be left, at Q kinds of boundary.

    cell_of: (S,), the cell of each option. enter, leave: (C,), how each is entered and left. moves_ns: (Q, D, E), re-layout
    between neighbours. entries_ns: (Q, E), where a stage begins.
    """

    cell_of: Places
    enter: Places
    leave: Places
    moves_ns: Integers
    entries_ns: Integers

    def cheapest(self, values: Floats) -> Floats:
        """The least value of each cell's options: (..., S) to (..., C)."""
        return _least(values, self.cell_of)

    def left(self, values: Floats) -> Floats:
        """The least value of the cells that are left in each way: (..., C) to (..., D)."""
        return _least(values, self.leave)


def interface_cells(tables: Tables) -> InterfaceCells:
    """The cells of the options of tables: equal rows of every transition table are left alike, equal columns, and entries,
    entered alike."""
    moves, entries = tables.transitions_ns, tables.entries_ns
    rows = moves.transpose(1, 0, 2).reshape(len(tables.strategies), -1)
    columns = np.concatenate((moves.transpose(2, 0, 1).reshape(len(tables.strategies), -1), entries.T), axis=1)
    (lefts, leave), (enters, enter) = _ways(rows), _ways(columns)
    cells, cell_of = _ways(np.stack((enter, leave), axis=1))
    return InterfaceCells(cell_of, enter[cells], leave[cells], moves[:, lefts][:, :, enters], entries[:, enters])


def _ways(rows: Integers) -> tuple[Places, Places]:
    """The first place of every different row, and of each row the number of its kind."""
    _, firsts, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return firsts, numbers.reshape(-1)


def _least(values: NDArray[Any], group_of: Places) -> NDArray[Any]:
    """The least value of each group of the last axis; groups are numbered from 0, none is empty."""
    order = np.argsort(group_of, kind="stable")
    starts = np.flatnonzero(np.diff(group_of[order], prepend=-1))
    return np.minimum.reduceat(values[..., order], starts, axis=-1)
