"""Summaries of Hetu-Galvatron's memory file as its published code derives them from the raw blocks beside them.

As in model_profiler._process_single_sequence_config, profiled with zero3, its default: states of a layer are the difference
over its dp replicas. All published files have their summaries; this shows where the numbers in them come from, and stands in
for them where a file has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainplan.profiling.imports.galvatron_blocks import BLOCK, FIRST, LAST, LAYER, MOST_MIB, OFF, RAW, STATE_COPIES
from trainplan.profiling.imports.source import Source, counted, number

ByDegree = dict[int, float]


def derived(source: Source, sequence: int) -> dict[str, Any]:
    """Summaries by name, with MiB as the file has them. Raises InputError."""
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
    """States and activation of embedding and head by vocabulary tp: the least of all strategies, and no less than 0."""
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
    """Under sequence parallelism a degree that was not profiled takes half of the one before."""
    for tp in (2, 4, 8):
        if tp not in table and tp // 2 in table:
            table[tp] = table[tp // 2] / 2


def _named(table: ByDegree) -> dict[str, float]:
    return {str(degree): value for degree, value in table.items()}


class _Block:
    """The raw MiB of one strategy, `pp_tp_dp`, at one sequence length."""

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
        if (count, rank, name) not in self._values:
            field = f"{self._key}.layernum[{count}]_bsz{self._batch}_seq{self._sequence}_rank{rank}_{name}"
            raise self._source.fail(field, "is missing", "give all blocks of one profile")
        return self._values[count, rank, name]

    def _layer(self, name: str) -> float:
        """What one layer adds on rank 0."""
        few, many = self.counts[0], self.counts[-1]
        return (self._value(many, 0, name) - self._value(few, 0, name)) / (many - few)

    @property
    def parameters(self) -> float:
        """A rank's part of a layer's parameters, all dp replicas' shards together."""
        return self._layer("ms") / STATE_COPIES * self.dp

    @property
    def kept(self) -> float:
        """What a layer keeps for each sample of a rank."""
        return self._layer("act") / self.tp * (self.world / self._batch)

    @property
    def _here(self) -> float:
        """Layers of one stage."""
        return self.counts[0] / self.pp

    def rest_states(self, rank: int, parameters: float) -> float:
        """What is beside the layers, whose parameters are split over dp replicas; over all ranks of a stage."""
        layers = self._here * parameters * STATE_COPIES / self.dp
        return (self._value(self.counts[0], rank, "ms") - layers) * (self.world // self.pp)

    def rest_activation(self, rank: int, kept: float) -> float:
        """The peak beyond what layers keep, for each sample of a rank."""
        peak = max(self._value(self.counts[0], rank, name) for name in ("act_peak", "act"))
        return (peak - self._here * kept * self._batch / self.dp) / (self._batch / self.world * self.pp)
