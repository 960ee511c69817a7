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
    """The C columns of one layer; every array is (C,).

    Attributes:
        option: index in `Segments.options`.
        enters, leaves: the state before and after, as the number 2 r + lazy; 0 where there is no neighbour.
        time_ns, peak_bytes, delta_bytes, resident_bytes: as in `Segments`.
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
        """Only the columns that are marked; the same object where all are."""
        return self if which.all() else Columns(*(values[which] for values in vars(self).values()))


def undominated(chain: Segments, check_time: Callable[[], None] = lambda: None) -> tuple[Columns, ...]:
    """For every layer, the columns that no other can replace; equal layers share theirs.

    check_time: called often; an exception that it raises is passed on.
    """
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
    """The undominated columns of layer i. first, last: whether it is the first or the last layer."""
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
    """(C,): whether another column with the same states can replace a column; of equal columns all but one are marked."""
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
    """The columns of every layer with which some solution may fit into the memory, with peaks as a constraint needs them.

    The other layers hold at least, and at most, what a chain through a column's states can hold: where even the least does not
    fit, the column is dropped; where even the most fits, its peak is no restriction and is raised until it just fits, so that
    columns that differ only in such peaks replace each other. No solution that fits is lost, none is gained; where nothing
    fits, a layer may end up without columns, and then all do.
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
    """For every layer and column the least and the most bytes that other layers hold at its peak: deltas of earlier layers and
    resident bytes of all layers; infinite where no chain goes through the column. Floats are exact here, since no bytes of an
    instance reach 2^53."""
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
    """(STATES,) twice: for each state the least of some values and the most of others; infinite, either way, where there are
    none."""
    low, high = np.full(STATES, np.inf), np.full(STATES, -np.inf)
    np.minimum.at(low, states, lows)
    np.maximum.at(high, states, highs)
    return low, high
