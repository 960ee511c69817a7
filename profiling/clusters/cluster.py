"""Clusters: the nodes and their devices, the abilities of each kind of device, and the links between devices."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, parse, read_data
from trainplan.profiling.clusters.efficiencies import Efficiency, Kernel, Precision
from trainplan.profiling.clusters.network import Island, Link, Matrix, Network, Positive
from trainplan.profiling.clusters.recipes import RecipeName, check_rates
from trainplan.profiling.shipped import locate, shipped

Bytes = Annotated[int, Field(gt=0, le=2**50)]


class DeviceKind(Record):
    """One kind of device.

    memory_bytes: its whole memory. reserve_bytes: the part that plans may not use: hidden by the driver, taken by its context
    and by communication buffers, or lost to fragmentation. flops_per_s: peak rate of matrix products by dtype. A product of m x
    k by k x n reaches `efficiency` of it times d / (d + half_size) for each of its three sizes d. efficiencies: by class of
    kernels and precision; they replace these two. recipes: by which products in 8 or 4 bits are computed on it. kernel_ns:
    least time of one operator.
    """

    name: Annotated[str, Field(min_length=1)]
    memory_bytes: Bytes
    reserve_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    flops_per_s: Annotated[dict[Precision, Positive], Field(min_length=1)]
    recipes: list[RecipeName] = Field(default_factory=list)
    memory_bytes_per_s: Positive
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.7
    half_size: Annotated[int, Field(ge=0, le=2**20)] = 64
    kernel_ns: Annotated[int, Field(ge=0, le=10**9)] = 5_000
    efficiencies: list[Efficiency] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> DeviceKind:
        check_rates(self.recipes, self.flops_per_s)
        if self.reserve_bytes >= self.memory_bytes:
            fix = f"give less than memory_bytes = {self.memory_bytes}"
            raise InputError("", "reserve_bytes", f"is {self.reserve_bytes}", fix)
        return self

    @property
    def usable_bytes(self) -> int:
        """The memory that plans may use: all but the reserve."""
        return self.memory_bytes - self.reserve_bytes

    @cached_property
    def _by_class(self) -> dict[tuple[Kernel, Precision | None], Efficiency]:
        """The efficiencies by (class of kernels, precision); precision None holds for all others."""
        return {(efficiency.kernel, efficiency.precision): efficiency for efficiency in reversed(self.efficiencies)}

    def reached(self, kernel: Kernel, precision: Precision) -> Efficiency | None:
        """The efficiency of a class of kernels at a precision; None if there is none. Then `efficiency` and `half_size` hold
        for products, and memory reaches its whole bandwidth."""
        return self._by_class.get((kernel, precision)) or self._by_class.get((kernel, None))


class Host(Record):
    """The CPU of a node: its memory, and the link between it and one device, whose bandwidth is that of one direction.

    shares_bus: copies and collectives within the node go through the same bus, as without NVLink.
    """

    memory_bytes: Bytes
    memory_bytes_per_s: Positive
    link: Link
    shares_bus: bool = True


class Nodes(Record):
    """`count` equal nodes with `devices` devices of one kind on a node. islands: links within a node, smallest island first."""

    kind: str
    devices: Annotated[int, Field(ge=1, le=2**20)]
    count: Annotated[int, Field(ge=1, le=2**20)] = 1
    islands: list[Island] = Field(default_factory=list)
    host: Host | None = None


@in_one_line
class Cluster(Record):
    """A cluster of nodes; its devices are numbered node by node.

    islands: links across nodes, smallest island first, the last one over all devices. matrix: the links of all pairs, instead
    of islands. overlap_slowdown: factor by which compute and communication are slower while they overlap. paper: the paper
    whose cluster this is, with the numbers that the paper states or measured, not those of data sheets; else empty.
    """

    noun: ClassVar[str] = "cluster"

    name: str
    kinds: Annotated[list[DeviceKind], Field(min_length=1)]
    nodes: Annotated[list[Nodes], Field(min_length=1)]
    islands: list[Island] = Field(default_factory=list)
    matrix: Matrix | None = None
    algorithm: Literal["ring", "tree", "fastest"] = "ring"
    overlap_slowdown: Annotated[float, Field(ge=1, le=10)] = 1.3
    source: str = ""
    paper: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        names = Counter(kind.name for kind in self.kinds)
        if twice := [name for name, count in names.items() if count > 1]:
            raise InputError("", "kinds", f"has {twice[0]!r} twice", "name each kind once")
        for i, node in enumerate(self.nodes):
            if node.kind not in names:
                raise InputError("", f"nodes[{i}].kind", f"is {node.kind!r}", f"give one of: {', '.join(names)}")
        if self.devices > 2**20:
            raise InputError("", "nodes", f"have {self.devices} devices", f"give at most {2**20}")
        if self.matrix is not None:
            if self.islands or any(node.islands for node in self.nodes):
                raise InputError("", "matrix", "is given with islands", "give one of them")
            if (rows := len(self.matrix.bandwidth_bytes_per_s)) != self.devices:
                raise InputError("", "matrix.bandwidth_bytes_per_s", f"has {rows} rows", f"give {self.devices}, one a device")
            return self
        one_node = len(self.nodes) == self.nodes[0].count == 1
        for i, node in enumerate(self.nodes):
            optional = node.devices == 1 or (one_node and bool(self.islands))
            _check_nested(node.islands, node.devices, f"nodes[{i}].islands", optional)
        starts = set(accumulate((node.devices for node in self.nodes for _ in range(node.count)), initial=0))
        for i, island in enumerate(self.islands):
            first, size = island.first or 0, island.devices
            ends = range(first, self.devices + 1, size) if island.first is None else (first, first + size)
            if any(end not in starts for end in ends):
                problem = f"is {size} devices" + (f" from {first}" if first else "")
                raise InputError("", f"islands[{i}]", problem, "give whole nodes, or the first device of whole nodes as well")
        _check_nested(self.islands, self.devices, "islands", optional=one_node)
        return self

    @cached_property
    def devices(self) -> int:
        """The number of devices of all nodes."""
        return sum(node.count * node.devices for node in self.nodes)

    @property
    def whose_numbers(self) -> str:
        """A remark that the numbers are those of a paper; empty for other clusters."""
        return f"with the numbers of the paper {self.paper}, not of data sheets" if self.paper else ""

    @cached_property
    def used_kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds of device that some node has, in the order of the nodes."""
        kinds = {kind.name: kind for kind in self.kinds}
        return tuple(kinds[name] for name in dict.fromkeys(node.kind for node in self.nodes))

    @property
    def device_kinds(self) -> list[str]:
        """The name of the kind of every device, by device number."""
        return [node.kind for node in self.nodes for _ in range(node.count * node.devices)]

    @property
    def smallest_kind(self) -> DeviceKind:
        """The kind of device that has the least usable memory."""
        return min(self.used_kinds, key=lambda kind: kind.usable_bytes)

    @property
    def memory_bytes(self) -> int:
        """Memory of the smallest device, its reserve included."""
        return min(kind.memory_bytes for kind in self.used_kinds)

    @property
    def usable_bytes(self) -> int:
        """Memory of the smallest device that plans may use."""
        return self.smallest_kind.usable_bytes

    @property
    def training_dtype(self) -> str:
        """The dtype in which models are trained on this cluster by default: the half precision that all of its devices
        compute faster than float32, bfloat16 first; float32 if there is none, as on CPUs."""
        for dtype in ("bfloat16", "float16"):
            if all(kind.flops_per_s.get(dtype, 0) > kind.flops_per_s.get("float32", 0) for kind in self.used_kinds):
                return dtype
        return "float32"

    def with_reserve(self, reserve_bytes: int) -> Cluster:
        """A copy with this reserve on every kind of device. Raises InputError if a kind has no more memory than that."""
        return self.changed(kinds=[kind.changed(reserve_bytes=reserve_bytes) for kind in self.kinds])

    def with_nodes(self, count: int) -> Cluster:
        """A copy with `count` nodes, joined by the links that join all nodes now. For one node that is named by its kind,
        such as `h100:8`, links and name follow from its data sheet. Raises InputError if nodes differ, if links to other
        nodes are unknown, or if islands of several nodes do not divide the nodes."""
        from trainplan.profiling.clusters.nodes import cluster_of_nodes, names_nodes  # that module imports this one

        node = self.nodes[0]
        if node.count == 1 and len(self.nodes) == 1 and names_nodes(self.name):
            counted, *settings = self.name.split(",")
            several = cluster_of_nodes(",".join([f"{counted}x{count}", *settings]))
            return self.changed(name=several.name, nodes=[node.changed(count=count)], islands=several.islands)
        if len(self.nodes) > 1 or self.matrix is not None or node.count == 1:
            problem = "has one node, and no links to others" if node.count == 1 else "has unlike nodes or links"
            raise InputError("cluster", "nodes", problem, "give a cluster of equal nodes that are joined")
        whole = [island.changed(devices=count * node.devices) for island in self.islands if island.devices == self.devices]
        parts = [island for island in self.islands if island.devices < min(self.devices, count * node.devices)]
        return self.changed(name=f"{self.name} with {count} nodes", nodes=[node.changed(count=count)], islands=parts + whole)

    @cached_property
    def network(self) -> Network:
        """The links within and across nodes, smallest island first."""
        if self.matrix is not None:
            return Network(matrix=self.matrix, algorithm=self.algorithm)
        if len(self.nodes) == 1 and all(island.first is None for island in self.nodes[0].islands):
            within = list(self.nodes[0].islands)
        else:
            within, start = [], 0
            for node in self.nodes:
                for _ in range(node.count):
                    for island in node.islands:
                        pieces = [island.first] if island.first is not None else range(0, node.devices, island.devices)
                        within += [island.changed(first=start + piece) for piece in pieces]
                    start += node.devices
            within.sort(key=lambda island: island.devices)
        alone = Island(devices=1, bandwidth_bytes_per_s=1e12)  # the only island of one device, which no message ever crosses
        return Network(islands=within + list(self.islands) or [alone], algorithm=self.algorithm)


def _check_nested(islands: list[Island], devices: int, field: str, optional: bool) -> None:
    """Raise InputError unless islands that tile all devices nest, and the last one holds all `devices`. field: path of the
    list, for errors; optional: whether there may be no islands."""
    tiling = [(i, island) for i, island in enumerate(islands) if island.first is None]
    for (_, smaller), (i, larger) in pairwise(tiling):
        same = larger.devices == smaller.devices and larger.operation != smaller.operation
        if not same and (larger.devices <= smaller.devices or larger.devices % smaller.devices):
            problem = f"is {larger.devices} after {smaller.devices}"
            raise InputError("", f"{field}[{i}].devices", problem, "nest them, smallest first")
    if not islands:
        if optional:
            return
        raise InputError("", field, "is missing", f"give an island of {devices} devices with its bandwidth_bytes_per_s")
    last, largest = len(islands) - 1, islands[-1]
    if largest.devices != devices or largest.first:
        raise InputError("", f"{field}[{last}].devices", f"is {largest.devices}", f"give all devices, {devices}")
    if not any(island.operation is None and island.devices == devices for island in islands):
        raise InputError("", f"{field}[{last}].operation", f"is {largest.operation!r}", "leave it out: it must serve all")
    for i, island in enumerate(islands):
        if (island.first or 0) + island.devices > devices:
            problem = f"is {island.first}, so that the island ends beyond the {devices} devices"
            raise InputError("", f"{field}[{i}].first", problem, f"give at most {devices - island.devices}")


def load_cluster(source: str | os.PathLike[str]) -> Cluster:
    """Load a cluster: a shipped one by name, nodes of a kind such as `h100:8x16`, a number of devices such as `64xH100`, or
    a YAML or JSON file. A file may consist of `same_as: h100:8x16` alone, another name for such nodes. Raises InputError."""
    from trainplan.profiling.clusters.nodes import (  # that module imports this one
        cluster_of_nodes,
        counted_devices,
        names_nodes,
    )

    name = os.fspath(source)
    if not os.path.exists(name):
        if names_nodes(name):
            return cluster_of_nodes(name)
        if name not in shipped("clusters") and (nodes := counted_devices(name)):
            return cluster_of_nodes(nodes)
    value = read_data(path := locate("clusters", name, "--cluster", "a cluster file"))
    if isinstance(value, Mapping) and isinstance(nodes := value.get("same_as"), str) and len(value) == 1:
        return cluster_of_nodes(nodes)
    return parse(value if isinstance(value, Mapping) else path, Cluster, name)
