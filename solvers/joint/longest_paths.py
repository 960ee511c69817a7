"""The longest path of a simulated step: how often each time of a stage lies on it.

A step is the longest path through the passes and messages of all sites, and which paths there are does not depend on the times.
So whatever a solution of the configuration is, its step is at least the sum of its own times along any one path: a row that is
linear in the stages' times. The longest path of one solution gives the row that is tight there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.instances import Integers
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.joint.simulation import Symbol, ends
from trainplan.solvers.joint.priced_chain import NAMES, OPTIMIZER, REDUCE
from trainplan.solvers.joint.stage_tables import Floats

Times = Mapping[str, Floats] | Mapping[str, Integers]


@dataclass(frozen=True, eq=False)
class Path:
    """counts: by name of a time, (p,), how often each stage's lies on the path; constant_ns: what else does."""

    counts: Mapping[str, Floats]
    constant_ns: int

    def length_ns(self, times: Times) -> float:
        """Its length at times of the stages, (p,) by name."""
        return float(sum(self.counts[name] @ times[name] for name in NAMES)) + self.constant_ns

    @property
    def key(self) -> bytes:
        """What tells it from other paths."""
        return b"".join(self.counts[name].tobytes() for name in NAMES) + str(self.constant_ns).encode()


def longest_path(configuration: Configuration, times: Times, tied_ns: int) -> Path:
    """The longest path of the simulated step at times of the stages, (p,) by name. tied_ns: of a table that both ends share."""
    nodes: list[tuple[int, tuple[Symbol, ...]]] = []  # by number of an end: the end before it, -1 without one, and the times
    moments: list[float] = []
    sums: dict[tuple[Symbol, ...], float] = {}

    def after(earlier: Sequence[int], symbols: tuple[Symbol, ...]) -> int:
        if symbols not in sums:
            sums[symbols] = sum(float(times[name][x]) for name, x in symbols)
        latest = max(earlier, key=moments.__getitem__, default=-1)
        moments.append((moments[latest] if earlier else 0.0) + sums[symbols])
        nodes.append((latest, symbols))
        return len(nodes) - 1

    by_site, sites = ends(configuration, after), len(configuration.sites)
    reduced = [moments[end] + float(times[REDUCE][x::sites].sum()) for x, end in enumerate(by_site)]
    summed = {x: x for x in range(sites)}  # the site whose gradients each site waits for last
    if tied_ns:
        later = 0 if reduced[0] >= reduced[-1] else sites - 1
        summed[0] = summed[sites - 1] = later
    ended = [
        reduced[summed[x]] + (tied_ns if x in (0, sites - 1) else 0) + float(times[OPTIMIZER][x::sites].sum())
        for x in range(sites)
    ]
    site = int(np.argmax(ended))
    counts = {name: np.zeros(configuration.stages) for name in NAMES}
    counts[OPTIMIZER][site::sites] = 1
    counts[REDUCE][summed[site] :: sites] = 1
    node = by_site[summed[site]]
    while node >= 0:
        node, symbols = nodes[node]
        for name, x in symbols:
            counts[name][x] += 1
    return Path(counts, tied_ns if tied_ns and site in (0, sites - 1) else 0)
