"""Pareto filters: of points with several entries, keep those that no other point equals or beats in all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.solvers.chain.chain import Booleans, Indices


def undominated(kind: Integers, first: Integers, entries: Sequence[Integers]) -> Indices:
    """Pareto filter within groups: the indices of the points for which no other point of the same kind is at most as high in
    `first` and in all entries; of equal points one is kept.

    kind: (points,), the group of each point. first, and each vector in `entries` (one or more): (points,), a number of each
    point; smaller is better."""
    order = np.lexsort((*entries, first, kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=-1))
    kept = [np.zeros(0, np.intp)]
    for start, end in zip(starts, np.append(starts, len(order))[1:], strict=True):
        group = order[start:end]
        if len(entries) == 1:
            values = entries[0][group]
            kept.append(group[values < _least_before(values)])
        else:
            kept.append(group[staircase(np.stack([entry[group] for entry in entries]))])
    return np.concatenate(kept)


def staircase(entries: Integers, block: int = 256) -> Indices:
    """Pareto filter for points sorted by time: the indices of the points for which no earlier point is at most as high in every
    entry.

    entries: (entries, points), entry [:, j] being the numbers of point j; smaller is better. block: the number of points
    compared at once, which affects speed only.
    """
    remaining = _unbeaten(entries) if len(entries) == 2 else np.arange(entries.shape[1])
    front, lowest = np.zeros((len(entries), 0), np.int64), [np.zeros(0, np.intp)]
    for start in range(0, len(remaining), block):
        indices = remaining[start : start + block]
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
    """A cheap first Pareto filter for points with two entries, sorted by time: drops points that are beaten by the earlier
    point that is lowest in the first entry, or in the second. Smaller is better.

    entries: (2, points). Returns the indices of the points that stay, which may still contain beaten ones.
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
    """For each value of a vector, the least of the values before it; the largest 64-bit integer for the first. [3, 1, 2] ->
    [max, 3, 1]."""
    return np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], values[:-1])))


def _below(a: Integers, b: Integers) -> Booleans:
    """Compare two sets of points: an array (points of b, points of a), True at [j, i] if point i of `a` is at most as high as
    point j of `b` in every entry. a, b: (entries, points)."""
    below = a[0] <= b[0][:, None]
    for x, y in zip(a[1:], b[1:], strict=True):
        below &= x <= y[:, None]
    return below
