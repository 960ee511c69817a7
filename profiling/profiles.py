"""Profiles: the numbers of a model and a machine that every planning problem is built from, with their origins and spreads.

A profile lists the chain of units, the exact counts of its distinct sub-layers, their times and bytes on each kind of device by
tensor-parallel degree and rows (samples on one device), and the costs of links, copies and the optimizer. It stands alone: an
imported one describes no model of ours and can be planned with all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, only, parse
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.network import Network, Origin, Share
from trainplan.profiling.models.model import Model, model_from_shape
from trainplan.profiling.models.precision import Precision, usual_precision
from trainplan.profiling.models.sublayers import Sublayer

LONGEST_NS = 10**13
MOST_BYTES = 10**15
OVERLAP = 1.3  # Galvatron-BMW, Section V

Count = Annotated[int, Field(ge=0, le=2**53)]
Degree = Annotated[int, Field(ge=1, le=2**20)]


class Number(Record):
    """Whole nanoseconds or bytes. spread: half the width of the middle half of the repeats, relative to their median, which
    is `value`."""

    value: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    origin: Origin
    spread: Share = 0.0


class Rate(Record):
    """A ratio, bytes per second, or nanoseconds per parameter."""

    value: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    origin: Origin
    spread: Share = 0.0


class ShardCounts(Record):
    """Counts of the largest part of a sub-layer on one tensor-parallel rank.

    tp: the degree. parameters: of the part; replicated_parameters: those that all ranks hold alike. output_bytes: of one
    sample. whole: every rank holds and computes the whole sub-layer, so that no sums over ranks are needed.
    """

    tp: Degree
    parameters: Count
    replicated_parameters: Count
    output_bytes: Count
    whole: bool = False


class SublayerShape(Record):
    """Exact counts of a distinct sub-layer. Bytes are those of one sample.

    reductions: all-reduces of a forward pass. carried_bytes: hidden states of another stream that are passed along past this
    sub-layer. tokens: of one sample; 0 if unknown.
    """

    name: Annotated[str, Field(min_length=1)]
    kind: Annotated[str, Field(min_length=1)]
    tokens: Count = 0
    input_bytes: Count
    output_bytes: Count
    carried_bytes: Count = 0
    reductions: Annotated[int, Field(ge=0, le=64)] = 1
    shards: Annotated[list[ShardCounts], Field(min_length=1)]

    def shard(self, tp: int) -> ShardCounts:
        """The counts of one rank under tensor-parallel degree `tp`. Raises KeyError where they are not profiled."""
        for shard in self.shards:
            if shard.tp == tp:
                return shard
        raise KeyError(tp)


class ChainUnit(Record):
    """One unit of the chain: its name, the index of its layer (consecutive from 0) and the name of its sub-layer."""

    name: str
    layer: Count
    sublayer: str


class Shape(Record):
    """A sub-layer on one kind of device, with `rows` samples and tensor-parallel degree `tp`."""

    sublayer: Annotated[str, Field(min_length=1)]
    device: Annotated[str, Field(min_length=1)]
    tp: Degree
    rows: Degree


class UnitCost(Shape):
    """Times in ns and bytes of one shape.

    kept_bytes: held for the backward pass in addition to the unit's input. checkpoint_bytes: held under recomputation, if that
    is not the input. Workspaces: the peak beyond input, kept bytes and output.
    """

    forward_ns: Number
    forward_without_graph_ns: Number
    backward_ns: Number
    kept_bytes: Number
    forward_workspace_bytes: Number
    backward_workspace_bytes: Number
    checkpoint_bytes: Number | None = None

    @property
    def numbers(self) -> dict[str, Number]:
        """The times and bytes of this entry by name, without those that it lacks."""
        numbers = {name: getattr(self, name) for name in (*NUMBERS, "checkpoint_bytes")}
        return {name: number for name, number in numbers.items() if number is not None}


# Fields that every UnitCost has.
NUMBERS = tuple(name for name, field in UnitCost.model_fields.items() if field.annotation is Number)


class HostCosts(Record):
    """Copies between host and device, and the optimizer where it runs on the host.

    A copy takes latency_ns and its bytes at the rate of its direction; a rate's spread is the largest relative error of its
    fit. shares_bus: copies and collectives within a node go through the same bus, as without NVLink.
    """

    to_device_bytes_per_s: Rate
    to_host_bytes_per_s: Rate
    latency_ns: Number
    optimizer_ns_per_parameter: Rate
    shares_bus: bool = False


@in_one_line
class Profile(Record):
    """All numbers of a model on a cluster, or on a group of its devices.

    parameter_bytes: of an element as collectives carry it. state_bytes_per_parameter: parameter, gradient and optimizer states.
    memory_bytes: of one device; plans may not use reserve_bytes of it. device_kinds: data sheets, if known, whose proportions
    estimate shapes that were not profiled. slowdowns: factors by which compute and communication are slower while they overlap.
    out_of_memory: shapes that did not fit when they were measured. provenance: free text by name.
    """

    noun: ClassVar[str] = "profile"

    format: Literal["trainplan-profile"] = "trainplan-profile"
    version: Annotated[Literal[2], only(2)] = 2
    name: str
    model: dict[str, Any] | None = None
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    parameter_bytes: Annotated[int, Field(ge=1, le=8)] = 4
    state_bytes_per_parameter: Annotated[int, Field(ge=1, le=256)] = 16
    tied_parameters: Count = 0
    units: Annotated[list[ChainUnit], Field(min_length=1)]
    sublayers: Annotated[list[SublayerShape], Field(min_length=1)]
    cluster: str
    devices: Degree
    memory_bytes: Annotated[int, Field(gt=0, le=2**50)]
    reserve_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    device_kinds: list[DeviceKind] = Field(default_factory=list)
    network: Network
    optimizer_ns_per_parameter: Rate
    host: HostCosts | None = None
    compute_slowdown: Rate = Rate(value=OVERLAP, origin="estimated")
    communication_slowdown: Rate = Rate(value=OVERLAP, origin="estimated")
    costs: Annotated[list[UnitCost], Field(min_length=1)]
    out_of_memory: list[Shape] = Field(default_factory=list)
    provenance: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        _ = self.described_model  # to read it is to check it
        if self.reserve_bytes >= self.memory_bytes:
            fix = f"give less than memory_bytes = {self.memory_bytes}"
            raise InputError("", "reserve_bytes", f"is {self.reserve_bytes}", fix)
        if not self.network.reaches(self.devices):
            raise InputError("", "network", f"does not reach all {self.devices} devices", "give an island that holds them")
        layer = 0
        for i, unit in enumerate(self.units):
            self._check_sublayer(f"units[{i}]", unit.sublayer)
            if unit.layer not in (layer, layer + 1) or (i == 0 and unit.layer):
                raise InputError("", f"units[{i}].layer", f"is {unit.layer}", f"give {layer} or {layer + 1}: layers in order")
            layer = unit.layer
        for i, entry in enumerate(self.costs):
            self._check_sublayer(f"costs[{i}]", entry.sublayer)
        return self

    def _check_sublayer(self, field: str, name: str) -> None:
        """Raise InputError if there is no sub-layer of this name. field: path of the field that names it."""
        if name not in self.shapes:
            raise InputError("", f"{field}.sublayer", f"is {name!r}", f"give one of: {', '.join(self.shapes)}")

    @cached_property
    def described_model(self) -> Model | None:
        """The model that the profile is of; None if it was imported. Raises InputError if its description is wrong, at
        construction."""
        return None if self.model is None else model_from_shape(self.model, "")

    def sublayer(self, name: str) -> Sublayer:
        """A sub-layer of the described model, by its name. Raises InputError where none is described."""
        if self.described_model is None:
            problem = f"does not describe the model: the matrices of {name!r} are not known"
            raise InputError("profile", "model", problem, "plan with --optimizer adamw, or give --model")
        return self.described_model.sublayers[name]

    @property
    def usable_bytes(self) -> int:
        """The memory of one device that plans may use: all but the reserve."""
        return self.memory_bytes - self.reserve_bytes

    @cached_property
    def precision(self) -> Precision:
        """The dtypes of the model states, by the bytes of states per parameter."""
        return usual_precision(DTYPE_BYTES[self.dtype], self.state_bytes_per_parameter)

    @cached_property
    def shapes(self) -> dict[str, SublayerShape]:
        """The distinct sub-layers by name."""
        return {shape.name: shape for shape in self.sublayers}

    @cached_property
    def _table(self) -> dict[tuple[str, int, int], list[UnitCost]]:
        """The costs by (sub-layer, tensor-parallel degree, rows), one entry per kind of device."""
        table: dict[tuple[str, int, int], list[UnitCost]] = {}
        for entry in self.costs:
            table.setdefault((entry.sublayer, entry.tp, entry.rows), []).append(entry)
        return table

    @cached_property
    def derived(self) -> dict[tuple[Any, ...], Any]:
        """Results computed from the profile, by name and arguments, kept for the next request."""
        return {}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device that the profile has costs for, by name."""
        return tuple(dict.fromkeys(entry.device for entry in self.costs))

    def entries(self, sublayer: str, tp: int, rows: int) -> list[UnitCost]:
        """The costs of a sub-layer with one tensor-parallel degree and number of rows, one entry per kind of device."""
        return self._table.get((sublayer, tp, rows), [])

    def cost(self, sublayer: str, tp: int, rows: int, device: str | None = None) -> UnitCost:
        """Costs of one shape on one kind of device. If several kinds have it and none is named, the largest of each number,
        as a group works at the pace of its slowest device. Raises InputError if the profile lacks the shape."""
        entries = [entry for entry in self.entries(sublayer, tp, rows) if device in (None, entry.device)]
        if not entries:
            shape = f"{sublayer} with tp {tp} and {rows} rows"
            raise InputError("profile", shape, "is missing", "measure or estimate it for this batch")
        return slowest(entries)

    @property
    def total_parameters(self) -> int:
        """Parameters of the whole model: a tied head's matrix counts once."""
        counts = {name: shape.shard(min(s.tp for s in shape.shards)).parameters for name, shape in self.shapes.items()}
        return sum(counts[unit.sublayer] for unit in self.units) - self.tied_parameters

    def tp_degrees(self, group: int) -> tuple[int, ...]:
        """Tensor-parallel degrees, powers of two up to `group`, that all sub-layers are profiled for."""
        common = set.intersection(*({shard.tp for shard in shape.shards} for shape in self.sublayers))
        return tuple(sorted(t for t in common if t <= group and t & (t - 1) == 0))

    @cached_property
    def origin(self) -> str:
        """Where the times come from: `measured`, `estimated`, `imported`, or several of them."""
        return "+".join(sorted({entry.forward_ns.origin for entry in self.costs}))


def slowest(entries: Sequence[UnitCost]) -> UnitCost:
    """Several costs of one sub-layer as one: the largest of each number that all of them have."""
    if len(entries) == 1:
        return entries[0]
    names = [name for name in entries[0].numbers if all(name in entry.numbers for entry in entries)]
    return entries[0].changed(
        **{name: max((e.numbers[name] for e in entries), key=lambda number: number.value) for name in names}
    )


def shapes_of(model: Model, degrees: Iterable[int]) -> list[SublayerShape]:
    """The exact counts of a model's distinct sub-layers, for the tensor-parallel degrees that it can be split into."""
    shapes = []
    for name, part in model.sublayers.items():
        shards = [
            ShardCounts(
                tp=tp,
                parameters=max(part.parameter_count(split, index) for index in {0, split - 1}),
                replicated_parameters=part.replicated_count if split == tp else 0,
                output_bytes=part.output_bytes(1, split),
                whole=split < tp,
            )
            for tp, split in ((tp, part.degree(tp)) for tp in degrees)
        ]
        shapes.append(
            SublayerShape(
                name=name,
                kind=part.kind,
                tokens=part.tokens,
                input_bytes=part.input_bytes(1),
                output_bytes=part.output_bytes(1, 1),
                carried_bytes=part.carried_bytes(1),
                shards=shards,
            )
        )
    return shapes


def chain_of(model: Model) -> list[ChainUnit]:
    """The units of a model as a profile lists them."""
    return [ChainUnit(name=unit.name, layer=unit.layer, sublayer=model.key_of(unit)) for unit in model.units]


def load_profile(source: str | os.PathLike[str]) -> Profile:
    """Read a profile from its JSON file. Raises InputError."""
    return parse(source, Profile)
