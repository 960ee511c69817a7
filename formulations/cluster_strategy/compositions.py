"""All compositions of a group of devices, listed or counted: how many devices of each class a group may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

Composition = tuple[int, ...]  # the number of devices of each class


@lru_cache(maxsize=256)
def compositions(counts: Composition, alike: Composition, size: int, most: int) -> tuple[Composition, ...] | None:
    """All ways to take `size` devices from classes of interchangeable devices, each as a tuple with the number of devices
    taken from each class; cached. None if there are more than `most`; they are counted before any is listed.

    counts: the number of devices of each class. alike: for each class, the first class with which it may be exchanged as a
    whole; of such classes, a later one never gives more devices than an earlier one, so that only one of several equivalent
    tuples is listed.
    """
    members = [[c for c, other in enumerate(alike) if other == orbit] for orbit in dict.fromkeys(alike)]
    alone = [(len(those), counts[those[0]]) for those in members]  # classes of one orbit have equally many devices
    if _count(alone, size, most + 1) > most:
        return None
    available = [sum(parts * devices for parts, devices in alone[number:]) for number in range(len(alone) + 1)]

    rank_of_class = np.argsort([c for those in members for c in those]).tolist()
    listed: list[Composition] = []
    waiting = (
        [(0, (), size)] if size <= available[0] else list[tuple[int, Composition, int]]()
    )  # orbits, what is taken of them, and left
    while waiting:
        number, taken, left = waiting.pop()
        if number == len(alone) or not left:
            shares = taken + (0,) * (len(counts) - len(taken))
            listed.append(tuple(shares[rank] for rank in rank_of_class))
            continue
        parts, devices = alone[number]
        for whole in range(max(0, left - available[number + 1]), min(left, parts * devices) + 1):
            waiting += [(number + 1, taken + shares, left - whole) for shares in _partitions(whole, parts, devices)]
    return tuple(sorted(listed, reverse=True))


def _count(alone: Sequence[tuple[int, int]], size: int, enough: int) -> int:
    """The number of compositions (tuples of numbers of devices taken from each class) of `size` devices, or `enough` if there
    are more. alone: for each set of classes that may be exchanged as a whole, the number of classes and the number of
    devices of each.
    """
    counts = np.eye(1, size + 1, dtype=np.int64)[0]  # by devices taken
    for parts, devices in alone:
        most = min(size, parts * devices)
        of_orbit = np.zeros((parts + 1, most + 1), np.int64)  # by classes that something is taken of, too
        of_orbit[0, 0] = 1
        for share in range(1, min(devices, most) + 1):
            for taken in range(parts):
                of_orbit[taken + 1, share:] += of_orbit[taken, : most + 1 - share]
            np.minimum(of_orbit, enough, out=of_orbit)
        counts = np.minimum(np.convolve(counts, np.minimum(of_orbit.sum(axis=0), enough))[: size + 1], enough)
    return int(counts[size])


def _partitions(whole: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
    """All partitions of `whole` into `parts` numbers from 0 to `most`, none larger than the one before it: 3 into 2 of at most
    2 -> (2, 1)."""
    waiting: list[tuple[tuple[int, ...], int]] = [((), whole)]
    while waiting:
        begun, left = waiting.pop()
        more = parts - len(begun)
        if not left:
            yield begun + (0,) * more
            continue
        largest = min(left, begun[-1] if begun else most)
        waiting += [((*begun, share), left - share) for share in range(-(-left // more), largest + 1)]
