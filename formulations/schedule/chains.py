"""Chains of layers (or sub-layers) that cuts divide into the stages of a 1F1B pipeline, and the memory of these stages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field
from trainplan.formulations.instance import InstanceFile, ProblemInstance
from trainplan.formulations.numbers import Integers, check_sums
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.formulations.schedule.stage_memory import Memory
from trainplan.profiling.base.dataclass_records import DataclassRecord, Items
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes

MOST_LAYERS = 10_000


class ChainFile(InstanceFile):
    """The fields that the file formats of all problems about a chain of layers share; the chain is to be cut into pipeline
    stages.
    """

    stages: Annotated[int, Field(ge=1, le=MOST_LAYERS)]
    micro_batches: Annotated[int, Field(ge=1, le=10**6, description="gas: micro-batches of one iteration")]
    memory: Memory | None = None

    def check_stages(self, name: str, count: int, noun: str) -> None:
        """Raise InputError if the file's list of layers does not have 1 to 10,000 entries, or if there are more stages than
        layers.

        name: the list's field, for errors. count: its number of entries. noun: what an entry is, such as "layer".
        """
        if not 1 <= count <= MOST_LAYERS:
            raise InputError("", name, f"has {count} entries", f"give 1 to {MOST_LAYERS}, one for each {noun}")
        if self.stages > count:
            raise InputError("", "stages", f"is {self.stages}", f"give at most {count}: every stage needs a {noun}")

    def check_totals(self, count: int, noun: str, time_ns: int) -> None:
        """Raise InputError if the arrays of memory do not have an entry for each layer, or if sums of times or bytes are too
        large for exact numbers.

        count: the number of layers. noun: what a layer is called in errors. time_ns: the largest sum of times that can occur.
        """
        size_bytes = 0
        if self.memory is not None:
            self.memory.check(count, self.stages)
            size_bytes = self.memory.most_bytes(min(self.stages, self.micro_batches))
        check_sums("micro_batches", self.micro_batches, f"{count} {noun}s", time_ns, size_bytes)

    @property
    def common(self) -> dict[str, Any]:
        """The fields that instances of all chain problems share (stages, micro_batches, memory, name, provenance), as keyword
        arguments."""
        memory = None if self.memory is None else self.memory.of_stages(self.stages)
        return {"stages": self.stages, "micro_batches": self.micro_batches, "memory": memory, **self.labels}


@dataclass(frozen=True, eq=False, kw_only=True)
class Chain(ProblemInstance):
    """An instance with a chain of layers (or sub-layers), whose solutions are cuts: the index of the first layer of every
    pipeline stage but the first.

    Attributes:
        stages: the number of stages p.
        micro_batches: the number of micro-batches in a step.
        memory: the bytes that layers need, and the limits of stages; None if memory is not limited.
        size_names: names of the attributes that show how large an instance is.
    """

    stages: int
    micro_batches: int
    memory: Memory | None = None

    size_names: ClassVar[tuple[str, ...]]  # the attributes that tell how large an instance is

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit that the devices of all stages share, in bytes; None without a limit, or if stages have different
        limits."""
        limits = set() if self.memory is None else set(self.memory.limit_bytes.tolist())
        return limits.pop() if len(limits) == 1 else None

    @property
    def sizes(self) -> dict[str, int]:
        """How large the instance is, by name: the attributes of `size_names`, and memory_bytes if all stages have the same
        limit."""
        sizes = {name: getattr(self, name) for name in self.size_names}
        limit = self.common_memory_bytes
        return sizes if limit is None else sizes | {"memory_bytes": limit}

    @property
    @abstractmethod
    def length(self) -> int:
        """The number n of layers (or of sub-layers, for problems that cut between them)."""

    @abstractmethod
    def name_of(self, layer: int) -> str:
        """The name of a layer for users. layer: its index."""

    def in_flight(self, stage: int) -> int:
        """The most micro-batches whose activations a stage holds at the same time under 1F1B. stage: its index."""
        return most_in_flight("1f1b", self.stages, self.micro_batches, stage)

    @property
    def windows(self) -> Integers | None:
        """(p, n): for each of the p stages and each of the n layers as the stage's last one, the least first layer with which
        the stage fits its memory; None if memory is not limited."""
        return None if self.memory is None else self.memory.first_layers([self.in_flight(x) for x in range(self.stages)])

    @property
    def precedences(self) -> list[tuple[int, int, int]]:
        """The memory limits as triples (i, first, l): stage i, if it holds layer l, must not begin before layer `first`, or it
        would exceed its memory. Empty if memory is not limited."""
        return [] if self.memory is None else self.memory.precedences([self.in_flight(x) for x in range(self.stages)])

    def with_memory(self, memory_bytes: int) -> Self:
        """A copy of the instance in which every device has a memory limit of `memory_bytes`. Raises InputError if the instance
        does not state what layers need."""
        if self.memory is None:
            fix = "give what each layer needs, or build it without --ignore-memory"
            raise InputError("instance", "memory", "is missing", fix)
        return replace(self, memory=self.memory.with_limits(np.full(self.stages, memory_bytes, np.int64)))

    def wrong_cuts(self, cuts: Sequence[int]) -> list[str]:
        """The reasons, as texts, why the numbers in `cuts` do not cut the chain into its stages; empty if they do. cuts: the
        index of the first layer of every stage but the first.
        """
        if len(cuts) == self.stages - 1 and all(first < end for first, end in pairwise((0, *cuts, self.length))):
            return []
        return [f"cuts is {list(cuts)}; give {self.stages - 1}, strictly increasing, of 1 to {self.length - 1}"]

    def peaks_bytes(self, cuts: Sequence[int]) -> list[int | None]:
        """Peak memory in bytes of one device of each stage; None for each if memory is not limited. cuts: the index of the
        first layer of every stage but the first."""
        if (memory := self.memory) is None:
            return [None] * self.stages
        spans = pairwise((0, *cuts, self.length))
        return [memory.stage_peak(first, end, self.in_flight(x))[0] for x, (first, end) in enumerate(spans)]

    def over_memory(self, cuts: Sequence[int]) -> list[str]:
        """A text for each stage that needs more memory than its limit; empty if all fit. cuts: the index of the first layer of
        every stage but the first."""
        if self.memory is None:
            return []
        spans, limits = pairwise((0, *cuts, self.length)), self.memory.limit_bytes.tolist()
        return [
            f"stage {x}: {self.name_of(first)} to {self.name_of(end - 1)} need {peak} bytes ({format_bytes(peak)}), "
            f"{peak - limit} more than its limit of {limit}"
            for x, ((first, end), peak, limit) in enumerate(zip(spans, self.peaks_bytes(cuts), limits, strict=True))
            if peak is not None and peak > limit
        ]

    def fullest_stage_costs(self, cuts: Sequence[int]) -> dict[str, Any]:
        """The peak memory of the stage that comes nearest to its limit, as JSON-ready values for users: `peak_bytes`,
        `peak_stage` (its index), `peak_layer` and `peak_layer_name` (the layer in whose pass the peak is); empty if memory
        is not limited. cuts: the index of the first layer of every stage but the first.
        """
        if (memory := self.memory) is None:
            return {}
        peaks, borders = self.peaks_bytes(cuts), (0, *cuts, self.length)
        stage = memory.fullest_stage(peaks)
        layer = memory.peak_layer(borders[stage], borders[stage + 1])
        name = f"{self.name_of(layer)} in stage {stage}"
        return {"peak_bytes": peaks[stage], "peak_stage": stage, "peak_layer": layer, "peak_layer_name": name}


@dataclass(frozen=True)
class Cuts(DataclassRecord):
    """A solution of a chain of layers. cuts: the index of the first layer of every pipeline stage but the first."""

    cuts: Items[Annotated[int, Field(ge=0)]]

    def spans(self, layers: int) -> list[tuple[int, int]]:
        """The indices of the first and the last layer of every pipeline stage. layers: the number of layers of the chain."""
        return [(first, end - 1) for first, end in pairwise((0, *self.cuts, layers))]
