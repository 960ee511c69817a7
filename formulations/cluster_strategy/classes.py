"""Classes of devices that may be exchanged without changing any cost: devices of one kind with equal links to all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from trainplan.profiling.clusters.network import Matrix, Network

Floats = NDArray[np.float64]


def device_classes(network: Network, kinds: Sequence[int]) -> tuple[int, ...]:
    """The class of every device, numbered from 0 in order of their first devices. kinds: the kind of every device."""
    keys = _of_matrix(network.matrix, kinds) if network.matrix is not None else _of_islands(network, kinds)
    numbers = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return tuple(numbers[key] for key in keys)


def _of_islands(network: Network, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """A key for every device of a network of islands: devices with equal keys are of one class.

    A class is a run of devices of one kind that is not divided by the border of an island, or of a node whose devices share its
    network cards. kinds: the kind of every device.
    """
    count, borders = len(kinds), {0}
    for island in network.islands:
        for size in {island.devices, island.shared_by} - {1}:
            if island.first is None or size == island.shared_by:
                borders |= set(range(0, count, size))
        if island.first is not None:
            borders |= {island.first, island.first + island.devices}
    borders |= {rank for rank in range(1, count) if kinds[rank] != kinds[rank - 1]}
    joined = {rank for island in network.islands if island.devices > 1 for rank in _inside(island.first, island.devices, count)}
    run, keys = 0, []
    for rank in range(count):
        run = rank if rank in borders or rank not in joined else run
        keys.append((run, kinds[rank]))
    return keys


def _inside(first: int | None, size: int, count: int) -> range:
    """The devices of an island that begins at `first` (None: of islands that cover all devices), of `count` devices in all."""
    return range(count) if first is None else range(first, min(count, first + size))


def _of_matrix(matrix: Matrix, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """A key for every device of a network that is given by pairs; two devices are of one class if no table changes when they
    are exchanged."""
    tables = matrix_tables(matrix, len(kinds))
    firsts = first_alike(len(kinds), lambda a, b: kinds[a] == kinds[b] and unchanged(tables, [a], [b]))
    return list(zip(firsts, kinds, strict=True))


def first_alike(count: int, alike: Callable[[int, int], bool]) -> tuple[int, ...]:
    """For every number below `count`, the first one that it is alike to. alike: an equivalence of two numbers."""
    firsts: list[int] = []
    for b in range(count):
        firsts.append(next((a for a in range(b) if firsts[a] == a and alike(a, b)), b))
    return tuple(firsts)


def matrix_tables(matrix: Matrix, count: int) -> list[Floats]:
    """Tables (count, count) of bandwidths and, where they are given, latencies between the first `count` devices."""
    tables = (matrix.bandwidth_bytes_per_s, matrix.latencies_ns)
    return [np.array(table)[:count, :count] for table in tables if table is not None]


def unchanged(tables: Sequence[Floats], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether tables between devices stay as they are when the devices of `a` are exchanged with those of `b`, one by one."""
    for table in tables:
        ends, moved = [*a, *b], np.arange(len(table))
        moved[[*a]], moved[[*b]] = b, a
        apart = moved[ends][:, None] != moved
        for links in (table, table.T):
            if not np.array_equal(links[ends][apart], links[moved[ends]][:, moved][apart]):
                return False
    return True
