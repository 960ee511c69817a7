"""Hetu-Galvatron's profile as its own search engine reads it, in its units: ms, MiB, and ms for each MiB.

Source: Hetu-Galvatron v2.4.0, core/search_engine/search_engine.py, get_profiled_model_configs and
get_profiled_hardware_configs. Of the engine's modes of reading times, the one that the file was made for is taken: with eight
batch sizes or more at this sequence length, a line through their total times (`batch`); else, with three sequence lengths or
more, a parabola for the layer and a line for embedding and head, at one sample (`sequence`); else the single time (`static`).
Memory is always that of this sequence length (`static`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.imports.galvatron import Model, files_by_kind, overlap, read_model
from trainplan.profiling.imports.galvatron_blocks import FIRST, LAST, OFF
from trainplan.profiling.imports.galvatron_links import ALL_REDUCE, MOST_GB_PER_S, P2P, TIMES, entries
from trainplan.profiling.imports.galvatron_memory import FP32_BYTES, Ends
from trainplan.profiling.imports.galvatron_times import read_times
from trainplan.profiling.imports.source import MIB, MOST_MS, Options, Source, read_source

HARDWARE = {"allreduce": "allreduce_bandwidth_*.json", "p2p": "p2p_bandwidth_*.json", "overlap": "overlap_coefficient.json"}
LEAST_BATCHES, LEAST_SEQUENCES = 8, 3

Line = tuple[float, float]  # slope, and value at 0


@dataclass(frozen=True)
class MessageTimes:
    """Measured times of one collective among a fixed number of ranks.

    by_bytes: measured milliseconds by size of the message in bytes. line: (milliseconds per MiB, milliseconds at size 0), the
    straight line fitted through them.
    """

    by_bytes: dict[int, float]
    line: Line

    def ms(self, message_bytes: float) -> float:
        """Milliseconds that a message of a given size in bytes takes: the measured time, or, if this size was not measured,
        the time on the fitted line.
        """
        slope, latency = self.line
        return self.by_bytes.get(message_bytes, slope * message_bytes / MIB + latency)  # type: ignore[call-overload]


@dataclass(frozen=True)
class EngineProfile:
    """A profile of a model of equal layers and of its hardware, in the units of Galvatron's engine.

    layer_ms, ends_ms: milliseconds of the forward pass of one layer, and of embedding and head together, as straight lines in
    the number of samples. parameter_mib: MiB of a layer's parameters in fp32. kept_mib: MiB of activations that a layer keeps
    per sample, by tensor-parallel degree. checkpoint_mib: MiB of activations that a recomputed layer keeps per sample. ends:
    memory of embedding and head, as in `galvatron_memory.Memory`. all_reduce: milliseconds per MiB of an all-reduce, by
    number of ranks and whether they are consecutive. p2p: milliseconds per MiB of a message between stages, by number of
    stages. measured: times of an all-gather or a reduce-scatter (half an all-reduce), by number of ranks, if they were
    measured (`sp_time_*.json`; config_utils.remap_config in the engine). overlap: the factor by which computation and
    communication slow each other down.
    """

    name: str
    layers: int
    sequence: int
    hidden_size: int
    element_bytes: int
    devices: int
    layer_ms: Line
    ends_ms: Line
    parameter_mib: float
    kept_mib: dict[int, float]
    checkpoint_mib: float
    ends: dict[str, Ends]
    all_reduce: dict[tuple[int, bool], float]
    p2p: dict[int, float]
    measured: dict[int, MessageTimes]
    overlap: float

    def all_reduce_ms_per_mib(self, ranks: int, consecutive: bool = True) -> float:
        """Milliseconds per MiB of an all-reduce among `ranks` ranks; 0 for one rank. consecutive: whether the ranks are
        consecutive numbers. Raises InputError if it was not measured for these ranks.
        """
        if ranks == 1:
            return 0.0
        if (ranks, consecutive) not in self.all_reduce:
            key = f"allreduce_size_{ranks}_consec_{int(consecutive)}"
            raise InputError(HARDWARE["allreduce"], key, "is missing", "measure it, or plan for fewer devices")
        return self.all_reduce[ranks, consecutive]


def read_engine_profile(
    paths: Sequence[str | os.PathLike[str]],
    *,
    layers: int | None = None,
    sequence: int | None = None,
    hidden_size: int | None = None,
    sequence_parallel: bool = True,
) -> EngineProfile:
    """Read a profile of Hetu-Galvatron as its search engine does. Raises InputError if files are invalid or missing.

    paths: the profile's files: times of the model, its memory, all-reduces, messages between stages, overlap and, if they are
    to be used, measured message times. layers, sequence, hidden_size: number of layers, tokens per sample, hidden size; to be
    given if the files do not state them. sequence_parallel: if the memory file has summaries both with sequence parallelism
    (names that end with "_sp") and without it, whether the ones with it are read."""
    files = files_by_kind([read_source(path) for path in paths])
    for kind, name in HARDWARE.items():
        if kind not in files:
            raise files["computation"].fail("", f"comes without {name}", "give that file as well")
    options = Options(layers=layers, sequence=sequence, hidden_size=hidden_size)
    options.check("galvatron", ("layers", "sequence", "hidden_size"))
    if (types := read_times(files["computation"]).types) > 1:
        problem = f"has {types} types of layers, and the engine is taken here with one"
        raise files["computation"].fail("", problem, "plan with `trainplan profile import` and its profile instead")
    model = read_model(files, options, sequence_parallel)
    (layer,), memory = model.types, model.memory
    if missing := [name for name in (OFF, FIRST, LAST) if name not in memory.ends]:
        raise InputError(files["memory"].path, missing[0], "is missing", "profile the memory whole")
    layer_ms, ends_ms = _lines(files["computation"], model)
    all_reduces = entries(files["allreduce"], ALL_REDUCE, MOST_GB_PER_S)
    all_reduce = {(ranks, match["consecutive"] == "1"): 1 / bandwidth for ranks, match, bandwidth in all_reduces}
    return EngineProfile(
        name=model.name,
        layers=layer.count,
        sequence=layer.sequence,
        hidden_size=layer.hidden_size,
        element_bytes=model.element_bytes,
        devices=max(ranks for ranks, _ in all_reduce),
        layer_ms=layer_ms,
        ends_ms=ends_ms,
        parameter_mib=layer.memory.parameters * FP32_BYTES / MIB,
        kept_mib={tp: size / MIB for tp, size in layer.memory.kept_bytes.items()},
        checkpoint_mib=layer.memory.checkpoint_bytes / MIB,
        ends=memory.ends,
        all_reduce=all_reduce,
        p2p={stages: 1 / bandwidth for stages, _, bandwidth in entries(files["p2p"], P2P, MOST_GB_PER_S)},
        measured=_measured(files["sp_time"]) if "sp_time" in files else {},
        overlap=overlap(files["overlap"]),
    )


def _lines(source: Source, model: Model) -> tuple[Line, Line]:
    """Milliseconds of the forward pass of one layer, and of embedding and head together, each as a straight line (slope, value
    at 0) in the number of samples.

    source: the file of times, for errors. model: the times read from it. Raises InputError if the engine could not read a
    file with this number of batch sizes.
    """
    by_batch = {batch: (times.layers_ms[0], times.ends_ms) for batch, times in model.times.items()}
    if len(by_batch) >= LEAST_BATCHES:
        batches = np.array(list(by_batch))
        layer, ends = (np.polyfit(batches, batches * np.array(ms), 1) for ms in zip(*by_batch.values(), strict=True))
        return (float(layer[0]), float(layer[1])), (float(ends[0]), float(ends[1]))
    tables = {lengths[0]: times for lengths, times in model.table.by_lengths.items() if lengths}
    single = {length: (times[1].layers_ms[0], times[1].ends_ms) for length, times in tables.items() if 1 in times}
    if len(single) >= LEAST_SEQUENCES:
        layer, ends = (
            np.polyval(np.polyfit(list(single), ms, degree), model.types[0].sequence)
            for ms, degree in zip(zip(*single.values(), strict=True), (2, 1), strict=True)
        )
        return (float(layer), 0.0), (float(ends), 0.0)
    if len(by_batch) > 1:
        problem = f"has {len(by_batch)} batches at sequence length {model.types[0].sequence}"
        raise source.fail("", problem, f"profile one, or {LEAST_BATCHES} or more")
    ((layer_ms, ends_ms),) = by_batch.values()
    return (layer_ms, 0.0), (ends_ms, 0.0)


def _measured(source: Source) -> dict[int, MessageTimes]:
    """Read a file of message times (`sp_time_*.json`) of Galvatron: times of an all-gather or a reduce-scatter, which are half
    of an all-reduce's, by number of ranks. Raises InputError if only one message size was measured.
    """
    points: dict[int, dict[int, float]] = {}
    for ranks, match, ms in entries(source, TIMES, MOST_MS):
        if match["operation"] == "allreduce":
            points.setdefault(ranks, {})[int(match["mib"]) * MIB] = ms / 2
    measured = {}
    for count, by_bytes in points.items():
        if len(by_bytes) < 2:
            raise source.fail(f"allreduce_size_{count}", "has one message size", "give two or more")
        slope, latency = np.polyfit([size / MIB for size in by_bytes], list(by_bytes.values()), 1)
        measured[count] = MessageTimes(by_bytes, (float(slope), float(latency)))
    return measured
