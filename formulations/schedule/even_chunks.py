"""Cuts of interleaved stages with equal numbers of layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def even_chunks(layers: Sequence[int], stages: int) -> tuple[int, ...] | None:
    """Cut sub-layers (units) into pipeline stages with equally many layers. Returns the index of the first unit of every stage
    but the first; None if layers cannot be divided evenly.

    layers: for each unit, the index of its layer; stages: the number of stages. Units before the first and after the last layer
    of several units (embedding and head) are added to the first and the last stage; if that does not divide evenly, they count
    as one layer each: 126 layers, embedding and head are cut into 16 stages of 8.
    """
    starts = [0, *(l for l, (before, layer) in enumerate(pairwise(layers), 1) if before != layer)]
    inner = starts[1:-1]
    for counted in (inner, starts):
        size, rest = divmod(len(counted), stages)
        if size and not rest:
            return tuple(counted[size * stage] for stage in range(1, stages))
    return None
