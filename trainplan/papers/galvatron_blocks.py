"""The summaries of a memory profile of Hetu-Galvatron, derived from its raw measurements as Galvatron's published code does.

A memory file has raw blocks, one for each strategy that was measured (a key `pp_tp_dp`), and summaries of layer, embedding and
head. All published files have their summaries; this module shows where those numbers come from, and stands in for them where a
file has none. Source: model_profiler._process_single_sequence_config, for profiles made with ZeRO-3, its default, where a rank
holds its shard of a layer's states.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainplan.profiling.imports.galvatron_blocks import BLOCK, FIRST, LAST, LAYER, MOST_MIB, OFF, RAW, STATE_COPIES
from trainplan.profiling.imports.source import Source, counted, number

ByDegree = dict[int, float]  # MiB by tensor-parallel degree


def derived(source: Source, sequence: int) -> dict[str, Any]:
    """Compute, from the raw measurements in a memory file of Hetu-Galvatron, the summaries that such a file normally has.

    source: the memory file. sequence: the sequence length (tokens) whose raw measurements are used. Returns the summaries of
    layer, embedding and head by their names in the file, sizes in MiB, nested as in files. Raises InputError if raw
    measurements are missing.
    """
    blocks = [
        block
        for key, values in source.data.items()
        if values and (match := BLOCK.fullmatch(key)) and (block := _Block(source, key, match, sequence)).counts
    ]
    alone = [block for block in blocks if block.pp == 1 and len(block.counts) > 1]
    plain = {block.tp: block for block in alone if not block.recomputed and not block.vocabulary}
    checkpoints = [block.kept for block in alone if block.recomputed]
    if 1 not in plain or not checkpoints:
        lacking = "of two numbers of layers at tp 1" if 1 not in plain else "with recomputation (a key with _c)"
        problem = f"has no summary of seq{sequence}, and no raw blocks {lacking} to derive it from"
        raise source.fail(LAYER, problem, "profile the memory whole")
    parameters = {tp: block.parameters for tp, block in plain.items()}
    kept = {tp: block.kept for tp, block in plain.items()}
    ends = _ends(blocks, parameters, kept)
    if blocks[0].sequence_parallel:
        for table in (kept, *(table for end in ends.values() for table in end.values())):
            _halve(table)
    whole = max(size * tp for tp, size in parameters.items())
    layer = {"parameter_size": whole, "tp_activation_per_bsz_dict": _named(kept) | {"checkpoint": max(checkpoints)}}
    return {LAYER: layer} | {end: {name: _named(table) for name, table in tables.items()} for end, tables in ends.items()}


def _ends(blocks: Sequence[_Block], parameters: ByDegree, kept: ByDegree) -> dict[str, dict[str, ByDegree]]:
    """Memory of embedding and head, derived from the raw blocks (measurements of one strategy each) of a memory file of
    Hetu-Galvatron.

    parameters: MiB of a layer's parameters by tensor-parallel degree. kept: MiB of activations that a layer keeps per sample,
    by tensor-parallel degree. Returns MiB by summary name (without a pipeline, first stage, last stage), then by field
    (`model_states`, `activation`), then by the tensor-parallel degree of the vocabulary. If several blocks give a value, the
    smallest one is used, and never less than 0.
    """
    ends: dict[str, dict[str, ByDegree]] = {}
    for block in blocks:
        if block.recomputed or block.tp not in parameters:
            continue
        vocabulary = block.tp if block.vocabulary else 1
        for name, rank in ((OFF, 0),) if block.pp == 1 else ((FIRST, 0), (LAST, block.world - 1)):
            here = {
                "model_states": block.rest_states(rank, parameters[block.tp]) / vocabulary,
                "activation": block.rest_activation(rank, kept[block.tp]) / vocabulary,
            }
            for field, value in here.items():
                table = ends.setdefault(name, {}).setdefault(field, {})
                table[vocabulary] = min(table.get(vocabulary, value), max(0.0, value))
    return ends


def _halve(table: ByDegree) -> None:
    """Add the tensor-parallel degrees 2, 4 and 8 that were not measured to a table of MiB by degree, which is written to: half
    of the MiB at half the degree. This holds under sequence parallelism, where activations are divided among tensor-parallel
    ranks.
    """
    for tp in (2, 4, 8):
        if tp not in table and tp // 2 in table:
            table[tp] = table[tp // 2] / 2


def _named(table: ByDegree) -> dict[str, float]:
    """Convert a table of MiB by tensor-parallel degree to one whose keys are texts, as in JSON files: {2: 5.0} ->
    {"2": 5.0}.
    """
    return {str(degree): value for degree, value in table.items()}


class _Block:
    """A raw block of a memory file of Hetu-Galvatron: measured MiB under one strategy (pp pipeline stages of tp x dp ranks) at
    one sequence length, for models with several numbers of layers.

    counts: the numbers of layers that were measured, ascending. world: the number of ranks, pp x tp x dp. recomputed,
    vocabulary, sequence_parallel: whether it was measured with recomputation, with tensor parallelism of the vocabulary, with
    sequence parallelism.
    """

    def __init__(self, source: Source, key: str, match: re.Match[str], sequence: int) -> None:
        self._source, self._key, self._sequence = source, key, sequence
        self.pp, self.tp, self.dp = (counted(source, key, match[i]) for i in (1, 2, 3))
        self.recomputed, self.vocabulary, self.sequence_parallel = (match[i] is not None for i in (4, 5, 6))
        self.world = self.pp * self.tp * self.dp
        self._values: dict[tuple[int, int, str], float] = {}
        batches = set()
        for name, value in source.data[key].items():
            if (raw := RAW.fullmatch(name)) and int(raw[3]) == sequence:
                field = f"{key}.{name}"
                batches.add(counted(source, field, raw[2]))
                self._values[counted(source, field, raw[1]), int(raw[4]), raw[5]] = number(source, field, value, MOST_MIB)
        if len(batches) > 1:
            raise source.fail(key, f"has {len(batches)} batch sizes", "give one")
        self._batch = batches.pop() if batches else 1
        self.counts = sorted({count for count, _, _ in self._values})

    def _value(self, count: int, rank: int, name: str) -> float:
        """The measured MiB on the rank with the global index `rank` for a model of `count` layers. name: `ms` (model states),
        `act` (activations) or `act_peak` (peak of activations). Raises InputError if the file lacks the value.
        """
        if (count, rank, name) not in self._values:
            field = f"{self._key}.layernum[{count}]_bsz{self._batch}_seq{self._sequence}_rank{rank}_{name}"
            raise self._source.fail(field, "is missing", "give all blocks of one profile")
        return self._values[count, rank, name]

    def _layer(self, name: str) -> float:
        """MiB that one more layer adds on rank 0, from the difference between the models with the fewest and the most layers.
        name: `ms` (model states), `act` (activations) or `act_peak` (peak of activations).
        """
        few, many = self.counts[0], self.counts[-1]
        return (self._value(many, 0, name) - self._value(few, 0, name)) / (many - few)

    @property
    def parameters(self) -> float:
        """MiB of one layer's parameters on one tensor-parallel rank, summed over the shards of all dp data-parallel ranks
        (ZeRO-3).
        """
        return self._layer("ms") / STATE_COPIES * self.dp

    @property
    def kept(self) -> float:
        """MiB of activations that one layer keeps on a rank until its backward pass, per sample that the rank processes."""
        return self._layer("act") / self.tp * (self.world / self._batch)

    @property
    def _here(self) -> float:
        """The number of layers per pipeline stage in the measured model with the fewest layers."""
        return self.counts[0] / self.pp

    def rest_states(self, rank: int, parameters: float) -> float:
        """MiB of model states that belong to embedding and head, summed over the ranks of the pipeline stage of the rank with
        the global index `rank`: the measured states minus the layers' states.

        parameters: MiB of one layer's parameters on one tensor-parallel rank.
        """
        layers = self._here * parameters * STATE_COPIES / self.dp
        return (self._value(self.counts[0], rank, "ms") - layers) * (self.world // self.pp)

    def rest_activation(self, rank: int, kept: float) -> float:
        """MiB per sample that embedding and head add to the activation peak of the rank with the global index `rank`: the
        measured peak minus the activations of the rank's layers.

        kept: MiB of activations that one layer keeps per sample.
        """
        peak = max(self._value(self.counts[0], rank, name) for name in ("act_peak", "act"))
        return (peak - self._here * kept * self._batch / self.dp) / (self._batch / self.world * self.pp)
