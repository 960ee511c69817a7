"""The longest path of a simulated step: how often each time of a stage lies on it.

A step is the longest path through the passes and messages of all sites, and which paths there are does not depend on the times.
So whatever a solution of the configuration is, its step is at least the sum of its own times along any one path: a row that is
linear in the stages' times. The longest path of one solution gives the row that is tight there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.joint.simulation import graph_of
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.fixed_cuts.priced_chain import NAMES, OPTIMIZER, REDUCE
from trainplan.solvers.joint.stages.option_tables import Floats

Times = Mapping[str, Floats] | Mapping[str, Integers]


@dataclass(frozen=True, eq=False)
class Path:
    """counts: by name of a time, (p,), how often each stage's lies on the path; constant_ns: what else does.

    end, site: the site with whose optimizer the path ends, and the one with whose passes it does. turns: of every
    pass on it that waits for several others, followed backwards, which of them the path goes on with, as of
    `Graph.longest_path`."""

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
    graph, group_count = graph_of(configuration), len(configuration.device_groups)
    ends = graph.ends_of_columns(lambda duration: sum(times[name][x] for name, x in duration))[:, 0].tolist()
    reduced = [ends[last] + float(times[REDUCE][x::group_count].sum()) for x, last in enumerate(graph.last)]
    summed = {x: x for x in range(group_count)}  # the site whose gradients each site waits for last
    if tied_ns:
        later = 0 if reduced[0] >= reduced[-1] else group_count - 1
        summed[0] = summed[group_count - 1] = later
    ended = [
        reduced[summed[x]] + (tied_ns if x in (0, group_count - 1) else 0) + float(times[OPTIMIZER][x::group_count].sum())
        for x in range(group_count)
    ]
    group = int(np.argmax(ended))
    counts = {name: np.zeros(configuration.stages) for name in NAMES}
    counts[OPTIMIZER][group::group_count] = 1
    counts[REDUCE][summed[group] :: group_count] = 1
    # Which of several longest paths is found decides which rows a relaxation has, and so its answers.
    one_stage_in_whole_passes = configuration.schedule.chunks == 1 and not configuration.schedule.sliced
    path, turns = graph.longest_path(ends, graph.last[summed[group]], last_of_equal=one_stage_in_whole_passes)
    for duration, number in Counter(graph.nodes[node].duration for node in path).items():
        for name, x in duration:
            counts[name][x] += number
    constant_ns = tied_ns if tied_ns and group in (0, group_count - 1) else 0
    return Path(counts, constant_ns, group, summed[group], tuple(turns))
