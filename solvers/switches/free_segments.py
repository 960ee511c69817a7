"""What is certain of a segment's time and memory where segments need not be synchronised, whatever came before it.

Moments. Between segments the step is known by the moments x = (ready, communication, copy): when the next computation may
start, its layer's parameters and hidden states being there, and when the lanes are free, which is not before the computation
of the segment before has ended. (Without NVLink the copies' lane is the other one, and there are two moments.) A segment takes
maxima of moments and adds durations, so that

    x'_b  =  max_a (x_a + path_ab)

with path_ab the longest path from a to b in it. Paths come from the simulator itself, which runs each segment with one moment
far after all others. Synchronisation adds paths and takes none away: what is bounded from below here holds with it too, and
options without it stand for those with it.

Lags. The lag of a pair of moments is a number lag_ab >= x_a - x_b, over all choices. It follows from segment to segment, and
raises paths (see `_raised`). Where lanes are synchronised there are no lags; they grow anew from there, also from within the
segments of the head and of the turn.

Memory is that of `free_memory`, within these lags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix
from trainplan.formulations.memory_switches.segment_columns import Columns, undominated
from trainplan.formulations.memory_switches.segments import NEIGHBOURS, Segments, alike_layers, kept_bytes, shared_switches
from trainplan.formulations.memory_switches.simulation import Booleans, SimulatedStep
from trainplan.formulations.plan.switches import SWITCHES, Switches, combinations
from trainplan.solvers.switches.free_memory import COMMUNICATION, READY, CertainBytes

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

    def columns(self, time_ns: Integers, check_time: Callable[[], None] = lambda: None) -> tuple[Columns, ...]:
        """The undominated columns of every layer that take these times, (N, 8, S, 2), as in `Segments`. check_time: called
        often; what it raises is passed on."""
        numbers = (self.peak_bytes, self.delta_bytes, self.resident_bytes, self.r, self.lazy)
        return undominated(Segments(self.options, time_ns, *numbers), check_time)


def different(options: Iterable[Switches]) -> tuple[Switches, ...]:
    """Options that are not the same in effect: economical forward is an order of two copies, one of them an offload."""
    return tuple(switches for switches in options if switches.offload_hidden or not switches.eco_forward)


def free_segments(instance: Instance, check_time: Callable[[], None] = lambda: None) -> FreeSegments:
    """What is certain of the segments of any choice, all synchronisation left out. check_time: called often; what it raises is
    passed on."""
    options = different(s for s in combinations(False, instance.offload_needs_ckpt) if not s.segment_sync)
    on = matrix([Solution(options)])[0]
    forward, backward, lags = _with_lags(instance, on, check_time)
    check_time()
    certain = CertainBytes(instance, on, lags)
    peak = np.maximum(certain.forward_bytes()[:, None], certain.backward_bytes()[..., None])
    return FreeSegments(options, forward, backward, lags, peak, *kept_bytes(instance, on), *shared_switches(on))


def _paths(instance: Instance, on: Booleans, alike: Integers, check_time: Callable[[], None]) -> tuple[Integers, Integers]:
    """Longest paths of all segments, as in `FreeSegments`, before lags. alike: as of `alike_layers`; these share theirs."""
    moments, choices = 3 if instance.nvlink else 2, len(on)
    ahead, back = _neighbourhoods(on)
    forward = np.empty((instance.layers, moments, moments, choices, 2), np.int64)
    backward = np.empty((instance.layers, moments, moments, 8, choices), np.int64)
    for i in np.unique(alike).tolist():
        check_time()
        forward[i] = _of_segment(instance, i, ahead, moments, True).reshape(forward[i].shape)
        backward[i] = _of_segment(instance, i, back, moments, False).reshape(backward[i].shape)
    return forward[alike], backward[alike]


def _synchronised_paths(instance: Instance, on: Booleans) -> dict[int, Integers]:
    """Of forward segments that synchronise within (after the head, before the turn): paths with that, for it adds to lags.
    Elsewhere a synchronisation is at the beginning of a segment, and leaves no lags there."""
    ahead = _neighbourhoods(on | (np.array(SWITCHES) == "segment_sync"))[0]
    moments = 3 if instance.nvlink else 2
    return {i: _of_segment(instance, i, ahead, moments, True) for i in (0, instance.layers - 1)}


def _neighbourhoods(on: Booleans) -> tuple[list[Booleans], list[Booleans]]:
    """Switches of the layer before, the layer and the one after: of forward segments, by option and lazy_prefetch of the one
    after; of backward segments, by r of the one before and option."""
    beside = matrix([Solution(NEIGHBOURS)])[0]
    beside[:, SWITCHES.index("segment_sync")] = False
    ahead = [np.tile(beside[:1], (2 * len(on), 1)), np.repeat(on, 2, axis=0), np.tile(beside[:2], (len(on), 1))]
    back = [np.repeat(beside, len(on), axis=0), np.tile(on, (8, 1)), np.tile(beside[:1], (8 * len(on), 1))]
    return ahead, back


def _of_segment(instance: Instance, i: int, switches: list[Booleans], moments: int, forward: bool) -> Integers:
    """(moments, moments, choices): longest paths of one segment of layer i, with the switches of it and of its neighbours."""
    place, first, last = int(i > 0), i == 0, i == instance.layers - 1
    rows = slice(max(i - 1, 0), i + 2)
    choices = np.stack(switches[first : 2 if last else 3], axis=1)
    columns = {name: column[rows] for name, column in instance.columns.items()}
    paths = np.full((moments, moments, len(choices)), NEVER)
    for a in range(moments):
        step = SimulatedStep(columns, instance.nvlink, choices)
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
        paths[a] = reached if forward and first else np.where(reached >= FAR, reached - FAR, NEVER)
    return paths


def _put_off(step: SimulatedStep, i: int, moment: int) -> None:
    """One moment at the beginning of layer i's segment is far after all others."""
    far = np.full(step.count, FAR)
    if moment == READY:
        step.gathered[i] = far
    else:
        step.clocks["communication" if moment == COMMUNICATION else "copy"] = far


def _moments(step: SimulatedStep, i: int) -> Integers:
    """(3, K), at the beginning of the next segment, which is of layer i."""
    ready = np.maximum(step.gathered[i], step.hidden[i])
    return np.maximum(step.clocks["compute"], np.stack([ready, step.clocks["communication"], step.clocks["copy"]]))


def _with_lags(instance: Instance, on: Booleans, check_time: Callable[[], None]) -> tuple[Integers, Integers, Integers]:
    """Forward and backward paths raised, and the lags at the beginning of all 2 N segments."""
    alike = alike_layers(instance)
    forward, backward = _paths(instance, on, alike, check_time)
    within = _synchronised_paths(instance, on)
    moments = forward.shape[1]
    none = lag = np.zeros((moments, moments), np.int64)  # the step begins with all moments at 0
    lags = []
    raised: dict[tuple[int, bool, bytes], tuple[Integers, Integers]] = {}  # by layer, pass and lag before
    for number, of_layer in enumerate((*forward, *backward[::-1])):
        lags.append(lag)
        paths, ahead = of_layer.reshape(moments, moments, -1), number < instance.layers
        key = (int(alike[number if ahead else 2 * instance.layers - 1 - number]), ahead, lag.tobytes())
        if key not in raised:
            check_time()
            raised[key] = _raised(paths, lag)
        paths[:], lag = raised[key]
        if number in within:
            lag = np.maximum(lag, _raised(within[number], none)[1])
    return forward, backward, np.stack(lags)


def _raised(paths: Integers, lag: Integers) -> tuple[Integers, Integers]:
    """Paths (L, L, choices) of a segment raised by the lags at its beginning, and the lags at its end.

    For x_c >= x_a - lag_ac, so that path_ab may be raised to path_cb - lag_ac, which holds where there is no path; and, with
    any c and d, x'_a - x'_b = max_c (x_c + path_ca) - max_d (x_d + path_db) <= max_c min_d (path_ca - path_db + lag_cd).
    """
    raised = np.max(paths[None] - lag[:, :, None, None], axis=1)  # [a, c, b] over c; lag_aa is 0
    over = paths[:, :, None, None] - raised[None, None] + lag[:, None, :, None, None]  # [c, a, d, b]
    following = np.maximum(0, over.min(axis=2).max(axis=0).max(axis=-1))
    np.fill_diagonal(following, 0)
    return raised, following
