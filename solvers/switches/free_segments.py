"""What is certain of a segment's time and memory where segments need not be synchronised, whatever came before it.

Moments. Between segments the step is known by the moments x = (ready, communication, copy): when the next computation may
start, its layer's parameters and hidden states being there, and when the lanes are free, which is not before the computation
of the segment before has ended. (Without NVLink the copies' lane is the other one, and there are two moments.) A segment takes
maxima of moments and adds durations, so that x'_b = max_a (x_a + path_ab), with path_ab the longest path from a to b in it.
Paths come from the simulator itself, which runs each segment with one moment far after all others. Synchronisation adds paths
and takes none away: what is bounded from below here holds with it too, and options without it stand for those with it.

Lags. Of a pair of moments, lag_ab >= x_a - x_b, over all choices, follows from segment to segment: with any c and d,

    x'_a - x'_b  =  max_c (x_c + path_ca) - max_d (x_d + path_db)  <=  max_c min_d (path_ca - path_db + lag_cd)

and, since x_c >= x_a - lag_ac, path_ab may be raised to any path_cb - lag_ac, which holds where there is no path. Where lanes
are synchronised there are no lags; they grow anew from there, also from within the segments of the head and of the turn.

Memory. While layer i's segments run, every layer before it keeps its delta, and resident shards are there all along. Beside
these, at a moment `after` ns from the start of the segment's first computation, a buffer is certain to be held where it is held
for every lag within the limits. Of all moments looked at, `peak_bytes` is the largest sum of such buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix
from trainplan.formulations.memory_switches.segments import NEIGHBOURS, SHARED
from trainplan.formulations.memory_switches.simulation import Booleans, Step
from trainplan.formulations.memory_switches.switches import SWITCHES, Switches, SwitchName, combinations

READY, COMMUNICATION, COPY = range(3)
FAR = 2**60  # after every moment of a step
NEVER = -(2**56)  # of a path that does not exist; below all that is added up


@dataclass(frozen=True, eq=False)
class FreeSegments:
    """Of every layer, by r of the layer before (8), the option (S) and lazy_prefetch of the layer after (2), as in `Segments`.

    forward_ns: (N, L, L, S, 2), backward_ns: (N, L, L, 8, S), the paths between L moments, turn and tail included; lags as far
    as they raise them. Those of the first forward segment are equal from all moments, those of the last backward one to all.
    lag_ns: (2 N, L, L), at the beginning of every segment. peak_bytes: (N, 8, S, 2); delta_bytes, resident_bytes: (N, S).
    """

    options: tuple[Switches, ...]
    forward_ns: Integers
    backward_ns: Integers
    lag_ns: Integers
    peak_bytes: Integers
    delta_bytes: Integers
    resident_bytes: Integers
    r: Integers
    lazy: Integers


def different(options: Iterable[Switches]) -> tuple[Switches, ...]:
    """Options that are not the same in effect: economical forward is an order of two copies, one of them an offload."""
    return tuple(switches for switches in options if switches.offload_hidden or not switches.eco_forward)


def free_segments(instance: Instance) -> FreeSegments:
    """What is certain of the segments of any choice, all synchronisation left out."""
    options = different(s for s in combinations(False, instance.offload_needs_ckpt) if not s.segment_sync)
    on = matrix([Solution(options)])[0]
    forward, backward, lags = _with_lags(instance, on)
    layers = _Layers(instance, on, lags)
    peak = np.maximum(layers.forward_bytes()[:, None], layers.backward_bytes()[..., None])
    kept = {name: ~layers.on(name) for name in SWITCHES}
    delta = layers.number("input_bytes") * kept["offload_hidden"] + layers.number("graph_bytes") * kept["ckpt"]
    delta = delta + layers.number("gathered_parameter_bytes") * kept["partition"]
    resident = layers.number("partitioned_parameter_bytes") * kept["lazy_prefetch"]
    shared = [layers.on(name).astype(np.int64) for name in SHARED]
    r = 4 * shared[0] + 2 * shared[1] + shared[2]
    return FreeSegments(options, forward, backward, lags, peak, delta, resident, r, shared[2])


# Moments


def _paths(instance: Instance, on: Booleans) -> tuple[Integers, Integers]:
    """Longest paths of all segments, as in `FreeSegments`, before lags; equal layers beside equal ones share theirs."""
    moments, last, choices = 3 if instance.nvlink else 2, instance.layers - 1, len(on)
    ahead, back = _switches(on)
    known: dict[bytes, tuple[Integers, ...]] = {}
    forward = np.empty((instance.layers, moments, moments, choices, 2), np.int64)
    backward = np.empty((instance.layers, moments, moments, 8, choices), np.int64)
    for i in range(instance.layers):
        rows = slice(max(i - 1, 0), i + 2)
        key = bytes([i == 0, i == last]) + b"".join(column[rows].tobytes() for column in instance.columns.values())
        if key not in known:
            known[key] = tuple(_of_segment(instance, i, beside, moments, beside is ahead) for beside in (ahead, back))
        forward[i], backward[i] = known[key][0].reshape(forward[i].shape), known[key][1].reshape(backward[i].shape)
    return forward, backward


def _synchronised_paths(instance: Instance, on: Booleans) -> dict[int, Integers]:
    """Of forward segments that synchronise within (after the head, before the turn): paths with that, for it adds to lags.
    Elsewhere a synchronisation is at the beginning of a segment, and leaves no lags there."""
    ahead = _switches(on | (np.array(SWITCHES) == "segment_sync"))[0]
    moments = 3 if instance.nvlink else 2
    return {i: _of_segment(instance, i, ahead, moments, True) for i in (0, instance.layers - 1)}


def _switches(on: Booleans) -> tuple[list[Booleans], list[Booleans]]:
    """Of the layer before, the layer and the one after: of forward segments, by option and lazy_prefetch of the one after; of
    backward segments, by r of the one before and option."""
    beside = matrix([Solution(NEIGHBOURS)])[0]
    beside[:, SWITCHES.index("segment_sync")] = False
    ahead = [np.tile(beside[:1], (2 * len(on), 1)), np.repeat(on, 2, axis=0), np.tile(beside[:2], (len(on), 1))]
    back = [np.repeat(beside, len(on), axis=0), np.tile(on, (8, 1)), np.tile(beside[:1], (8 * len(on), 1))]
    return ahead, back


def _of_segment(instance: Instance, i: int, switches: list[Booleans], moments: int, forward: bool) -> Integers:
    """(moments, moments, choices): longest paths of one segment of layer i, with the switches of it and of its neighbours."""
    place, first, last = int(i > 0), i == 0, i == instance.layers - 1
    rows = slice(max(i - 1, 0), i + 2)
    given = np.stack(switches[first : 2 if last else 3], axis=1)
    columns = {name: column[rows] for name, column in instance.columns.items()}
    found = np.full((moments, moments, len(given)), NEVER)
    for a in range(moments):
        step = Step(columns, instance.nvlink, given)
        if forward and first:
            step.head()
        else:
            _put_off(step, place, a)
        if forward:
            step.forward(place)
            if last:
                step.turn()
        else:
            step.backward(place)
            if first:
                step.tail()
        following = place + (not last if forward else -(not first))
        reached = _moments(step, following)[:moments]
        if first and not forward:
            reached = np.broadcast_to(reached.max(axis=0), reached.shape)
        found[a] = reached if forward and first else np.where(reached >= FAR, reached - FAR, NEVER)
    return found


def _put_off(step: Step, i: int, moment: int) -> None:
    """One moment at the beginning of layer i's segment is far after all others."""
    far = np.full(step.count, FAR)
    if moment == READY:
        step.gathered[i] = far
    else:
        step.clocks["communication" if moment == COMMUNICATION else "copy"] = far


def _moments(step: Step, i: int) -> Integers:
    """(3, K), at the beginning of the next segment, which is of layer i."""
    done = step.clocks["compute"]
    ready = np.maximum(step.gathered[i], step.hidden[i])
    return np.maximum(done, np.stack([ready, step.clocks["communication"], step.clocks["copy"]]))


def _with_lags(instance: Instance, on: Booleans) -> tuple[Integers, Integers, Integers]:
    """Forward and backward paths raised, and the lags at the beginning of all 2 N segments."""
    forward, backward = _paths(instance, on)
    within = _synchronised_paths(instance, on)
    moments = forward.shape[1]
    none = lag = np.zeros((moments, moments), np.int64)  # the step begins with all moments at 0
    lags = []
    for number, paths in enumerate((*forward, *backward[::-1])):
        lags.append(lag)
        own = paths.reshape(moments, moments, -1)
        raised, lag = _raised(own, lag)
        own[:] = raised
        if number in within:
            lag = np.maximum(lag, _raised(within[number], none)[1])
    return forward, backward, np.stack(lags)


def _raised(paths: Integers, lag: Integers) -> tuple[Integers, Integers]:
    """Paths (L, L, choices) of a segment raised by the lags at its beginning, and the lags at its end."""
    raised = np.max(paths[None] - lag[:, :, None, None], axis=1)  # [a, c, b] over c; lag_aa is 0
    over = paths[:, :, None, None] - raised[None, None] + lag[:, None, :, None, None]  # [c, a, d, b]
    following = np.maximum(0, over.min(axis=2).max(axis=0).max(axis=-1))
    np.fill_diagonal(following, 0)
    return raised, following


# Memory


class _Layers:
    """Bytes that are certain in the segments of all layers at once, (N, ...)."""

    def __init__(self, instance: Instance, on: Booleans, lags: Integers) -> None:
        self.instance, self.switches, self.nvlink = instance, on, instance.nvlink
        self.forward_lags, self.backward_lags = lags[: instance.layers], lags[: instance.layers - 1 : -1]

    def on(self, name: SwitchName) -> Booleans:
        found: Booleans = self.switches[:, SWITCHES.index(name)]
        return found

    def number(self, name: str, beside: int = 0) -> Integers:
        """(N, 1), of every layer, or of the one after (1) or before (-1) it; 0 where there is none."""
        column = self.instance[name]
        return np.concatenate((np.zeros(max(0, -beside), np.int64), column, np.zeros(max(0, beside), np.int64)))[
            max(0, beside) : len(column) + max(0, beside)
        ][:, None]

    def lag(self, lags: Integers, a: int, b: int) -> Integers:
        """(N, 1): the most by which moment a is after moment b."""
        return lags[:, a, b][:, None]

    def forward_bytes(self) -> Integers:
        """(N, S, 2): beside what earlier layers keep. The gathered parameters of the layer after, and its shard before that,
        are there once their lane gets to them; else no later than when this layer's computation has ended."""
        number, on, lag, lags = self.number, self.on, self.lag, self.forward_lags
        ckpt, offload, lazy_after = on("ckpt"), on("offload_hidden"), np.array([False, True])
        takes = np.where(ckpt, number("forward_without_graph_ns"), number("forward_ns"))[..., None]
        peak = np.where(ckpt, number("forward_without_graph_peak_bytes"), number("forward_peak_bytes"))
        own = (number("input_bytes") + number("gathered_parameter_bytes") + peak)[..., None]
        gathered = number("gathered_parameter_bytes", 1)[..., None]
        shard = number("partitioned_parameter_bytes", 1)[..., None] * lazy_after
        prefetch = number("prefetch_parameter_ns", 1)[..., None] * lazy_after
        gather = number("all_gather_ns", 1)[..., None]
        behind = (number("offload_hidden_ns") * (offload & on("eco_forward")))[..., None]
        copy_late = lag(lags, COPY if self.nvlink else COMMUNICATION, READY)[..., None] + behind
        if self.nvlink:
            late = np.maximum(lag(lags, COMMUNICATION, READY)[..., None], np.where(lazy_after, copy_late + prefetch, 0))
            there = gather
        else:
            late, there = copy_late + prefetch, behind + prefetch + gather
        found = np.zeros(np.broadcast_shapes(own.shape, shard.shape), np.int64)
        for after in (0, copy_late, late):
            held = own + gathered * (late <= after) + shard * ((copy_late <= after) & (after < there))
            found = np.maximum(found, held * (after < takes))
        # When the all-gather begins, at the latest: this layer's parameters stay until it has ended.
        left = number("output_bytes") + number("graph_bytes") * ~ckpt + number("gathered_parameter_bytes")
        left = (left + number("input_bytes") * (~offload | (not self.nvlink)))[..., None] + gathered + shard
        return np.maximum(found, left * ((takes > 0) & (gather > 0)))

    def backward_bytes(self) -> Integers:
        """(N, 8, S): beside what earlier layers keep. The whole gradient of the layer after is there until it is scattered,
        its shard from then on until it is offloaded; what the layer before needs once its lane gets to it."""
        lags, on, r = self.backward_lags, self.on, np.arange(8)[:, None]

        def number(name: str, beside: int = 0) -> Integers:
            return self.number(name, beside)[..., None]

        def lag(a: int, b: int) -> Integers:
            return self.lag(lags, a, b)[..., None]

        offload_before, partition_before, lazy_before = (r & 4) > 0, (r & 2) > 0, (r & 1) > 0
        ckpt, eco, offload = on("ckpt"), on("eco_backward"), on("offload_hidden")
        wait = number("forward_ns") * ckpt
        takes = wait + number("backward_ns")
        # The lane of communication is free no sooner than ready, but for a copy of hidden states; and no later, where it
        # gathered this layer's parameters last.
        early = lag(READY, COMMUNICATION) * (offload & self.nvlink)
        late = lag(COMMUNICATION, READY) * ~(~offload & on("partition") & self.nvlink)
        scatter, offload_gradient = number("reduce_scatter_ns", 1), number("offload_gradient_ns", 1)
        scattered = scatter - early
        prefetch = number("prefetch_parameter_ns", -1) * (lazy_before & partition_before)
        if self.nvlink:
            copied = lag(COPY, READY) + prefetch
            late_hidden = np.where(eco, np.maximum(np.maximum(copied, wait), late + scatter) + offload_gradient, copied)
            late_gather = np.maximum(np.maximum(late + scatter, np.where(lazy_before, copied, 0)), wait * eco)
            offloaded = np.maximum(scattered, wait * eco) + offload_gradient
        else:
            late_hidden = np.maximum(late + scatter + offload_gradient, wait * eco)
            late_gather = late_hidden + number("prefetch_hidden_ns", -1) * offload_before + prefetch
            offloaded = scattered + offload_gradient
        own = number("input_bytes") + number("gathered_parameter_bytes") + number("output_bytes")
        computing = own + number("graph_bytes") + number("backward_peak_bytes") + number("gathered_gradient_bytes")
        whole, part = number("gathered_gradient_bytes", 1), number("partitioned_gradient_bytes", 1)
        gathered = number("gathered_parameter_bytes", -1) * partition_before
        hidden = number("input_bytes", -1) * offload_before
        found = np.zeros(np.broadcast_shapes(computing.shape, gathered.shape), np.int64)
        for after in (0, wait, late_gather, late_hidden, np.maximum(late_gather, late_hidden)):
            held = np.where(after < wait, own + number("forward_peak_bytes"), computing)
            gradient = whole * (scattered > after) + part * ((late <= after) & (after < offloaded))
            either = np.minimum(whole, part) * (scattered + offload_gradient > after)
            held = held + np.maximum(gradient, either) + gathered * (late_gather <= after) + hidden * (late_hidden <= after)
            found = np.maximum(found, held * (after < takes))
        # When the all-gather begins, at the latest: this layer's parameters and gradient stay until it has ended.
        left = number("input_bytes") + number("gathered_gradient_bytes") + number("gathered_parameter_bytes") + gathered
        there = partition_before & (number("backward_ns") > 0) & (number("all_gather_ns", -1) > 0)
        return np.maximum(found, left * there)
