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
    """Bandwidth and latency of a link. bandwidth_bytes_per_s: that one device can send while it receives as much.
    latency_ns: of one step of a collective, in addition to the transfer."""

    bandwidth_bytes_per_s: Positive
    latency_ns: Latency = 0


class Island(Link):
    """Consecutive devices joined by one kind of link. bandwidth_bytes_per_s: in a ring over the whole island.

    first: its first device; if left out, islands of this size tile all devices. shared_by: number of devices of a node, whose
    network cards together send node_bytes_per_s (by default the ring's bandwidth). Groups with few members on a node all
    communicate at the same time, so one with k of the `shared_by` devices of a node gets at most k / shared_by of that. meshed:
    every device has a link to every other one, so that a group of k devices has k - 1 of these links. operation: the collective
    that this link was fitted for; if left out, it serves all. error: the largest relative error of the fit.
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
        """Whether the devices `lowest` to `highest` are all within one island of this size."""
        if self.first is None:
            return lowest // self.devices == highest // self.devices
        return self.first <= lowest and highest < self.first + self.devices


class Matrix(Record):
    """Links of all pairs of devices, in rows by sender and columns by receiver; the diagonal is not read.

    latency_ns: of every link, unless latencies_ns has one for each pair.
    """

    bandwidth_bytes_per_s: Annotated[list[list[Annotated[float, Field(ge=0, le=1e18)]]], Field(min_length=1)]
    latency_ns: Latency = 0
    latencies_ns: list[list[Latency]] | None = None

    @model_validator(mode="after")
    def _is_square(self) -> Matrix:
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
        """The slowest link among these devices: the least bandwidth and the largest latency of any two of them."""
        pairs = [(a, b) for a in ranks for b in ranks if a != b]
        table = self.latencies_ns
        return Link(
            bandwidth_bytes_per_s=min(self.bandwidth_bytes_per_s[a][b] for a, b in pairs),
            latency_ns=self.latency_ns if table is None else max(table[a][b] for a, b in pairs),
        )


class Network(Record):
    """All links of a cluster. Islands are ordered smallest first; if several hold a group, the first one counts.

    algorithm: of all-reduces: `ring`, `tree`, or `fastest` for the faster of the two.
    """

    islands: list[Island] = Field(default_factory=list)
    matrix: Matrix | None = None
    algorithm: Literal["ring", "tree", "fastest"] = "ring"

    @model_validator(mode="after")
    def _has_links(self) -> Network:
        if bool(self.islands) == (self.matrix is not None):
            raise InputError("", "islands", "and matrix are both given or both missing", "give one of them")
        return self

    @cached_property
    def _links(self) -> dict[Any, Link]:
        """The results of `link` so far, by group and operation."""
        return {}

    @cached_property
    def tiles(self) -> tuple[int, ...] | None:
        """The sizes of islands that tile all devices, sorted; None if the links have no such order."""
        if self.matrix is not None or any(island.first is not None for island in self.islands):
            return None
        return tuple(sorted({size for island in self.islands for size in (island.devices, island.shared_by)}))

    @cached_property
    def uniform(self) -> bool:
        """Whether all groups of one shape, shifted by multiples of powers of two, have equal links."""
        return self.tiles is not None and all(size & (size - 1) == 0 for size in self.tiles)

    def reaches(self, devices: int) -> bool:
        """Whether every group of the first `devices` devices has a link."""
        if self.matrix is not None:
            return len(self.matrix.bandwidth_bytes_per_s) >= devices
        return devices == 1 or any(island.operation is None and island.holds(0, devices - 1) for island in self.islands)

    def link(self, ranks: Sequence[int], operation: Operation | None = None) -> Link:
        """The slowest link that a group of two or more devices must cross. A link fitted for the operation is preferred to a
        general one. Raises ValueError if there is none."""
        key = (tuple(ranks), operation)
        if key not in self._links:
            self._links[key] = self._find(ranks, operation)
        return self._links[key]

    def _find(self, ranks: Sequence[int], operation: Operation | None) -> Link:
        """The result of `link`, computed."""
        if self.matrix is not None:
            return self.matrix.link(ranks)
        return self._shared(self.islands[self.island_of(ranks, operation)], ranks)

    def island_of(self, ranks: Sequence[int], operation: Operation | None = None) -> int:
        """The index of the island whose link the group uses for the operation. Raises ValueError if there is none."""
        lowest, highest = min(ranks), max(ranks)
        holding = [index for index, island in enumerate(self.islands) if island.holds(lowest, highest)]
        for wanted in (operation, None):
            for index in holding:
                if self.islands[index].operation == wanted:
                    return index
        raise ValueError(f"no island holds the devices {lowest} to {highest}")

    def _shared(self, island: Island, ranks: Sequence[int]) -> Link:
        """The link that a group gets on an island whose bandwidth it shares with other groups."""
        members = max(Counter(rank // island.shared_by for rank in ranks).values())
        together = island.node_bytes_per_s or island.bandwidth_bytes_per_s
        part = together * members / island.shared_by
        if island.meshed:
            part = min(part, island.bandwidth_bytes_per_s * (len(ranks) - 1) / (island.devices - 1))
        if part >= island.bandwidth_bytes_per_s:
            return island
        return Link(bandwidth_bytes_per_s=part, latency_ns=island.latency_ns)
