"""Devices that may be exchanged: of one kind, and joined to all others by equal links. Only their classes matter to a cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trainplan.profiling.clusters.network import Matrix, Network


def device_classes(network: Network, kinds: Sequence[int]) -> tuple[int, ...]:
    """The class of every device, numbered from 0 in order of their first devices. kinds: of every device."""
    keys = _of_matrix(network.matrix, kinds) if network.matrix is not None else _of_islands(network, kinds)
    numbers = {key: place for place, key in enumerate(dict.fromkeys(keys))}
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
    tables = [np.array(matrix.bandwidth_bytes_per_s)]
    tables += [np.array(matrix.latencies_ns)] if matrix.latencies_ns is not None else []
    keys: list[tuple[int, int]] = []
    for b in range(len(kinds)):
        alike = (a for a, (first, _) in enumerate(keys) if first == a and kinds[a] == kinds[b] and _exchangeable(tables, a, b))
        keys.append((next(alike, b), kinds[b]))
    return keys


def _exchangeable(tables: list[np.ndarray], a: int, b: int) -> bool:
    for table in tables:
        rest = np.ones(len(table), bool)
        rest[[a, b]] = False
        same = np.array_equal(table[a, rest], table[b, rest]) and np.array_equal(table[rest, a], table[rest, b])
        if not same or table[a, b] != table[b, a]:
            return False
    return True
