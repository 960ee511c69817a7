"""Hetu-Galvatron's profiles, v2.4 (https://github.com/PKU-DAIR/Hetu-Galvatron, core/profiler and core/search_engine).

Readings taken, with their places in the published code:

- `layertype_<i>_bsz<b>_seq<s>`: ms of a forward pass for each layer and sample at tp 1, the difference of two `layernum` totals
  (model_profiler._process_computation_data); with tp ranks, rows samples take the time of rows / tp, and a backward pass twice
  that (TimeCostModel: forward_computation_time * bs / tp_size, bct_fct_coe = 2).
- `parameter_size`: MiB in fp32, tp ranks hold a tp-th each; model states are four times that, 16 bytes a parameter
  (MemoryCostModel: 4 * parameter_size). All-reduces carry bf16.
- `tp_activation_per_bsz_dict`: MiB that a layer keeps for each sample of its rank. `checkpoint` is what it keeps when
  recomputed, more than the hidden states where a mask is kept as well.
  (The code divides it by tp under sequence parallelism; trainplan has none.)
- a layer all-reduces twice each way (tp_comm_num = 4).
- `other`: embedding and head together. Time in halves (OtherTimeCostModel); states and activation of `other_memory_pp_off`,
  by vocabulary tp, in the proportion of `other_memory_pp_on_first` and `_last`. The 1024 MiB of context that the code adds
  to each device are not in the files and not here.
- missing summaries come from the raw blocks (`galvatron_blocks`).
- `overlap_coe` slows down computation and communication alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.imports.galvatron_blocks import BLOCK, OFF, STATE_COPIES
from trainplan.profiling.imports.galvatron_links import ALL_REDUCE, P2P, TIMES, islands
from trainplan.profiling.imports.galvatron_memory import FP32_BYTES, SUMMARY, Memory, read_memory, sequences
from trainplan.profiling.imports.galvatron_times import TIME, TOTAL, Times, read_times
from trainplan.profiling.imports.source import Options, Source, cost, finished, number, rate, shape
from trainplan.profiling.profiles import Profile

OPTIONS = ("layers", "sequence", "hidden_size", "memory_bytes")
DTYPES = {"fp32": ("float32", 4), "fp16": ("float16", 2), "bf16": ("bfloat16", 2)}
STATE_BYTES_PER_PARAMETER = FP32_BYTES * STATE_COPIES
BACKWARD = 2  # times a forward pass
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
    """Whether an object, read from a file, is one of Galvatron's files."""
    return bool(_kind(data))


def _kind(data: dict[str, Any]) -> str:
    """Which of Galvatron's files this is; empty for none."""
    if "tp_sizes_enc" in data and "pp_deg" in data:
        return "plan"
    times = any(not isinstance(value, dict) for key, value in data.items() if KEYS["computation"].fullmatch(key))
    kinds = [kind for kind, pattern in KEYS.items() if any(pattern.fullmatch(key) for key in data)]
    # `layertype_0` is a number in one file and an object in the other.
    return "computation" if kinds == ["memory", "computation"] and times else next(iter(kinds), "")


@dataclass(frozen=True)
class Model:
    """What the files of a model's times and memory say of it. times: by sequence length and batch, as `read_times` has them."""

    name: str
    layers: int
    sequence: int
    hidden_size: int
    dtype: str
    element_bytes: int
    times: dict[int, dict[int, Times]]
    memory: Memory

    @property
    def hidden_bytes(self) -> int:
        """The hidden states of one sample."""
        return self.sequence * self.hidden_size * self.element_bytes

    @property
    def times_by_batch(self) -> dict[int, Times]:
        """Those of the model's own sequence length, or of files that name none."""
        return self.times.get(self.sequence) or self.times[0]


def read_model(files: Mapping[str, Source], options: Options) -> Model:
    """The model of files by kind. Raises InputError."""
    source = files["computation"]
    layers, hidden_size, times = options.needed(source, "layers", 24), _hidden_size(options, source), read_times(source)
    sequence = _sequence(options, source, files["memory"], times)
    dtype, element_bytes = next((DTYPES[name] for name in DTYPES if f"_{name}_" in f"{source.stem}_"), DTYPES["bf16"])
    name = re.sub(rf"computation_profiling_({'|'.join(DTYPES)})_", "", source.stem)
    memory = read_memory(files["memory"], sequence)
    return Model(name, layers, sequence, hidden_size, dtype, element_bytes, times, memory)


def read(sources: Sequence[Source], options: Options) -> Profile:
    """The profile of one model's Galvatron files. Raises InputError."""
    files = files_by_kind(sources)
    model = read_model(files, options)
    network, devices = _links(files, options.cluster)
    names = ["embedding", *(f"layer-{i}" for i in range(model.layers)), "head"]
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
            "units": [{"name": name, "layer": i, "sublayer": name.partition("-")[0]} for i, name in enumerate(names)],
            "sublayers": _shapes(model),
            "devices": devices,
            "memory_bytes": options.memory(files["computation"]),
            "network": network,
            "costs": _costs(model, options.device),
            **{name: rate(overlap(files["overlap"])) for name in slowdowns},
        },
        sequence=model.sequence,
        layers=model.layers,
        memory=model.memory.origin,
        optimizer="not in the files, so 0",
    )


def files_by_kind(sources: Sequence[Source]) -> dict[str, Source]:
    """The files by their kind, such as `computation`; times and memory must be among them. Raises InputError."""
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


def _hidden_size(options: Options, times: Source) -> int:
    """The hidden size: as given, else as in the name of the file of times. Raises InputError."""
    named = re.search(r"hidden(\d{1,6})(?!\d)", times.stem)
    if options.hidden_size is None and named and int(named[1]):
        return int(named[1])
    return options.needed(times, "hidden_size", 1024)


def _links(files: Mapping[str, Source], cluster: Cluster | None) -> tuple[Any, int]:
    """The network and its number of devices: from the hardware files, else the cluster's. Raises InputError."""
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


def _sequence(options: Options, times: Source, memory: Source, table: Mapping[int, Any]) -> int:
    """The sequence length that was asked for, or the only one that both files have. Raises InputError."""
    timed, sized = set(table), sequences(memory)
    both = sized if timed == {0} else timed if sized == {0} else timed & sized
    lengths = ", ".join(map(str, sorted(both - {0})))
    if options.sequence is not None and (options.sequence in both or both == {0}):
        return options.sequence
    if options.sequence is not None:
        raise InputError("command line", "--sequence", f"is {options.sequence}", f"give one of: {lengths or 'none is in both'}")
    if len(both) == 1 and both != {0}:
        return both.pop()
    if not both:
        raise memory.fail("", f"has no sequence length of {times.path}", "give files of one profile")
    raise times.fail("", f"has the sequence lengths {lengths or '(not in the keys)'}", "say which one with --sequence")


def overlap(source: Source) -> float:
    """How many times slower computation and communication get while they overlap. Raises InputError."""
    return number(source, "overlap_coe", source.data.get("overlap_coe"), 10, 1)


def _shapes(model: Model) -> list[dict[str, Any]]:
    """Embedding, layer and head."""
    memory, sequence, hidden_bytes = model.memory, model.sequence, model.hidden_bytes
    state_share, _ = memory.embedding_shares
    ends = {tp: memory.ends[OFF].state_bytes[tp] / STATE_BYTES_PER_PARAMETER for tp in memory.degrees}
    embedding = {tp: round(count * state_share) for tp, count in ends.items()}
    head = {tp: round(count) - embedding[tp] for tp, count in ends.items()}
    layer = {tp: round(memory.parameters / tp) for tp in memory.degrees}
    parts = [
        shape("embedding", sequence * TOKEN_BYTES, hidden_bytes, embedding, tokens=sequence),
        shape("layer", hidden_bytes, hidden_bytes, layer, tokens=sequence, reductions=2),
        shape("head", hidden_bytes, 0, head, tokens=sequence),
    ]
    return [{"name": part["kind"], **part} for part in parts]


def _costs(model: Model, device: str) -> list[Any]:
    """Those of all profiled batches at all degrees. A time without a batch is that of one sample."""
    memory, costs = model.memory, []
    _, activation_share = memory.embedding_shares
    for tp in memory.degrees:
        activation_bytes = memory.ends[OFF].activation_bytes[tp]
        kept_bytes = {
            "embedding": activation_bytes * activation_share - model.sequence * TOKEN_BYTES,
            "layer": memory.kept_bytes[tp] - model.hidden_bytes,
            "head": activation_bytes * (1 - activation_share) - model.hidden_bytes,
        }
        for batch, time in model.times_by_batch.items():
            samples = max(1, batch)
            rows = samples * tp
            for name, kept in kept_bytes.items():
                ns = samples * 1e6 * (time.layer_ms if name == "layer" else time.other_ms / 2)
                more = {"checkpoint_bytes": rows * memory.checkpoint_bytes} if name == "layer" else {}
                costs.append(cost(name, device, tp, rows, ns, BACKWARD * ns, rows * max(0.0, kept), **more))
    return costs
