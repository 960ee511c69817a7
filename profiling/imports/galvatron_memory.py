"""Hetu-Galvatron's memory file, MiB of a layer and of embedding and head together, read as bytes by tensor-parallel degree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainplan.profiling.base.errors import shown
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.imports.galvatron_blocks import BLOCK, DERIVED, FIRST, LAST, LAYER, MOST_MIB, OFF, RAW, SUMMARIES
from trainplan.profiling.imports.galvatron_times import LENGTHS, Lengths, lengths_of, lengths_text
from trainplan.profiling.imports.source import LARGEST_COUNT, MIB, SMALLEST, Source, number

SUMMARY = re.compile(r"layertype_\d{1,2}(_sp)?|other_memory_pp_(off|on_first|on_last)(_sp)?")
FP32_BYTES = 4
NOISE = 0.1  # the share by which one rank of several may keep more than a rank alone: a small difference of large numbers


class Ends(NamedTuple):
    """Bytes of the ends of a model (embedding, head, or both), by degree of vocabulary parallelism: of model states, and of
    the activations of one sample.
    """

    state_bytes: dict[int, float]
    activation_bytes: dict[int, float]


@dataclass(frozen=True)
class LayerMemory:
    """Memory of a layer of one type. parameters: number of parameters. checkpoint_bytes: bytes kept per sample if the layer is
    recomputed. kept_bytes: bytes kept per sample on one rank without recomputation, by tensor-parallel degree.
    """

    parameters: float
    checkpoint_bytes: float
    kept_bytes: dict[int, float]


@dataclass(frozen=True)
class Memory:
    """Memory of a model at one sequence length, as Galvatron profiled it.

    layers: the memory of a layer, for each type of layers (set of equal layers). origin: where the numbers come from, for the
    profile's provenance. ends: memory of the embedding and head together without a pipeline (`OFF`), of the embedding of a
    first stage (`FIRST`) and of the head of a last stage (`LAST`), as far as profiled.
    """

    layers: tuple[LayerMemory, ...]
    origin: str
    ends: dict[str, Ends]

    @property
    def whole_ends(self) -> bool:
        """Whether embedding and head were profiled only without tensor parallelism, as in older files; every tensor-parallel
        rank is then taken to hold all of them.
        """
        return all(set(table) == {1} for table in self.ends[OFF])

    @property
    def degrees(self) -> list[int]:
        """The tensor-parallel degrees for which both layers and embedding and head were profiled, ascending."""
        ends = () if self.whole_ends else self.ends[OFF]
        return sorted(set.intersection(*map(set, (*(layer.kept_bytes for layer in self.layers), *ends))))

    @property
    def embedding_shares(self) -> tuple[float, ...]:
        """The embedding's shares, from 0 to 1, of the model states and of the activations that embedding and head have
        together, in this order. They follow from a pipeline's first and last stage; (0.5, 0.5) if one of these stages was not
        profiled.
        """
        if FIRST not in self.ends or LAST not in self.ends:
            return 0.5, 0.5
        sizes = [(first[1], last[1]) for first, last in zip(self.ends[FIRST], self.ends[LAST], strict=True)]
        return tuple(first / (first + last) if first + last else 0.5 for first, last in sizes)


def read_memory(source: Source, lengths: Lengths, sequence_parallel: bool = True) -> Memory:
    """Read the memory of a model from the summaries in Galvatron's memory file, or from its raw blocks if it has no summaries.

    lengths: tokens per sample for each type of layers (set of equal layers). sequence_parallel: whether to prefer the summaries
    with sequence parallelism, whose names end with "_sp", if the file has both. Raises InputError for a file that lacks a
    number."""
    names = [LAYER.replace("0", str(layer)) for layer in range(len(lengths))]
    kinds = {key.removesuffix("_sp") for key in source.data if key.startswith("layertype_")}
    if more := sorted(kinds - set(names)):
        problem = f"is of a type of layers beyond the {len(names)} in the file of times"
        raise source.fail(more[0], problem, "give files of one profile")
    suffixes = ("_sp", "") if sequence_parallel else ("", "_sp")
    wanted = [(name, lengths[i : i + 1]) for i, name in enumerate(names)] + [(name, lengths) for name in SUMMARIES[1:]]
    summaries = {name: table for name, tokens in wanted if (table := _summary(source, name, suffixes, tokens))}
    origin = "summaries of the file"
    if missing := [name for name in (*names, OFF) if name not in summaries]:
        if len(names) > 1:
            raise source.fail(missing[0], f"has no summary of seq{lengths_text(lengths)}", "profile the memory whole")
        path = f"raw blocks of seq{lengths[0]}"
        summaries = {name: _Table(source, path, values) for name, values in attribute(DERIVED)(source, lengths[0]).items()}
        origin = "derived from raw blocks, as profiled with zero3"
    ends = {
        name: Ends(*(table.table(part).by_degree() for part in ("model_states", "activation")))
        for name, table in summaries.items()
        if name not in names
    }
    return Memory(tuple(_layer(summaries[name]) for name in names), origin, ends)


def _layer(summary: _Table) -> LayerMemory:
    """Memory of a layer from its summary, an object in Galvatron's memory file. Raises InputError if its numbers contradict
    each other.
    """
    table = summary.table("tp_activation_per_bsz_dict")
    kept_bytes, checkpoint_bytes = table.by_degree(least=SMALLEST), table.bytes("checkpoint")
    for tp, size in kept_bytes.items():
        if size > kept_bytes[1] * (1 + NOISE):
            problem = f"is above that of degree 1, {kept_bytes[1] / MIB:g}"
            raise table.source.fail(f"{table.field}.{tp}", problem, "give what one of the ranks keeps")
    if checkpoint_bytes > kept_bytes[1]:
        problem = f"is {checkpoint_bytes / MIB:g} MB, above the {kept_bytes[1] / MIB:g} MB kept without it"
        raise table.source.fail(f"{table.field}.checkpoint", problem, "give what stays when a layer is recomputed")
    return LayerMemory(summary.bytes("parameter_size") / FP32_BYTES, checkpoint_bytes, kept_bytes)


def sequences(source: Source) -> set[Lengths]:
    """The sequence lengths (a tuple with one number per type of layers) for which a memory file of Galvatron has a summary or
    raw blocks.

    An empty tuple represents a summary whose key states no lengths. Raises InputError for unknown keys.
    """
    lengths: set[Lengths] = set()
    types = {key.removesuffix("_sp") for key in source.data if key.startswith("layertype_")}
    for key, value in source.data.items():
        if not (block := BLOCK.fullmatch(key)) and not SUMMARY.fullmatch(key):
            raise source.fail(key, "is not a key of this file", "give keys such as layertype_0_sp or 1_1_8_sp")
        _object(source, key, value)
        if block and len(types) < 2:
            lengths |= {(int(raw[3]),) for raw in map(RAW.fullmatch, value) if raw}
        elif key.startswith(OFF if len(types) > 1 else LAYER):
            whole = "parameter_size" in value or "model_states" in value
            names = [name for name in value if re.fullmatch(LENGTHS, name)]
            lengths |= {()} if whole else {lengths_of(source, f"{key}.{name}", name) for name in names}
    return lengths


@dataclass(frozen=True)
class _Table:
    """An object in Galvatron's memory file whose values are MiB. field: its path in the file, for errors."""

    source: Source
    field: str
    values: dict[str, Any]

    def bytes(self, name: str, least: float = SMALLEST) -> float:
        """The value under `name`, converted from MiB to bytes. least: the smallest valid value in MiB. Raises InputError if it
        is missing or out of range.
        """
        field = f"{self.field}.{name}"
        if name not in self.values:
            raise self.source.fail(field, "is missing", "give it in MB")
        return number(self.source, field, self.values[name], MOST_MIB, least) * MIB

    def table(self, name: str) -> _Table:
        """The object under `name`; a plain number there is taken as an object with only the value of degree 1. Raises
        InputError if it is missing.
        """
        field = f"{self.field}.{name}"
        if name not in self.values:
            raise self.source.fail(field, "is missing", "give MB by tensor-parallel degree")
        value = self.values[name]
        sizes = {"1": value} if isinstance(value, int | float) else _object(self.source, field, value)
        return _Table(self.source, field, sizes)

    def by_degree(self, least: float = 0.0) -> dict[int, float]:
        """All values of the object, converted from MiB to bytes, by tensor-parallel degree, which is their key.

        least: the smallest valid value in MiB. Raises InputError for other keys, or without degree 1.
        """
        sizes: dict[int, float] = {}
        for key in self.values:
            if key == "checkpoint":
                continue
            if not key.isdecimal() or not 1 <= int(key) <= LARGEST_COUNT:
                raise self.source.fail(f"{self.field}.{key}", "is not a degree", "give keys such as 1, 2, 4")
            sizes[int(key)] = self.bytes(key, least)
        if 1 not in sizes:
            raise self.source.fail(f"{self.field}.1", "is missing", "give MB for tensor-parallel degree 1")
        return sizes


def _summary(source: Source, name: str, suffixes: Sequence[str], lengths: Lengths) -> _Table | None:
    """Find the summary called `name` in Galvatron's memory file, for the given sequence lengths; None if the file has none.

    suffixes: endings such as "_sp" that are appended to the name, tried in order; the first field that has a summary for the
    lengths is returned. Raises InputError for a summary that is no object.
    """
    for field in (f"{name}{suffix}" for suffix in suffixes):
        if field in source.data:
            value = _object(source, field, source.data[field])
            if "parameter_size" in value or "model_states" in value:
                return _Table(source, field, value)
            if (text := lengths_text(lengths)) in value:
                path = f"{field}.{text}"
                return _Table(source, path, _object(source, path, value[text]))
    return None


def _object(source: Source, field: str, value: Any) -> dict[str, Any]:
    """Check that the value of a field is a non-empty JSON object, and return it; raises InputError otherwise. source, field:
    the file and the field's path, for the error.
    """
    if not isinstance(value, dict) or not value:
        raise source.fail(field, f"is {shown(value)}", "give an object {...}")
    return value
