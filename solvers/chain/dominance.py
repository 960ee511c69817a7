"""Pareto filters: of points with several entries, those that no other point equals or beats in all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.chain.chain import Booleans, Indices


def undominated(kind: Integers, first: Integers, entries: Sequence[Integers]) -> Indices:
    """Indices of the points that no other point of their kind beats or equals in `first` and in all entries; of equal points
    one is kept.

    kind, first, and each of the one or more entries: one number for each point.
    """
    order = np.lexsort((*entries, first, kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=-1))
    places = [np.zeros(0, np.intp)]
    for start, end in zip(starts, np.append(starts, len(order))[1:], strict=True):
        group = order[start:end]
        if len(entries) == 1:
            values = entries[0][group]
            places.append(group[values < _least_before(values)])
        else:
            places.append(group[staircase(np.stack([entry[group] for entry in entries]))])
    return np.concatenate(places)


def staircase(entries: Integers, block: int = 256) -> Indices:
    """Indices of the points that no earlier point equals or beats in every entry.

    entries: (entries, points), sorted by time. block: the number of points compared at once.
    """
    left = _unbeaten(entries) if len(entries) == 2 else np.arange(entries.shape[1])
    front, lowest = np.zeros((len(entries), 0), np.int64), [np.zeros(0, np.intp)]
    for start in range(0, len(left), block):
        indices = left[start : start + block]
        indices = indices[~_below(front, entries[:, indices]).any(axis=1)]
        points = entries[:, indices]
        stay = ~np.tril(_below(points, points), -1).any(axis=1)
        lowest.append(indices[stay])
        front = np.concatenate((front, points[:, stay]), axis=1)
        if len(entries) == 2:  # few of the earlier points are lowest themselves, time aside
            front = front[:, np.lexsort(front[::-1])]
            front = front[:, front[1] < _least_before(front[1])]
    return np.concatenate(lowest)


def _unbeaten(entries: Integers) -> Indices:
    """A cheap filter for two entries: drops points that are beaten by the earlier point lowest in the first entry, or in the
    second.

    entries: (2, points). Returns the indices of the points that stay, which may still hold beaten ones.
    """
    indices = np.arange(entries.shape[1])
    for entry, other in ((0, 1), (1, 0)):
        lower = entries[entry] < _least_before(entries[entry])
        lowest = np.maximum.accumulate(np.where(lower, np.arange(len(indices)), 0))
        stay = lower
        stay[1:] |= entries[other, lowest[:-1]] > entries[other, 1:]
        indices, entries = indices[stay], entries[:, stay]
    return indices


def _least_before(values: Integers) -> Integers:
    """For each value, the least of the values before it; the largest integer for the first."""
    return np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], values[:-1])))


def _below(a: Integers, b: Integers) -> Booleans:
    """(points of b, points of a): whether point i of `a` is at most as high as point j of `b` in every entry, at [j, i]."""
    below = a[0] <= b[0][:, None]
    for x, y in zip(a[1:], b[1:], strict=True):
        below &= x <= y[:, None]
    return below
