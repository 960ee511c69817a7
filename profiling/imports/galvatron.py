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
- missing summaries come from the raw blocks as in model_profiler._process_single_sequence_config, profiled with zero3, its
  default: states of a layer are the difference over its dp replicas.
- `overlap_coe` slows down computation and communication alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainplan.profiling.errors import InputError, shown
from trainplan.profiling.imports.galvatron_links import ALL_REDUCE, MIB, MOST_MS, P2P, SMALLEST, TIMES, islands
from trainplan.profiling.imports.source import LARGEST_COUNT, Options, Source, cost, finished, number, rate
from trainplan.profiling.profiles import Profile

OPTIONS = ("layers", "sequence", "hidden_size", "memory_bytes")
DTYPES = {"fp32": ("float32", 4), "fp16": ("float16", 2), "bf16": ("bfloat16", 2)}
STATE_COPIES = 4
BACKWARD = 2
TOKEN_BYTES = 8
MOST_MIB = 1e7
MOST_LAYERS = 10_000
AGREEMENT = 0.01  # of a layer's time with the totals it was derived from

TIME = re.compile(r"layertype_(other|\d+)(?:_\d+)?(?:_bsz(\d+)_seq(\d+))?")
TOTAL = re.compile(r"layernum\[(\d+)\]_bsz(\d+)_seq(\d+)")
BLOCK = re.compile(r"(\d+)_(\d+)_(\d+)(_c)?(_vtp)?(_sp)?")
RAW = re.compile(r"layernum\[(\d+)\]_bsz(\d+)_seq(\d+)_rank(\d+)_(ms|act|act_peak)")
SUMMARY = re.compile(r"layertype_\d+(_sp)?|other_memory_pp_(off|on_first|on_last)(_sp)?")
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
    return bool(_kind(data))


def _kind(data: dict[str, Any]) -> str:
    """Which of Galvatron's files this is; empty for none."""
    if "tp_sizes_enc" in data and "pp_deg" in data:
        return "plan"
    times = any(not isinstance(value, dict) for key, value in data.items() if KEYS["computation"].fullmatch(key))
    kinds = [kind for kind, pattern in KEYS.items() if any(pattern.fullmatch(key) for key in data)]
    # `layertype_0` is a number in one file and an object in the other.
    return "computation" if kinds == ["memory", "computation"] and times else next(iter(kinds), "")


def read(sources: Sequence[Source], options: Options) -> Profile:
    """Raises InputError."""
    files: dict[str, Source] = {}
    for source in sources:
        kind = _kind(source.data)
        if kind == "plan":
            fix = f"leave it out, and give {NAMES['computation']} and {NAMES['memory']}"
            raise InputError(source.path, "", "is a plan that Galvatron's search found, not a profile", fix)
        if kind in files:
            raise InputError(source.path, "", f"is of the same kind as {files[kind].path}", "give one of each kind")
        files[kind] = source
    for kind, name in NAMES.items():
        if kind not in files:
            raise InputError(sources[0].path, "", f"comes without {name}", "give that file as well")
    times, memory = files["computation"], files["memory"]
    layers, hidden = options.needed(times, "layers", 24), _hidden(options, times)
    if layers > MOST_LAYERS:
        raise InputError("import_profile", "layers", f"is {layers}", f"give at most {MOST_LAYERS}")
    table = _times(times)
    sequence = _sequence(options, times, memory, table)
    milliseconds = table.get(sequence) or table[0]
    sizes = _Memory(memory, sequence)
    links, devices = _links(files, options, times)
    precision = next((name for name in DTYPES if f"_{name}_" in f"{times.stem}_"), "bf16")
    dtype, element = DTYPES[precision]
    hidden_bytes = sequence * hidden * element
    units = [{"name": "embedding", "layer": 0, "sublayer": "embedding"}]
    units += [{"name": f"layer-{i}", "layer": i + 1, "sublayer": "layer"} for i in range(layers)]
    units += [{"name": "head", "layer": layers + 1, "sublayer": "head"}]
    slow = _overlap(files["overlap"]) if "overlap" in files else {}
    return finished(
        sources,
        "Hetu-Galvatron",
        {
            "name": options.name or re.sub(rf"computation_profiling_({'|'.join(DTYPES)})_", "", times.stem),
            "dtype": dtype,
            "parameter_bytes": element,
            "state_bytes_per_parameter": 4 * STATE_COPIES,
            "units": units,
            "sublayers": sizes.shapes(sequence, hidden_bytes),
            "cluster": options.cluster.name if options.cluster else f"{devices} devices of Galvatron",
            "devices": devices,
            "memory_bytes": options.memory(times),
            "network": links,
            "optimizer_ns_per_parameter": rate(0),
            "costs": sizes.costs(milliseconds, hidden_bytes, options.device, sequence),
            **slow,
        },
        sequence=sequence,
        layers=layers,
        memory=sizes.told,
        optimizer="not in the files, so 0",
    )


def _hidden(options: Options, times: Source) -> int:
    named = re.search(r"hidden(\d{1,6})(?!\d)", times.stem)
    if options.hidden_size is None and named and int(named[1]):
        return int(named[1])
    return options.needed(times, "hidden_size", 1024)


def _links(files: dict[str, Source], options: Options, times: Source) -> tuple[Any, int]:
    """The network and its number of devices: from the hardware files, else the cluster's. Raises InputError."""
    cluster = options.cluster
    hardware = {kind: files[kind] for kind in LINKS if kind in files}
    if not hardware and cluster is None:
        raise InputError(times.path, "", "says nothing of links", "add allreduce_bandwidth_*.json, or give a cluster")
    if not hardware and cluster is not None:
        return cluster.network, cluster.devices
    found, devices = islands(hardware, cluster)
    if cluster is not None and cluster.devices != devices:
        told = f"is of {devices} devices, but cluster {cluster.name!r} has {cluster.devices}"
        raise InputError(next(iter(hardware.values())).path, "", told, "give files and cluster of one size")
    return {"islands": found}, devices


def _overlap(source: Source) -> dict[str, Any]:
    value = number(source, "overlap_coe", source.data["overlap_coe"], 10)
    if value < 1:
        raise InputError(source.path, "overlap_coe", f"is {value}", "give a slowdown of at least 1")
    return {"compute_slowdown": rate(value), "communication_slowdown": rate(value)}


def _times(source: Source) -> dict[int, dict[int, tuple[float, float]]]:
    """ms of a layer and of the rest, for each sample, by sequence and batch; both 0 where keys name none. Raises InputError."""
    layer: dict[tuple[int, int], float] = {}
    other: dict[tuple[int, int], float] = {}
    totals: dict[tuple[int, int], dict[int, float]] = {}
    for key, value in source.data.items():
        ms = number(source, key, value, MOST_MS)
        if total := TOTAL.fullmatch(key):
            count, batch, sequence = (_count(source, key, text) for text in total.groups())
            totals.setdefault((sequence, batch), {})[count] = ms
        elif found := TIME.fullmatch(key):
            batch, sequence = (_count(source, key, text) if text else 0 for text in found.groups()[1:])
            if found[1] not in ("other", "0"):
                raise InputError(source.path, key, "is of a second type of layers", "give a model of one type")
            number(source, key, value, MOST_MS, SMALLEST if found[1] == "0" else 0)
            (other if found[1] == "other" else layer)[sequence, batch] = ms
        else:
            fix = "give keys such as layertype_0_bsz8_seq512"
            raise InputError(source.path, key, "is not a key of this file", fix)
    for place, found_totals in totals.items():
        if derived := _difference(found_totals, place[1]):
            given = layer.setdefault(place, derived[0])
            other.setdefault(place, derived[1])
            if abs(given - derived[0]) > AGREEMENT * abs(derived[0]) or not given > 0:
                told = f"is {given:.6g} ms, but the layernum totals give {derived[0]:.6g}"
                raise InputError(source.path, _key(place), told, "give the numbers of one profile")
    if not layer:
        told = "has totals for one number of layers only" if totals else "has no layer times"
        raise InputError(source.path, "", f"{told}, and no layertype_0", "profile two numbers of layers")
    table: dict[int, dict[int, tuple[float, float]]] = {}
    for sequence, batch in sorted(layer):
        if (sequence, batch) not in other:
            missing = _key((sequence, batch)).replace("_0", "_other")
            raise InputError(source.path, missing, "is missing", "give the time of embedding and head")
        table.setdefault(sequence, {})[batch] = layer[sequence, batch], other[sequence, batch]
    return table


def _key(place: tuple[int, int]) -> str:
    sequence, batch = place
    return f"layertype_0_bsz{batch}_seq{sequence}" if sequence else "layertype_0"


def _difference(totals: dict[int, float], batch: int) -> tuple[float, float] | None:
    """ms of a layer and of the rest, for each sample, from totals by number of layers; None with less than two of them."""
    if len(totals) < 2:
        return None
    few, many = min(totals), max(totals)
    layer = (totals[many] - totals[few]) / batch / (many - few)
    return layer, max(0.0, totals[few] / batch - few * layer)


def _count(source: Source, key: str, text: str) -> int:
    value = int(text)
    if not 1 <= value <= LARGEST_COUNT:
        raise InputError(source.path, key, f"counts {value}", f"give 1 to {LARGEST_COUNT}")
    return value


def _sequence(options: Options, times: Source, memory: Source, table: dict[int, Any]) -> int:
    """The one that was asked for, or the only one that both files have. Raises InputError."""
    timed, sized = set(table), _sequences(memory)
    both = sized if timed == {0} else timed if sized == {0} else timed & sized
    told = ", ".join(map(str, sorted(both - {0})))
    if options.sequence is not None and (options.sequence in both or both == {0}):
        return options.sequence
    if options.sequence is not None:
        raise InputError("import_profile", "sequence", f"is {options.sequence}", f"give one of: {told or 'none is in both'}")
    if len(both) == 1 and both != {0}:
        return both.pop()
    if not both:
        raise InputError(memory.path, "", f"has no sequence length of {times.path}", "give files of one profile")
    raise InputError(times.path, "", f"has the sequence lengths {told or '(not told)'}", "say which one: add sequence=...")


def _sequences(memory: Source) -> set[int]:
    """Sequence lengths with a summary or raw blocks; 0 for a summary that names none."""
    found: set[int] = set()
    for key, value in memory.data.items():
        if not (block := BLOCK.fullmatch(key)) and not SUMMARY.fullmatch(key):
            raise InputError(memory.path, key, "is not a key of this file", "give keys such as layertype_0_sp or 1_1_8_sp")
        _object(memory, key, value)
        if block:
            found |= {int(raw[3]) for raw in map(RAW.fullmatch, value) if raw}
        elif key.startswith("layertype_0"):
            found |= {0} if "parameter_size" in value else {int(name) for name in value if name.isdecimal()}
    return found


def _object(source: Source, field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise InputError(source.path, field, f"is {shown(value)}", "give an object {...}")
    return value


class _Memory:
    """Bytes of a layer and of the rest for one sequence length, from the file's summaries or, without them, its raw blocks."""

    def __init__(self, source: Source, sequence: int) -> None:
        """Raises InputError."""
        if others := [key for key in source.data if key.startswith("layertype_") and not key.startswith("layertype_0")]:
            raise InputError(source.path, others[0], "is of a second type of layers", "give a model of one type")
        self._source = source
        layer, self._layer_field = self._summary("layertype_0", sequence)
        off, self._off_field = self._summary("other_memory_pp_off", sequence)
        first, first_field = self._summary("other_memory_pp_on_first", sequence)
        last, last_field = self._summary("other_memory_pp_on_last", sequence)
        self.told = "summaries of the file"
        if layer is None or off is None:
            layer, off, first, last = _derived(source, sequence)
            self.told = "derived from raw blocks, as profiled with zero3"
            self._layer_field = self._off_field = first_field = last_field = f"raw blocks of seq{sequence}"
        self.parameters = self._bytes(self._layer_field, layer, "parameter_size") / STATE_COPIES
        self.kept = self._by_degree(self._layer_field, layer, "tp_activation_per_bsz_dict", floor=True)
        field = f"{self._layer_field}.tp_activation_per_bsz_dict"
        self.checkpoint = self._bytes(field, layer["tp_activation_per_bsz_dict"], "checkpoint")
        if self.checkpoint > self.kept[1]:
            told = f"is {self.checkpoint / MIB:g} MB, above the {self.kept[1] / MIB:g} MB kept without it"
            raise InputError(source.path, f"{field}.checkpoint", told, "give what stays when a layer is recomputed")
        self.states, self.activation = (self._by_degree(self._off_field, off, name) for name in ("model_states", "activation"))
        shares: list[float] = []
        for name in ("model_states", "activation"):
            ends = [
                self._by_degree(field, end, name)[1]
                for field, end in ((first_field, first), (last_field, last))
                if end is not None
            ]
            shares.append(ends[0] / total if len(ends) == 2 and (total := sum(ends)) else 0.5)
        self.state_share, self.activation_share = shares
        self.degrees = sorted(set(self.kept) & set(self.states) & set(self.activation))

    def _summary(self, name: str, sequence: int) -> tuple[Any, str]:
        """The object of this sequence length, or None, and its place in the file."""
        for field in (f"{name}_sp", name):
            if field in self._source.data:
                value = _object(self._source, field, self._source.data[field])
                if "parameter_size" in value or "model_states" in value:
                    return value, field
                if str(sequence) in value:
                    place = f"{field}.{sequence}"
                    return _object(self._source, place, value[str(sequence)]), place
        return None, name

    def _bytes(self, field: str, value: dict[str, Any], name: str, *, floor: bool = True) -> float:
        place = f"{field}.{name}"
        if name not in value:
            raise InputError(self._source.path, place, "is missing", "give it in MB")
        return number(self._source, place, value[name], MOST_MIB, SMALLEST if floor else 0) * MIB

    def _by_degree(self, field: str, value: dict[str, Any], name: str, *, floor: bool = False) -> dict[int, float]:
        """Bytes by tensor-parallel degree, which fall as it grows; a bare number is that of degree 1. Raises InputError."""
        place = f"{field}.{name}"
        if name not in value:
            raise InputError(self._source.path, place, "is missing", "give MB by tensor-parallel degree")
        table = {"1": value[name]} if isinstance(value[name], int | float) and not floor else value[name]
        found: dict[int, float] = {}
        for key in _object(self._source, place, table):
            if key == "checkpoint":
                continue
            if not key.isdecimal() or not 1 <= int(key) <= LARGEST_COUNT:
                raise InputError(self._source.path, f"{place}.{key}", "is not a degree", "give keys such as 1, 2, 4")
            found[int(key)] = self._bytes(place, table, key, floor=floor)
        if 1 not in found:
            raise InputError(self._source.path, f"{place}.1", "is missing", "give MB for tensor-parallel degree 1")
        if larger := [tp for tp, size in found.items() if size > found[1] * (1 + AGREEMENT)]:
            told = f"is above that of degree 1, {found[1] / MIB:g}"
            raise InputError(self._source.path, f"{place}.{larger[0]}", told, "give what one of the ranks keeps")
        return found

    def shapes(self, sequence: int, hidden_bytes: int) -> list[dict[str, Any]]:
        """Embedding, layer and head."""
        tokens = sequence * TOKEN_BYTES
        per_parameter = 4 * STATE_COPIES
        states = {tp: self.states[tp] / per_parameter for tp in self.degrees}
        embedding = {tp: round(states[tp] * self.state_share) for tp in self.degrees}
        head = {tp: round(states[tp]) - embedding[tp] for tp in self.degrees}
        layer = {tp: round(self.parameters / tp) for tp in self.degrees}

        def shape(kind: str, incoming: int, output: int, reductions: int, parameters: dict[int, int]) -> dict[str, Any]:
            shards = [
                {"tp": tp, "parameters": count, "replicated_parameters": 0, "output_bytes": output}
                for tp, count in parameters.items()
            ]
            place = {"name": kind, "kind": kind, "tokens": sequence, "input_bytes": incoming, "output_bytes": output}
            return place | {"reductions": reductions, "shards": shards}

        return [
            shape("embedding", tokens, hidden_bytes, 1, embedding),
            shape("layer", hidden_bytes, hidden_bytes, 2, layer),
            shape("head", hidden_bytes, 0, 1, head),
        ]

    def costs(self, times: dict[int, tuple[float, float]], hidden_bytes: int, device: str, sequence: int) -> list[Any]:
        """Those of all profiled batches at all degrees. A time without a batch is that of one sample."""
        found = []
        for tp in self.degrees:
            ends = {"embedding": self.activation_share, "head": 1 - self.activation_share}
            kept = {name: self.activation[tp] * share for name, share in ends.items()}
            kept["embedding"] -= sequence * TOKEN_BYTES
            kept["head"] -= hidden_bytes
            kept["layer"] = self.kept[tp] - hidden_bytes
            for batch, (layer, other) in times.items():
                rows = max(1, batch) * tp
                for name in ("embedding", "layer", "head"):
                    ns = max(1, batch) * 1e6 * (layer if name == "layer" else other / 2)
                    more = {"checkpoint_bytes": rows * self.checkpoint} if name == "layer" else {}
                    found.append(cost(name, device, tp, rows, ns, BACKWARD * ns, rows * max(0.0, kept[name]), **more))
        return found


def _derived(source: Source, sequence: int) -> tuple[Any, Any, Any, Any]:
    """Summaries of layer, pp_off, pp_on_first and pp_on_last, from raw blocks. Raises InputError."""
    blocks = [
        _Block(source, key, match, sequence) for key in source.data if (match := BLOCK.fullmatch(key)) and source.data[key]
    ]
    blocks = [block for block in blocks if block.counts]
    alone = [block for block in blocks if block.pp == 1 and len(block.counts) > 1]
    plain = {block.tp: block for block in alone if not block.recomputed and not block.vocabulary}
    recomputed = [block.layer("act") / block.tp * block.samples for block in alone if block.recomputed]
    if 1 not in plain or not recomputed:
        lacking = "of two numbers of layers at tp 1" if 1 not in plain else "with recomputation (a key with _c)"
        told = f"has no summary of seq{sequence}, and no raw blocks {lacking} to derive it from"
        raise InputError(source.path, "layertype_0", told, "profile the memory whole")
    states = {tp: block.layer("ms") / 4 * block.dp for tp, block in plain.items()}
    kept = {tp: block.layer("act") / tp * block.samples for tp, block in plain.items()}
    ends: dict[str, dict[str, dict[int, float]]] = {}
    for block in blocks:
        if block.recomputed or block.tp not in states:
            continue
        vocabulary = block.tp if block.vocabulary else 1
        for name, rank in (("off", 0),) if block.pp == 1 else (("first", 0), ("last", block.world - 1)):
            end = ends.setdefault(name, {"model_states": {}, "activation": {}})
            here = {
                "model_states": block.rest_states(rank, states[block.tp]) / vocabulary,
                "activation": block.rest_activation(rank, kept[block.tp]) / vocabulary,
            }
            for field, value in here.items():
                end[field][vocabulary] = min(end[field].get(vocabulary, value), max(0.0, value))
    layer = {"parameter_size": max(size * tp for tp, size in states.items()), "tp_activation_per_bsz_dict": kept}
    if blocks[0].sequence_parallel:
        for table in (kept, *(table for end in ends.values() for table in end.values())):
            for tp in (2, 4, 8):
                if tp not in table and tp // 2 in table:
                    table[tp] = table[tp // 2] / 2

    def named(value: Any) -> Any:
        return {str(key): named(part) for key, part in value.items()} if isinstance(value, dict) else value

    layer = named(layer)
    layer["tp_activation_per_bsz_dict"]["checkpoint"] = max(recomputed)
    return layer, named(ends["off"]), named(ends.get("first")), named(ends.get("last"))


class _Block:
    """The raw MiB of one strategy, `pp_tp_dp`, at one sequence length."""

    def __init__(self, source: Source, key: str, match: re.Match[str], sequence: int) -> None:
        self._source, self._key, self._sequence = source, key, sequence
        self.pp, self.tp, self.dp = (_count(source, key, match[i]) for i in (1, 2, 3))
        self.recomputed, self.vocabulary, self.sequence_parallel = (match[i] is not None for i in (4, 5, 6))
        self.world = self.pp * self.tp * self.dp
        self._values: dict[tuple[int, int, str], float] = {}
        batches = set()
        for name, value in source.data[key].items():
            if (raw := RAW.fullmatch(name)) and int(raw[3]) == sequence:
                batches.add(_count(source, f"{key}.{name}", raw[2]))
                place = _count(source, f"{key}.{name}", raw[1]), int(raw[4]), raw[5]
                self._values[place] = number(source, f"{key}.{name}", value, MOST_MIB)
        if len(batches) > 1:
            raise InputError(source.path, key, f"has {len(batches)} batch sizes", "give one")
        self._batch = batches.pop() if batches else 1
        self.counts = sorted({count for count, _, _ in self._values})
        self.samples = self.world / self._batch

    def _value(self, count: int, rank: int, name: str) -> float:
        if (count, rank, name) not in self._values:
            field = f"{self._key}.layernum[{count}]_bsz{self._batch}_seq{self._sequence}_rank{rank}_{name}"
            raise InputError(self._source.path, field, "is missing", "give all blocks of one profile")
        return self._values[count, rank, name]

    def layer(self, name: str) -> float:
        """What one layer adds on rank 0."""
        few, many = self.counts[0], self.counts[-1]
        return (self._value(many, 0, name) - self._value(few, 0, name)) / (many - few)

    @property
    def _here(self) -> float:
        """Layers of one stage."""
        return self.counts[0] / self.pp

    def rest_states(self, rank: int, layer: float) -> float:
        """What is beside the layers, whose parameters are split over dp replicas; over all ranks of a stage."""
        return (self._value(self.counts[0], rank, "ms") - self._here * layer * 4 / self.dp) * (self.world // self.pp)

    def rest_activation(self, rank: int, layer: float) -> float:
        """The peak beyond what layers keep, for each sample of a rank."""
        count = self.counts[0]
        peak = max(self._value(count, rank, "act_peak"), self._value(count, rank, "act"))
        return (peak - self._here * layer * self._batch / self.dp) / (self._batch / self.world * self.pp)
