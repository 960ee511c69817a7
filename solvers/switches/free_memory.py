"""Bytes that are certain to be held in a segment, for every lag of its lanes within the limits.

While layer i's segments run, every layer before it keeps its delta, and resident shards are there all along (as in `segments`).
Beside these, consider a moment `after` ns from the start of the segment's first computation, before that computation ends. A
buffer is certain to be held there where it is allocated at the latest by then, and freed at the earliest after it; both follow
from the lags and from what its lane does in between. The most of a segment is at least the sum of the buffers that are
certain at one moment, for any moment; `CertainBytes` takes the largest of a few.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance
from trainplan.formulations.memory_switches.simulation import Booleans
from trainplan.formulations.plan.switches import SWITCHES, SwitchName

READY, COMMUNICATION, COPY = range(3)  # the moments between segments, see `free_segments`


class CertainBytes:
    """Of all layers at once, (N, ...). switches: (S, 7), of the options; lags: (2 N, L, L), as in `FreeSegments`."""

    def __init__(self, instance: Instance, switches: Booleans, lags: Integers) -> None:
        self.instance, self.switches, self.nvlink = instance, switches, instance.nvlink
        self.forward_lags, self.backward_lags = lags[: instance.layers], lags[: instance.layers - 1 : -1]

    def forward_bytes(self) -> Integers:
        """(N, S, 2), by option and lazy_prefetch of the layer after: beside what earlier layers keep, in the forward segment.

        For all but the layer after is held while the layer computes; its gathered parameters, and its shard before that, are
        there once their lane gets to them, and else no later than when the computation has ended.
        """
        number, on = self._number, self._on
        ckpt, offload, lazy_after = on("ckpt"), on("offload_hidden"), np.array([False, True])
        computing_ns = np.where(ckpt, number("forward_without_graph_ns"), number("forward_ns"))[..., None]
        peak = np.where(ckpt, number("forward_without_graph_peak_bytes"), number("forward_peak_bytes"))
        computing = (number("input_bytes") + number("gathered_parameter_bytes") + peak)[..., None]
        gathered = number("gathered_parameter_bytes", 1)[..., None]
        shard = number("partitioned_parameter_bytes", 1)[..., None] * lazy_after
        prefetch_ns = number("prefetch_parameter_ns", 1)[..., None] * lazy_after
        gather_ns = number("all_gather_ns", 1)[..., None]
        offload_first_ns = (number("offload_hidden_ns") * (offload & on("eco_forward")))[..., None]
        # When the shard's copy and the all-gather begin at the latest, and when the shard is freed at the earliest.
        latest_copy = self._lag(self.forward_lags, COPY if self.nvlink else COMMUNICATION, READY)[..., None] + offload_first_ns
        if self.nvlink:
            late_lane = self._lag(self.forward_lags, COMMUNICATION, READY)[..., None]
            latest_gather = np.maximum(late_lane, np.where(lazy_after, latest_copy + prefetch_ns, 0))
            earliest_free = gather_ns
        else:
            latest_gather = latest_copy + prefetch_ns
            earliest_free = offload_first_ns + prefetch_ns + gather_ns
        most = np.zeros(np.broadcast_shapes(computing.shape, shard.shape), np.int64)
        for after in (0, latest_copy, latest_gather):
            size = computing + gathered * (latest_gather <= after)
            size = size + shard * ((latest_copy <= after) & (after < earliest_free))
            most = np.maximum(most, size * (after < computing_ns))
        # When the all-gather begins, at the latest: this layer's parameters stay until it has ended.
        left = number("output_bytes") + number("graph_bytes") * ~ckpt + number("gathered_parameter_bytes")
        left = (left + number("input_bytes") * (~offload | (not self.nvlink)))[..., None] + gathered + shard
        return np.maximum(most, left * ((computing_ns > 0) & (gather_ns > 0)))

    def backward_bytes(self) -> Integers:
        """(N, 8, S), by r of the layer before and option: beside what earlier layers keep, in the backward segment.

        For all of the layer is held while it computes; the whole gradient of the layer after until it is scattered, its shard
        from then on until it is offloaded; and what the layer before needs once its lane gets to it.
        """
        on, r = self._on, np.arange(8)[:, None]

        def number(name: str, beside: int = 0) -> Integers:
            return self._number(name, beside)[..., None]

        def lag(a: int, b: int) -> Integers:
            return self._lag(self.backward_lags, a, b)[..., None]

        offload_before, partition_before, lazy_before = (r & 4) > 0, (r & 2) > 0, (r & 1) > 0
        ckpt, eco, offload = on("ckpt"), on("eco_backward"), on("offload_hidden")
        recompute_ns = number("forward_ns") * ckpt
        computing_ns = recompute_ns + number("backward_ns")
        # The lane of communication is free no sooner than ready, but for a copy of hidden states; and no later, where it
        # gathered this layer's parameters last.
        early = lag(READY, COMMUNICATION) * (offload & self.nvlink)
        late = lag(COMMUNICATION, READY) * ~(~offload & on("partition") & self.nvlink)
        scatter_ns, offload_gradient_ns = number("reduce_scatter_ns", 1), number("offload_gradient_ns", 1)
        earliest_scattered = scatter_ns - early
        prefetch_ns = number("prefetch_parameter_ns", -1) * (lazy_before & partition_before)
        if self.nvlink:
            copied = lag(COPY, READY) + prefetch_ns
            offloaded = np.maximum(np.maximum(copied, recompute_ns), late + scatter_ns) + offload_gradient_ns
            latest_hidden = np.where(eco, offloaded, copied)
            latest_gather = np.maximum(np.maximum(late + scatter_ns, np.where(lazy_before, copied, 0)), recompute_ns * eco)
            earliest_offloaded = np.maximum(earliest_scattered, recompute_ns * eco) + offload_gradient_ns
        else:
            latest_hidden = np.maximum(late + scatter_ns + offload_gradient_ns, recompute_ns * eco)
            latest_gather = latest_hidden + number("prefetch_hidden_ns", -1) * offload_before + prefetch_ns
            earliest_offloaded = earliest_scattered + offload_gradient_ns
        stays = number("input_bytes") + number("gathered_parameter_bytes") + number("output_bytes")
        computing = stays + number("graph_bytes") + number("backward_peak_bytes") + number("gathered_gradient_bytes")
        whole, part = number("gathered_gradient_bytes", 1), number("partitioned_gradient_bytes", 1)
        gathered = number("gathered_parameter_bytes", -1) * partition_before
        hidden = number("input_bytes", -1) * offload_before
        most = np.zeros(np.broadcast_shapes(computing.shape, gathered.shape), np.int64)
        for after in (0, recompute_ns, latest_gather, latest_hidden, np.maximum(latest_gather, latest_hidden)):
            size = np.where(after < recompute_ns, stays + number("forward_peak_bytes"), computing)
            gradient = whole * (earliest_scattered > after) + part * ((late <= after) & (after < earliest_offloaded))
            either = np.minimum(whole, part) * (earliest_scattered + offload_gradient_ns > after)
            size = size + np.maximum(gradient, either)
            size = size + gathered * (latest_gather <= after) + hidden * (latest_hidden <= after)
            most = np.maximum(most, size * (after < computing_ns))
        # When the all-gather begins, at the latest: this layer's parameters and gradient stay until it has ended.
        left = number("input_bytes") + number("gathered_gradient_bytes") + number("gathered_parameter_bytes") + gathered
        there = partition_before & (number("backward_ns") > 0) & (number("all_gather_ns", -1) > 0)
        return np.maximum(most, left * there)

    def _on(self, name: SwitchName) -> Booleans:
        column: Booleans = self.switches[:, SWITCHES.index(name)]
        return column

    def _number(self, name: str, beside: int = 0) -> Integers:
        """(N, 1), of every layer, or of the one after (1) or before (-1) it; 0 where there is none."""
        column = self.instance[name]
        before, after = max(0, -beside), max(0, beside)
        return np.pad(column, (before, after))[after : len(column) + after][:, None]

    def _lag(self, lags: Integers, a: int, b: int) -> Integers:
        """(N, 1): the most by which moment a is after moment b."""
        return lags[:, a, b][:, None]
