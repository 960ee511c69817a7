"""Profiles: the numbers that every problem needs of a model and a machine, each with its origin and its spread.

A profile names the chain of units, the exact counts of its distinct sub-layers, and their times and bytes on each kind of
device by tensor-parallel degree and rows (samples on one device), beside the links, copies and optimizer. It stands alone:
an imported one has no model of ours behind it and plans all the same.
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
    """Nanoseconds or bytes. spread: half-width of the middle half of the repeats, relative to the median kept here."""

    value: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    origin: Origin
    spread: Share = 0.0


class Rate(Record):
    """A ratio, or nanoseconds per parameter."""

    value: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    origin: Origin
    spread: Share = 0.0


class ShardCounts(Record):
    """One tensor-parallel rank's part of a sub-layer, the largest of them: parameters, those of all ranks alike, output.

    whole: every rank holds and computes all of the sub-layer, so that nothing is added up over them.
    """

    tp: Degree
    parameters: Count
    replicated_parameters: Count
    output_bytes: Count
    whole: bool = False


class SublayerShape(Record):
    """Exact counts of a distinct sub-layer. Bytes are those of one sample. reductions: all-reduces of a forward pass.

    carried_bytes: hidden states of another stream that pass this sub-layer by. tokens: 0 where unknown.
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
    """A unit of the chain: its planner's layer (consecutive from 0) and the name of its sub-layer."""

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
    """What one such shape costs.

    kept_bytes: what the graph holds besides the unit's input. checkpoint_bytes: what is held under recomputation, where that is
    not the input. Workspaces: the most beyond input, kept and output.
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


NUMBERS = tuple(name for name, field in UnitCost.model_fields.items() if field.annotation is Number)  # that every entry has


class HostCosts(Record):
    """Copies between host and device, each as bandwidth and latency, and the optimizer where it runs on the host.

    A copy rate's spread is the largest relative error of its fit.

    shares_bus: copies and collectives within a node go through the same bus, as without NVLink.
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
    memory_bytes: of one device, of which reserve_bytes are not for plans. device_kinds: data sheets, where known, whose
    proportions estimate what was not profiled. slowdowns: how much slower compute and communication get while they overlap.
    out_of_memory: where nothing fitted. provenance: free text by name.
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

    def _check_sublayer(self, place: str, name: str) -> None:
        if name not in self.shapes:
            raise InputError("", f"{place}.sublayer", f"is {name!r}", f"give one of: {', '.join(self.shapes)}")

    @cached_property
    def described_model(self) -> Model | None:
        """The model that the profile is of; None where it was imported. Raises InputError when the profile is made."""
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
        """The dtypes of model states that the states of a parameter have room for."""
        return usual_precision(DTYPE_BYTES[self.dtype], self.state_bytes_per_parameter)

    @cached_property
    def shapes(self) -> dict[str, SublayerShape]:
        """The distinct sub-layers by name."""
        return {shape.name: shape for shape in self.sublayers}

    @cached_property
    def _table(self) -> dict[tuple[str, int, int], list[UnitCost]]:
        table: dict[tuple[str, int, int], list[UnitCost]] = {}
        for entry in self.costs:
            table.setdefault((entry.sublayer, entry.tp, entry.rows), []).append(entry)
        return table

    @cached_property
    def derived(self) -> dict[tuple[Any, ...], Any]:
        """What has been worked out of the profile so far and may be asked for again, by a name and arguments."""
        return {}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of device that the profile has costs for."""
        return tuple(dict.fromkeys(entry.device for entry in self.costs))

    def entries(self, sublayer: str, tp: int, rows: int) -> list[UnitCost]:
        """The costs of a sub-layer with one degree and number of rows, an entry for each kind of device that has them."""
        return self._table.get((sublayer, tp, rows), [])

    def cost(self, sublayer: str, tp: int, rows: int, device: str | None = None) -> UnitCost:
        """Costs of one shape on one kind of device; with several kinds and none named, the largest of each number: a group
        works at the pace of its slowest device. Raises InputError where the profile lacks it."""
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
        """Powers of two up to `group` that all sub-layers can be split into."""
        common = set.intersection(*({shard.tp for shard in shape.shards} for shape in self.sublayers))
        return tuple(sorted(t for t in common if t <= group and t & (t - 1) == 0))

    @cached_property
    def origin(self) -> str:
        """Where the times come from: `measured`, `estimated`, `imported`, or several of them."""
        return "+".join(sorted({entry.forward_ns.origin for entry in self.costs}))


def slowest(entries: Sequence[UnitCost]) -> UnitCost:
    """Of several costs of one sub-layer the largest of each number, where all of them have it."""
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
    """A profile from its JSON file. Raises InputError."""
    return parse(source, Profile)
