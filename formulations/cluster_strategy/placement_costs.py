"""Costs that follow from a placement: times of every layer, transfer and synchronisation in every pipeline, and limits of
memory.

Groups of devices of the same classes (see `classes`) cost the same. So each such group is looked up only once for all
placements of an instance: where a placement differs from an earlier one in two devices, only the groups of these may be new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.profiling.costs import collective_ns

if TYPE_CHECKING:
    from trainplan.formulations.cluster_strategy.instance import Degrees, Instance


@dataclass(frozen=True, eq=False)
class Placed:
    """The costs of an instance with given degrees of parallelism and a given placement. P is the number of pipeline stages
    (pp), d the number of pipelines (dp), tmp the number of tensor-parallel ranks, L the number of layers. A group is the
    tmp devices of one stage of one pipeline; a class is a set of devices that may be exchanged without changing any cost.
    placement: (P d tmp,), for every rank its device, tensor-parallel ranks first, then pipelines, then stages.
    """

    instance: Instance
    degrees: Degrees
    placement: Integers

    @cached_property
    def grid(self) -> Integers:
        """(P, d, tmp): the device of every stage, pipeline and tensor-parallel rank."""
        return self.placement.reshape(self.degrees.pp, self.degrees.dp, self.degrees.tmp)

    @cached_property
    def layer_ns(self) -> Integers:
        """(P, d, L): the time in ns of every layer for one micro-batch, in every stage of every pipeline."""
        return self._by_group(self.grid, group_layer_ns, self.instance.layers)

    @cached_property
    def transfer_ns(self) -> Integers:
        """(P-1, d, L-1): the time in ns of the transfer from each stage but the last to the next one, in every pipeline, for a
        cut after each layer but the last (e in AMP)."""
        pairs = np.stack([self.grid[:-1], self.grid[1:]], axis=-1)
        return self._by_group(pairs, pair_transfer_ns, self.instance.layers - 1).max(axis=2)

    @cached_property
    def limits_bytes(self) -> Integers:
        """(P, d): the memory in bytes of the smallest device in the group of every stage and pipeline."""
        return np.array([kind.memory_bytes for kind in self.instance.kinds], np.int64)[self.kinds].min(axis=2)

    @cached_property
    def _sums_ns(self) -> Integers:
        """(P, d, L + 1): for every stage of every pipeline, running sums of layers' times in ns; entry l is the sum over the
        layers 0 to l - 1.
        """
        return np.pad(self.layer_ns.cumsum(axis=2), ((0, 0), (0, 0), (1, 0)))

    @property
    def kinds(self) -> Integers:
        """(P, d, tmp): the index of the device's kind, for every stage, pipeline and tensor-parallel rank."""
        return np.array(self.instance.device_kinds)[self.grid]

    def stage_ns(self, cuts: Sequence[int]) -> Integers:
        """(P, d): the time in ns of one micro-batch in every stage of every pipeline (t in AMP). cuts: the first layer of every
        stage but the first."""
        stages, borders = np.arange(self.degrees.pp), np.array([0, *cuts, self.instance.layers])
        return self._sums_ns[stages, :, borders[1:]] - self._sums_ns[stages, :, borders[:-1]]

    def sent_ns(self, cuts: Sequence[int]) -> Integers:
        """(P-1, d): the time in ns of the transfer after every stage but the last, in every pipeline (e in AMP). cuts: the
        first layer of every stage but the first."""
        return self.transfer_ns[range(self.degrees.pp - 1), :, [cut - 1 for cut in cuts]]

    def pipelines_ns(self, cuts: Sequence[int], shares: Sequence[int]) -> Integers:
        """(d,): the time in ns of every pipeline for its micro-batches, by Eq. 5 of AMP. cuts: the first layer of every stage
        but the first. shares: the number of micro-batches of every pipeline."""
        times = self.stage_ns(cuts)
        return (np.array(shares) - 1) * times.max(axis=0) + times.sum(axis=0) + self.sent_ns(cuts).sum(axis=0)

    @cached_property
    def tied_ns(self) -> int:
        """The time in ns to sum the gradients of a weight table that embedding and head share, over all devices of the first
        and the last stage; 0 if they share none."""
        size = self.instance.tied_bytes
        if not size:
            return 0
        devices = self.grid[sorted({0, self.degrees.pp - 1})].ravel()
        classes = tuple(np.sort(self.instance.classes[devices]).tolist())
        return self._group_sync_ns(size, classes, tuple(devices.tolist()))

    def sync_ns(self, stage: int, first: int, last: int) -> int:
        """The time in ns to synchronise the gradients of a stage that has the layers `first` to `last`: the slowest of its
        all-reduces over data-parallel groups, plus the sum of a shared weight table's gradients on the first and the last
        stage. stage: the stage's index."""
        sums = self.instance.shards[self.degrees.tmp].gradient_sums
        size = int(sums[last + 1] - sums[first])
        slowest = max(self._group_sync_ns(size, *group) for group in self._sync_groups[stage])
        return slowest + (self.tied_ns if stage in (0, self.degrees.pp - 1) else 0)

    def syncs_ns(self, cuts: Sequence[int]) -> list[int]:
        """For every stage, the time in ns to synchronise its gradients. cuts: the first layer of every stage but the first."""
        spans = pairwise((0, *cuts, self.instance.layers))
        return [self.sync_ns(stage, first, end - 1) for stage, (first, end) in enumerate(spans)]

    def time_ns(self, cuts: Sequence[int], shares: Sequence[int]) -> int:
        """The time in ns of the step, the objective of Eq. 4 of AMP. cuts: the first layer of every stage but the first.
        shares: the number of micro-batches of every pipeline."""
        return int(self.pipelines_ns(cuts, shares).max()) + max(self.syncs_ns(cuts))

    def peak_bytes(self, cuts: Sequence[int], shares: Sequence[int]) -> Integers:
        """(P, d): the peak bytes of a device in every stage of every pipeline under 1F1B. cuts: the first layer of every stage
        but the first. shares: the number of micro-batches of every pipeline. It uses sums over all stages together; a test
        asserts that they equal `Memory.stage_peak`."""
        degrees, starts = self.degrees, [0, *cuts]
        table, shard = self.instance.tables[degrees.tmp, degrees.mbs], self.instance.shards[degrees.tmp]
        states, kept = (np.add.reduceat(column, starts) for column in (shard.state_bytes, table.kept_bytes))
        workspace = np.maximum.reduceat(table.workspace_bytes, starts)
        return (states + workspace)[:, None] + _in_flight(degrees.pp, tuple(shares)) * kept[:, None]

    @cached_property
    def _sync_groups(self) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """For every stage, its data-parallel groups (devices that hold the same layers in different pipelines), one for each
        multiset of classes: the devices' classes, ascending, and the devices."""
        groups = self.grid.transpose(0, 2, 1)
        classes = np.sort(self.instance.classes[groups], axis=2)
        return [
            list({tuple(key): tuple(devices) for key, devices in zip(*stage, strict=True)}.items())
            for stage in zip(classes.tolist(), groups.tolist(), strict=True)
        ]

    def _group_sync_ns(self, size: int, classes: tuple[int, ...], devices: tuple[int, ...]) -> int:
        """The time in ns to reduce `size` bytes of gradients over a data-parallel group; kept with the instance, since groups
        of equal classes cost the same. classes: the devices' classes, ascending. devices: the group."""
        costs = self.instance.group_costs
        if (size, classes) not in costs:
            costs[size, classes] = group_sync_ns(self.instance, devices, size)
        return costs[size, classes]

    def _by_group(
        self, groups: Integers, cost: Callable[[Instance, Degrees, Sequence[int]], Integers], columns: int
    ) -> Integers:
        """The costs of many groups of devices as an array (..., columns), where `cost` is called only for one group of each
        set of groups with equal classes of devices.

        groups: (..., group size), the devices of each group. cost: returns the costs of one group, given instance, degrees
        and devices. columns: the number of costs of a group.
        """
        flat, costs, rows = groups.reshape(-1, groups.shape[-1]), self.instance.group_costs, []
        shape = cost.__name__, self.degrees.tmp, self.degrees.mbs
        for classes, devices in zip(np.sort(self.instance.classes[flat], axis=1).tolist(), flat.tolist(), strict=True):
            key = (*shape, *classes)
            if key not in costs:
                costs[key] = cost(self.instance, self.degrees, devices)
            rows.append(costs[key])
        return np.array(rows, np.int64).reshape(*groups.shape[:-1], columns)


def end_ranks(degrees: Degrees) -> int:
    """The number of ranks in the first and the last stage together. degrees: the numbers of stages, pipelines and
    tensor-parallel devices."""
    return min(2, degrees.pp) * degrees.dp * degrees.tmp


@lru_cache(maxsize=256)
def _in_flight(stages: int, shares: tuple[int, ...]) -> Integers:
    """(P, d), for P stages of d pipelines: the number of micro-batches in flight (forward pass done, backward pass not yet) on
    every stage of every pipeline under 1F1B. stages: the number of stages, P. shares: the number of micro-batches of each of
    the d pipelines.
    """
    return np.array([[most_in_flight("1f1b", stages, share, stage) for share in shares] for stage in range(stages)])


def group_layer_ns(instance: Instance, degrees: Degrees, devices: Sequence[int]) -> Integers:
    """(L,), for the L layers: the time in ns of every layer for one micro-batch in a group of tensor-parallel devices: on the
    slowest device, plus the all-reduces over the group's slowest link. A layer that each device computes as a whole has no
    all-reduces. degrees: the numbers of stages, pipelines and tensor-parallel devices, and samples per micro-batch. instance:
    the cluster, the batch, and the layers' costs on each kind of device.
    """
    table = instance.tables[degrees.tmp, degrees.mbs]
    kinds = sorted({instance.device_kinds[device] for device in devices})
    time = table.layer_ns[kinds].max(axis=0)
    if len(devices) == 1:
        return time
    reduction_ns: dict[tuple[int, int], int] = {}
    for count, size in set(zip(instance.reductions.tolist(), instance.reduced_bytes.tolist(), strict=True)):
        message = size * degrees.mbs / max(1, count)
        reduction_ns[count, size] = round(count * collective_ns(instance.network, "all-reduce", message, tuple(devices)))
    reductions = np.array(
        [reduction_ns[key] for key in zip(instance.reductions.tolist(), instance.reduced_bytes.tolist(), strict=True)]
    )
    reductions[list(instance.shards[degrees.tmp].whole)] = 0
    return time + reductions


def pair_transfer_ns(instance: Instance, degrees: Degrees, devices: Sequence[int]) -> Integers:
    """(L - 1,), for the L layers: the time in ns to send an activation forward and its gradient back between two devices, for a
    cut after each layer but the last. devices: the two devices. degrees: the numbers of stages, pipelines and tensor-parallel
    devices, and samples per micro-batch. instance: the cluster, the batch, and the layers' costs on each kind of device.
    """
    sizes = instance.boundary_bytes.tolist()
    message_ns = {
        size: round(2 * collective_ns(instance.network, "p2p", size * degrees.mbs, tuple(devices))) for size in set(sizes)
    }
    return np.array([message_ns[size] for size in sizes], np.int64)


def group_sync_ns(instance: Instance, devices: Sequence[int], gradient_bytes: int) -> int:
    """The time in ns of an all-reduce of `gradient_bytes` bytes over the devices of a data-parallel group. instance: the
    cluster, the batch, and the layers' costs on each kind of device.
    """
    return round(collective_ns(instance.network, "all-reduce", gradient_bytes, tuple(devices)))
