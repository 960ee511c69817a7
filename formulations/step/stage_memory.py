"""Memory of pipeline stages: what consecutive layers need together, and how long a stage may be.

    sum O_ms(l) + n_i sum O_f(l) + max O_w(l) <= E_i       over the layers (or sub-layers) of stage i, bytes

O_ms: model states; O_f: what one micro-batch keeps from its forward pass to its backward pass; O_w: what the layer's own
computation adds for its duration; n_i: micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Discriminator, Field, Tag
from trainplan.formulations.layer_strategies.problem import Bytes, Integers
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record

COLUMNS = ("state_bytes", "kept_bytes", "workspace_bytes")

Limit = Annotated[int, Field(gt=0, le=2**48)]
Limits = Annotated[
    Annotated[Limit, Tag("list[one]")] | Annotated[list[Limit], Tag("list[each]")],
    Discriminator(lambda value: "list[each]" if isinstance(value, list) else "list[one]"),
]


class MemoryRecord(Record):
    """What the layers need, and what the devices have."""

    limit_bytes: Annotated[Limits, Field(description="E: of every stage's device, or a list with one for each stage")]
    state_bytes: Annotated[list[Bytes], Field(description="O_ms: parameters, gradients, optimizer states of each layer")]
    kept_bytes: Annotated[list[Bytes], Field(description="O_f: kept for one micro-batch until its backward pass")]
    workspace_bytes: Annotated[list[Bytes], Field(description="O_w: held while the layer itself is computed")]

    def check(self, layers: int, stages: int) -> None:
        """Raises InputError where a list has another length."""
        for name in COLUMNS:
            check_length(f"memory.{name}", getattr(self, name), layers, "one for each layer")
        if isinstance(self.limit_bytes, list):
            check_length("memory.limit_bytes", self.limit_bytes, stages, "one for each stage")

    def most_bytes(self, in_flight: int) -> int:
        """No stage needs more."""
        state, kept, workspace = (sum(getattr(self, name)) for name in COLUMNS)
        return state + in_flight * kept + workspace


def check_length(name: str, found: Sequence[Any], wanted: int, told: str) -> None:
    if len(found) != wanted:
        raise InputError("", name, f"has {len(found)} entries", f"give {wanted}, {told}")


@dataclass(frozen=True, eq=False)
class Memory:
    """limit_bytes: of each of the k stages. state_bytes, kept_bytes, workspace_bytes: of each of the L layers."""

    limit_bytes: Integers
    state_bytes: Integers
    kept_bytes: Integers
    workspace_bytes: Integers

    @classmethod
    def of(cls, record: MemoryRecord, stages: int) -> Memory:
        limits = np.broadcast_to(np.array(record.limit_bytes, np.int64), (stages,))
        return cls(limits, *(np.array(getattr(record, name), np.int64) for name in COLUMNS))

    def with_limits(self, limit_bytes: Integers) -> Memory:
        return replace(self, limit_bytes=limit_bytes)

    def grouped(self, starts: Integers) -> Memory:
        """With one layer in place of those from each start to the next: stages need the same."""
        states, kept = (np.add.reduceat(column, starts) for column in (self.state_bytes, self.kept_bytes))
        return Memory(self.limit_bytes, states, kept, np.maximum.reduceat(self.workspace_bytes, starts))

    def to_dict(self) -> dict[str, Any]:
        """In its file format: one limit where all stages have the same."""
        limits = self.limit_bytes.tolist()
        given: dict[str, Any] = {"limit_bytes": limits[0] if len(set(limits)) == 1 else limits}
        return given | {name: getattr(self, name).tolist() for name in COLUMNS}

    def peak_bytes(self, first: int, end: int, in_flight: int) -> int:
        """Of a stage with the layers first .. end - 1."""
        state, kept = int(self.state_bytes[first:end].sum()), int(self.kept_bytes[first:end].sum())
        return state + in_flight * kept + int(self.workspace_bytes[first:end].max())

    def fullest_stage(self, peaks_bytes: Sequence[int | None]) -> int:
        """The stage that comes nearest to its limit, or goes furthest past it. peaks_bytes: of every stage."""
        spare = [int(limit) - (peak or 0) for limit, peak in zip(self.limit_bytes, peaks_bytes, strict=True)]
        return spare.index(min(spare))

    def peak_layer(self, first: int, end: int) -> int:
        """The layer during which such a stage needs most."""
        return first + int(self.workspace_bytes[first:end].argmax())

    def first_layers(self, in_flight: Sequence[int]) -> Integers:
        """(k, L): the least first layer with which stage i fits its limit when layer l is its last; l + 1 where l alone does
        not. in_flight: micro-batches, of every stage.

        A longer stage needs no less, so stage i fits exactly where it begins at this layer or later. Found by doubling: a span
        grows to the left by the largest power of two with which it still fits, then by smaller ones.
        """
        layers = len(self.state_bytes)
        largest = [self.workspace_bytes]  # of 1, 2, 4, .. layers from each on
        while 2 << len(largest) - 1 <= layers:
            half = 1 << len(largest) - 1
            largest.append(np.maximum(largest[-1][:-half], largest[-1][half:]))
        found = np.empty((len(in_flight), layers), np.int64)
        known: dict[tuple[int, int], int] = {}
        for i, limit in enumerate(self.limit_bytes.tolist()):
            same = known.setdefault((in_flight[i], limit), i)
            if same < i:
                found[i] = found[same]
                continue
            held = np.concatenate([[0], np.cumsum(self.state_bytes + in_flight[i] * self.kept_bytes)])
            first, peak = np.arange(1, layers + 1), np.zeros(layers, np.int64)
            for level in reversed(range(len(largest))):
                tried = first - (1 << level)
                place = np.maximum(tried, 0)
                grown = np.maximum(peak, largest[level][np.minimum(place, len(largest[level]) - 1)])
                fits = (tried >= 0) & (held[1:] - held[place] + grown <= limit)
                first, peak = np.where(fits, tried, first), np.where(fits, grown, peak)
            found[i] = first
        return found

    def precedences(self, in_flight: Sequence[int]) -> list[tuple[int, int, int]]:
        """(i, first, l): a stage i that holds layer l must not begin before layer `first`. Those that follow from others are
        left out. The last stage holds the last layer, and the others leave one for each after them."""
        stages, layers, found = len(self.limit_bytes), len(self.state_bytes), []
        for i, row in enumerate(self.first_layers(in_flight).tolist()):
            for l in range(i, layers - stages + i + 1):
                implied = row[l - 1] if l > i else 0
                if row[l] > max(implied, i):
                    found.append((i, row[l], l))
        return found
