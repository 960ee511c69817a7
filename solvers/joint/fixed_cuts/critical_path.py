"""The longest path of a simulated step: how often each time of a stage lies on it.

A step is the longest path through the passes and messages of all sites, and which paths there are does not depend on the times.
So whatever a solution of the configuration is, its step is at least the sum of its own times along any one path: a row that is
linear in the stages' times. The longest path of one solution gives the row that is tight there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.joint.simulation import Symbol, ends
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.fixed_cuts.priced_chain import BACK, BACKWARD, FORWARD, INTO, LAST, NAMES, OPTIMIZER, REDUCE
from trainplan.solvers.joint.stages.option_tables import Floats

Times = Mapping[str, Floats] | Mapping[str, Integers]


@dataclass(frozen=True, eq=False)
class Path:
    """counts: by name of a time, (p,), how often each stage's lies on the path; constant_ns: what else does.

    end, site: the site with whose optimizer the path ends, and the one with whose passes it does. turns: followed backwards, of
    every pass that waits for several others, which of them the path goes on with, in the order of `simulation.ends`."""

    counts: Mapping[str, Floats]
    constant_ns: int
    end: int
    site: int
    turns: tuple[int, ...]

    def length_ns(self, times: Times) -> float:
        """Its length at times of the stages, (p,) by name."""
        return float(sum(self.counts[name] @ times[name] for name in NAMES)) + self.constant_ns

    @property
    def key(self) -> bytes:
        """What tells it from other paths."""
        return b"".join(self.counts[name].tobytes() for name in NAMES) + str(self.constant_ns).encode()


def longest_path(configuration: Configuration, times: Times, tied_ns: int) -> Path:
    """The longest path of the simulated step at times of the stages, (p,) by name. tied_ns: of a table that both ends share."""
    schedule = configuration.schedule
    one_by_one = schedule.chunks > 1 or schedule.sliced
    by_site, traced = (_one_by_one if one_by_one else _in_blocks)(configuration, times)
    sites = len(configuration.sites)
    reduced = [end + float(times[REDUCE][x::sites].sum()) for x, end in enumerate(by_site)]
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
    turns = traced(summed[site], counts)
    constant_ns = tied_ns if tied_ns and site in (0, sites - 1) else 0
    return Path(counts, constant_ns, site, summed[site], tuple(turns))


Trace = Callable[[int, Mapping[str, Floats]], list[int]]  # adds what lies on the longest path to the end of a site; its turns


def _one_by_one(configuration: Configuration, times: Times) -> tuple[list[float], Trace]:
    """The ends of all sites under any schedule, pass by pass, and how they come about."""
    nodes: list[tuple[Sequence[int], int, tuple[Symbol, ...]]] = []  # by number of an end: those before it, the latest, times
    moments: list[float] = []
    sums: dict[tuple[Symbol, ...], float] = {}

    def after(earlier: Sequence[int], symbols: tuple[Symbol, ...]) -> int:
        if symbols not in sums:
            sums[symbols] = sum(float(times[name][x]) for name, x in symbols)
        latest = max(range(len(earlier)), key=lambda place: moments[earlier[place]], default=-1)
        moments.append((moments[earlier[latest]] if earlier else 0.0) + sums[symbols])
        nodes.append((tuple(earlier), latest, symbols))
        return len(nodes) - 1

    by_site = ends(configuration, after)

    def traced(site: int, counts: Mapping[str, Floats]) -> list[int]:
        turns, node = list[int](), by_site[site]
        while True:
            earlier, latest, symbols = nodes[node]
            for name, x in symbols:
                counts[name][x] += 1
            if not earlier:
                return turns
            if len(earlier) > 1:
                turns.append(latest)
            node = earlier[latest]

    return [moments[end] for end in by_site], traced


def _in_blocks(configuration: Configuration, times: Times) -> tuple[list[float], Trace]:
    """`_one_by_one` of whole micro-batches through one stage on each site: the same ends, a block of passes at a time."""
    m, stages, gpipe = configuration.micro_batches, configuration.stages, configuration.schedule.name == "gpipe"
    forward, backward = times[INTO] + times[FORWARD], times[BACK] + times[BACKWARD]
    # Passes that stand before each stage's first backward pass: all, or its warm-up and one.
    ahead = np.full(stages, m) if gpipe else np.minimum(np.arange(stages, 0, -1), m)
    there, back = np.zeros((2, m, stages))  # the ends of all passes
    free = np.zeros(stages)
    through = np.cumsum(forward)
    if gpipe:
        for k in range(m):
            free = through + np.maximum.accumulate(free - (through - forward))
            there[k] = free
    for y in range(0 if gpipe else 1 - stages, m):
        if not gpipe:
            low, high = max(0, stages - m + y), min(stages, stages + y)
            here = np.arange(low, high)
            number = stages - 1 - here + y
            sent = np.where(here > 0, there[number, here - 1], 0.0)
            free[low:high] = np.maximum(free[low:high], sent) + forward[low:high]
            there[number, here] = free[low:high]
        if y >= 0:
            passes = backward + times[LAST] if y == m - 1 else backward
            sums = np.cumsum(passes[::-1])[::-1]
            free = sums + np.maximum.accumulate((free - (sums - passes))[::-1])[::-1]
            back[y] = free

    def end_of(x: int, k: int, turned: bool) -> float:
        return float((back if turned else there)[k, x])

    def traced(site: int, counts: Mapping[str, Floats]) -> list[int]:
        turns = list[int]()
        x, k, turned = site, m - 1, True  # the pass: its stage, its micro-batch, and whether it is a backward one
        while True:
            for name in (BACK, BACKWARD) if turned else (INTO, FORWARD):
                counts[name][x] += 1
            if turned and k == m - 1:
                counts[LAST][x] += 1
            before = ahead[x]
            if turned and (k == 0 or k + before <= m):
                own = (x, min(k + before, m) - 1, False)
            elif turned:
                own = (x, k - 1, True)
            elif k < before:
                own = (x, k - 1, False)
            else:
                own = (x, k - before, True)
            received = (x + 1, k, True) if turned else (x - 1, k, False)
            earlier = [each for each in (own, received) if 0 <= each[0] < stages and each[1] >= 0]
            if not earlier:
                return turns
            latest = max(reversed(range(len(earlier))), key=lambda place: end_of(*earlier[place]))
            if len(earlier) > 1:
                turns.append(latest)
            x, k, turned = earlier[latest]

    return free.tolist(), traced
