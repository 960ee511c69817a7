"""The longest path of a simulated step: how often each time of a stage lies on it.

A step is the longest path through the passes and messages of all device groups, and the paths themselves do not depend on the
times. So the step of every solution of a configuration is at least the sum of its own times along any one path: a row that is
linear in the stages' times. The longest path of one solution gives the row that is tight for it.
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
    """A path through the passes of a configuration. counts: for each name of a time, (p,), how often the time of each of the p
    stages lies on the path. constant_ns: the times on the path that belong to no stage.

    end, site: the index of the device group with whose optimizer the path ends, and of the one with whose passes it does.
    turns: for each pass on the path that waits for several others, followed backwards, the one with which the path goes on, as
    of `Graph.longest_path`.
    """

    counts: Mapping[str, Floats]
    constant_ns: int
    end: int
    site: int
    turns: tuple[int, ...]

    def length_ns(self, times: Times) -> float:
        """The path's length in ns at given times of the stages, (p,) by name."""
        return float(sum(self.counts[name] @ times[name] for name in NAMES)) + self.constant_ns

    @property
    def key(self) -> bytes:
        """Bytes that differ between different paths."""
        return b"".join(self.counts[name].tobytes() for name in NAMES) + str(self.constant_ns).encode()


def longest_path(configuration: Configuration, times: Times, tied_ns: int) -> Path:
    """The longest path of the simulated step at given times of the stages, (p,) by name. tied_ns: the time in which both ends
    of the pipeline sum the gradients of a shared table."""
    graph, group_count = graph_of(configuration), len(configuration.device_groups)
    ends = graph.ends_of_columns(lambda duration: sum(times[name][x] for name, x in duration))[:, 0].tolist()
    reduced = [ends[last] + float(times[REDUCE][x::group_count].sum()) for x, last in enumerate(graph.last)]
    summed = {x: x for x in range(group_count)}  # the device group whose gradients each group waits for last
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
