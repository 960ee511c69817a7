"""What follows from a placement: times of every layer, transfer and synchronisation in every pipeline, and limits of memory.

Groups of devices of the same classes (see `classes`) cost the same, so each such group is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from trainplan.profiling.costs import collective_ns

if TYPE_CHECKING:
    from trainplan.formulations.cluster_strategy.problem import Degrees, Instance

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement of P = pp stages, d = dp pipelines and tmp ranks. placement: the device of every rank."""

    instance: Instance
    degrees: Degrees
    placement: Integers

    @cached_property
    def grid(self) -> Integers:
        """Devices by stage, pipeline and tensor-parallel rank: (P, d, tmp)."""
        return self.placement.reshape(self.degrees.pp, self.degrees.dp, self.degrees.tmp)

    @cached_property
    def layer_ns(self) -> Integers:
        """Time of a layer in stage j of pipeline i: (P, d, L)."""
        degrees = self.degrees
        rows = _by_group(self.instance, self.grid, lambda devices: group_layer_ns(self.instance, degrees, devices))
        return rows.reshape(degrees.pp, degrees.dp, -1)

    @cached_property
    def transfer_ns(self) -> Integers:
        """e: from stage j to the next one, if the cut comes after layer l: (P-1, d, L-1)."""
        before, after = self.grid[:-1], self.grid[1:]
        pairs = np.stack([before, after], axis=-1)
        rows = _by_group(self.instance, pairs, lambda devices: pair_transfer_ns(self.instance, self.degrees, devices), 2)
        return rows.reshape(*pairs.shape[:3], self.instance.layers - 1).max(axis=2)

    @cached_property
    def limits_bytes(self) -> Integers:
        """Memory of the smallest device in every group: (P, d)."""
        memory = np.array([kind.memory_bytes for kind in self.instance.kinds], np.int64)
        return memory[np.array(self.instance.device_kinds)[self.grid]].min(axis=2)

    def kinds_of(self, stage: int) -> list[int]:
        """Kind of every device of a stage."""
        return [self.instance.device_kinds[device] for device in self.grid[stage].flat]

    def stage_ns(self, cuts: Sequence[int]) -> Integers:
        """t of every stage in every pipeline: (P, d)."""
        sums = np.pad(self.layer_ns.cumsum(axis=2), ((0, 0), (0, 0), (1, 0)))
        stages, borders = np.arange(self.degrees.pp), np.array([0, *cuts, self.instance.layers])
        return sums[stages, :, borders[1:]] - sums[stages, :, borders[:-1]]

    def sync_ns(self, stage: int, first: int, last: int) -> int:
        """D of a stage with these layers: the slowest of the all-reduces of its gradients."""
        size = int(self.instance.shards[self.degrees.tmp].gradient_bytes[first : last + 1].sum())
        return max(group_sync_ns(self.instance, devices, size) for devices in self.sync_groups[stage])

    @cached_property
    def sync_groups(self) -> list[list[tuple[int, ...]]]:
        """For every stage the devices of one data-parallel group of each make."""
        found = []
        for stage in self.grid:
            groups = stage.T
            _, first = np.unique(np.sort(self.instance.classes[groups], axis=1), axis=0, return_index=True)
            found.append([tuple(map(int, groups[place])) for place in first])
        return found

    def peak_bytes(self, cuts: Sequence[int], shares: Sequence[int]) -> Integers:
        """Of every stage in every pipeline under 1F1B: (P, d)."""
        given = self.degrees
        table, shard = self.instance.tables[given.tmp, given.mbs], self.instance.shards[given.tmp]
        starts = [0, *cuts]
        states, kept = (np.add.reduceat(column, starts) for column in (shard.state_bytes, table.kept_bytes))
        beside = np.maximum.reduceat(table.workspace_bytes, starts)
        ahead = np.minimum(np.array(shares)[None, :], given.pp - np.arange(given.pp)[:, None])
        return (states + beside)[:, None] + ahead * kept[:, None]


def group_layer_ns(instance: Instance, degrees: Degrees, devices: Sequence[int]) -> Integers:
    """Every layer in a group of tmp devices: the slowest of them, and the all-reduces at their slowest link: (L,)."""
    table = instance.tables[degrees.tmp, degrees.mbs]
    kinds = sorted({instance.device_kinds[device] for device in devices})
    time = table.layer_ns[kinds].max(axis=0)
    if len(devices) == 1:
        return time
    made: dict[tuple[int, int], int] = {}
    for count, size in set(zip(instance.reductions.tolist(), instance.reduced_bytes.tolist(), strict=True)):
        message = size * degrees.mbs / max(1, count)
        made[count, size] = round(count * collective_ns(instance.network, "all-reduce", message, tuple(devices)))
    each = [made[key] for key in zip(instance.reductions.tolist(), instance.reduced_bytes.tolist(), strict=True)]
    return time + np.array(each, np.int64)


def pair_transfer_ns(instance: Instance, degrees: Degrees, devices: Sequence[int]) -> Integers:
    """An activation and its gradient between two devices, for a cut after each layer: (L-1,)."""
    sizes = instance.boundary_bytes.tolist()
    made = {size: round(2 * collective_ns(instance.network, "p2p", size * degrees.mbs, tuple(devices))) for size in set(sizes)}
    return np.array([made[size] for size in sizes], np.int64)


def group_sync_ns(instance: Instance, devices: Sequence[int], gradient_bytes: int) -> int:
    """The all-reduce of gradients over a data-parallel group."""
    return round(collective_ns(instance.network, "all-reduce", gradient_bytes, tuple(devices)))


def _by_group(
    instance: Instance, groups: Integers, cost: Callable[[tuple[int, ...]], Integers], size: int | None = None
) -> Integers:
    """The cost of every group along the last axis, computed once for groups of the same classes, in order: (groups, ...)."""
    flat = groups.reshape(-1, size or groups.shape[-1])
    classes = instance.classes[flat]
    _, first, inverse = np.unique(np.sort(classes, axis=1), axis=0, return_index=True, return_inverse=True)
    if not len(first):
        return np.zeros((0, instance.layers - 1), np.int64)
    return np.stack([cost(tuple(map(int, flat[place]))) for place in first])[inverse.reshape(-1)]
