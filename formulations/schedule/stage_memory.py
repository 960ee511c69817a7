"""Memory of pipeline stages: what consecutive layers need together, and how long a stage may be.

A stage with n micro-batches in flight peaks in the backward pass of some layer l of the oldest of them: the others hold
whatever a micro-batch holds, the oldest no longer the activations of the layers after l,

    peak = sum state + n sum carried + (n - 1) sum kept + max_l ( sum_{k <= l} kept_k + work_l )              `stage_peak`

over the layers (or sub-layers) of the stage, in bytes: `state`, model states; `carried` and `kept`, what a micro-batch keeps
from its forward pass to its backward pass, `carried` for as long as it is in flight, `kept` until the layer's own backward
pass, so that it is stacked; `work`, what the layer's own computation adds for its duration. Both columns are there because two
models of papers are special cases of this one:

    carried = 0           Galvatron's Eq. 2, of one stage alone with n = 1 (layer-strategies, pipeline)
    kept = 0              AutoPipe's and AMP's sum and largest workspace, which `Memory` states:
                          sum O_ms(l) + n_i sum O_f(l) + max O_w(l) <= E_i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from trainplan.formulations.numbers import ArrayOf, Bytes, Integers, OneOrMany, check_length
from trainplan.profiling.base.dataclass_records import DataclassRecord, ReadAs

COLUMNS = ("state_bytes", "kept_bytes", "workspace_bytes")

Limit = Annotated[int, Field(gt=0, le=2**48)]
Column = Annotated[Integers, ArrayOf(Bytes)]


def stage_peak(
    state_bytes: Integers,
    kept_bytes: Integers,
    work_bytes: Integers,
    in_flight: int = 1,
    carried_bytes: Integers | None = None,
) -> tuple[Any, Any]:
    """The peak memory of a pipeline stage in bytes, and the index of the first of its layers in whose backward pass it is
    reached.

    In the backward pass of a layer, the stage holds all model states; for every earlier micro-batch in flight, the bytes
    that all layers keep; for the current micro-batch, the bytes that this and earlier layers keep; and the pass's own
    bytes. Arrays have the shape (.., L), for L layers in order and any number of choices in the first dimensions; results
    lack the last dimension.

    state_bytes: model states. kept_bytes: kept for a micro-batch until the layer's backward pass. work_bytes: added while
    that pass runs. in_flight: the number of micro-batches whose activations the stage holds. carried_bytes: held for every
    micro-batch in flight until its last pass (default: none).
    """
    kept = kept_bytes.cumsum(axis=-1)
    by_layer = kept + work_bytes
    base = state_bytes.sum(axis=-1) + (in_flight - 1) * kept[..., -1]
    if carried_bytes is not None:
        base = base + in_flight * carried_bytes.sum(axis=-1)
    return base + by_layer.max(axis=-1), by_layer.argmax(axis=-1)


@dataclass(frozen=True, eq=False)
class Memory(DataclassRecord):
    """Memory needs of a chain of L layers and memory limits of k pipeline stages. A stage needs the sum over its layers'
    states and kept bytes, plus the largest workspace of a layer. A micro-batch is in flight in a stage between its forward
    and its backward pass.

    Attributes:
        limit_bytes: (k,), the limit of one device of every stage; in files also one number for all stages, which is an
            array of no dimension until `of_stages`.
        state_bytes: (L,), model states of every layer.
        kept_bytes: (L,), bytes that a micro-batch holds of every layer for as long as it is in flight.
        workspace_bytes: (L,), bytes added while a pass of a layer runs.
    """

    limit_bytes: Annotated[
        Integers,
        ReadAs(OneOrMany[Limit], partial(np.array, dtype=np.int64)),
        Field(description="E: of every stage's device, or a list with one for each stage"),
    ]
    state_bytes: Annotated[Column, Field(description="O_ms: parameters, gradients, optimizer states of each layer")]
    kept_bytes: Annotated[Column, Field(description="O_f: kept for one micro-batch until its backward pass")]
    workspace_bytes: Annotated[Column, Field(description="O_w: held while the layer itself is computed")]

    def check(self, layers: int, stages: int) -> None:
        """Raise InputError if an array does not have an entry for each of the `layers` layers, or for each of the `stages`
        stages.
        """
        for name in COLUMNS:
            check_length(f"memory.{name}", getattr(self, name), layers, "one for each layer")
        if self.limit_bytes.ndim:
            check_length("memory.limit_bytes", self.limit_bytes, stages, "one for each stage")

    def most_bytes(self, in_flight: int) -> int:
        """An upper bound in bytes on the memory need of any stage: the need of a stage with all layers. in_flight: the number
        of micro-batches in flight in the stage.
        """
        state, kept, workspace = (int(getattr(self, name).sum()) for name in COLUMNS)
        return state + in_flight * kept + workspace

    def of_stages(self, stages: int) -> Memory:
        """A copy with one memory limit for each of the `stages` stages, if there is one limit for all."""
        return self.with_limits(np.broadcast_to(self.limit_bytes, (stages,)))

    def with_limits(self, limit_bytes: Integers) -> Memory:
        """A copy with other memory limits. limit_bytes: (k,), one for each stage."""
        return replace(self, limit_bytes=limit_bytes)

    def grouped(self, starts: Integers) -> Memory:
        """A copy for a coarser chain, in which each run of consecutive layers is one layer; a stage of whole runs needs as
        much memory as before.

        starts: the index of the first layer of each run.
        """
        states, kept = (np.add.reduceat(column, starts) for column in (self.state_bytes, self.kept_bytes))
        return Memory(self.limit_bytes, states, kept, np.maximum.reduceat(self.workspace_bytes, starts))

    def to_dict(self) -> dict[str, Any]:
        """The memory in its JSON file format, with a single limit if all stages have the same."""
        limits = self.limit_bytes.tolist()
        return super().to_dict() | {"limit_bytes": limits[0] if len(set(limits)) == 1 else limits}

    def stage_peak(self, first: int, end: int, in_flight: int) -> tuple[int, int]:
        """The peak in bytes of a stage with the layers first .. end - 1, and the index of the layer in whose backward pass it
        is reached. in_flight: micro-batches that the stage holds."""
        stage = slice(first, end)
        carried = self.kept_bytes[stage]
        columns = self.state_bytes[stage], np.zeros_like(carried), self.workspace_bytes[stage]
        peak, layer = stage_peak(*columns, in_flight, carried)
        return int(peak), first + int(layer)

    def peak_bytes(self, first: int, end: int, in_flight: int) -> int:
        """The peak memory in bytes of a stage with the layers first .. end - 1. in_flight: micro-batches that the stage
        holds."""
        return self.stage_peak(first, end, in_flight)[0]

    def fullest_stage(self, peaks_bytes: Sequence[int | None]) -> int:
        """The index of the stage with the least free memory, or the largest excess; the first one of several. peaks_bytes: the
        peak of every stage."""
        spare = [int(limit) - (peak or 0) for limit, peak in zip(self.limit_bytes, peaks_bytes, strict=True)]
        return spare.index(min(spare))

    def peak_layer(self, first: int, end: int) -> int:
        """The index of the layer in whose backward pass a stage with the layers first .. end - 1 reaches its peak memory,
        whatever the number of micro-batches in flight."""
        return self.stage_peak(first, end, 1)[1]

    def first_layers(self, in_flight: Sequence[int]) -> Integers:
        """(k, L): for each stage i and each layer l as its last layer, the least first layer with which the stage fits its
        memory limit; l + 1 if layer l alone does not fit. in_flight: for each stage, the number of micro-batches that it
        holds at a time.

        A longer stage needs no less memory, so stage i fits exactly if it begins at this layer or later. The layer is found
        by doubling: a span grows to the left by the largest power of two with which it still fits, then by smaller ones.
        """
        layers = len(self.state_bytes)
        largest = [self.workspace_bytes]  # of 1, 2, 4, .. layers from each on
        while 2 << len(largest) - 1 <= layers:
            half = 1 << len(largest) - 1
            largest.append(np.maximum(largest[-1][:-half], largest[-1][half:]))
        windows = np.empty((len(in_flight), layers), np.int64)
        stages: dict[tuple[int, int], int] = {}  # the first stage with that number in flight and that limit
        for i, limit in enumerate(self.limit_bytes.tolist()):
            if (same := stages.setdefault((in_flight[i], limit), i)) < i:
                windows[i] = windows[same]
                continue
            sums = np.concatenate([[0], np.cumsum(self.state_bytes + in_flight[i] * self.kept_bytes)])
            first, workspace = np.arange(1, layers + 1), np.zeros(layers, np.int64)
            for level in reversed(range(len(largest))):
                longer = first - (1 << level)
                start = np.maximum(longer, 0)
                more = np.maximum(workspace, largest[level][np.minimum(start, len(largest[level]) - 1)])
                fits = (longer >= 0) & (sums[1:] - sums[start] + more <= limit)
                first, workspace = np.where(fits, longer, first), np.where(fits, more, workspace)
            windows[i] = first
        return windows

    def precedences(self, in_flight: Sequence[int]) -> list[tuple[int, int, int]]:
        """The memory limits as triples (i, first, l): stage i, if it holds layer l, must not begin before layer `first`.
        Triples that follow from others are left out, as are layers that stage i can never hold, since every stage has at
        least one layer.

        in_flight: for each stage, the number of micro-batches that it holds at a time.
        """
        stages, layers, rows = len(self.limit_bytes), len(self.state_bytes), []
        for i, row in enumerate(self.first_layers(in_flight).tolist()):
            for l in range(i, layers - stages + i + 1):
                implied = row[l - 1] if l > i else 0
                if row[l] > max(implied, i):
                    rows.append((i, row[l], l))
        return rows
