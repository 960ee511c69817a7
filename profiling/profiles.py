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
    """A number of whole nanoseconds or bytes in a profile, with its origin. spread: half the width of the middle half of
    repeated measurements, relative to their median, which is `value`.
    """

    value: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    origin: Origin
    spread: Share = 0.0


class Rate(Record):
    """A ratio, a rate in bytes per second, or nanoseconds per parameter in a profile, with its origin and relative spread."""

    value: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    origin: Origin
    spread: Share = 0.0


class ShardCounts(Record):
    """Counts for one tensor-parallel rank of a sub-layer: the rank with the largest part.

    tp: the tensor-parallel degree. parameters: number of parameters on the rank; replicated_parameters: number of these that
    all ranks hold. output_bytes: bytes of the output per sample. whole: whether every rank holds and computes the whole
    sub-layer, so that no sums over ranks are needed.
    """

    tp: Degree
    parameters: Count
    replicated_parameters: Count
    output_bytes: Count
    whole: bool = False


class SublayerShape(Record):
    """Exact counts of a distinct sub-layer. Bytes are per sample.

    reductions: number of all-reduces in a forward pass. carried_bytes: hidden states of another stream that are passed along
    past this sub-layer. tokens: tokens per sample; 0 if unknown. shards: counts on one rank, for each tensor-parallel degree.
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
        """The counts of one rank at tensor-parallel degree `tp`. Raises KeyError if the profile has none for this degree."""
        for shard in self.shards:
            if shard.tp == tp:
                return shard
        raise KeyError(tp)


class ChainUnit(Record):
    """One unit of a model (a sub-layer at its position): its name, the index of its layer (consecutive from 0) and the name of
    its sub-layer in the profile.
    """

    name: str
    layer: Count
    sublayer: str


class Shape(Record):
    """The key of a profile's costs: a sub-layer on one kind of device, with `rows` samples and tensor-parallel degree `tp`."""

    sublayer: Annotated[str, Field(min_length=1)]
    device: Annotated[str, Field(min_length=1)]
    tp: Degree
    rows: Degree


class UnitCost(Shape):
    """Times in ns and bytes of one sub-layer on one kind of device, with `rows` samples and tensor-parallel degree `tp`.

    kept_bytes: bytes held for the backward pass in addition to the unit's input. checkpoint_bytes: bytes held under
    recomputation, if they are not the input. Workspaces: the peak memory beyond input, kept bytes and output.
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
        """The times and bytes of this entry by field name; `checkpoint_bytes` only if the entry has it."""
        numbers = {name: getattr(self, name) for name in (*NUMBERS, "checkpoint_bytes")}
        return {name: number for name, number in numbers.items() if number is not None}


# Fields that every UnitCost has.
NUMBERS = tuple(name for name, field in UnitCost.model_fields.items() if field.annotation is Number)


class HostCosts(Record):
    """Costs of copies between host and device, and of the optimizer if it runs on the host.

    A copy takes latency_ns plus its bytes at the rate of its direction; a rate's spread is the largest relative error of its
    fit. shares_bus: whether copies and collectives within a node go through the same bus, as they do without NVLink.
    """

    to_device_bytes_per_s: Rate
    to_host_bytes_per_s: Rate
    latency_ns: Number
    optimizer_ns_per_parameter: Rate
    shares_bus: bool = False


@in_one_line
class Profile(Record):
    """The costs (times and bytes) of all sub-layers of a model on a cluster, or on a group of its devices.

    units: the sub-layers of the model in order, each by its name in `sublayers`, which has every distinct sub-layer once.
    costs: times and bytes of a sub-layer on a kind of device, for a tensor-parallel degree and a number of rows (samples on
    one device). parameter_bytes: bytes of an element that collectives send. state_bytes_per_parameter: bytes of parameter,
    gradient and optimizer states. memory_bytes: memory of one device, of which plans may not use reserve_bytes. device_kinds:
    descriptions of the kinds of device, if known; their proportions are used to estimate entries that were not profiled.
    slowdowns: factors by which computation and communication are slower while they overlap. out_of_memory: sizes that did not
    fit when they were measured. provenance: free text by name.
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
        """Validate the profile when it is constructed; return it unchanged. Raises InputError unless units, costs, network,
        memory and the described model agree with each other.
        """
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
        """Raise InputError if the profile has no sub-layer named `name`. field: path of the field that refers to it, such as
        `units[3]`, for the error.
        """
        if name not in self.shapes:
            raise InputError("", f"{field}.sublayer", f"is {name!r}", f"give one of: {', '.join(self.shapes)}")

    @cached_property
    def described_model(self) -> Model | None:
        """The model that the profile was taken of; None if the profile was imported. Raises InputError, when the profile is
        constructed, if the description of the model is invalid.
        """
        return None if self.model is None else model_from_shape(self.model, "")

    def sublayer(self, name: str) -> Sublayer:
        """A sub-layer of the described model, by its name. Raises InputError if the profile describes no model."""
        if self.described_model is None:
            problem = f"does not describe the model: the matrices of {name!r} are not known"
            raise InputError("profile", "model", problem, "plan with --optimizer adamw, or give --model")
        return self.described_model.sublayers[name]

    @property
    def usable_bytes(self) -> int:
        """Bytes of one device that plans may use: its memory without the reserve."""
        return self.memory_bytes - self.reserve_bytes

    @cached_property
    def precision(self) -> Precision:
        """The dtypes of parameters, gradients and optimizer states, inferred from the bytes of states per parameter."""
        return usual_precision(DTYPE_BYTES[self.dtype], self.state_bytes_per_parameter)

    @cached_property
    def shapes(self) -> dict[str, SublayerShape]:
        """The model's distinct sub-layers (each one once, however often it is repeated) by name."""
        return {shape.name: shape for shape in self.sublayers}

    @cached_property
    def _table(self) -> dict[tuple[str, int, int], list[UnitCost]]:
        """The profile's costs by (sub-layer's name, tensor-parallel degree, rows), which are samples on one device; a list
        with one entry per kind of device.
        """
        table: dict[tuple[str, int, int], list[UnitCost]] = {}
        for entry in self.costs:
            table.setdefault((entry.sublayer, entry.tp, entry.rows), []).append(entry)
        return table

    @cached_property
    def derived(self) -> dict[tuple[Any, ...], Any]:
        """A cache of results computed from this profile, which other modules write to; keys are tuples of a name and the
        arguments.
        """
        return {}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The names of the kinds of device that the profile has costs for."""
        return tuple(dict.fromkeys(entry.device for entry in self.costs))

    def entries(self, sublayer: str, tp: int, rows: int) -> list[UnitCost]:
        """The costs of a sub-layer at one tensor-parallel degree and number of rows (samples on one device), one entry per
        kind of device; empty if the profile lacks them. sublayer: the sub-layer's name in the profile.
        """
        return self._table.get((sublayer, tp, rows), [])

    def cost(self, sublayer: str, tp: int, rows: int, device: str | None = None) -> UnitCost:
        """Costs of a sub-layer at one tensor-parallel degree with `rows` samples, on the kind of device `device`. If `device`
        is None and several kinds have costs, each number is the largest over the kinds, as a group of devices is as slow as
        its slowest device. Raises InputError if the profile lacks the costs. sublayer: the sub-layer's name in the profile.
        """
        entries = [entry for entry in self.entries(sublayer, tp, rows) if device in (None, entry.device)]
        if not entries:
            shape = f"{sublayer} with tp {tp} and {rows} rows"
            raise InputError("profile", shape, "is missing", "measure or estimate it for this batch")
        return slowest(entries)

    @property
    def total_parameters(self) -> int:
        """The number of parameters of the whole model; a matrix that embedding and head share is counted once."""
        counts = {name: shape.shard(min(s.tp for s in shape.shards)).parameters for name, shape in self.shapes.items()}
        return sum(counts[unit.sublayer] for unit in self.units) - self.tied_parameters

    def tp_degrees(self, group: int) -> tuple[int, ...]:
        """The tensor-parallel degrees, powers of two up to `group`, for which the profile has counts of all sub-layers,
        ascending.
        """
        common = set.intersection(*({shard.tp for shard in shape.shards} for shape in self.sublayers))
        return tuple(sorted(t for t in common if t <= group and t & (t - 1) == 0))

    @cached_property
    def origin(self) -> str:
        """The origin of the profile's times: `measured`, `estimated`, `imported`, or several of them joined by "+"."""
        return "+".join(sorted({entry.forward_ns.origin for entry in self.costs}))


def slowest(entries: Sequence[UnitCost]) -> UnitCost:
    """Combine the costs of one sub-layer on several kinds of device into one entry, in which each number that all entries have
    is the largest over the kinds; other numbers are taken from the first entry.
    """
    if len(entries) == 1:
        return entries[0]
    names = [name for name in entries[0].numbers if all(name in entry.numbers for entry in entries)]
    return entries[0].changed(
        **{name: max((e.numbers[name] for e in entries), key=lambda number: number.value) for name in names}
    )


def shapes_of(model: Model, degrees: Iterable[int]) -> list[SublayerShape]:
    """Count parameters and bytes of a model's distinct sub-layers, for each of the given tensor-parallel degrees."""
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
    """List the units (sub-layers at their positions) of a model, in order, in the form of a profile: name, index of the layer,
    name of the sub-layer.
    """
    return [ChainUnit(name=unit.name, layer=unit.layer, sublayer=model.key_of(unit)) for unit in model.units]


def load_profile(source: str | os.PathLike[str]) -> Profile:
    """Read a profile from its JSON file. Raises InputError if the file cannot be read or is no valid profile."""
    return parse(source, Profile)
