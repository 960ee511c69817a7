"""What the exact methods for cluster-strategy share: one Degrees at a time, and what groups of each make cost.

The make of a group is how many devices it has of each class (see `classes`); groups of one make cost the same. A profile is
what layers take in a tmp group, with the memory of its smallest device; several makes may have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from math import comb

import numpy as np
from trainplan.formulations.cluster_strategy.placed import Integers, group_layer_ns, group_sync_ns, pair_transfer_ns
from trainplan.formulations.cluster_strategy.problem import NAME, Degrees, Instance, Solution
from trainplan.profiling.network import Island

Make = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """An instance with its degrees given. P stages, d pipelines, tmp devices a group.

    reduced: of makes that differ by an exchange of whole classes only (see `orbits`), `groups` and `replicas` have one.
    """

    instance: Instance
    degrees: Degrees
    reduced: bool = False
    problem: str = field(default=NAME, init=False)

    @cached_property
    def micro_batches(self) -> int:
        """Of all pipelines together."""
        return self.instance.batch // self.degrees.mbs

    @cached_property
    def share_choices(self) -> tuple[int, ...]:
        """What gas_i may be."""
        even, rest = divmod(self.micro_batches, self.degrees.dp)
        if self.instance.uneven_shares and self.degrees.dp > 1:
            return tuple(range(1, self.micro_batches - self.degrees.dp + 2))
        assert rest == 0
        return (even,)

    @cached_property
    def members(self) -> list[list[int]]:
        """Devices of every class."""
        classes = self.instance.classes
        return [np.flatnonzero(classes == c).tolist() for c in range(int(classes.max()) + 1)]

    @cached_property
    def counts(self) -> Make:
        return tuple(map(len, self.members))

    def devices(self, make: Make) -> tuple[int, ...]:
        """Some devices of that make."""
        return tuple(device for own, taken in zip(self.members, make, strict=True) for device in own[:taken])

    @property
    def size(self) -> int:
        """About how many variables a model has that states the make of every group."""
        given, classes = self.degrees, len(self.counts)
        of_groups = given.pp * given.dp * comb(classes + given.tmp - 1, given.tmp)
        return of_groups + given.pp * given.tmp * comb(classes + given.dp - 1, given.dp)

    @cached_property
    def groups(self) -> list[Make]:
        """Makes of tmp groups."""
        return self._makes(self.degrees.tmp)

    @cached_property
    def _profiled(self) -> tuple[list[int], list[Integers], list[int]]:
        """The profile of every make, and times (L,) and limit of every profile."""
        known: dict[tuple[bytes, int], int] = {}
        numbers, rows, limits = [], [], []
        times: dict[tuple[object, ...], Integers] = {}
        for make in self.groups:
            devices = self.devices(make)
            kinds = frozenset(self.instance.device_kinds[device] for device in devices)
            key = (kinds, _link(self.instance, devices))
            if key not in times:
                times[key] = group_layer_ns(self.instance, self.degrees, devices)
            limit = min(self.instance.kinds[kind].memory_bytes for kind in kinds) if self.instance.within_memory else 0
            named = (times[key].tobytes(), limit)
            if named not in known:
                known[named] = len(rows)
                rows.append(times[key])
                limits.append(limit)
            numbers.append(known[named])
        return numbers, rows, limits

    @property
    def profile_of(self) -> list[int]:
        """The profile of every make of a tmp group."""
        return self._profiled[0]

    @cached_property
    def layer_ns(self) -> Integers:
        """Of every profile: (profiles, L)."""
        return np.stack(self._profiled[1])

    @property
    def limits_bytes(self) -> list[int]:
        """Of every profile."""
        return self._profiled[2]

    @cached_property
    def times(self) -> Integers:
        """Sums of the first layers of every profile: (profiles, L + 1)."""
        return np.pad(self.layer_ns.cumsum(axis=1), ((0, 0), (1, 0)))

    @cached_property
    def _linked(self) -> tuple[Integers, Integers]:
        count = len(self.members)
        number, rows = np.full((count, count), -1, np.int64), []
        known: dict[bytes, int] = {}
        for a in range(count):
            for b in range(a, count):
                pair = (self.members[a][0], self.members[b][-1])
                if pair[0] == pair[1]:
                    continue
                row = pair_transfer_ns(self.instance, self.degrees, pair)
                if row.tobytes() not in known:
                    known[row.tobytes()] = len(rows)
                    rows.append(row)
                number[a, b] = number[b, a] = known[row.tobytes()]
        if not rows:
            rows.append(np.zeros(self.instance.layers - 1, np.int64))
        return number, np.stack(rows)

    @property
    def link_of(self) -> Integers:
        """The kind of link between devices of two classes; -1 where there are no two such devices: (classes, classes)."""
        return self._linked[0]

    @property
    def transfer_ns(self) -> Integers:
        """Of every kind of link, for a cut after each layer: (links, L - 1)."""
        return self._linked[1]

    @cached_property
    def replicas(self) -> list[Make]:
        """Makes of data-parallel groups."""
        return self._makes(self.degrees.dp)

    def _makes(self, size: int) -> list[Make]:
        alike = orbits(self.instance) if self.reduced else tuple(range(len(self.counts)))
        return list(makes(self.counts, alike, size))

    @cached_property
    def _synchronised(self) -> tuple[list[int], Integers]:
        known: dict[object, int] = {}
        numbers, examples = [], []
        for make in self.replicas:
            devices = self.devices(make)
            key = _link(self.instance, devices)
            if key not in known:
                known[key] = len(examples)
                examples.append(devices)
            numbers.append(known[key])
        layers = self.instance.layers
        sums = np.pad(self.instance.shards[self.degrees.tmp].gradient_bytes.cumsum(), (1, 0))
        sizes, place = np.unique(np.maximum(0, sums[None, :] - sums[:, None]), return_inverse=True)
        each = np.array(
            [[group_sync_ns(self.instance, devices, int(size)) for size in sizes] for devices in examples], np.int64
        )
        return numbers, each[:, place.reshape(layers + 1, layers + 1)]

    @property
    def ring_of(self) -> list[int]:
        """The kind of link of every make of a data-parallel group."""
        return self._synchronised[0]

    @property
    def sync_ns(self) -> Integers:
        """D of every kind of link, first layer, and layer after the last: (rings, L + 1, L + 1)."""
        return self._synchronised[1]

    def spans(self, stage: int) -> list[tuple[int, int]]:
        """Layers (first, layer after the last) that a stage may hold: every stage has one."""
        after = self.degrees.pp - 1 - stage
        last = self.instance.layers - after
        firsts = range(stage, last) if stage else range(1)
        ends = range(stage + 1, last + 1) if after else range(last, last + 1)
        return [(first, end) for first in firsts for end in ends if first < end]

    def peak_bytes(self, ahead: int) -> Integers:
        """Of layers [first, end) with `ahead` micro-batches in flight; 0 where end <= first: (L + 1, L + 1)."""
        table = self.instance.tables[self.degrees.tmp, self.degrees.mbs]
        held = self.instance.shards[self.degrees.tmp].state_bytes + ahead * table.kept_bytes
        sums = np.pad(held.cumsum(), (1, 0))
        found = np.zeros((len(sums), len(sums)), np.int64)
        for first in range(len(sums) - 1):
            beside = np.maximum.accumulate(table.workspace_bytes[first:])
            found[first, first + 1 :] = sums[first + 1 :] - sums[first] + beside
        return found

    def solution(self, classes: Iterable[int], cuts: Sequence[int], shares: Sequence[int]) -> Solution:
        """The solution with a device of the given class on every rank."""
        waiting = [iter(own) for own in self.members]
        placement = tuple(next(waiting[c]) for c in classes)
        return Solution(self.degrees, placement, tuple(map(int, cuts)), tuple(map(int, shares)))


def cases(instance: Instance) -> list[Case]:
    """One for each Degrees."""
    return [Case(instance, degrees) for degrees in instance.degrees()]


def makes(counts: Sequence[int], alike: Sequence[int], size: int) -> Iterator[Make]:
    """All ways to take `size` devices of classes that have so many; of an orbit, no more of one class than of one before."""

    def continued(taken: Make, left: int) -> Iterator[Make]:
        place = len(taken)
        if place == len(counts):
            yield taken
            return
        earlier = [own for own, orbit in zip(taken, alike, strict=False) if orbit == alike[place]]
        most = min(left, counts[place], *earlier[-1:])
        for own in range(max(0, left - sum(counts[place + 1 :])), most + 1):
            yield from continued((*taken, own), left - own)

    return continued((), size)


@lru_cache(maxsize=16)
def orbits(instance: Instance) -> tuple[int, ...]:
    """For every class the first one that it may be exchanged with, whole: of one kind and size, with equal links.

    Exchanged, two classes must leave a matrix as it is, or the sets of devices that islands hold and nodes share; islands of
    equal links that follow one another may change places. Exchanges of a with b and with c make one of b with c.
    """
    classes = instance.classes
    members = [np.flatnonzero(classes == c) for c in range(int(classes.max()) + 1)]
    found: list[int] = []
    for b, own in enumerate(members):
        alike = (a for a in range(b) if found[a] == a and _exchangeable(instance, members[a], own))
        found.append(next(alike, b))
    return tuple(found)


def _exchangeable(instance: Instance, a: Integers, b: Integers) -> bool:
    if len(a) != len(b) or instance.device_kinds[a[0]] != instance.device_kinds[b[0]]:
        return False
    count = instance.devices
    moved = np.arange(count)
    moved[a], moved[b] = b, a
    matrix = instance.network.matrix
    if matrix is not None:
        tables = [np.array(matrix.bandwidth_bytes_per_s)[:count, :count]]
        if matrix.latencies_ns is not None:
            tables.append(np.array(matrix.latencies_ns)[:count, :count])
        apart = ~np.eye(count, dtype=bool)
        return all(np.array_equal(table[apart], table[moved][:, moved][apart]) for table in tables)
    levels = groupby(instance.network.islands, key=lambda island: island.model_dump(exclude={"first", "origin", "error"}))
    for _, islands in levels:
        sets = [own for island in islands for own in _sets(island, count)]
        images = [(*place, frozenset(int(moved[device]) for device in held)) for *place, held in sets]
        if Counter(sets) != Counter(images):
            return False
    return True


def _sets(island: Island, count: int) -> Iterator[tuple[str, frozenset[int]]]:
    """What an island holds, and the nodes whose members are counted."""
    firsts = range(0, count, island.devices) if island.first is None else [island.first]
    for first in firsts:
        yield "held", frozenset(range(first, min(count, first + island.devices)))
    if island.shared_by > 1:
        for first in range(0, count, island.shared_by):
            yield "sharing", frozenset(range(first, min(count, first + island.shared_by)))


def _link(instance: Instance, devices: Sequence[int]) -> object:
    """What decides the time of a group's all-reduces beside their size."""
    if len(devices) < 2:
        return None
    link = instance.network.link(devices, "all-reduce")
    return link.bandwidth_bytes_per_s, link.latency_ns
