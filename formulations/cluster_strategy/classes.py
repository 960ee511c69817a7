"""Classes of devices that may be exchanged without changing any cost: devices of one kind with equal links to all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from trainplan.profiling.clusters.network import Matrix, Network

Floats = NDArray[np.float64]


def device_classes(network: Network, kinds: Sequence[int]) -> tuple[int, ...]:
    """For every device of a cluster, the number of its class: devices of one class are of one kind and have equal links to all
    others, so that they may be exchanged without changing any cost. Classes are numbered from 0 in the order of their first
    devices. kinds: for every device, the number of its kind.
    """
    keys = _of_matrix(network.matrix, kinds) if network.matrix is not None else _of_islands(network, kinds)
    numbers = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return tuple(numbers[key] for key in keys)


def _of_islands(network: Network, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """A key for every device of a network of islands (sets of devices that are linked directly, such as nodes). Devices with
    equal keys are of one class: they may be exchanged without changing any link.

    A class is a run of consecutive devices of one kind that is not divided by the border of an island, or of a node whose
    devices share its network cards. network: the network. kinds: for every device, the number of its kind.
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
    """The devices of an island that begins at device `first` and has `size` devices; all devices if `first` is None, for
    islands that tile the network. count: the number of all devices."""
    return range(count) if first is None else range(first, min(count, first + size))


def _of_matrix(matrix: Matrix, kinds: Sequence[int]) -> list[tuple[int, int]]:
    """A key for every device of a network whose links are given for pairs of devices; devices with equal keys are of one class,
    that is, may be exchanged without changing any link. kinds: the kind of every device. matrix: the network's links."""
    tables = matrix_tables(matrix, len(kinds))
    firsts = first_alike(len(kinds), lambda a, b: kinds[a] == kinds[b] and unchanged(tables, [a], [b]))
    return list(zip(firsts, kinds, strict=True))


def first_alike(count: int, alike: Callable[[int, int], bool]) -> tuple[int, ...]:
    """For every index below `count`, the first index that is equivalent to it. alike: returns whether two indices are
    equivalent; it must be an equivalence relation."""
    firsts: list[int] = []
    for b in range(count):
        firsts.append(next((a for a in range(b) if firsts[a] == a and alike(a, b)), b))
    return tuple(firsts)


def matrix_tables(matrix: Matrix, count: int) -> list[Floats]:
    """Two tables (count, count), or one: bandwidths and, if the network gives them, latencies between its first `count`
    devices. matrix: the network's links."""
    tables = (matrix.bandwidth_bytes_per_s, matrix.latencies_ns)
    return [np.array(table)[:count, :count] for table in tables if table is not None]


def unchanged(tables: Sequence[Floats], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether tables between devices stay as they are if device a[i] and device b[i] are exchanged, for all i at once. tables:
    arrays (devices, devices), such as bandwidths. a, b: equally many indices of devices.
    """
    for table in tables:
        ends, moved = [*a, *b], np.arange(len(table))
        moved[[*a]], moved[[*b]] = b, a
        apart = moved[ends][:, None] != moved
        for links in (table, table.T):
            if not np.array_equal(links[ends][apart], links[moved[ends]][:, moved][apart]):
                return False
    return True
