"""Every strategy of a tiny cluster-strategy instance, for brute force.

Of placements that differ by an exchange of whole pipelines, or of devices of one class (see `classes`), only one is visited:
they cost the same. All cuts and shares of one placement are compared in arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import comb, factorial, prod

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.problem import Solution


def count(instance: Instance) -> int:
    """The number of strategies of an instance, where devices of one class (exchangeable without changing any cost) are not
    distinguished. instance: the cluster, the batch, and the layers' costs on each kind of device.
    """
    placements = factorial(instance.devices) // prod(factorial(int(size)) for size in np.bincount(instance.classes))
    return placements * sum(
        comb(instance.layers - 1, degrees.pp - 1) * _share_count(instance, degrees) for degrees in instance.degrees()
    )


def _share_count(instance: Instance, degrees: Degrees) -> int:
    """The number of distributions of a step's micro-batches over the pipelines; 1 where all pipelines must have equally many.
    degrees: the numbers of stages, pipelines and tensor-parallel devices, and samples per micro-batch. instance: the
    cluster, the batch, and the layers' costs on each kind of device.
    """
    return comb(instance.batch // degrees.mbs - 1, degrees.dp - 1) if instance.uneven_shares else 1


def solutions(instance: Instance) -> Iterator[Solution | None]:
    """Solutions for brute force: for every choice of degrees of parallelism and every placement of devices, the fastest
    strategy (cuts into stages, and micro-batches of each pipeline) that fits into memory; None if none fits. instance: the
    cluster, the batch, and the layers' costs on each kind of device.
    """
    for degrees in instance.degrees():
        total = instance.batch // degrees.mbs
        shares = [(total // degrees.dp,) * degrees.dp]
        if instance.uneven_shares:
            shares = [
                tuple(after - before for before, after in pairwise((0, *borders, total)))
                for borders in combinations(range(1, total), degrees.dp - 1)
            ]
        yield from _of_degrees(instance, degrees, list(combinations(range(1, instance.layers), degrees.pp - 1)), shares)


def _of_degrees(
    instance: Instance, degrees: Degrees, every_cuts: list[tuple[int, ...]], every_shares: list[tuple[int, ...]]
) -> Iterator[Solution | None]:
    """For every placement of devices under given degrees of parallelism, the fastest strategy that fits into memory; None if
    none fits. degrees: the numbers of stages, pipelines and tensor-parallel devices. every_cuts: all possible cuts into
    stages. every_shares: all possible numbers of micro-batches of the pipelines. instance: the cluster, the batch, and the
    layers' costs on each kind of device.
    """
    in_order = instance.placed(degrees, range(instance.devices))
    peaks = np.array([[in_order.peak_bytes(cuts, shares) for shares in every_shares] for cuts in every_cuts])
    rounds = np.array(every_shares) - 1
    for placement in _placements(instance, degrees):
        placed = instance.placed(degrees, placement)
        stages = np.array([placed.stage_ns(cuts) for cuts in every_cuts])
        first = stages.sum(axis=1) + np.array([placed.sent_ns(cuts).sum(axis=0) for cuts in every_cuts])
        sync = np.array([max(placed.syncs_ns(cuts)) for cuts in every_cuts])
        times = (rounds * stages.max(axis=1)[:, None] + first[:, None]).max(axis=2) + sync[:, None]
        if instance.within_memory:
            fits = (peaks <= placed.limits_bytes).all(axis=(2, 3))
            if not fits.any():
                yield None
                continue
            times = np.where(fits, times, times.max() + 1)
        row, column = np.unravel_index(times.argmin(), times.shape)
        yield Solution(degrees, placement, every_cuts[row], every_shares[column])


def _placements(instance: Instance, degrees: Degrees) -> Iterator[tuple[int, ...]]:
    """The placements of devices on ranks; of placements that cost the same, because whole pipelines or exchangeable devices
    are swapped, only one. degrees: the numbers of stages, pipelines and tensor-parallel devices. instance: the cluster, the
    batch, and the layers' costs on each kind of device.
    """

    def continued(free: tuple[int, ...], taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Classes of all ranks that begin with `taken`; free: the number of devices of each class that have no rank yet."""
        if not any(free):
            grid = np.array(taken).reshape(degrees.pp, degrees.dp, degrees.tmp)
            pipelines = [grid[:, i].ravel().tolist() for i in range(degrees.dp)]
            if pipelines == sorted(pipelines):
                yield taken
            return
        for c, rest in enumerate(free):
            if rest:
                yield from continued((*free[:c], rest - 1, *free[c + 1 :]), (*taken, c))

    for classes in continued(tuple(map(len, instance.members)), ()):
        yield instance.placement(classes)
