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
    """A path through the passes of a pipeline schedule that wait for each other, from the first pass to the end of a step; its
    length at given stage times is a lower bound on the step.

    counts: a dict from the name of each stage time (such as forward_ns) to a vector (p,): how often that time of each of the p
    stages occurs on the path. constant_ns: the ns on the path that belong to no stage. end: the index of the device group with
    whose optimizer the path ends; last_pass_group: the index of the device group that runs the path's last pass. turns: from
    the end of the path backwards, for each pass that waits for several passes, which of these the path comes from (an index
    among them).
    """

    counts: Mapping[str, Floats]
    constant_ns: int
    end: int
    last_pass_group: int
    turns: tuple[int, ...]

    def length_ns(self, times: Times) -> float:
        """The path's length in ns. times: a dict from the name of each stage time (such as forward_ns) to (p,), the time of
        each of the p stages in ns."""
        return float(sum(self.counts[name] @ times[name] for name in NAMES)) + self.constant_ns

    @property
    def key(self) -> bytes:
        """A key for sets of paths: paths with equal keys have equal lengths, whatever the stage times are."""
        return b"".join(self.counts[name].tobytes() for name in NAMES) + str(self.constant_ns).encode()


def longest_path(configuration: Configuration, times: Times, tied_ns: int) -> Path:
    """The critical path of a configuration's simulated step: the chain of passes, gradient reduction and optimizer that decides
    the step time.

    times: a dict from the name of each stage time (such as forward_ns) to (p,), the time of each of the p stages in ns.
    tied_ns: the time in ns in which both ends of the pipeline sum the gradients of a table shared by embedding and head."""
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
