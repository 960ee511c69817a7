"""A cluster-strategy instance with its degrees given, and what groups of devices cost there by composition, for the exact
methods.

The composition of a group is how many devices it has of each class (see `classes`); groups of one composition cost the same. A
profile is what layers take in a tensor-parallel group, with the memory of its smallest device; several compositions may have
the same profile.
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
from trainplan.formulations.cluster_strategy.compositions import Composition, compositions
from trainplan.formulations.cluster_strategy.instance import NAME, Degrees, Instance
from trainplan.formulations.cluster_strategy.placement_costs import end_ranks, group_layer_ns, group_sync_ns, pair_transfer_ns
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.formulations.schedule.stage_memory import Memory
from trainplan.profiling.clusters.network import Island, Network, Operation

MOST_COMPOSITIONS = 20_000
MOST_VARIABLES = 200_000


def unlimited() -> None:
    """The check of the time limit in a search without one: it does nothing. It is a named function, so that objects with it
    can be sent to other processes.
    """


@dataclass(frozen=True, eq=False)
class DegreeCase:
    """An instance with its degrees of parallelism given: P stages, d pipelines, tmp devices in a tensor-parallel group, L
    layers. A class is a set of interchangeable devices; the composition of a group of devices is the number of devices that
    it has of each class; groups of one composition cost the same. A profile stands for all compositions of tensor-parallel
    groups with equal times and memory. Costs are computed on first use.

    Attributes:
        instance, degrees: the instance, and the degrees.
        reduced: whether `groups` and `replicas` list only one of several compositions that differ by an exchange of whole
            classes.
        check_time: called often by long computations; an exception that it raises is passed on.
        windows: a cache of results of `first_layers`, by limits.
    """

    instance: Instance
    degrees: Degrees
    reduced: bool = False
    check_time: Callable[[], None] = unlimited
    windows: dict[tuple[int, ...], Integers] = field(default_factory=dict, init=False, repr=False)

    problem = NAME

    @cached_property
    def micro_batches(self) -> int:
        """The number of micro-batches of a step in all pipelines together."""
        return self.instance.batch // self.degrees.mbs

    @property
    def even_share(self) -> int:
        """The largest number of micro-batches of a pipeline where the pipelines have as equal numbers as possible."""
        return -(-self.micro_batches // self.degrees.dp)

    @cached_property
    def share_choices(self) -> range:
        """The numbers of micro-batches that one pipeline may have, ascending; a single one where all pipelines must have
        equally many."""
        even, rest = divmod(self.micro_batches, self.degrees.dp)
        if self.instance.uneven_shares and self.degrees.dp > 1:
            return range(1, self.micro_batches - self.degrees.dp + 2)
        assert rest == 0
        return range(even, even + 1)

    @cached_property
    def counts(self) -> Composition:
        """(classes): the number of devices of every class."""
        return tuple(map(len, self.instance.members))

    def devices(self, composition: Composition) -> tuple[int, ...]:
        """One of the groups of devices that have a given composition: the first devices of each class. composition: the number
        of devices of each class.
        """
        taken = compress(zip(self.instance.members, composition, strict=True), composition)
        return tuple(chain.from_iterable([members[:count] for members, count in taken]))

    @property
    def statable(self) -> bool:
        """Whether an integer model can have variables for the composition of every group: there are at most MOST_COMPOSITIONS
        compositions, and at most MOST_VARIABLES variables for them and for the micro-batches of pipelines."""
        degrees = self.degrees
        groups, replicas = self._compositions(degrees.tmp), self._compositions(degrees.dp)
        ends = self._compositions(end_ranks(degrees)) if self.instance.tied_bytes else ()
        if groups is None or replicas is None or ends is None:
            return False
        of_groups = degrees.pp * (degrees.dp * len(groups) + degrees.tmp * len(replicas)) + len(ends)
        return of_groups + degrees.dp * len(self.share_choices) <= MOST_VARIABLES

    def _compositions(self, size: int) -> tuple[Composition, ...] | None:
        """The possible compositions of groups of `size` devices (numbers of devices of each class); None if there are more than
        MOST_COMPOSITIONS."""
        alike = orbits(self.instance) if self.reduced else tuple(range(len(self.counts)))
        return compositions(self.counts, alike, size, MOST_COMPOSITIONS)

    @property
    def enumerable(self) -> bool:
        """Whether the possible compositions of tensor-parallel groups are few enough to list them in `groups`."""
        return self._compositions(self.degrees.tmp) is not None

    @cached_property
    def groups(self) -> list[Composition]:
        """The possible compositions of tensor-parallel groups; must not be read unless `enumerable` is True."""
        listed = self._compositions(self.degrees.tmp)
        assert listed is not None
        return list(listed)

    @cached_property
    def _profiled(self) -> tuple[list[int], Integers, list[int]]:
        """Three results that are computed together: `profile_of`, for each composition in `groups` the index of its profile;
        `layer_ns`, (profiles, L), the times of all layers in ns; and `limits_bytes`, for each profile the memory limit in
        bytes."""
        profiles: dict[tuple[bytes, int], tuple[int, Integers]] = {}
        numbers: list[int] = []
        times: dict[tuple[object, ...], Integers] = {}
        for composition in self.groups:
            self.check_time()
            devices = self.devices(composition)
            kinds = frozenset(self.instance.device_kinds[device] for device in devices)
            key = (kinds, _link(self.instance, devices))
            if key not in times:
                times[key] = group_layer_ns(self.instance, self.degrees, devices)
            limit = min(self.instance.kinds[kind].memory_bytes for kind in kinds) if self.instance.within_memory else 0
            numbers.append(profiles.setdefault((times[key].tobytes(), limit), (len(profiles), times[key]))[0])
        return numbers, np.stack([row for _, row in profiles.values()]), [limit for _, limit in profiles]

    @property
    def profile_of(self) -> list[int]:
        """For every composition in `groups`, the index of its profile: compositions with equal times of layers and equal memory
        share one."""
        return self._profiled[0]

    @property
    def layer_ns(self) -> Integers:
        """(profiles, L): the time in ns of every layer for one micro-batch in a tensor-parallel group of each profile."""
        return self._profiled[1]

    @property
    def limits_bytes(self) -> list[int]:
        """For each profile, the memory in bytes of the smallest device of a tensor-parallel group; 0 if memory limits do not
        count."""
        return self._profiled[2]

    @cached_property
    def times(self) -> Integers:
        """(profiles, L + 1): running sums of layers' times in ns in a tensor-parallel group of each profile; entry l is the
        sum over the layers 0 to l - 1.
        """
        return np.pad(self.layer_ns.cumsum(axis=1), ((0, 0), (1, 0)))

    @cached_property
    def _linked(self) -> tuple[Integers, Integers]:
        """Two results that are computed together: `link_of`, the kind of link of each pair of classes, and `transfer_ns`, the
        times of transfers over each kind of link."""
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
        """(classes, classes): the index of the kind of link between a device of one class and a device of another; -1 where
        there are no two such devices."""
        return self._linked[0]

    @property
    def transfer_ns(self) -> Integers:
        """(links, L - 1): the time in ns to send an activation forward and its gradient back over each kind of link, for a cut
        after each layer but the last."""
        return self._linked[1]

    @cached_property
    def replicas(self) -> list[Composition]:
        """The possible compositions of data-parallel groups (the d devices with the same layers); in a reduced case only the
        parts of them that decide the cost."""
        return self._reducing(self.degrees.dp)

    @cached_property
    def ends(self) -> list[Composition]:
        """The possible compositions of all devices of the first and the last stage together, which sum the gradients of a
        shared weight table; in a reduced case only the parts of them that decide the cost."""
        return self._reducing(end_ranks(self.degrees))

    def _reducing(self, size: int) -> list[Composition]:
        """The compositions of groups of `size` devices that reduce gradients among themselves.

        In a reduced case with too many of them, lower bounds need fewer: the compositions within one class, and for every
        class a single device of it, as the part that all other compositions with the class have in common.
        """
        if (listed := self._compositions(size)) is not None:
            return list(listed)
        assert self.reduced
        alone = np.eye(len(self.counts), dtype=np.int64).tolist()
        whole = [[size * taken for taken in composition] for c, composition in enumerate(alone) if self.counts[c] >= size]
        return [tuple(composition) for composition in whole + alone]

    def _rings(self, listed: Sequence[Composition], size: int) -> tuple[list[int], list[tuple[Instance, tuple[int, ...]]]]:
        """The kinds of links over which groups reduce gradients, as two lists: for each composition in `listed`, the index of
        its kind; and for each kind, an instance and a group of devices in it whose link is of the kind.

        listed: compositions of groups of `size` devices, or parts of compositions, which are given the best link between
        two classes.
        """
        links: dict[object, int] = {}
        numbers: list[int] = []
        examples: list[tuple[Instance, tuple[int, ...]]] = []
        for composition in listed:
            self.check_time()
            whole = sum(composition) == size
            devices = self.devices(composition) if whole else tuple(range(size))
            key = _link(self.instance, devices) if whole else "between classes"
            if key not in links:
                links[key] = len(examples)
                examples.append((self.instance if whole else _best_between_classes(self.instance), devices))
            numbers.append(links[key])
        return numbers, examples

    @cached_property
    def tied_ns(self) -> list[int]:
        """For each composition in `ends`, the time in ns to sum the gradients of a weight table that embedding and head share;
        an empty list if they share none."""
        size = self.instance.tied_bytes
        if not size:
            return []
        numbers, examples = self._rings(self.ends, end_ranks(self.degrees))
        times = [group_sync_ns(instance, devices, size) for instance, devices in examples]
        return [times[number] for number in numbers]

    @property
    def least_tied_by_class_ns(self) -> tuple[int | None, int | None]:
        """The least time in ns to sum the gradients of a weight table that embedding and head share, over devices of a single
        class, and over devices of several classes; None if there is no such group, or no shared weight table."""
        within, elsewhere = list[int](), list[int]()
        for composition, time in zip(self.ends if self.instance.tied_bytes else (), self.tied_ns, strict=True):
            (within if max(composition) == end_ranks(self.degrees) else elsewhere).append(time)
        return min(within, default=None), min(elsewhere, default=None)

    @property
    def least_tied_ns(self) -> int:
        """A lower bound in ns on the time to sum the gradients of a weight table that embedding and head share; 0 if they share
        none."""
        return min(self.tied_ns, default=0)

    @cached_property
    def _synchronised(self) -> tuple[list[int], Integers]:
        """Two results that are computed together: `ring_of`, the kind of link of each data-parallel group, and `sync_ns`, the
        times to reduce gradients over each kind of link."""
        numbers, examples = self._rings(self.replicas, self.degrees.dp)
        sums = self.instance.shards[self.degrees.tmp].gradient_sums
        sizes, index = np.unique(np.maximum(0, sums[None, :] - sums[:, None]), return_inverse=True)
        rows = [[group_sync_ns(instance, devices, int(value)) for value in sizes] for instance, devices in examples]
        return numbers, np.array(rows, np.int64)[:, index.reshape(len(sums), len(sums))]

    @property
    def ring_of(self) -> list[int]:
        """For each composition in `replicas` (data-parallel groups), the index of the kind of link over which such a group
        reduces gradients."""
        return self._synchronised[0]

    @property
    def sync_ns(self) -> Integers:
        """(links, L + 1, L + 1): the time in ns to reduce the gradients of a stage over each kind of link, by the stage's first
        layer and the layer after its last; without the shared weight table's."""
        return self._synchronised[1]

    def spans(self, stage: int) -> list[tuple[int, int]]:
        """The pairs (first layer, layer after the last) that a stage may have if every other stage has at least one layer.
        stage: the stage's index.
        """
        after = self.degrees.pp - 1 - stage
        last = self.instance.layers - after
        firsts = range(stage, last) if stage else range(1)
        ends = range(stage + 1, last + 1) if after else range(last, last + 1)
        return [(first, end) for first in firsts for end in ends if first < end]

    def in_flight(self, share: int, stage: int) -> int:
        """The largest number of micro-batches in flight (forward pass done, backward pass not yet) on a stage under 1F1B.
        share: the number of micro-batches of the stage's pipeline. stage: the stage's index."""
        return most_in_flight("1f1b", self.degrees.pp, share, stage)

    def first_layers(self, limits_bytes: tuple[int, ...]) -> Integers:
        """(P, L): for each stage j and layer l, the least first layer with which stage j fits into its memory when layer l is
        its last, with evenly shared micro-batches. limits_bytes: the memory limit of every stage."""
        if limits_bytes not in self.windows:
            shard, table = self.instance.shards[self.degrees.tmp], self.instance.tables[self.degrees.tmp, self.degrees.mbs]
            limits = np.array(limits_bytes, np.int64)
            memory = Memory(limits, shard.state_bytes, table.kept_bytes, table.workspace_bytes)
            in_flight = [self.in_flight(self.even_share, stage) for stage in range(self.degrees.pp)]
            self.windows[limits_bytes] = memory.first_layers(in_flight)
        return self.windows[limits_bytes]

    def peak_bytes(self, in_flight: int) -> Integers:
        """(L + 1, L + 1): the peak bytes on a device of a stage of the layers first to end - 1, by [first, end]; 0 if end <=
        first. in_flight: the number of micro-batches in flight on the stage. It equals `Memory.stage_peak` for every stage,
        which a test asserts, but computes all at once.
        """
        table = self.instance.tables[self.degrees.tmp, self.degrees.mbs]
        stacked = self.instance.shards[self.degrees.tmp].state_bytes + in_flight * table.kept_bytes
        sums = np.pad(stacked.cumsum(), (1, 0))
        peaks = np.zeros((len(sums), len(sums)), np.int64)
        for first in range(len(sums) - 1):
            workspace = np.maximum.accumulate(table.workspace_bytes[first:])
            peaks[first, first + 1 :] = sums[first + 1 :] - sums[first] + workspace
        return peaks

    def solution(self, classes: Iterable[int], cuts: Sequence[int], shares: Sequence[int]) -> Solution:
        """A solution with given cuts and shares in which every rank has some device of a given class. classes: for each rank,
        in order, the class of its device. cuts: the first layer of every stage but the first. shares: the number of
        micro-batches of every pipeline.
        """
        return Solution(self.degrees, self.instance.placement(classes), tuple(map(int, cuts)), tuple(map(int, shares)))

    def excesses(self) -> Iterator[tuple[int, list[tuple[int, int]], list[int], list[int]]]:
        """The combinations of choices that exceed the memory, as (stage, spans, profiles, shares): in that stage, a span of
        layers, a profile of its tensor-parallel group and a number of micro-batches of its pipeline, each from its list,
        may not be chosen together.
        """
        for j in range(self.degrees.pp if self.instance.within_memory else 0):
            for in_flight, run in groupby(self.share_choices, key=partial(self.in_flight, stage=j)):
                peaks, shares = self.peak_bytes(in_flight), list(run)
                for limit in sorted(set(self.limits_bytes)):
                    if over := [span for span in self.spans(j) if peaks[span] > limit]:
                        yield j, over, [f for f, other in enumerate(self.limits_bytes) if other == limit], shares


def cases(instance: Instance) -> list[DegreeCase]:
    """The instance with each possible choice of its degrees of parallelism, as one case each. instance: the cluster, the
    batch, and the layers' costs on each kind of device.
    """
    return [DegreeCase(instance, degrees) for degrees in instance.degrees()]


@lru_cache(maxsize=16)
def orbits(instance: Instance) -> tuple[int, ...]:
    """For every class of interchangeable devices, the first class with which it may be exchanged as a whole: both have one
    kind of device, equal sizes and equal links.

    Exchanging two classes must leave a matrix of links unchanged, or the sets of devices that islands hold and nodes share;
    islands of equal links that follow one another may be exchanged. If class a may be exchanged with b and with c, then b
    may be exchanged with c.
    """
    members = instance.members
    return first_alike(len(members), lambda a, b: _exchangeable(instance, members[a], members[b]))


def _exchangeable(instance: Instance, a: list[int], b: list[int]) -> bool:
    """Whether device a[i] may be exchanged with device b[i], for all i, without changing any link. a, b: the devices of two
    classes. instance: the cluster, the batch, and the layers' costs on each kind of device.
    """
    if len(a) != len(b) or instance.device_kinds[a[0]] != instance.device_kinds[b[0]]:
        return False
    if instance.network.matrix is not None:
        return unchanged(matrix_tables(instance.network.matrix, instance.devices), a, b)
    count = instance.devices
    moved = np.arange(count)
    moved[a], moved[b] = b, a
    levels = groupby(instance.network.islands, key=lambda island: island.model_dump(exclude={"first", "origin", "error"}))
    for _, islands in levels:
        sets = [named for island in islands for named in _sets(island, count)]
        images = [(name, frozenset(int(moved[device]) for device in devices)) for name, devices in sets]
        if Counter(sets) != Counter(images):
            return False
    return True


def _sets(island: Island, count: int) -> Iterator[tuple[str, frozenset[int]]]:
    """Sets of devices that decide where an island's links apply, each as (name, devices): `holding`, devices that the island
    joins, and `sharing`, devices of a node that share its network cards. count: the number of all devices."""
    firsts = range(0, count, island.devices) if island.first is None else [island.first]
    for first in firsts:
        yield "holding", frozenset(range(first, min(count, first + island.devices)))
    if island.shared_by > 1:
        for first in range(0, count, island.shared_by):
            yield "sharing", frozenset(range(first, min(count, first + island.shared_by)))


def _best_between_classes(instance: Instance) -> Instance:
    """A copy of the instance in which all devices are on one link, which is at least as good as the link of any group that has
    devices of two classes (sets of interchangeable devices). Lower bounds use it for groups that are too many to list.
    instance: the cluster, the batch, and the layers' costs on each kind of device.
    """
    classes, count = instance.classes, instance.devices
    return on_one_link(
        instance,
        lambda island: any(
            name == "holding" and len(set(classes[list(devices)])) > 1 for name, devices in _sets(island, count)
        ),
        classes[:, None] != classes[None, :],
    )


def on_one_link(instance: Instance, counts: Callable[[Island], bool], pairs: Any) -> Instance:
    """A copy of the instance in which all devices are on one link, which for reducing gradients is at least as good as certain
    links of the network; for lower bounds.

    counts: whether an island's link is one of these links. pairs: (devices, devices), whether a pair's link is one of these
    links, for a network whose links are given for pairs. instance: the cluster, the batch, and the layers' costs on each
    kind of device.
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
    """A comparable and hashable key that is equal for groups whose collectives of equal size take equal time: the link's
    bandwidth and latency; None for fewer than two devices. operation: the collective, or `p2p` for a message. instance: the
    cluster, the batch, and the layers' costs on each kind of device.
    """
    if len(devices) < 2:
        return None
    link = instance.network.link(devices, operation)
    return link.bandwidth_bytes_per_s, link.latency_ns
