"""Devices that may be exchanged: of one kind, and joined to all others by equal links. Only their classes matter to a cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from trainplan.profiling.clusters.network import Matrix, Network

Floats = NDArray[np.float64]


def device_classes(network: Network, kinds: Sequence[int]) -> tuple[int, ...]:
    """The class of every device, numbered from 0 in order of their first devices. kinds: of every device."""
    keys = _of_matrix(network.matrix, kinds) if network.matrix is not None else _of_islands(network, kinds)
    numbers = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return tuple(numbers[key] for key in keys)


def _of_islands(network: Network, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of devices of one kind that no border of an island, or of a node that shares its network cards, divides."""
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
    return range(count) if first is None else range(first, min(count, first + size))


def _of_matrix(matrix: Matrix, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """Devices a and b are alike if no table changes when they change places."""
    tables = matrix_tables(matrix, len(kinds))
    firsts = first_alike(len(kinds), lambda a, b: kinds[a] == kinds[b] and unchanged(tables, [a], [b]))
    return list(zip(firsts, kinds, strict=True))


def first_alike(count: int, alike: Callable[[int, int], bool]) -> tuple[int, ...]:
    """Of every number below the count the first one that it is alike to, where those alike to one are alike to each other."""
    firsts: list[int] = []
    for b in range(count):
        firsts.append(next((a for a in range(b) if firsts[a] == a and alike(a, b)), b))
    return tuple(firsts)


def matrix_tables(matrix: Matrix, count: int) -> list[Floats]:
    """Bandwidths and, where there are any, latencies between so many devices."""
    tables = (matrix.bandwidth_bytes_per_s, matrix.latencies_ns)
    return [np.array(table)[:count, :count] for table in tables if table is not None]


def unchanged(tables: Sequence[Floats], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether tables between devices stay as they are where the devices a change places with the devices b, one by one."""
    for table in tables:
        ends, moved = [*a, *b], np.arange(len(table))
        moved[[*a]], moved[[*b]] = b, a
        apart = moved[ends][:, None] != moved
        for links in (table, table.T):
            if not np.array_equal(links[ends][apart], links[moved[ends]][:, moved][apart]):
                return False
    return True
