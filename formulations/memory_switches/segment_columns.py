"""All that a layer may do in the synchronised step, as columns: its option, the parts of its neighbours, and what both cost.

A column of layer i is (r_{i-1}, s_i, lazy_{i+1}): r_{i-1} is the part of the layer before, s_i the layer's own option, and
lazy_{i+1} whether the layer after is prefetched lazily (see `segments`, which gives time, peak, delta and resident bytes).
Between two layers stands a state q = (r_i, lazy_{i+1}) that both must agree upon: a column enters in one state and leaves in
another, and a solution is a chain of columns, one for each layer, each entering where the one before leaves. Among columns with
the same two states, one may replace another that needs no less time, peak or delta (their resident bytes are equal), so only
the undominated ones are kept: some 192 of 768 where layers are as in the paper, and as few with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.memory_switches.segments import Segments
from trainplan.formulations.memory_switches.simulation import Booleans
from trainplan.formulations.numbers import Integers

STATES = 16
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Columns:
    """The C columns of one layer; every array is (C,). A column is one option of the layer (a combination of switches), with
    the choices of neighbouring layers on which its cost depends, and its cost. A state is a number from 0 to 15 for the four
    switches at a boundary on which both neighbouring layers depend (offload_hidden, partition and lazy_prefetch of the layer
    before, lazy_prefetch of the layer after). A solution takes one column of every layer, a chain, in which each column enters
    in the state in which the column before leaves.

    Attributes:
        option: the index in `Segments.options`.
        enters, leaves: the state shared with the layer before and with the layer after; 0 if there is no such layer.
        time_ns, peak_bytes, delta_bytes, resident_bytes: time in ns of the layer's forward, backward and optimizer segments,
            peak memory in addition to what other layers hold, bytes kept after the forward pass, and bytes of shards that stay
            for the whole step.
    """

    option: Integers
    enters: Integers
    leaves: Integers
    time_ns: Integers
    peak_bytes: Integers
    delta_bytes: Integers
    resident_bytes: Integers

    def __len__(self) -> int:
        return len(self.option)

    def where(self, which: Booleans) -> Columns:
        """The columns that are marked; the object itself if all are. which: (C,), whether a column is kept."""
        return self if which.all() else Columns(*(values[which] for values in vars(self).values()))


def undominated(chain: Segments, check_time: Callable[[], None] = lambda: None) -> tuple[Columns, ...]:
    """For every layer, in order, its columns without those that can never be better. A column is one option of the layer (a
    combination of memory switches such as offloading or recomputation), together with the switches of the layer before and of
    the layer after on which its cost depends, and its cost. A column is left out if another column of the layer, with the same
    switches of both neighbouring layers, the same effect on their costs and equally large resident shards, needs no more time,
    peak memory and kept bytes. Layers with equal costs get the same Columns object.

    chain: the costs of every layer, for each of its options and each combination of its neighbouring layers' switches.
    check_time: called often; an exception that it raises is passed on."""
    count = len(chain.time_ns)
    distinct: dict[bytes, Columns] = {}
    columns = []
    for i in range(count):
        numbers = (chain.time_ns[i], chain.peak_bytes[i], chain.delta_bytes[i], chain.resident_bytes[i])
        key = bytes([i == 0, i == count - 1]) + b"".join(values.tobytes() for values in numbers)
        if key not in distinct:
            check_time()
            distinct[key] = _of_layer(chain, i, i == 0, i == count - 1)
        columns.append(distinct[key])
    return tuple(columns)


def _of_layer(chain: Segments, i: int, first: bool, last: bool) -> Columns:
    """The columns of layer `i` (each an option, the switches of the layers before and after on which its cost depends, and the
    cost) without those that another column can replace at no more time and memory. chain: the costs of every layer. first,
    last: whether it is the first or the last layer."""
    before, after = 1 if first else 8, 1 if last else 2
    time, peak = chain.time_ns[i, :before, :, :after], chain.peak_bytes[i, :before, :, :after]
    r_before, option, lazy_after = (indices.ravel() for indices in np.indices(time.shape))
    columns = Columns(
        option,
        np.zeros(time.size, np.int64) if first else 2 * r_before + chain.lazy[option],
        np.zeros(time.size, np.int64) if last else 2 * chain.r[option] + lazy_after,
        time.ravel(),
        peak.ravel(),
        chain.delta_bytes[i][option],
        chain.resident_bytes[i][option],
    )
    return columns.where(~_replaceable(columns))


def _replaceable(columns: Columns) -> Booleans:
    """(C,), for the C columns of a layer: True if another column with the same states (`enters`, `leaves`) and resident bytes
    needs no more time, peak and kept bytes; of equal columns all but one are True.
    """
    alike = np.unique(np.stack((columns.enters, columns.leaves, columns.resident_bytes)), axis=1, return_inverse=True)[1]
    alike = alike.reshape(-1)
    order = np.lexsort((columns.delta_bytes, columns.peak_bytes, columns.time_ns, alike))
    replaceable = np.zeros(len(columns), bool)
    for shift in range(1, np.bincount(alike).max(initial=0)):
        faster, slower = order[:-shift], order[shift:]  # or as fast
        replaces = alike[faster] == alike[slower]
        for needed in (columns.peak_bytes, columns.delta_bytes):
            replaces &= needed[faster] <= needed[slower]
        replaceable[slower[replaces]] = True
    return replaceable


def within(chain: Sequence[Columns], memory_bytes: int) -> tuple[Columns, ...]:
    """Remove the columns (options of a layer, each with the choices of its neighbours) that no solution within the memory limit
    has, and those that another column can replace. Returns the remaining columns of every layer, with some peaks raised; if
    nothing fits, all layers are without columns.

    chain: the columns of every layer. memory_bytes: the memory of a device.

    For each column, `_held_by_others` gives the least and the most bytes that the other layers hold during its peak, over all
    solutions that have the column. If least + peak exceeds the memory, the column is removed. If most + peak is less than the
    memory, the column fits in every solution, so its peak is raised to memory - most, which changes no answer: columns that
    differ only in such peaks then have equal peaks, and all but the fastest can be removed. The least time of a solution that
    fits stays the same.
    """
    layers = list(chain)
    while True:
        least, most = _held_by_others(layers)
        fits = [low + columns.peak_bytes <= memory_bytes for low, columns in zip(least, layers, strict=True)]
        if all(which.all() for which in fits):
            break
        layers = [columns.where(which) for columns, which in zip(layers, fits, strict=True)]
    raised = [
        replace(columns, peak_bytes=np.maximum(columns.peak_bytes, memory_bytes - high.astype(np.int64)))
        for columns, high in zip(layers, most, strict=True)
    ]
    return tuple(columns.where(~_replaceable(columns)) for columns in raised)


def _held_by_others(chain: Sequence[Columns]) -> tuple[list[Floats], list[Floats]]:
    """For every layer, two arrays (C,) with a number for each of its C columns: the least and the most bytes that other layers
    hold when the layer is at the column's peak, that is, the bytes kept by earlier layers and the resident bytes of all;
    infinite if no solution has the column. chain: the columns of every layer. Floats are exact here, since no bytes of an
    instance reach 2^53.
    """
    low, high = np.zeros(STATES), np.zeros(STATES)
    before = []
    for columns in chain:
        before.append((low[columns.enters] + columns.resident_bytes, high[columns.enters] + columns.resident_bytes))
        low, high = _extremes(columns.leaves, *(held + columns.delta_bytes for held in before[-1]))
    low, high = np.zeros(STATES), np.zeros(STATES)
    least, most = [], []
    for columns, (low_before, high_before) in zip(reversed(chain), reversed(before), strict=True):
        least.append(low_before + low[columns.leaves])
        most.append(high_before + high[columns.leaves])
        low, high = _extremes(columns.enters, *(held[columns.leaves] + columns.resident_bytes for held in (low, high)))
    return least[::-1], most[::-1]


def _extremes(states: Integers, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
    """Two arrays (STATES,), by state (a number for the switches at a boundary on which both neighbouring layers depend): the
    least of `lows` and the largest of `highs` in this state. For a state without values the least is infinity and the largest
    minus infinity.

    states: for each value, the state to which it belongs.
    """
    low, high = np.full(STATES, np.inf), np.full(STATES, -np.inf)
    np.minimum.at(low, states, lows)
    np.maximum.at(high, states, highs)
    return low, high
