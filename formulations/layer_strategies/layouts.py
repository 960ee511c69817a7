"""Options that meet equal re-layout costs, found in the tables alone: both integer formulations use their classes.

A transition depends on where the data lies, not on the whole strategy, so many rows and columns of a transition table are
equal. One flow variable per pair of classes, not of options, has the same linear relaxation with far fewer columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Instance


@dataclass(frozen=True)
class Boundary:
    """Between layers l and l+1: options of each class before and after, and the cost of each pair of classes."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    costs_ns: tuple[tuple[int, ...], ...]

    @property
    def free(self) -> bool:
        """No transition here costs anything."""
        return not any(map(any, self.costs_ns))


def boundaries(instance: Instance) -> list[Boundary]:
    """The L-1 boundaries of an instance."""
    found = []
    for table in instance.transitions_ns:
        rows, row_of = np.unique(table, axis=0, return_inverse=True)
        core, column_of = np.unique(rows, axis=1, return_inverse=True)
        before = tuple(tuple(int(s) for s in np.flatnonzero(row_of.reshape(-1) == a)) for a in range(len(rows)))
        after = tuple(tuple(int(s) for s in np.flatnonzero(column_of.reshape(-1) == b)) for b in range(core.shape[1]))
        found.append(Boundary(before, after, tuple(tuple(int(v) for v in row) for row in core)))
    return found
