"""What a layer may do in the synchronised step, as columns: its option, the part of its neighbours, and what both cost.

A column of layer i is (r_{i-1}, s_i, lazy_{i+1}), for which `segments` gives time, peak, delta and resident bytes. Between two
layers stands a state q = (r_i, lazy_{i+1}) that both must agree upon: a column enters in one state and leaves in another, and
a solution is a chain of columns, one of each layer, each entering where the one before left. Of columns with the same two
states one may take the place of another that needs no less time, peak or delta (their resident bytes are equal), so that
only the undominated ones are given: some 192 of 768 where layers are as in the paper, and as few with noise.
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
    """The columns of one layer; arrays are of equal length.

    option: place in `Segments.options`; enters, leaves: state before and after, 2 r + lazy, or 0 where there is no neighbour;
    the others as in `Segments`.
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
        """The columns that are marked; the same object where all are."""
        return self if which.all() else Columns(*(values[which] for values in vars(self).values()))


def undominated(chain: Segments, check_time: Callable[[], None] = lambda: None) -> tuple[Columns, ...]:
    """Of every layer, the columns that no other can replace; equal layers share theirs. check_time: called often; what it
    raises is passed on."""
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
    before, after = 1 if first else 8, 1 if last else 2
    time, peak = chain.time_ns[i, :before, :, :after], chain.peak_bytes[i, :before, :, :after]
    r_before, option, lazy_after = (places.ravel() for places in np.indices(time.shape))
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
    """Columns that another one with the same states can replace; of equals all but one."""
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
    """The columns of every layer with which something may fit into the memory, as a constraint sees them best.

    What the other layers keep is at least, and at most, what a chain through a column's states can: where even the least does
    not fit the column goes; where even the most fits its peak binds nothing, and is raised until it just fits, so that columns
    replace each other that differ in such peaks alone. No solution that fits is lost, none is gained; where nothing fits, a
    layer may be left without columns, and then all are.
    """
    layers = list(chain)
    while True:
        least, most = _beside(layers)
        fits = [low + columns.peak_bytes <= memory_bytes for low, columns in zip(least, layers, strict=True)]
        if all(which.all() for which in fits):
            break
        layers = [columns.where(which) for columns, which in zip(layers, fits, strict=True)]
    raised = [
        replace(columns, peak_bytes=np.maximum(columns.peak_bytes, memory_bytes - high.astype(np.int64)))
        for columns, high in zip(layers, most, strict=True)
    ]
    return tuple(columns.where(~_replaceable(columns)) for columns in raised)


def _beside(chain: Sequence[Columns]) -> tuple[list[Floats], list[Floats]]:
    """Least and most bytes that count beside each column's peak: deltas of earlier layers and resident ones of all; infinite
    where no chain goes through the column. Floats are exact here, since no bytes of an instance reach 2^53."""
    low, high = np.zeros(STATES), np.zeros(STATES)
    before = []
    for columns in chain:
        before.append((low[columns.enters] + columns.resident_bytes, high[columns.enters] + columns.resident_bytes))
        low, high = _extremes(columns.leaves, *(beside + columns.delta_bytes for beside in before[-1]))
    low, high = np.zeros(STATES), np.zeros(STATES)
    least, most = [], []
    for columns, (low_before, high_before) in zip(reversed(chain), reversed(before), strict=True):
        least.append(low_before + low[columns.leaves])
        most.append(high_before + high[columns.leaves])
        low, high = _extremes(columns.enters, *(beside[columns.leaves] + columns.resident_bytes for beside in (low, high)))
    return least[::-1], most[::-1]


def _extremes(states: Integers, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
    """Of each state the least of some values and the most of others; infinite, either way, where there are none."""
    low, high = np.full(STATES, np.inf), np.full(STATES, -np.inf)
    np.minimum.at(low, states, lows)
    np.maximum.at(high, states, highs)
    return low, high
