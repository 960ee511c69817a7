"""Hetu-Galvatron's profiles, v2.4 (https://github.com/PKU-DAIR/Hetu-Galvatron, core/profiler and core/search_engine).

How their numbers are read, and where the published code does so:
- `layertype_<i>_bsz<b>_seq<s>`: ms of a forward pass for each layer and sample at tp 1, the difference of two `layernum` totals
  (model_profiler._process_computation_data); with tp ranks, rows samples take the time of rows / tp, and a backward pass twice
  that (TimeCostModel: forward_computation_time * bs / tp_size, bct_fct_coe = 2).
- `parameter_size`: MiB in fp32, of which each of tp ranks holds a tp-th; model states are four times that, 16 bytes a parameter
  (MemoryCostModel: 4 * parameter_size). All-reduces carry bf16.
- `tp_activation_per_bsz_dict`: MiB that a layer keeps for each sample of its rank. `checkpoint` is what it keeps when
  recomputed, more than the hidden states where a mask is kept as well.
  (The code divides it by tp under sequence parallelism; trainplan has none.)
- a layer performs two all-reduces in each pass (tp_comm_num = 4).
- `other`: embedding and head together. Each takes half of the time (OtherTimeCostModel); states and activation are those of
  `other_memory_pp_off`, by degree of vocabulary parallelism, divided in the proportion of `other_memory_pp_on_first` and
  `_last`. Older files have them whole: each tensor-parallel rank has all of both, and works on all samples. The 1024 MiB of
  context that the code adds to each device are neither in the files nor here.
- several types of layers follow each other in the order of their numbers, and each sends on hidden states of its own size: the
  encoder's result that a decoder reads is not in the files. A patch merging between types is in `other`.
- these are differences of measurements. Embedding and head need not fall with tp; a layer may keep up to 10 % more on one rank
  of several than alone; among several batches, one whose layer takes no time is left out, as the provenance says.
- missing summaries are derived from the raw blocks (`galvatron_blocks`).
- `overlap_coe` slows down computation and communication alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.imports.galvatron_blocks import BLOCK, OFF, STATE_COPIES
from trainplan.profiling.imports.galvatron_links import ALL_REDUCE, P2P, TIMES, islands
from trainplan.profiling.imports.galvatron_memory import FP32_BYTES, SUMMARY, LayerMemory, Memory, read_memory, sequences
from trainplan.profiling.imports.galvatron_times import TIME, TOTAL, Lengths, Times, TimeTable, lengths_text, read_times
from trainplan.profiling.imports.source import Options, Source, cost, finished, number, rate, shape
from trainplan.profiling.profiles import Profile

OPTIONS = ("layers", "sequence", "hidden_size", "memory_bytes")
DTYPES = {"fp32": ("float32", 4), "fp16": ("float16", 2), "bf16": ("bfloat16", 2)}
STATE_BYTES_PER_PARAMETER = FP32_BYTES * STATE_COPIES
BACKWARD = 2  # time of a backward pass in forward passes
TOKEN_BYTES = 8

KEYS = {
    "allreduce": ALL_REDUCE,
    "p2p": P2P,
    "sp_time": TIMES,
    "overlap": re.compile("overlap_coe"),
    "memory": re.compile(rf"{BLOCK.pattern}|{SUMMARY.pattern}"),
    "computation": re.compile(rf"{TIME.pattern}|{TOTAL.pattern}"),
}
NAMES = {"computation": "computation_profiling_*.json", "memory": "memory_profiling_*.json"}
LINKS = ("allreduce", "p2p", "sp_time")


def recognises(data: dict[str, Any]) -> bool:
    """Whether an object, read from a JSON file, is the content of one of Galvatron's files."""
    return bool(_kind(data))


def _kind(data: dict[str, Any]) -> str:
    """The kind of a Galvatron file, by its content: a key of `KEYS` such as "memory" (profiled memory), "plan" for a plan, or
    an empty text for any other file.

    data: the file's content.
    """
    if "tp_sizes_enc" in data and "pp_deg" in data:
        return "plan"
    times = any(not isinstance(value, dict) for key, value in data.items() if KEYS["computation"].fullmatch(key))
    kinds = [kind for kind, pattern in KEYS.items() if any(pattern.fullmatch(key) for key in data)]
    # `layertype_0` is a number in one file and an object in the other.
    return "computation" if kinds == ["memory", "computation"] and times else next(iter(kinds), "")


@dataclass(frozen=True)
class LayerType:
    """A type of layers of a model, which are all equal, as Galvatron profiles it.

    count: number of layers of the type. sequence: tokens per sample. hidden_size: numbers per token of the hidden states.
    hidden_bytes: bytes of one sample's hidden states. memory: the memory of one layer.
    """

    count: int
    sequence: int
    hidden_size: int
    hidden_bytes: int
    memory: LayerMemory


@dataclass(frozen=True)
class Model:
    """A model as Galvatron's files of times and memory describe it. A type of layers is a set of equal layers, such as those
    of an encoder.

    element_bytes: bytes of a number in `dtype`. types: its types of layers, in order. times: times by batch size (samples),
    for the sequence lengths of `types`. table: times for all sequence lengths in the file. memory: memory of layers, and of
    embedding and head.
    """

    name: str
    dtype: str
    element_bytes: int
    types: tuple[LayerType, ...]
    times: dict[int, Times]
    table: TimeTable
    memory: Memory

    @property
    def layers(self) -> list[tuple[str, LayerType]]:
        """The layers of the model in order, as pairs of the name of the layer's sub-layer in the profile and its type."""
        return [(name, kind) for name, kind in zip(self.type_names, self.types, strict=True) for _ in range(kind.count)]

    @property
    def type_names(self) -> list[str]:
        """The names of the sub-layers in the profile, one for each type of layers, in the order of `types`: "layer", or
        "layer-of-type-0" and so on.
        """
        return ["layer"] if len(self.types) == 1 else [f"layer-of-type-{i}" for i in range(len(self.types))]


def read_model(files: Mapping[str, Source], options: Options, sequence_parallel: bool = True) -> Model:
    """Build a model's description from Galvatron's files of times and memory. Raises InputError for files that contradict each
    other or do not specify a value.

    files: the files by kind, `computation` and `memory` among them. options: the user's values for everything that the files
    do not specify. sequence_parallel: whether to prefer memory measured with sequence parallelism if a file has both.
    """
    source = files["computation"]
    table = read_times(source)
    counts, hidden_sizes = options.by_type(source, "layers", 24, table.types), _hidden_sizes(options, source, table.types)
    lengths = _lengths(options, source, files["memory"], table.by_lengths, table.types)
    dtype, element_bytes = next((DTYPES[name] for name in DTYPES if f"_{name}_" in f"{source.stem}_"), DTYPES["bf16"])
    memory = read_memory(files["memory"], lengths, sequence_parallel)
    kinds = [
        LayerType(count, length, hidden_size, length * hidden_size * element_bytes, layer)
        for count, length, hidden_size, layer in zip(counts, lengths, hidden_sizes, memory.layers, strict=True)
    ]
    name = re.sub(rf"computation_profiling_({'|'.join(DTYPES)})_", "", source.stem)
    times = table.by_lengths.get(lengths) or table.by_lengths[()]
    return Model(name, dtype, element_bytes, tuple(kinds), times, table, memory)


def read(sources: Sequence[Source], options: Options) -> Profile:
    """Build the profile of one model from its Galvatron files. Raises InputError for files that contradict each other or do
    not specify a value.

    options: the user's values for everything that the files do not specify.
    """
    files = files_by_kind(sources)
    model = read_model(files, options)
    network, devices = _links(files, options.cluster)
    inner = [(f"layer-{i}", sublayer) for i, (sublayer, _) in enumerate(model.layers)]
    units = [("embedding", "embedding"), *inner, ("head", "head")]
    slowdowns = ("compute_slowdown", "communication_slowdown") if "overlap" in files else ()
    return finished(
        sources,
        "Hetu-Galvatron",
        options,
        {
            "name": model.name,
            "dtype": model.dtype,
            "parameter_bytes": model.element_bytes,
            "state_bytes_per_parameter": STATE_BYTES_PER_PARAMETER,
            "units": [{"name": name, "layer": i, "sublayer": sublayer} for i, (name, sublayer) in enumerate(units)],
            "sublayers": _shapes(model),
            "devices": devices,
            "memory_bytes": options.memory(files["computation"]),
            "network": network,
            "costs": _costs(model, options.device),
            **{name: rate(overlap(files["overlap"])) for name in slowdowns},
        },
        sequence=",".join(str(kind.sequence) for kind in model.types),
        layers=",".join(str(kind.count) for kind in model.types),
        **({"left_out": ", ".join(model.table.left_out)} if model.table.left_out else {}),
        memory=model.memory.origin,
        optimizer="not in the files, so 0",
    )


def files_by_kind(sources: Sequence[Source]) -> dict[str, Source]:
    """Index Galvatron's files by their kind, such as `computation`.

    Raises InputError if the file of times or of memory is missing, if two files are of one kind, or if a file is a plan.
    """
    files: dict[str, Source] = {}
    for source in sources:
        kind = _kind(source.data)
        if kind == "plan":
            fix = f"leave it out, and give {NAMES['computation']} and {NAMES['memory']}"
            raise source.fail("", "is a plan that Galvatron's search found, not a profile", fix)
        if kind in files:
            raise source.fail("", f"is of the same kind as {files[kind].path}", "give one of each kind")
        files[kind] = source
    for kind, name in NAMES.items():
        if kind not in files:
            raise sources[0].fail("", f"comes without {name}", "give that file as well")
    return files


def _hidden_sizes(options: Options, times: Source, types: int) -> tuple[int, ...]:
    """The hidden size of each type of layers (set of equal layers): as the user gives it, else as the name of the file of
    times states it.

    options: the user's values. times: the file of times. types: the number of types. Raises InputError if neither states the
    size.
    """
    named = re.search(r"hidden(\d{1,6})(?!\d)", times.stem)
    if options.hidden_size is None and named and int(named[1]):
        return (int(named[1]),) * types
    return options.by_type(times, "hidden_size", 1024, types)


def _links(files: Mapping[str, Source], cluster: Cluster | None) -> tuple[Any, int]:
    """The network and its number of devices, from Galvatron's hardware files, or else from the cluster.

    files: all files, by kind. cluster: None if the user gave none. Raises InputError without hardware files and cluster, or
    if their numbers of devices differ.
    """
    hardware = {kind: files[kind] for kind in LINKS if kind in files}
    if not hardware:
        if cluster is None:
            raise files["computation"].fail("", "says nothing of links", "add allreduce_bandwidth_*.json, or give a cluster")
        return cluster.network, cluster.devices
    measured, devices = islands(hardware, cluster)
    if cluster is not None and cluster.devices != devices:
        problem = f"is of {devices} devices, but cluster {cluster.name!r} has {cluster.devices}"
        raise next(iter(hardware.values())).fail("", problem, "give files and cluster of one size")
    return {"islands": measured}, devices


def _lengths(options: Options, times: Source, memory: Source, table: Mapping[Lengths, Any], types: int) -> Lengths:
    """Decide the tokens per sample, one number per type of layers (set of equal layers): the user's numbers, else the only
    ones that both files have, else those in a file's name.

    options: the user's values. times: the file of times; memory: the file of memory. table: has the sequence lengths in the
    file of times as keys. types: the number of types. Raises InputError if the lengths are in no file, or if several are
    possible.
    """
    timed, sized = set(table), sequences(memory)
    both = sized if timed == {()} else timed if sized == {()} else timed & sized
    named = re.search(r"seqlen(\d{1,6})(?!\d)", times.stem)
    texts = ", ".join(lengths_text(lengths) for lengths in sorted(both - {()}))
    if options.sequence is not None:
        lengths = options.by_type(times, "sequence", 512, types)
        if lengths in both or both == {()}:
            return lengths
        fix = f"give one of: {texts or 'none is in both'}"
        raise InputError("command line", "--sequence", f"is {','.join(map(str, lengths))}", fix)
    if not both:
        raise memory.fail("", f"has no sequence length of {times.path}", "give files of one profile")
    if both == {()} and named and int(named[1]):
        return (int(named[1]),) * types
    if len(both) == 1 and both != {()}:
        return both.pop()
    raise times.fail("", f"has the sequence lengths {texts or '(not in the keys)'}", "say which one with --sequence")


def overlap(source: Source) -> float:
    """The factor, from 1 to 10, by which computation and communication take longer while they overlap, from Galvatron's file
    of overlap. Raises InputError if the file lacks it or it is out of range.
    """
    return number(source, "overlap_coe", source.data.get("overlap_coe"), 10, 1)


def _shapes(model: Model) -> list[dict[str, Any]]:
    """The sub-layers of a model in the form of a profile: the embedding, a layer of each type (set of equal layers), and the
    head.
    """
    memory, first, last = model.memory, model.types[0], model.types[-1]
    whole, (share, _) = memory.whole_ends, memory.embedding_shares
    counts = {tp: memory.ends[OFF].state_bytes[1 if whole else tp] / STATE_BYTES_PER_PARAMETER for tp in memory.degrees}
    embedding = {tp: round(count * share) for tp, count in counts.items()}
    head = {tp: round(count) - embedding[tp] for tp, count in counts.items()}
    tokens = first.sequence
    shapes = {"embedding": shape("embedding", tokens * TOKEN_BYTES, first.hidden_bytes, embedding, whole, tokens=tokens)}
    for name, kind in zip(model.type_names, model.types, strict=True):
        split = {tp: round(kind.memory.parameters / tp) for tp in memory.degrees}
        shapes[name] = shape("layer", kind.hidden_bytes, kind.hidden_bytes, split, tokens=kind.sequence, reductions=2)
    shapes["head"] = shape("head", last.hidden_bytes, 0, head, whole, tokens=last.sequence)
    return [{"name": name} | content for name, content in shapes.items()]


def _costs(model: Model, device: str) -> list[Any]:
    """The costs of a model in the form of a profile: of embedding, head and a layer of each type (set of equal layers), one
    entry per profiled batch and tensor-parallel degree.

    device: the name of the profiled kind of device. A time whose batch is not stated is taken as the time of one sample.
    """
    memory, (_, share), costs = model.memory, model.memory.embedding_shares, list[Any]()
    starts_bytes, last = model.types[0].sequence * TOKEN_BYTES, model.types[-1]
    for tp, (batch, times) in product(memory.degrees, model.times.items()):
        samples = max(1, batch)
        rows, ends_tp = samples * tp, 1 if memory.whole_ends else tp
        ends_bytes, ends_ns = memory.ends[OFF].activation_bytes[ends_tp], 1e6 * times.ends_ms / 2 * rows / ends_tp
        for name, kept in (
            ("embedding", ends_bytes * share - starts_bytes),
            ("head", ends_bytes * (1 - share) - last.hidden_bytes),
        ):
            costs.append(cost(name, device, tp, rows, ends_ns, BACKWARD * ends_ns, rows * max(0.0, kept)))
        for name, kind, ms in zip(model.type_names, model.types, times.layers_ms, strict=True):
            ns, kept = samples * 1e6 * ms, max(0.0, kind.memory.kept_bytes[tp] - kind.hidden_bytes)
            checkpoint_bytes = rows * kind.memory.checkpoint_bytes
            costs.append(cost(name, device, tp, rows, ns, BACKWARD * ns, rows * kept, checkpoint_bytes=checkpoint_bytes))
    return costs
