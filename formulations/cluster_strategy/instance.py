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
    """The bytes that one of tmp tensor-parallel devices holds of each of the L layers. gradient_bytes: (L,), gradients to
    reduce. state_bytes: (L,), model states. whole: the indices of the layers that each of the tmp devices computes as a
    whole, so that their tensor-parallel results need no all-reduce.
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
        """(L + 1,): running sums of gradient bytes; entry l is the sum over the layers 0 to l - 1."""
        return np.pad(self.gradient_bytes.cumsum(), (1, 0))


@dataclass(frozen=True, eq=False)
class LayerTable(DataclassRecord):
    """The costs of every layer for one micro-batch of mbs samples on one of tmp tensor-parallel devices.

    layer_ns: (kinds, L), forward and backward pass, by kind of device. kept_bytes: (L,), kept from the forward to the
    backward pass. workspace_bytes: (L,), the most that a pass adds while it runs.
    """

    layer_ns: Annotated[Integers, ArrayOf(Whole, 2), Field(description="for each kind of device, by layer")]
    kept_bytes: Row
    workspace_bytes: Row


@dataclass(frozen=True, order=True)
class Degrees:
    """How a strategy divides the devices: pp pipeline stages, dp data-parallel pipelines, tmp tensor-parallel devices in a
    group; and the number mbs of samples per micro-batch.
    """

    pp: int
    dp: int
    tmp: int
    mbs: int

    def __str__(self) -> str:
        return f"pp {self.pp}, dp {self.dp}, tmp {self.tmp}, micro-batches of {self.mbs}"


@dataclass(frozen=True, eq=False)
class Instance(ProblemInstance):
    """An instance of the problem `cluster-strategy` in arrays, for L layers on a cluster of devices of one or several kinds.

    Attributes:
        batch: samples per step.
        layer_names: the name of each of the L layers.
        kinds: the kinds of devices.
        device_kinds: for every device, the index of its kind.
        network: the links between devices.
        reductions: (L,), the number of all-reduces of each layer over its tensor-parallel devices.
        reduced_bytes: (L,), the bytes per sample of these all-reduces.
        boundary_bytes: (L-1,), the bytes per sample that cross a cut after each layer but the last.
        shards: by tensor-parallel degree (tmp), the bytes of gradients and states of all layers.
        tables: by (tmp, samples per micro-batch), the times and bytes of all layers.
        uneven_shares: whether pipelines may take different numbers of micro-batches.
        within_memory: whether memory limits count.
        powers_of_two: whether the numbers of pipelines and of tensor-parallel devices must be powers of two.
        tied_bytes: the bytes of a weight table that embedding and head share; 0 if there is none, or if its reduction is
            left out, as in AMP.
        group_costs: a cache of costs of groups of devices, which `Placed` writes to.
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
        """The memory in bytes of the device that has the least."""
        return min(self.kinds[kind].memory_bytes for kind in set(self.device_kinds))

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit of every device in bytes; None if memory limits do not count, or if devices have different ones."""
        limits = {self.kinds[kind].memory_bytes for kind in self.device_kinds}
        return limits.pop() if self.within_memory and len(limits) == 1 else None

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of layers, of possible degrees of parallelism and of devices, and the memory in bytes of the device that
        has the least."""
        degrees = sum(1 for _ in self.degrees())
        return {"layers": self.layers, "degrees": degrees, "devices": self.devices, "memory_bytes": self.memory_bytes}

    @cached_property
    def classes(self) -> Integers:
        """(devices,): for every device, the number of its class; devices of one class may be exchanged without changing any
        cost."""
        return np.array(device_classes(self.network, self.device_kinds), np.int64)

    @cached_property
    def class_kinds(self) -> Integers:
        """(classes,): for each class of exchangeable devices, the index of their kind."""
        _, first = np.unique(self.classes, return_index=True)
        return np.array(self.device_kinds, np.int64)[first]

    @cached_property
    def members(self) -> list[list[int]]:
        """For each class of exchangeable devices, the devices that belong to it, ascending."""
        return [np.flatnonzero(self.classes == c).tolist() for c in range(int(self.classes.max()) + 1)]

    def placement(self, classes: Iterable[int]) -> tuple[int, ...]:
        """Some placement of devices on ranks in which every rank has a device of a given class. classes: for each rank, in
        order, the class of its device. Returns the device of every rank."""
        waiting = [iter(devices) for devices in self.members]
        return tuple(next(waiting[c]) for c in classes)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal digits, of all fields on which a solution's cost depends; name and provenance are left
        out."""
        content = {name: value for name, value in self.to_dict().items() if name not in ("name", "provenance")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance with `memory_bytes` as the limit of every device, in which memory counts."""
        return replace(self, kinds=tuple(replace(kind, memory_bytes=memory_bytes) for kind in self.kinds), within_memory=True)

    def degrees(self) -> Iterator[Degrees]:
        """All combinations of degrees of parallelism that use every device, with all possible numbers of samples per
        micro-batch (the loops of AMP's Algorithm 1).
        """
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
        """For each of `dp` pipelines, its number of micro-batches of `mbs` samples, as equal as the batch allows; None if the
        batch cannot be divided like that."""
        if self.batch % mbs or self.batch // mbs < dp or (self.batch // mbs % dp and not self.uneven_shares):
            return None
        least, more = divmod(self.batch // mbs, dp)
        return (least + 1,) * more + (least,) * (dp - more)

    def placed(self, degrees: Degrees, placement: Sequence[int]) -> Placed:
        """The costs (times and memory limits of stages) of assigning devices to ranks under given degrees of parallelism.
        placement: for every rank, its device.
        """
        return Placed(self, degrees, np.asarray(placement, np.int64))

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format."""
        return {
            **self.header,
            **self.lists(("batch", *ARRAYS, *FLAGS, "layer_names", *(["tied_bytes"] if self.tied_bytes else []))),
            "kinds": written(self.kinds),
            "devices": [{"kind": kind, "count": len(list(run))} for kind, run in groupby(self.device_kinds)],
            "network": self.network.model_dump(exclude_none=True),
            "shards": [{"tmp": tmp, **shard.to_dict()} for tmp, shard in self.shards.items()],
            "tables": [{"tmp": tmp, "mbs": mbs, **table.to_dict()} for (tmp, mbs), table in self.tables.items()],
        }
