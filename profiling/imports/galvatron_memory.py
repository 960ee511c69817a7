"""Hetu-Galvatron's memory file: MiB of a layer, and of embedding and head together, as bytes by tensor-parallel degree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainplan.profiling.base.errors import shown
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.imports.galvatron_blocks import BLOCK, DERIVED, FIRST, LAST, LAYER, MOST_MIB, OFF, RAW, SUMMARIES
from trainplan.profiling.imports.source import AGREEMENT, LARGEST_COUNT, MIB, SMALLEST, Source, number

SUMMARY = re.compile(r"layertype_\d+(_sp)?|other_memory_pp_(off|on_first|on_last)(_sp)?")
FP32_BYTES = 4


class Ends(NamedTuple):
    """Embedding, head, or both, by vocabulary tp: bytes of model states, and of activation for each sample."""

    state_bytes: dict[int, float]
    activation_bytes: dict[int, float]


@dataclass(frozen=True)
class Memory:
    """What one sample takes at one sequence length. kept_bytes: what a layer keeps, by degree.

    ends: both ends without a pipeline, the embedding in a first stage, the head in a last one, as far as profiled.
    """

    parameters: float
    checkpoint_bytes: float
    kept_bytes: dict[int, float]
    origin: str
    ends: dict[str, Ends]

    @property
    def degrees(self) -> list[int]:
        """Tensor-parallel degrees for which layers as well as both ends were profiled, ascending."""
        return sorted(set.intersection(*map(set, (self.kept_bytes, *self.ends[OFF]))))

    @property
    def embedding_shares(self) -> tuple[float, ...]:
        """The embedding's part of states and of activation, by a pipeline's stages; a half where one was not profiled."""
        if FIRST not in self.ends or LAST not in self.ends:
            return 0.5, 0.5
        sizes = [(first[1], last[1]) for first, last in zip(self.ends[FIRST], self.ends[LAST], strict=True)]
        return tuple(first / (first + last) if first + last else 0.5 for first, last in sizes)


def read_memory(source: Source, sequence: int) -> Memory:
    """What one sample takes, from the file's summaries or, without them, its raw blocks. Raises InputError."""
    if others := [key for key in source.data if key.startswith("layertype_") and not key.startswith(LAYER)]:
        raise source.fail(others[0], "is of a second type of layers", "give a model of one type")
    summaries = {name: table for name in SUMMARIES if (table := _summary(source, name, sequence))}
    origin = "summaries of the file"
    if LAYER not in summaries or OFF not in summaries:
        place = f"raw blocks of seq{sequence}"
        summaries = {name: _Table(source, place, values) for name, values in attribute(DERIVED)(source, sequence).items()}
        origin = "derived from raw blocks, as profiled with zero3"
    parameter_bytes = summaries[LAYER].bytes("parameter_size")
    table = summaries[LAYER].table("tp_activation_per_bsz_dict")
    kept_bytes, checkpoint_bytes = table.by_degree(least=SMALLEST), table.bytes("checkpoint")
    if checkpoint_bytes > kept_bytes[1]:
        problem = f"is {checkpoint_bytes / MIB:g} MB, above the {kept_bytes[1] / MIB:g} MB kept without it"
        raise source.fail(f"{table.field}.checkpoint", problem, "give what stays when a layer is recomputed")
    ends = {
        name: Ends(*(table.table(part).by_degree() for part in ("model_states", "activation")))
        for name, table in summaries.items()
        if name != LAYER
    }
    return Memory(parameter_bytes / FP32_BYTES, checkpoint_bytes, kept_bytes, origin, ends)


def sequences(source: Source) -> set[int]:
    """Sequence lengths with a summary or raw blocks; 0 for a summary that names none. Raises InputError."""
    lengths: set[int] = set()
    for key, value in source.data.items():
        if not (block := BLOCK.fullmatch(key)) and not SUMMARY.fullmatch(key):
            raise source.fail(key, "is not a key of this file", "give keys such as layertype_0_sp or 1_1_8_sp")
        _object(source, key, value)
        if block:
            lengths |= {int(raw[3]) for raw in map(RAW.fullmatch, value) if raw}
        elif key.startswith(LAYER):
            lengths |= {0} if "parameter_size" in value else {int(name) for name in value if name.isdecimal()}
    return lengths


@dataclass(frozen=True)
class _Table:
    """An object of MiB, and the field that errors name."""

    source: Source
    field: str
    values: dict[str, Any]

    def bytes(self, name: str, least: float = SMALLEST) -> float:
        """Raises InputError."""
        field = f"{self.field}.{name}"
        if name not in self.values:
            raise self.source.fail(field, "is missing", "give it in MB")
        return number(self.source, field, self.values[name], MOST_MIB, least) * MIB

    def table(self, name: str) -> _Table:
        """The object in it; a number stands for that of degree 1. Raises InputError."""
        field = f"{self.field}.{name}"
        if name not in self.values:
            raise self.source.fail(field, "is missing", "give MB by tensor-parallel degree")
        value = self.values[name]
        sizes = {"1": value} if isinstance(value, int | float) else _object(self.source, field, value)
        return _Table(self.source, field, sizes)

    def by_degree(self, least: float = 0.0) -> dict[int, float]:
        """Bytes by tensor-parallel degree, which fall as it grows. Raises InputError."""
        sizes: dict[int, float] = {}
        for key in self.values:
            if key == "checkpoint":
                continue
            if not key.isdecimal() or not 1 <= int(key) <= LARGEST_COUNT:
                raise self.source.fail(f"{self.field}.{key}", "is not a degree", "give keys such as 1, 2, 4")
            sizes[int(key)] = self.bytes(key, least)
        if 1 not in sizes:
            raise self.source.fail(f"{self.field}.1", "is missing", "give MB for tensor-parallel degree 1")
        if larger := [tp for tp, size in sizes.items() if size > sizes[1] * (1 + AGREEMENT)]:
            problem = f"is above that of degree 1, {sizes[1] / MIB:g}"
            raise self.source.fail(f"{self.field}.{larger[0]}", problem, "give what one of the ranks keeps")
        return sizes


def _summary(source: Source, name: str, sequence: int) -> _Table | None:
    """The summary for this sequence length, or None."""
    for field in (f"{name}_sp", name):
        if field in source.data:
            value = _object(source, field, source.data[field])
            if "parameter_size" in value or "model_states" in value:
                return _Table(source, field, value)
            if str(sequence) in value:
                place = f"{field}.{sequence}"
                return _Table(source, place, _object(source, place, value[str(sequence)]))
    return None


def _object(source: Source, field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise source.fail(field, f"is {shown(value)}", "give an object {...}")
    return value
