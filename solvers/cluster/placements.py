"""The placements of AMP's planners: ranks in the order of the nodes (Section 3.6), or by tiling a mesh of devices (Section
6.3).

A placement gives every rank (j, i, r), stage j of pipeline i and tensor-parallel rank r, a device (see cluster-strategy). tmp
and dp are the degrees of tensor and data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, isqrt, lcm

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Instance

MOST_STEPS = 1000


def node_order(instance: Instance) -> tuple[int, ...]:
    """Megatron's heuristic placement: tensor-parallel ranks into the same node first, then data-parallel ones, then stages.

    Ranks are numbered in just that order, and devices node by node, so rank n gets device n, whatever the kinds of the nodes.
    """
    return tuple(range(instance.devices))


def smallest_node(instance: Instance) -> int:
    """The number of devices of the smallest class (see cluster-strategy's `classes`): the nodes, or the islands within them."""
    return int(np.bincount(instance.classes).min())


@dataclass(frozen=True, order=True)
class Domino:
    """A rectangle of devices by its first device's row and column: upright, tmp rows by dp columns; otherwise dp rows by tmp
    columns."""

    row: int
    column: int
    upright: bool


class Tilings:
    """Random tilings of a mesh of devices, rows x columns, by dominoes of one size.

    A domino of tmp x dp devices is one stage: along its side of tmp lie its tensor-parallel groups, along the other its
    data-parallel ones. (Footnote 4 gives them the vertical and the horizontal; that is an upright domino's, and turns with it,
    for else a domino on its side would have other degrees.)

    A tiling is drawn by a random walk. One step picks a square of side lcm(tmp, dp) at random and, where whole dominoes of one
    direction fill it, gives them a direction by a coin. A step and its reverse are equally likely, so that the walk comes to be
    uniform on all tilings that such turns reach from its start, which is rows or columns of dominoes of one direction each.
    These are all tilings where one degree is 1 (Kenyon and Kenyon, 1992). A walk goes on from one draw to the next, by up to
    MOST_STEPS: on a large mesh, draws that follow each other are alike.
    """

    def __init__(self, rows: int, columns: int, generator: np.random.Generator) -> None:
        self.rows, self.columns, self.generator = rows, columns, generator
        self._walks: dict[tuple[int, int], dict[tuple[int, int], bool] | None] = {}

    def exists(self, tmp: int, dp: int) -> bool:
        """Whether there is a tiling to start from."""
        if (tmp, dp) not in self._walks:
            self._walks[tmp, dp] = _bands(self.rows, self.columns, tmp, dp)
        return self._walks[tmp, dp] is not None

    def draw(self, tmp: int, dp: int) -> list[Domino]:
        """A random tiling: its dominoes in the order of their first devices, row by row."""
        assert self.exists(tmp, dp)
        tiling = self._walks[tmp, dp]
        assert tiling is not None
        side = lcm(tmp, dp)
        indices = max(0, self.rows - side + 1), max(0, self.columns - side + 1)
        if indices[0] * indices[1]:
            count = min(MOST_STEPS, 8 * indices[0] * indices[1])
            drawn = (self.generator.integers(limit, size=count).tolist() for limit in (*indices, 2))
            for row, column, turned in zip(*drawn, strict=True):
                if turned:
                    self._turn(tiling, row, column, tmp, dp)
        return sorted(Domino(row, column, upright) for (row, column), upright in tiling.items())

    def _turn(self, tiling: dict[tuple[int, int], bool], row: int, column: int, tmp: int, dp: int) -> None:
        """Turn the dominoes of a square that begins at this row and column, where dominoes of one direction fill it."""
        upright = tiling.get((row, column))
        if upright is None:
            return
        side = lcm(tmp, dp)
        before, after = [
            [(row + i, column + j) for i, j in product(range(0, side, height), range(0, side, width))]
            for height, width in ((tmp, dp) if upright else (dp, tmp), (dp, tmp) if upright else (tmp, dp))
        ]
        if all(tiling.get(corner) == upright for corner in before):
            for corner in before:
                del tiling[corner]
            tiling.update(dict.fromkeys(after, not upright))

    def placement(self, dominoes: list[Domino], tmp: int, dp: int) -> tuple[int, ...]:
        """The devices, numbered row by row, of all ranks; stages in the order of the dominoes."""
        mesh = np.arange(self.rows * self.columns).reshape(self.rows, self.columns)
        stages = []
        for domino in dominoes:
            height, width = (tmp, dp) if domino.upright else (dp, tmp)
            part = mesh[domino.row : domino.row + height, domino.column : domino.column + width]
            stages.append(part.T if domino.upright else part)
        return tuple(np.concatenate(stages, axis=None).tolist())


def mesh_shape(instance: Instance) -> tuple[int, int]:
    """Rows and columns of a mesh of all devices: one row for each node, so that near devices are in one row.

    Nodes are the device classes, or have their greatest common divisor of devices. Where that gives one row or one column only,
    the mesh is as square as it can be.
    """
    count = instance.devices
    columns = gcd(*np.bincount(instance.classes).tolist())
    if columns in (1, count):
        columns = count // max(rows for rows in range(1, isqrt(count) + 1) if count % rows == 0)
    return count // columns, columns


def _bands(rows: int, columns: int, tmp: int, dp: int) -> dict[tuple[int, int], bool] | None:
    """A tiling by rows of dominoes, first upright ones and then others, or else by columns; None where there is neither.

    Returns the first row and column of each domino, with whether it is upright.
    """
    for across in (False, True):
        length, width = (columns, rows) if across else (rows, columns)
        high, wide = (dp, tmp) if across else (tmp, dp)  # of an upright domino, as the bands run
        for upright in range(length // high, -1, -1):
            others, rest = divmod(length - upright * high, wide)
            if rest or (upright and width % wide) or (others and width % high):
                continue
            starts = [(high * n, True) for n in range(upright)] + [(high * upright + wide * n, False) for n in range(others)]
            indices = [((start, at), kind) for start, kind in starts for at in range(0, width, wide if kind else high)]
            return {(at, start) if across else (start, at): kind for (start, at), kind in indices}
    return None
