"""The lower left convex hull of options' memory and time: the prices of memory at which the cheapest option changes."""

from __future__ import annotations

from itertools import pairwise

from trainplan.formulations.numbers import Integers


def hull_slopes(memory: Integers, time: Integers) -> list[float]:
    """The absolute slopes, in ns per byte, of the lower left convex hull of the points (memory in bytes, time in ns) of several
    options, steepest first. They are the prices of memory at which the option of least (time + price x memory) changes. memory,
    time: (options,)."""
    hull: list[tuple[int, int]] = []
    for x, y in sorted(zip(memory.tolist(), time.tolist(), strict=True)):
        if hull and y >= hull[-1][1]:
            continue
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return [(a[1] - b[1]) / (b[0] - a[0]) for a, b in pairwise(hull) if b[0] > a[0]]
