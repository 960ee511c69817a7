"""The links between devices: nested islands, or a full matrix. A group communicates at its slowest link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record

Positive = Annotated[float, Field(ge=1, le=1e18, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Latency = Annotated[int, Field(ge=0, le=10**12)]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "p2p"]
Origin = Literal["measured", "estimated", "imported"]


class Link(Record):
    """Bandwidth and latency of a link.

    bandwidth_bytes_per_s: the rate at which one device can send while it receives at the same rate. latency_ns: time of one
    step of a collective in addition to the transfer.
    """

    bandwidth_bytes_per_s: Positive
    latency_ns: Latency = 0


class Island(Link):
    """A group of consecutive devices joined by one kind of link.

    bandwidth_bytes_per_s: the bandwidth of a ring over the whole island. first: number of its first device; if omitted,
    islands of this size tile all devices. shared_by: number of devices of a node, whose network cards together send
    node_bytes_per_s (by default the ring's bandwidth). If a group of devices has only k of the `shared_by` devices of a node,
    groups of the other devices communicate at the same time, and it gets at most k / shared_by of the node's bandwidth.
    meshed: whether every device has a link to every other one, so that a group of k devices has k - 1 of these links.
    operation: the collective that this link was fitted for; if omitted, it is used for all. error: the largest relative error
    of the fit.
    """

    devices: Annotated[int, Field(ge=1, le=2**20)]
    first: Annotated[int, Field(ge=0, le=2**20)] | None = None
    shared_by: Annotated[int, Field(ge=1, le=2**20)] = 1
    node_bytes_per_s: Positive | None = None
    meshed: bool = False
    operation: Operation | None = None
    origin: Origin = "estimated"
    error: Share = 0.0

    def holds(self, lowest: int, highest: int) -> bool:
        """Whether the devices with the numbers `lowest` to `highest` are all within the same island of this size."""
        if self.first is None:
            return lowest // self.devices == highest // self.devices
        return self.first <= lowest and highest < self.first + self.devices


class Matrix(Record):
    """The links between all pairs of devices, as matrices with a row per sender and a column per receiver; the diagonal is not
    read.

    latency_ns: the latency of every link, unless latencies_ns has one for each pair.
    """

    bandwidth_bytes_per_s: Annotated[list[list[Annotated[float, Field(ge=0, le=1e18)]]], Field(min_length=1)]
    latency_ns: Latency = 0
    latencies_ns: list[list[Latency]] | None = None

    @model_validator(mode="after")
    def _is_square(self) -> Matrix:
        """Validate the matrix when it is constructed; return it unchanged. Raises InputError unless it has a row and a column
        per device, and every pair a bandwidth above 0.
        """
        count = len(self.bandwidth_bytes_per_s)
        for name in ("bandwidth_bytes_per_s", "latencies_ns"):
            if (table := getattr(self, name)) is None:
                continue
            if len(table) != count:
                raise InputError("", name, f"has {len(table)} rows", f"give {count}, as bandwidth_bytes_per_s has")
            for i, row in enumerate(table):
                if len(row) != count:
                    raise InputError("", f"{name}[{i}]", f"has {len(row)} columns", f"give {count}, one for each device")
        for i, row in enumerate(self.bandwidth_bytes_per_s):
            for j, value in enumerate(row):
                if i != j and not value >= 1:
                    raise InputError("", f"bandwidth_bytes_per_s[{i}][{j}]", f"is {value}", "give at least 1 byte a second")
        return self

    def link(self, ranks: Sequence[int]) -> Link:
        """The slowest link among two or more devices: the least bandwidth and the largest latency of any two of them.

        ranks: the devices' numbers.
        """
        pairs = [(a, b) for a in ranks for b in ranks if a != b]
        table = self.latencies_ns
        return Link(
            bandwidth_bytes_per_s=min(self.bandwidth_bytes_per_s[a][b] for a, b in pairs),
            latency_ns=self.latency_ns if table is None else max(table[a][b] for a, b in pairs),
        )


class Network(Record):
    """All links of a cluster. An island is a group of consecutive devices joined by one kind of link. Islands are ordered
    smallest first; if several hold a group of devices that communicate, the first one counts.

    algorithm: the algorithm of all-reduces: `ring`, `tree`, or `fastest` for the faster of the two.
    """

    islands: list[Island] = Field(default_factory=list)
    matrix: Matrix | None = None
    algorithm: Literal["ring", "tree", "fastest"] = "ring"

    @model_validator(mode="after")
    def _has_links(self) -> Network:
        """Validate the network when it is constructed; return it unchanged. Raises InputError unless it has either islands or
        a matrix.
        """
        if bool(self.islands) == (self.matrix is not None):
            raise InputError("", "islands", "and matrix are both given or both missing", "give one of them")
        return self

    @cached_property
    def _links(self) -> dict[Any, Link]:
        """A cache of the links that `link` has found, by devices and operation."""
        return {}

    @cached_property
    def tiles(self) -> tuple[int, ...] | None:
        """The sizes of the islands that tile all devices, and of the nodes that share their network cards, sorted ascending;
        None if some island is at one position only, or if links are given as a matrix.
        """
        if self.matrix is not None or any(island.first is not None for island in self.islands):
            return None
        return tuple(sorted({size for island in self.islands for size in (island.devices, island.shared_by)}))

    @cached_property
    def uniform(self) -> bool:
        """Whether islands tile all devices and have sizes that are powers of two, so that all aligned groups of the same shape
        (a power of two of devices, with the same distance between them) have equal links.
        """
        return self.tiles is not None and all(size & (size - 1) == 0 for size in self.tiles)

    def reaches(self, devices: int) -> bool:
        """Whether there is a link for every group of devices among the first `devices` devices, so that they can
        communicate.
        """
        if self.matrix is not None:
            return len(self.matrix.bandwidth_bytes_per_s) >= devices
        return devices == 1 or any(island.operation is None and island.holds(0, devices - 1) for island in self.islands)

    def link(self, ranks: Sequence[int], operation: Operation | None = None) -> Link:
        """The slowest link that a group of two or more devices must use to communicate.

        ranks: the devices' numbers. operation: the collective; a link that was fitted for it is preferred to a general one,
        None takes a general one. Raises ValueError if there is no link.
        """
        key = (tuple(ranks), operation)
        if key not in self._links:
            self._links[key] = self._find(ranks, operation)
        return self._links[key]

    def _find(self, ranks: Sequence[int], operation: Operation | None) -> Link:
        """Compute, without the cache of `link`, the slowest link that a group of devices must use to communicate. Raises
        ValueError if there is none.

        ranks: the devices' numbers. operation: the collective; a link that was fitted for it is preferred, None takes a
        general one.
        """
        if self.matrix is not None:
            return self.matrix.link(ranks)
        return self._shared(self.islands[self.island_of(ranks, operation)], ranks)

    def island_of(self, ranks: Sequence[int], operation: Operation | None = None) -> int:
        """The index in `islands` of the island whose link a group of devices uses for a collective. Raises ValueError if no
        island holds the group.

        ranks: the devices' numbers. operation: the collective; a link fitted for it is preferred, None takes a link that is
        used for all operations.
        """
        lowest, highest = min(ranks), max(ranks)
        holding = [index for index, island in enumerate(self.islands) if island.holds(lowest, highest)]
        for wanted in (operation, None):
            for index in holding:
                if self.islands[index].operation == wanted:
                    return index
        raise ValueError(f"no island holds the devices {lowest} to {highest}")

    def _shared(self, island: Island, ranks: Sequence[int]) -> Link:
        """The link of a group of devices on an island, with the part of the bandwidth that the group gets if other groups
        communicate at the same time. Returns the island itself if the group gets the whole bandwidth.

        ranks: the devices' numbers.
        """
        members = max(Counter(rank // island.shared_by for rank in ranks).values())
        together = island.node_bytes_per_s or island.bandwidth_bytes_per_s
        part = together * members / island.shared_by
        if island.meshed:
            part = min(part, island.bandwidth_bytes_per_s * (len(ranks) - 1) / (island.devices - 1))
        if part >= island.bandwidth_bytes_per_s:
            return island
        return Link(bandwidth_bytes_per_s=part, latency_ns=island.latency_ns)
