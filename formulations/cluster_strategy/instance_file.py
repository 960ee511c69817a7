"""The file format of cluster-strategy instances, and how a file becomes an instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator
from trainplan.formulations.cluster_strategy.instance import (
    ARRAYS,
    FLAGS,
    LARGEST,
    LARGEST_BATCH,
    Degree,
    Instance,
    Kind,
    LayerTable,
    Row,
    Shard,
    Whole,
)
from trainplan.formulations.instance import InstanceFile
from trainplan.formulations.numbers import check_length
from trainplan.profiling.base.dataclass_records import Items
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import Record, Source, name_of_source, parse
from trainplan.profiling.clusters.network import Network
from trainplan.profiling.costs import collective_ns


class DevicesRecord(Record):
    """Consecutive devices of one kind in a file."""

    kind: Annotated[int, Field(ge=0)]
    count: Degree


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardRecord(Shard):
    """Bytes of gradients and states of every layer in a file, with the number of tensor-parallel devices, tmp, among which a
    layer is divided."""

    tmp: Degree


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerTableRecord(LayerTable):
    """Costs of every layer in a file, with the number of tensor-parallel devices, tmp, and of samples of a micro-batch, mbs,
    that they are for."""

    tmp: Degree
    mbs: Degree


class InstanceRecord(InstanceFile):
    """The file format of a cluster-strategy instance, version 1."""

    problem: Literal["cluster-strategy"]
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH, description="samples of one step, gbs")]
    layer_names: Annotated[Items[str], Field(min_length=1, max_length=10_000)]
    kinds: Annotated[Items[Kind], Field(min_length=1)]
    devices: Annotated[list[DevicesRecord], Field(min_length=1)]
    network: Network
    reductions: Annotated[Row, Field(description="all-reduces of a layer over its tmp devices, both passes")]
    reduced_bytes: Annotated[Row, Field(description="all of them together, of one sample")]
    boundary_bytes: Annotated[Row, Field(description="v: bytes across the cut, of one sample, one way")]
    shards: Annotated[list[ShardRecord], Field(min_length=1)]
    tables: Annotated[list[LayerTableRecord], Field(min_length=1)]
    uneven_shares: bool = False
    within_memory: bool = True
    powers_of_two: Annotated[bool, Field(description="dp and tmp are powers of two, as plans have them")] = False
    tied_bytes: Annotated[
        Whole, Field(description="of a table that embedding and head share, whose gradients both ends add up; 0: none")
    ] = 0

    @model_validator(mode="after")
    def _consistent(self) -> InstanceRecord:
        """Check the file after its fields are read. Returns the record; raises InputError if lists have wrong lengths,
        indices are out of range, or times are too large."""
        layers = len(self.layer_names)
        for name, wanted in (("reductions", layers), ("reduced_bytes", layers), ("boundary_bytes", layers - 1)):
            check_length(name, getattr(self, name), wanted)
        for i, run in enumerate(self.devices):
            if run.kind >= len(self.kinds):
                raise InputError("", f"devices[{i}].kind", f"is {run.kind}", f"give 0 to {len(self.kinds) - 1}")
        if (count := sum(run.count for run in self.devices)) > 2**20:
            raise InputError("", "devices", f"are {count}", f"give at most {2**20}")
        if not self.network.reaches(count):
            raise InputError("", "network", f"does not reach all {count} devices", "give an island that holds them")
        for i, shard in enumerate(self.shards):
            for name in ("gradient_bytes", "state_bytes"):
                check_length(f"shards[{i}].{name}", getattr(shard, name), layers)
            for index, layer in enumerate(shard.whole):
                if layer >= layers:
                    raise InputError("", f"shards[{i}].whole[{index}]", f"is {layer}", f"give 0 to {layers - 1}")
        degrees = [shard.tmp for shard in self.shards]
        if len(set(degrees)) < len(degrees):
            raise InputError("", "shards", f"have tmp {shown(degrees)}", "give each degree once")
        for i, table in enumerate(self.tables):
            if table.tmp not in degrees:
                raise InputError(
                    "", f"tables[{i}].tmp", f"is {table.tmp}", f"give one of shards: {', '.join(map(str, degrees))}"
                )
            check_length(f"tables[{i}].layer_ns", table.layer_ns, len(self.kinds))
            rows = [(f"layer_ns[{k}]", row) for k, row in enumerate(table.layer_ns)]
            for name, row in [*rows, ("kept_bytes", table.kept_bytes), ("workspace_bytes", table.workspace_bytes)]:
                check_length(f"tables[{i}].{name}", row, layers)
            if (longest := -(-self.batch // table.mbs) * max(map(sum, table.layer_ns.tolist()))) > LARGEST:
                problem = f"take {longest:.3g} ns in a step of {self.batch} samples"
                raise InputError("", f"tables[{i}].layer_ns", problem, f"give times that stay within {LARGEST:.3g}")
        if len({(table.tmp, table.mbs) for table in self.tables}) < len(self.tables):
            raise InputError("", "tables", "have one (tmp, mbs) twice", "give each once")
        if (taken := self._most_communication_ns(count)) > LARGEST:
            problem = f"makes the messages of a step of {self.batch} samples take up to {taken:.3g} ns"
            raise InputError("", "network", problem, f"give faster links, or fewer bytes: within {LARGEST:.3g} ns")
        return self

    def _most_communication_ns(self, devices: int) -> float:
        """An upper bound in ns on the time of all messages of a step one after another, each taken as an all-reduce among all
        devices. devices: the number of devices."""
        stages, everyone = min(devices, len(self.layer_names)), tuple(range(devices))
        messages = self.batch * (2 * stages + sum(self.reductions.tolist())) + 2
        size = self.batch * (2 * stages * max(self.boundary_bytes.tolist(), default=0) + sum(self.reduced_bytes.tolist()))
        size += max(sum(shard.gradient_bytes.tolist()) for shard in self.shards) + self.tied_bytes
        latency_ns, whole_ns = (collective_ns(self.network, "all-reduce", float(of), everyone) for of in (0, size))
        return messages * latency_ns + whole_ns


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance from a file in its JSON format, or from a dict. where: what error messages call a dict. Raises
    InputError which names file, field, value and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    same = ("batch", "layer_names", "kinds", "network", *ARRAYS, *FLAGS, "tied_bytes")
    return Instance(
        **{name: getattr(record, name) for name in same},
        device_kinds=tuple(run.kind for run in record.devices for _ in range(run.count)),
        shards={shard.tmp: shard for shard in record.shards},
        tables={(table.tmp, table.mbs): table for table in record.tables},
        **record.labels,
    )
