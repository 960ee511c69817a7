"""Instances of cluster-strategy in arrays: devices, links, and costs of layers by degree; symbols as in `problem`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field
from trainplan.formulations.cluster_strategy.classes import device_classes
from trainplan.formulations.cluster_strategy.placement_costs import Placed
from trainplan.formulations.instance import ProblemInstance
from trainplan.formulations.numbers import ArrayOf, Integers
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items, written
from trainplan.profiling.clusters.network import Network

NAME = "cluster-strategy"
LARGEST, LARGEST_BATCH = 2**53, 10**9
ARRAYS = ("reductions", "reduced_bytes", "boundary_bytes")
FLAGS = ("uneven_shares", "within_memory", "powers_of_two")
Whole = Annotated[int, Field(ge=0, le=2**53)]
Degree = Annotated[int, Field(ge=1, le=2**20)]
Row = Annotated[Integers, ArrayOf(Whole)]


@dataclass(frozen=True)
class Kind(DataclassRecord):
    """A kind of device, and the memory in bytes that its devices have for a plan."""

    name: Annotated[str, Field(min_length=1)]
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]


@dataclass(frozen=True, eq=False)
class Shard(DataclassRecord):
    """Bytes that one of tmp devices holds of every layer: (L,) gradients to synchronise, and (L,) model states.

    whole: layers that each of the tmp devices computes as a whole, so that nothing is reduced.
    """

    gradient_bytes: Row
    state_bytes: Row
    whole: Annotated[
        Items[Annotated[int, Field(ge=0)]],
        Field(description="layers that each of the tmp devices computes all of, so that nothing is reduced; none by default"),
    ] = ()

    optional = ("whole",)

    @cached_property
    def gradient_sums(self) -> Integers:
        """(L + 1,): gradient bytes of all layers before a layer."""
        return np.pad(self.gradient_bytes.cumsum(), (1, 0))


@dataclass(frozen=True, eq=False)
class LayerTable(DataclassRecord):
    """Costs of every layer with mbs samples on one of tmp devices.

    layer_ns: (kinds, L), both passes; kept_bytes: (L,), kept between them; workspace_bytes: (L,), the most that a pass adds.
    """

    layer_ns: Annotated[Integers, ArrayOf(Whole, 2), Field(description="for each kind of device, by layer")]
    kept_bytes: Row
    workspace_bytes: Row


@dataclass(frozen=True, order=True)
class Degrees:
    """How a strategy divides the devices: pp stages, dp pipelines, tmp devices in a group; and micro-batches of mbs samples."""

    pp: int
    dp: int
    tmp: int
    mbs: int

    def __str__(self) -> str:
        return f"pp {self.pp}, dp {self.dp}, tmp {self.tmp}, micro-batches of {self.mbs}"


@dataclass(frozen=True, eq=False)
class Instance(ProblemInstance):
    """The problem in arrays.

    Attributes:
        batch: samples of a step.
        layer_names: the name of each of the L layers.
        kinds: the kinds of devices; device_kinds: the index of the kind of every device.
        network: the links between devices.
        reductions: (L,), all-reduces of each layer over its tmp devices; reduced_bytes: (L,), their bytes for one sample.
        boundary_bytes: (L-1,), v.
        shards: by tmp; tables: by (tmp, mbs).
        uneven_shares, within_memory, powers_of_two: as at the head of this file.
        tied_bytes: bytes of a table that embedding and head share; 0 where there is none, and where R is left out, as in AMP.
        group_costs: costs of groups of devices that were looked up; `Placed` fills them in.
    """

    batch: int
    layer_names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    device_kinds: tuple[int, ...]
    network: Network
    reductions: Integers
    reduced_bytes: Integers
    boundary_bytes: Integers
    shards: Mapping[int, Shard]
    tables: Mapping[tuple[int, int], LayerTable]
    uneven_shares: bool = False
    within_memory: bool = True
    powers_of_two: bool = False
    tied_bytes: int = 0
    group_costs: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    problem = NAME

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.layer_names)

    @property
    def devices(self) -> int:
        """The number of devices of the cluster."""
        return len(self.device_kinds)

    @property
    def memory_bytes(self) -> int:
        """Memory of the smallest device, in bytes."""
        return min(self.kinds[kind].memory_bytes for kind in set(self.device_kinds))

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit of every device in bytes; None where memory is not counted, or where devices differ."""
        limits = {self.kinds[kind].memory_bytes for kind in self.device_kinds}
        return limits.pop() if self.within_memory and len(limits) == 1 else None

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of layers, of possible degrees and of devices, and the memory of the smallest device in bytes."""
        degrees = sum(1 for _ in self.degrees())
        return {"layers": self.layers, "degrees": degrees, "devices": self.devices, "memory_bytes": self.memory_bytes}

    @cached_property
    def classes(self) -> Integers:
        """The class of every device; devices of one class may be exchanged (see `classes`)."""
        return np.array(device_classes(self.network, self.device_kinds), np.int64)

    @cached_property
    def class_kinds(self) -> Integers:
        """The kind of the devices of each class."""
        _, first = np.unique(self.classes, return_index=True)
        return np.array(self.device_kinds, np.int64)[first]

    @cached_property
    def members(self) -> list[list[int]]:
        """The devices of every class."""
        return [np.flatnonzero(self.classes == c).tolist() for c in range(int(self.classes.max()) + 1)]

    def placement(self, classes: Iterable[int]) -> tuple[int, ...]:
        """Some placement that has a device of the given class on every rank."""
        waiting = [iter(devices) for devices in self.members]
        return tuple(next(waiting[c]) for c in classes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides a solution's cost, in hexadecimal digits: everything but name and provenance."""
        content = {name: value for name, value in self.to_dict().items() if name not in ("name", "provenance")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance with `memory_bytes` as the limit of every device, in which memory counts."""
        return replace(self, kinds=tuple(replace(kind, memory_bytes=memory_bytes) for kind in self.kinds), within_memory=True)

    def degrees(self) -> Iterator[Degrees]:
        """All (pp, dp, tmp) that use every device, with all possible sizes of micro-batch (Algorithm 1's loops)."""
        for tmp in sorted(self.shards):
            if self.devices % tmp or not self.allows_degree(tmp):
                continue
            sizes = sorted(mbs for t, mbs in self.tables if t == tmp)
            for dp in range(1, self.devices // tmp + 1):
                pp = self.devices // tmp // dp
                if pp * dp * tmp == self.devices and pp <= self.layers and self.allows_degree(dp):
                    yield from (Degrees(pp, dp, tmp, mbs) for mbs in sizes if self.even_shares(dp, mbs) is not None)

    def allows_degree(self, degree: int) -> bool:
        """Whether the number of pipelines (dp) or of tensor-parallel devices (tmp) may be `degree`: any number, or only powers
        of two."""
        return not self.powers_of_two or degree & (degree - 1) == 0

    def even_shares(self, dp: int, mbs: int) -> tuple[int, ...] | None:
        """Micro-batches of each pipeline, as equal as the batch allows; None where it cannot be divided so."""
        if self.batch % mbs or self.batch // mbs < dp or (self.batch // mbs % dp and not self.uneven_shares):
            return None
        least, more = divmod(self.batch // mbs, dp)
        return (least + 1,) * more + (least,) * (dp - more)

    def placed(self, degrees: Degrees, placement: Sequence[int]) -> Placed:
        """The costs of placing devices on ranks under given degrees: times and memory limits of stages. placement: the device
        of every rank."""
        return Placed(self, degrees, np.asarray(placement, np.int64))

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format."""
        return {
            **self.header,
            **self.lists(("batch", *ARRAYS, *FLAGS, "layer_names", *(["tied_bytes"] if self.tied_bytes else []))),
            "kinds": written(self.kinds),
            "devices": [{"kind": kind, "count": len(list(run))} for kind, run in groupby(self.device_kinds)],
            "network": self.network.model_dump(exclude_none=True),
            "shards": [{"tmp": tmp, **shard.to_dict()} for tmp, shard in self.shards.items()],
            "tables": [{"tmp": tmp, "mbs": mbs, **table.to_dict()} for (tmp, mbs), table in self.tables.items()],
        }
