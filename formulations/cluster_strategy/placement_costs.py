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
    """Costs of an instance with degrees and a placement: P = pp stages, d = dp pipelines and tmp ranks.

    placement: the device of every rank.
    """

    instance: Instance
    degrees: Degrees
    placement: Integers

    @cached_property
    def grid(self) -> Integers:
        """(P, d, tmp): devices by stage, pipeline and tensor-parallel rank."""
        return self.placement.reshape(self.degrees.pp, self.degrees.dp, self.degrees.tmp)

    @cached_property
    def layer_ns(self) -> Integers:
        """(P, d, L): time of every layer in stage j of pipeline i."""
        return self._by_group(self.grid, group_layer_ns, self.instance.layers)

    @cached_property
    def transfer_ns(self) -> Integers:
        """(P-1, d, L-1): e, the transfer from stage j to the next one, if the cut comes after layer l."""
        pairs = np.stack([self.grid[:-1], self.grid[1:]], axis=-1)
        return self._by_group(pairs, pair_transfer_ns, self.instance.layers - 1).max(axis=2)

    @cached_property
    def limits_bytes(self) -> Integers:
        """(P, d): memory of the smallest device in every group."""
        return np.array([kind.memory_bytes for kind in self.instance.kinds], np.int64)[self.kinds].min(axis=2)

    @cached_property
    def _sums_ns(self) -> Integers:
        """(P, d, L + 1): time of all layers before each in stage j of pipeline i."""
        return np.pad(self.layer_ns.cumsum(axis=2), ((0, 0), (0, 0), (1, 0)))

    @property
    def kinds(self) -> Integers:
        """(P, d, tmp): kind of every device, as in `grid`."""
        return np.array(self.instance.device_kinds)[self.grid]

    def stage_ns(self, cuts: Sequence[int]) -> Integers:
        """(P, d): time in ns of one micro-batch in every stage of every pipeline (t in AMP). cuts: first layer of every stage
        but the first."""
        stages, borders = np.arange(self.degrees.pp), np.array([0, *cuts, self.instance.layers])
        return self._sums_ns[stages, :, borders[1:]] - self._sums_ns[stages, :, borders[:-1]]

    def sent_ns(self, cuts: Sequence[int]) -> Integers:
        """(P-1, d): time in ns of the transfer after every stage but the last, in every pipeline (e in AMP). cuts: as in
        `stage_ns`."""
        return self.transfer_ns[range(self.degrees.pp - 1), :, [cut - 1 for cut in cuts]]

    def pipelines_ns(self, cuts: Sequence[int], shares: Sequence[int]) -> Integers:
        """(d,): time in ns of every pipeline for its micro-batches, by Eq. 5 of AMP. cuts: as in `stage_ns`; shares: its
        micro-batches."""
        times = self.stage_ns(cuts)
        return (np.array(shares) - 1) * times.max(axis=0) + times.sum(axis=0) + self.sent_ns(cuts).sum(axis=0)

    @cached_property
    def tied_ns(self) -> int:
        """Time in ns of the reduction of a table that embedding and head share, over all devices of the first and the last
        stage; 0 where there is none."""
        size = self.instance.tied_bytes
        if not size:
            return 0
        devices = self.grid[sorted({0, self.degrees.pp - 1})].ravel()
        classes = tuple(np.sort(self.instance.classes[devices]).tolist())
        return self._group_sync_ns(size, classes, tuple(devices.tolist()))

    def sync_ns(self, stage: int, first: int, last: int) -> int:
        """Time in ns to synchronise the gradients of a stage with the layers `first` to `last`: the slowest of its all-reduces,
        plus the reduction of the tied table on the first and the last stage."""
        sums = self.instance.shards[self.degrees.tmp].gradient_sums
        size = int(sums[last + 1] - sums[first])
        slowest = max(self._group_sync_ns(size, *group) for group in self._sync_groups[stage])
        return slowest + (self.tied_ns if stage in (0, self.degrees.pp - 1) else 0)

    def syncs_ns(self, cuts: Sequence[int]) -> list[int]:
        """Time in ns to synchronise the gradients of every stage. cuts: first layer of every stage but the first."""
        spans = pairwise((0, *cuts, self.instance.layers))
        return [self.sync_ns(stage, first, end - 1) for stage, (first, end) in enumerate(spans)]

    def time_ns(self, cuts: Sequence[int], shares: Sequence[int]) -> int:
        """Time in ns of the step, the objective of Eq. 4 of AMP. cuts: first layer of every stage but the first; shares:
        micro-batches of every pipeline."""
        return int(self.pipelines_ns(cuts, shares).max()) + max(self.syncs_ns(cuts))

    def peak_bytes(self, cuts: Sequence[int], shares: Sequence[int]) -> Integers:
        """(P, d): peak bytes of a device in every stage of every pipeline under 1F1B. cuts: first layer of every stage but the
        first; shares: micro-batches of every pipeline. It uses sums over all stages together; a test asserts that they equal
        `Memory.stage_peak`."""
        degrees, starts = self.degrees, [0, *cuts]
        table, shard = self.instance.tables[degrees.tmp, degrees.mbs], self.instance.shards[degrees.tmp]
        states, kept = (np.add.reduceat(column, starts) for column in (shard.state_bytes, table.kept_bytes))
        workspace = np.maximum.reduceat(table.workspace_bytes, starts)
        return (states + workspace)[:, None] + _in_flight(degrees.pp, tuple(shares)) * kept[:, None]

    @cached_property
    def _sync_groups(self) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """For every stage its data-parallel groups, one for each set of classes: the classes, ascending, and the devices."""
        groups = self.grid.transpose(0, 2, 1)
        classes = np.sort(self.instance.classes[groups], axis=2)
        return [
            list({tuple(key): tuple(devices) for key, devices in zip(*stage, strict=True)}.items())
            for stage in zip(classes.tolist(), groups.tolist(), strict=True)
        ]

    def _group_sync_ns(self, size: int, classes: tuple[int, ...], devices: tuple[int, ...]) -> int:
        """Time to reduce `size` bytes of gradients over devices of the given classes; kept with the instance."""
        costs = self.instance.group_costs
        if (size, classes) not in costs:
            costs[size, classes] = group_sync_ns(self.instance, devices, size)
        return costs[size, classes]

    def _by_group(
        self, groups: Integers, cost: Callable[[Instance, Degrees, Sequence[int]], Integers], columns: int
    ) -> Integers:
        """(..., columns): the cost of every group of devices along the last axis of `groups`, in the groups' shape."""
        flat, costs, rows = groups.reshape(-1, groups.shape[-1]), self.instance.group_costs, []
        shape = cost.__name__, self.degrees.tmp, self.degrees.mbs
        for classes, devices in zip(np.sort(self.instance.classes[flat], axis=1).tolist(), flat.tolist(), strict=True):
            key = (*shape, *classes)
            if key not in costs:
                costs[key] = cost(self.instance, self.degrees, devices)
            rows.append(costs[key])
        return np.array(rows, np.int64).reshape(*groups.shape[:-1], columns)


def end_ranks(degrees: Degrees) -> int:
    """The number of ranks in the first and the last stage together."""
    return min(2, degrees.pp) * degrees.dp * degrees.tmp


@lru_cache(maxsize=256)
def _in_flight(stages: int, shares: tuple[int, ...]) -> Integers:
    """(P, d): micro-batches in flight on every stage of every pipeline. shares: micro-batches of each pipeline."""
    return np.array([[most_in_flight("1f1b", stages, share, stage) for share in shares] for stage in range(stages)])


def group_layer_ns(instance: Instance, degrees: Degrees, devices: Sequence[int]) -> Integers:
    """(L,): time of every layer in a group of tmp devices: the slowest of them, plus the all-reduces over their slowest link.

    A layer that each device computes as a whole has no all-reduces.
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
    """(L-1,): time of an activation and its gradient between two devices, for a cut after each layer."""
    sizes = instance.boundary_bytes.tolist()
    message_ns = {
        size: round(2 * collective_ns(instance.network, "p2p", size * degrees.mbs, tuple(devices))) for size in set(sizes)
    }
    return np.array([message_ns[size] for size in sizes], np.int64)


def group_sync_ns(instance: Instance, devices: Sequence[int], gradient_bytes: int) -> int:
    """Time of the all-reduce of `gradient_bytes` over a data-parallel group."""
    return round(collective_ns(instance.network, "all-reduce", gradient_bytes, tuple(devices)))
