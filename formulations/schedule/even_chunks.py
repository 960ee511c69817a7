"""Where interleaved stages begin that have as many layers each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def even_chunks(layers: Sequence[int], stages: int) -> tuple[int, ...] | None:
    """The first units of the stages after the first, so that all have as many layers; None where that cannot be.

    layers: of each unit, the number of its layer. What comes before the first and after the last of several layers of more than
    one unit (embedding and head) stands beside the first and the last stage's layers; or else counts as one layer each, as
    where 126 layers are cut into 16 stages of 8.
    """
    starts = [0, *(l for l, (before, layer) in enumerate(pairwise(layers), 1) if before != layer)]
    inner = starts[1:-1]
    for counted in (inner, starts):
        each, left = divmod(len(counted), stages)
        if each and not left:
            return tuple(counted[each * stage] for stage in range(1, stages))
    return None
