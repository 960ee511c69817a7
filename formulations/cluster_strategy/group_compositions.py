"""One Degrees of a cluster-strategy instance, and what groups of devices of each make cost there, for the exact methods.

The make of a group is how many devices it has of each class (see `classes`); groups of one make cost the same. A profile is
what layers take in a tmp group, with the memory of its smallest device; several makes may have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, compress, groupby
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.classes import first_alike, matrix_tables, unchanged
from trainplan.formulations.cluster_strategy.placement_costs import end_ranks, group_layer_ns, group_sync_ns, pair_transfer_ns
from trainplan.formulations.cluster_strategy.problem import NAME, Degrees, Instance, Solution
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.formulations.schedule.stage_memory import Memory
from trainplan.profiling.clusters.network import Island, Network, Operation

Composition = tuple[int, ...]
MOST_MAKES = 20_000
MOST_VARIABLES = 200_000


def unlimited() -> None:
    """A clock that never ends anything; a function by name, for cases to be sent to other processes."""


@dataclass(frozen=True, eq=False)
class DegreeCase:
    """An instance with its degrees given. P stages, d pipelines, tmp devices a group.

    reduced: of makes that differ by an exchange of whole classes only (see `orbits`), `groups` and `replicas` have one.
    windows: what `first_layers` has given, by limits. check_time: called often by what takes long; what it raises is passed on.
    """

    instance: Instance
    degrees: Degrees
    reduced: bool = False
    check_time: Callable[[], None] = unlimited
    windows: dict[tuple[int, ...], Integers] = field(default_factory=dict, init=False, repr=False)

    problem = NAME

    @cached_property
    def micro_batches(self) -> int:
        """The micro-batches of a step in all pipelines together."""
        return self.instance.batch // self.degrees.mbs

    @property
    def even_share(self) -> int:
        """The most micro-batches that a pipeline has where shares are as equal as they can be."""
        return -(-self.micro_batches // self.degrees.dp)

    @cached_property
    def share_choices(self) -> range:
        """The numbers of micro-batches that a pipeline may have, ascending."""
        even, rest = divmod(self.micro_batches, self.degrees.dp)
        if self.instance.uneven_shares and self.degrees.dp > 1:
            return range(1, self.micro_batches - self.degrees.dp + 2)
        assert rest == 0
        return range(even, even + 1)

    @cached_property
    def counts(self) -> Composition:
        """The number of devices of every class."""
        return tuple(map(len, self.instance.members))

    def devices(self, make: Composition) -> tuple[int, ...]:
        """Some group of devices of a make."""
        taken = compress(zip(self.instance.members, make, strict=True), make)
        return tuple(chain.from_iterable([members[:count] for members, count in taken]))

    @property
    def statable(self) -> bool:
        """Whether a model may state the make of every group: there are few enough, and few enough variables for them and for
        the shares of pipelines."""
        degrees = self.degrees
        groups, replicas = self._makes(degrees.tmp), self._makes(degrees.dp)
        ends = self._makes(end_ranks(degrees)) if self.instance.tied_bytes else ()
        if groups is None or replicas is None or ends is None:
            return False
        of_groups = degrees.pp * (degrees.dp * len(groups) + degrees.tmp * len(replicas)) + len(ends)
        return of_groups + degrees.dp * len(self.share_choices) <= MOST_VARIABLES

    def _makes(self, size: int) -> tuple[Composition, ...] | None:
        alike = orbits(self.instance) if self.reduced else tuple(range(len(self.counts)))
        return makes(self.counts, alike, size, MOST_MAKES)

    @property
    def enumerable(self) -> bool:
        """Whether `groups` are few enough to list."""
        return self._makes(self.degrees.tmp) is not None

    @cached_property
    def groups(self) -> list[Composition]:
        """The makes of tensor-parallel groups."""
        listed = self._makes(self.degrees.tmp)
        assert listed is not None
        return list(listed)

    @cached_property
    def _profiled(self) -> tuple[list[int], Integers, list[int]]:
        """The profile of every make, and times (profiles, L) and limit of every profile."""
        profiles: dict[tuple[bytes, int], tuple[int, Integers]] = {}
        numbers: list[int] = []
        times: dict[tuple[object, ...], Integers] = {}
        for make in self.groups:
            self.check_time()
            devices = self.devices(make)
            kinds = frozenset(self.instance.device_kinds[device] for device in devices)
            key = (kinds, _link(self.instance, devices))
            if key not in times:
                times[key] = group_layer_ns(self.instance, self.degrees, devices)
            limit = min(self.instance.kinds[kind].memory_bytes for kind in kinds) if self.instance.within_memory else 0
            numbers.append(profiles.setdefault((times[key].tobytes(), limit), (len(profiles), times[key]))[0])
        return numbers, np.stack([row for _, row in profiles.values()]), [limit for _, limit in profiles]

    @property
    def profile_of(self) -> list[int]:
        """The profile of every make of a tmp group."""
        return self._profiled[0]

    @property
    def layer_ns(self) -> Integers:
        """Time of every layer in a group of each profile: (profiles, L)."""
        return self._profiled[1]

    @property
    def limits_bytes(self) -> list[int]:
        """Memory of the smallest device of each profile; 0 where memory does not count."""
        return self._profiled[2]

    @cached_property
    def times(self) -> Integers:
        """Time of all layers before each, in a group of each profile: (profiles, L + 1)."""
        return np.pad(self.layer_ns.cumsum(axis=1), ((0, 0), (1, 0)))

    @cached_property
    def _linked(self) -> tuple[Integers, Integers]:
        count = len(self.instance.members)
        number = np.full((count, count), -1, np.int64)
        links: dict[bytes, tuple[int, Integers]] = {}
        numbers: dict[object, int] = {}  # by what decides the time of a message
        for a in range(count):
            for b in range(a, count):
                pair = (self.instance.members[a][0], self.instance.members[b][-1])
                if pair[0] == pair[1]:
                    continue
                link = _link(self.instance, pair, "p2p")
                if link not in numbers:
                    self.check_time()
                    row = pair_transfer_ns(self.instance, self.degrees, pair)
                    numbers[link] = links.setdefault(row.tobytes(), (len(links), row))[0]
                number[a, b] = number[b, a] = numbers[link]
        rows = [row for _, row in links.values()] or [np.zeros(self.instance.layers - 1, np.int64)]
        return number, np.stack(rows)

    @property
    def link_of(self) -> Integers:
        """The kind of link between devices of two classes; -1 where there are no two such devices: (classes, classes)."""
        return self._linked[0]

    @property
    def transfer_ns(self) -> Integers:
        """Time of the transfer over each kind of link, for a cut after each layer: (links, L - 1)."""
        return self._linked[1]

    @cached_property
    def replicas(self) -> list[Composition]:
        """Makes of data-parallel groups, or parts of them (see `_reducing`)."""
        return self._reducing(self.degrees.dp)

    @cached_property
    def ends(self) -> list[Composition]:
        """Makes of all devices of the first and the last stage together, or parts of them (see `_reducing`)."""
        return self._reducing(end_ranks(self.degrees))

    def _reducing(self, size: int) -> list[Composition]:
        """Makes of groups of so many devices that reduce gradients.

        Of a reduced case with too many, those in one class, and for every class a part of all others: one device of it.
        """
        if (listed := self._makes(size)) is not None:
            return list(listed)
        assert self.reduced
        alone = np.eye(len(self.counts), dtype=np.int64).tolist()
        whole = [[size * taken for taken in make] for c, make in enumerate(alone) if self.counts[c] >= size]
        return [tuple(make) for make in whole + alone]

    def _rings(self, listed: Sequence[Composition], size: int) -> tuple[list[int], list[tuple[Instance, tuple[int, ...]]]]:
        """The kind of link of every make of a group of so many devices, and an example of each: a group, in an instance.

        Parts of groups have the best link between two classes.
        """
        links: dict[object, int] = {}
        numbers: list[int] = []
        examples: list[tuple[Instance, tuple[int, ...]]] = []
        for make in listed:
            self.check_time()
            whole = sum(make) == size
            devices = self.devices(make) if whole else tuple(range(size))
            key = _link(self.instance, devices) if whole else "between classes"
            if key not in links:
                links[key] = len(examples)
                examples.append((self.instance if whole else _best_between_classes(self.instance), devices))
            numbers.append(links[key])
        return numbers, examples

    @cached_property
    def tied_ns(self) -> list[int]:
        """What the reduction of a tied table takes, by make of `ends`; empty where no table is tied."""
        size = self.instance.tied_bytes
        if not size:
            return []
        numbers, examples = self._rings(self.ends, end_ranks(self.degrees))
        times = [group_sync_ns(instance, devices, size) for instance, devices in examples]
        return [times[number] for number in numbers]

    @property
    def least_tied_by_class_ns(self) -> tuple[int | None, int | None]:
        """The least that the reduction of the tied table takes where its devices are all of one class, and elsewhere; None
        where there is no such group, or no tied table."""
        within, elsewhere = list[int](), list[int]()
        for make, time in zip(self.ends if self.instance.tied_bytes else (), self.tied_ns, strict=True):
            (within if max(make) == end_ranks(self.degrees) else elsewhere).append(time)
        return min(within, default=None), min(elsewhere, default=None)

    @property
    def least_tied_ns(self) -> int:
        """A time that no reduction of the tied table beats."""
        return min(self.tied_ns, default=0)

    @cached_property
    def _synchronised(self) -> tuple[list[int], Integers]:
        """The kind of link of every make of a data-parallel group, and D of each kind, without R."""
        numbers, examples = self._rings(self.replicas, self.degrees.dp)
        sums = self.instance.shards[self.degrees.tmp].gradient_sums
        sizes, place = np.unique(np.maximum(0, sums[None, :] - sums[:, None]), return_inverse=True)
        rows = [[group_sync_ns(instance, devices, int(value)) for value in sizes] for instance, devices in examples]
        return numbers, np.array(rows, np.int64)[:, place.reshape(len(sums), len(sums))]

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

    def in_flight(self, share: int, stage: int) -> int:
        """Micro-batches in flight on a stage of a pipeline that has so many in a step."""
        return most_in_flight("1f1b", self.degrees.pp, share, stage)

    def first_layers(self, limits_bytes: tuple[int, ...]) -> Integers:
        """(P, L): the least first layer with which stage j fits its limit when layer l is its last, with an even share."""
        if limits_bytes not in self.windows:
            shard, table = self.instance.shards[self.degrees.tmp], self.instance.tables[self.degrees.tmp, self.degrees.mbs]
            limits = np.array(limits_bytes, np.int64)
            memory = Memory(limits, shard.state_bytes, table.kept_bytes, table.workspace_bytes)
            in_flight = [self.in_flight(self.even_share, stage) for stage in range(self.degrees.pp)]
            self.windows[limits_bytes] = memory.first_layers(in_flight)
        return self.windows[limits_bytes]

    def peak_bytes(self, ahead: int) -> Integers:
        """Peak of a stage of layers [first, end) with `ahead` micro-batches in flight: (L + 1, L + 1); 0 where end <= first. By
        running sums of all stages at once; a test asserts that they are `Memory.stage_peak`."""
        table = self.instance.tables[self.degrees.tmp, self.degrees.mbs]
        stacked = self.instance.shards[self.degrees.tmp].state_bytes + ahead * table.kept_bytes
        sums = np.pad(stacked.cumsum(), (1, 0))
        peaks = np.zeros((len(sums), len(sums)), np.int64)
        for first in range(len(sums) - 1):
            beside = np.maximum.accumulate(table.workspace_bytes[first:])
            peaks[first, first + 1 :] = sums[first + 1 :] - sums[first] + beside
        return peaks

    def solution(self, classes: Iterable[int], cuts: Sequence[int], shares: Sequence[int]) -> Solution:
        """The solution with a device of the given class on every rank."""
        return Solution(self.degrees, self.instance.placement(classes), tuple(map(int, cuts)), tuple(map(int, shares)))

    def excesses(self) -> Iterator[tuple[int, list[tuple[int, int]], list[int], list[int]]]:
        """Stage, spans, profiles and shares, of which no three may be chosen together: they exceed the memory."""
        for j in range(self.degrees.pp if self.instance.within_memory else 0):
            for ahead, run in groupby(self.share_choices, key=partial(self.in_flight, stage=j)):
                peaks, shares = self.peak_bytes(ahead), list(run)
                for limit in sorted(set(self.limits_bytes)):
                    if over := [span for span in self.spans(j) if peaks[span] > limit]:
                        yield j, over, [f for f, other in enumerate(self.limits_bytes) if other == limit], shares


def cases(instance: Instance) -> list[DegreeCase]:
    """A case for each Degrees of an instance."""
    return [DegreeCase(instance, degrees) for degrees in instance.degrees()]


@lru_cache(maxsize=256)
def makes(counts: Composition, alike: Composition, size: int, most: int) -> tuple[Composition, ...] | None:
    """All ways to take `size` devices of classes that have so many, of an orbit no more of one class than of one before; None
    where there are more than `most` ways, which are counted before any is listed."""
    members = [[c for c, other in enumerate(alike) if other == orbit] for orbit in dict.fromkeys(alike)]
    alone = [(len(those), counts[those[0]]) for those in members]  # classes of one orbit have equally many devices
    if _ways(alone, size, most + 1) > most:
        return None
    room = [sum(parts * devices for parts, devices in alone[number:]) for number in range(len(alone) + 1)]

    place = np.argsort([c for those in members for c in those]).tolist()
    listed: list[Composition] = []
    waiting = (
        [(0, (), size)] if size <= room[0] else list[tuple[int, Composition, int]]()
    )  # orbits, what is taken of them, and left
    while waiting:
        number, taken, left = waiting.pop()
        if number == len(alone) or not left:
            shares = taken + (0,) * (len(counts) - len(taken))
            listed.append(tuple(shares[at] for at in place))
            continue
        parts, devices = alone[number]
        for whole in range(max(0, left - room[number + 1]), min(left, parts * devices) + 1):
            waiting += [(number + 1, taken + shares, left - whole) for shares in _partitions(whole, parts, devices)]
    return tuple(sorted(listed, reverse=True))


def _ways(alone: Sequence[tuple[int, int]], size: int, enough: int) -> int:
    """How many ways there are to take `size` devices of orbits of so many classes with so many devices; at most `enough`."""
    ways = np.eye(1, size + 1, dtype=np.int64)[0]  # by devices taken
    for parts, devices in alone:
        most = min(size, parts * devices)
        of_orbit = np.zeros((parts + 1, most + 1), np.int64)  # by classes that something is taken of, too
        of_orbit[0, 0] = 1
        for share in range(1, min(devices, most) + 1):
            for taken in range(parts):
                of_orbit[taken + 1, share:] += of_orbit[taken, : most + 1 - share]
            np.minimum(of_orbit, enough, out=of_orbit)
        ways = np.minimum(np.convolve(ways, np.minimum(of_orbit.sum(axis=0), enough))[: size + 1], enough)
    return int(ways[size])


def _partitions(whole: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
    """Into so many parts of at most `most`, none larger than the one before; 0 is one, too."""
    waiting: list[tuple[tuple[int, ...], int]] = [((), whole)]
    while waiting:
        begun, left = waiting.pop()
        more = parts - len(begun)
        if not left:
            yield begun + (0,) * more
            continue
        largest = min(left, begun[-1] if begun else most)
        waiting += [((*begun, share), left - share) for share in range(-(-left // more), largest + 1)]


@lru_cache(maxsize=16)
def orbits(instance: Instance) -> tuple[int, ...]:
    """For every class the first one that it may be exchanged with, whole: of one kind and size, with equal links.

    Exchanged, two classes must leave a matrix as it is, or the sets of devices that islands hold and nodes share; islands of
    equal links that follow one another may change places. Exchanges of a with b and with c make one of b with c.
    """
    members = instance.members
    return first_alike(len(members), lambda a, b: _exchangeable(instance, members[a], members[b]))


def _exchangeable(instance: Instance, a: list[int], b: list[int]) -> bool:
    if len(a) != len(b) or instance.device_kinds[a[0]] != instance.device_kinds[b[0]]:
        return False
    if instance.network.matrix is not None:
        return unchanged(matrix_tables(instance.network.matrix, instance.devices), a, b)
    count = instance.devices
    moved = np.arange(count)
    moved[a], moved[b] = b, a
    levels = groupby(instance.network.islands, key=lambda island: island.model_dump(exclude={"first", "origin", "error"}))
    for _, islands in levels:
        sets = [place for island in islands for place in _sets(island, count)]
        images = [(name, frozenset(int(moved[device]) for device in devices)) for name, devices in sets]
        if Counter(sets) != Counter(images):
            return False
    return True


def _sets(island: Island, count: int) -> Iterator[tuple[str, frozenset[int]]]:
    """What an island holds, and the nodes whose members are counted."""
    firsts = range(0, count, island.devices) if island.first is None else [island.first]
    for first in firsts:
        yield "holding", frozenset(range(first, min(count, first + island.devices)))
    if island.shared_by > 1:
        for first in range(0, count, island.shared_by):
            yield "sharing", frozenset(range(first, min(count, first + island.shared_by)))


def _best_between_classes(instance: Instance) -> Instance:
    """The instance with all devices on one link, no worse than that of any group with devices of two classes."""
    classes, count = instance.classes, instance.devices
    return on_one_link(
        instance,
        lambda island: any(
            name == "holding" and len(set(classes[list(devices)])) > 1 for name, devices in _sets(island, count)
        ),
        classes[:, None] != classes[None, :],
    )


def on_one_link(instance: Instance, counts: Callable[[Island], bool], pairs: Any) -> Instance:
    """The instance with all devices on one link, no worse for reducing gradients than any island or pair that counts.

    pairs: of a network by pairs, (devices, devices) booleans.
    """
    network = instance.network
    if network.matrix is not None:
        bandwidths, *latencies = (table[pairs] for table in matrix_tables(network.matrix, instance.devices))
        bandwidth = float(bandwidths.max())
        latency = int(latencies[0].min()) if latencies else network.matrix.latency_ns
    else:
        islands = [island for island in network.islands if island.operation in (None, "all-reduce") and counts(island)]
        bandwidth = max(island.bandwidth_bytes_per_s for island in islands)
        latency = min(island.latency_ns for island in islands)
    link = Island(devices=instance.devices, bandwidth_bytes_per_s=bandwidth, latency_ns=latency)
    return replace(instance, network=Network(islands=[link], algorithm=network.algorithm))


def _link(instance: Instance, devices: Sequence[int], operation: Operation = "all-reduce") -> object:
    """What decides the time of a group's operation beside its size."""
    if len(devices) < 2:
        return None
    link = instance.network.link(devices, operation)
    return link.bandwidth_bytes_per_s, link.latency_ns
