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
from trainplan.profiling.clusters.efficiencies import Efficiency, EfficiencyTable, Kernel, Precision
from trainplan.profiling.clusters.network import Island, Link, Matrix, Network, Positive
from trainplan.profiling.clusters.recipes import RecipeName, check_rates
from trainplan.profiling.shipped import locate, shipped

CORRECTED = "corrected by"  # begins the source of a cluster whose efficiencies a user's own runs correct
Bytes = Annotated[int, Field(gt=0, le=2**50)]


class DeviceKind(Record):
    """One kind of device: its memory, the rates of its matrix multiplications and of its memory, and the shares of these rates
    that kernels reach.

    memory_bytes: its whole memory. reserve_bytes: the part that plans may not use: hidden by the driver, taken by its context
    and by communication buffers, or lost to fragmentation. flops_per_s: peak rate of matrix multiplications by dtype. A
    product of an (m, k) matrix by a (k, n) matrix reaches `efficiency` of the peak times d / (d + half_size) for each of the
    three sizes d. efficiencies: measured or assumed shares of peaks by class of kernels (such as attention) and precision;
    they replace `efficiency` and `half_size`. recipes: names of the low-precision recipes (8 or 4 bits per number) that it
    supports. kernel_ns: minimum time of one kernel.
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
        """Validate the kind when it is constructed; return it unchanged. Raises InputError for recipes without a rate, or for
        a reserve that is the whole memory.
        """
        check_rates(self.recipes, self.flops_per_s)
        if self.reserve_bytes >= self.memory_bytes:
            fix = f"give less than memory_bytes = {self.memory_bytes}"
            raise InputError("", "reserve_bytes", f"is {self.reserve_bytes}", fix)
        return self

    @property
    def usable_bytes(self) -> int:
        """The device's memory that plans may use, in bytes: the whole memory without the reserve."""
        return self.memory_bytes - self.reserve_bytes

    @cached_property
    def _by_class(self) -> dict[tuple[Kernel, Precision | None], Efficiency]:
        """The efficiencies (shares of peak rates) by class of kernels and precision; an entry with precision None applies to
        all precisions that have no entry of their own.
        """
        return {(efficiency.kernel, efficiency.precision): efficiency for efficiency in reversed(self.efficiencies)}

    def reached(self, kernel: Kernel, precision: Precision) -> Efficiency | None:
        """The efficiency (share of the peak rate) of a class of kernels, such as "attention", at a precision; None if the kind
        of device has none. Then matrix multiplications are computed with the fields `efficiency` and `half_size`, and kernels
        that only move memory with its whole bandwidth.
        """
        return self._by_class.get((kernel, precision)) or self._by_class.get((kernel, None))


class Host(Record):
    """The CPU of a node: its memory, and the link between it and one device. The bandwidth is that of one direction.

    shares_bus: whether copies and collectives within the node go through the same bus, as they do without NVLink.
    """

    memory_bytes: Bytes
    memory_bytes_per_s: Positive
    link: Link
    shares_bus: bool = True


class Nodes(Record):
    """A group of `count` equal nodes with `devices` devices of one kind each. islands: links within a node, as groups of
    consecutive devices joined by one kind of link, smallest group first.
    """

    kind: str
    devices: Annotated[int, Field(ge=1, le=2**20)]
    count: Annotated[int, Field(ge=1, le=2**20)] = 1
    islands: list[Island] = Field(default_factory=list)
    host: Host | None = None


@in_one_line
class Cluster(Record):
    """A cluster of nodes; its devices are numbered consecutively, node by node.

    An island is a group of consecutive devices joined by one kind of link. islands: links across nodes, smallest island
    first; the last one joins all devices. matrix: the links between all pairs of devices, given instead of islands.
    overlap_slowdown: factor by which computation and communication are slower while they overlap. paper: the name of the
    paper whose cluster this is, if its numbers are those that the paper states or measured, and not those of data sheets;
    else empty.
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
        """Validate the cluster when it is constructed; return it unchanged. Raises InputError unless its kinds of device,
        nodes and links agree with each other.
        """
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
    def corrected(self) -> bool:
        """Whether the cluster's efficiencies are corrected by a user's own runs."""
        return self.source.startswith(CORRECTED)

    @property
    def whose_numbers(self) -> str:
        """A remark for users if the cluster's numbers come from a paper, or are corrected by own runs; empty for other
        clusters.
        """
        if self.corrected:
            return self.source.partition(";")[0]
        return f"with the numbers of the paper {self.paper}, not of data sheets" if self.paper else ""

    @cached_property
    def used_kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds of device that the cluster's nodes have, each kind once, in the order of the nodes."""
        kinds = {kind.name: kind for kind in self.kinds}
        return tuple(kinds[name] for name in dict.fromkeys(node.kind for node in self.nodes))

    @property
    def device_kinds(self) -> list[str]:
        """The name of the kind of every device, in the order of the devices' numbers."""
        return [node.kind for node in self.nodes for _ in range(node.count * node.devices)]

    @property
    def smallest_kind(self) -> DeviceKind:
        """The kind of device that has the least usable memory."""
        return min(self.used_kinds, key=lambda kind: kind.usable_bytes)

    @property
    def memory_bytes(self) -> int:
        """The whole memory (including the reserve that plans may not use), in bytes, of the device with the least memory."""
        return min(kind.memory_bytes for kind in self.used_kinds)

    @property
    def usable_bytes(self) -> int:
        """The memory that plans may use, in bytes, of the device with the least usable memory."""
        return self.smallest_kind.usable_bytes

    @property
    def training_dtype(self) -> str:
        """Name of the dtype in which models are trained on this cluster by default: the half precision that all of its devices
        compute faster than float32, bfloat16 before float16; float32 if there is none, as on CPUs.
        """
        for dtype in ("bfloat16", "float16"):
            if all(kind.flops_per_s.get(dtype, 0) > kind.flops_per_s.get("float32", 0) for kind in self.used_kinds):
                return dtype
        return "float32"

    def with_reserve(self, reserve_bytes: int) -> Cluster:
        """A copy of the cluster in which plans may not use `reserve_bytes` of the memory of every kind of device. Raises
        InputError if a kind has no more memory than that.
        """
        return self.changed(kinds=[kind.changed(reserve_bytes=reserve_bytes) for kind in self.kinds])

    def with_nodes(self, count: int) -> Cluster:
        """A copy of the cluster with `count` nodes, joined by the links that now join all of its nodes.

        If the cluster is one node that is named by its kind, such as `h100:8`, links and name follow from its data sheet.
        Raises InputError if nodes differ, if links to other nodes are unknown, or if islands (groups of devices with one kind
        of link) that span several nodes do not divide the number of nodes.
        """
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
        """All links, within and across nodes, as one network, whose islands (groups of consecutive devices joined by one kind
        of link) come smallest first.
        """
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
    """Raise InputError unless islands (groups of consecutive devices joined by one kind of link) nest, smallest first, and the
    last one holds all `devices` devices. Islands that have a first device, and so are at one position only, need not nest.

    field: the list's path in the file, for errors. optional: whether there may be no islands.
    """
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


def load_cluster(source: str | os.PathLike[str], table: EfficiencyTable | None = None) -> Cluster:
    """Load a cluster from its name (a shipped one), from nodes of a kind such as `h100:8x16`, from a number of devices such as
    `64xH100`, or from a file.

    The file is YAML or JSON; it may consist of `same_as: h100:8x16` alone, which gives such nodes another name. Raises
    InputError for unknown names and invalid files.

    table: the efficiencies (shares of peaks) that nodes of a kind are built with; None for the shipped ones. With a table,
    a cluster that has numbers of its own is refused.
    """
    from trainplan.profiling.clusters.nodes import (  # that module imports this one
        cluster_of_nodes,
        counted_devices,
        names_nodes,
    )

    name = os.fspath(source)
    if not os.path.exists(name):
        if names_nodes(name):
            return cluster_of_nodes(name, table)
        if name not in shipped("clusters") and (nodes := counted_devices(name)):
            return cluster_of_nodes(nodes, table)
    value = read_data(path := locate("clusters", name, "--cluster", "a cluster file"))
    if isinstance(value, Mapping) and isinstance(nodes := value.get("same_as"), str) and len(value) == 1:
        return cluster_of_nodes(nodes, table)
    if table is not None:
        problem = f"is given with {name}, which has numbers of its own"
        raise InputError("command line", "--calibrated", problem, "give nodes of a kind, such as h100:8x4")
    return parse(value if isinstance(value, Mapping) else path, Cluster, name)
