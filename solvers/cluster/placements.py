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
    """Megatron's heuristic placement, as the device of each rank: devices of one node go first to the ranks of one
    tensor-parallel group, then to data-parallel ranks, then to the next stages.

    instance: a model's layers, a cluster of unequal devices, and the batch size.

    Ranks are numbered in just that order, and devices node by node, so rank n gets device n, whatever the kinds of the nodes.
    """
    return tuple(range(instance.devices))


def smallest_node(instance: Instance) -> int:
    """The number of devices in the cluster's smallest device class; a class is a node, or a group of closely linked devices
    within a node.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    return int(np.bincount(instance.classes).min())


@dataclass(frozen=True, order=True)
class Domino:
    """A rectangle of tmp x dp devices in a mesh, one pipeline stage; tmp and dp are the degrees of tensor and data parallelism.
    row, column: the position of its first device. upright: True if it has tmp rows and dp columns, False if it has dp rows and
    tmp columns."""

    row: int
    column: int
    upright: bool


class Tilings:
    """Random tilings of a mesh of devices, rows x columns, by dominoes (rectangles of devices) of one size, tmp x dp, the
    degrees of tensor and data parallelism.

    A domino is one pipeline stage: its tensor-parallel groups lie along its side of length tmp, its data-parallel groups along
    the other side. (Footnote 4 of AMP says vertical and horizontal, which is so for an upright domino only.)

    A tiling is drawn by a random walk. One step picks a square of side lcm(tmp, dp) at random and, where whole dominoes of one
    direction fill it, gives them a direction by a coin. A step and its reverse are equally likely, so that the walk comes to be
    uniform on all tilings that such turns reach from its start, which is rows or columns of dominoes of one direction. These
    are all tilings where one degree is 1 (Kenyon and Kenyon, 1992). A walk goes on from one draw to the next, by up to
    MOST_STEPS: on a large mesh, draws that follow each other are alike."""

    def __init__(self, rows: int, columns: int, generator: np.random.Generator) -> None:
        """Begin with a mesh of this number of rows and columns. generator: the generator of all random numbers."""
        self.rows, self.columns, self.generator = rows, columns, generator
        self._walks: dict[tuple[int, int], dict[tuple[int, int], bool] | None] = {}

    def exists(self, tmp: int, dp: int) -> bool:
        """Whether dominoes of tmp x dp devices (tmp, dp: degrees of tensor and data parallelism) can tile the mesh in rows or
        columns; random tilings are derived from such a regular one."""
        if (tmp, dp) not in self._walks:
            self._walks[tmp, dp] = _bands(self.rows, self.columns, tmp, dp)
        return self._walks[tmp, dp] is not None

    def draw(self, tmp: int, dp: int) -> list[Domino]:
        """A random tiling of the mesh by dominoes of tmp x dp devices, in the order of their first devices, row by row. Such a
        tiling must exist (see `exists`). tmp, dp: the degrees of tensor and data parallelism."""
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
        """One step of the random walk over tilings: in the square of side lcm(tmp, dp) whose first device is at this row and
        column, give all dominoes the other direction, if dominoes of one direction fill it. tmp, dp: the dominoes' sides.
        tiling: from the (row, column) of each domino to True if it is upright; it may be changed."""
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
        """The placement that a tiling of the mesh stands for: the device of every rank, devices being numbered row by row in
        the mesh. dominoes: the pipeline stages, in their order. tmp, dp: the degrees of tensor and data parallelism."""
        mesh = np.arange(self.rows * self.columns).reshape(self.rows, self.columns)
        stages = []
        for domino in dominoes:
            height, width = (tmp, dp) if domino.upright else (dp, tmp)
            part = mesh[domino.row : domino.row + height, domino.column : domino.column + width]
            stages.append(part.T if domino.upright else part)
        return tuple(np.concatenate(stages, axis=None).tolist())


def mesh_shape(instance: Instance) -> tuple[int, int]:
    """Rows and columns of a mesh of all devices: one row for each node (class of devices), so that near devices are in one row.

    instance: a model's layers, a cluster of unequal devices, and the batch size.

    If nodes differ in size, a row has the greatest common divisor of their sizes. If that gives only one row or one column, the
    mesh is as square as it can be."""
    count = instance.devices
    columns = gcd(*np.bincount(instance.classes).tolist())
    if columns in (1, count):
        columns = count // max(rows for rows in range(1, isqrt(count) + 1) if count % rows == 0)
    return count // columns, columns


def _bands(rows: int, columns: int, tmp: int, dp: int) -> dict[tuple[int, int], bool] | None:
    """A regular tiling of a mesh from which random tilings start: either bands of rows, first all bands of upright dominoes and
    then the bands of others, or bands of columns; None if neither fills the mesh.

    rows, columns: the size of the mesh. tmp, dp: the dominoes' sides. Returns a dict from the (row, column) of each domino's
    first device to True if the domino is upright (tmp rows, dp columns)."""
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
