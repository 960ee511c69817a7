"""Cuts for the whole step of a pipeline: the iteration, and what every stage adds behind its last backward pass.

    step = max over x of  end_x + d_x,      d_x = the sum of d over the sub-layers of stage x, and what the first and last share

The first stage ends last of all, so a partition with the least iteration may lose more to d than another loses to its
iteration. Starts are that partition, and for every end of the first stage Algorithm 1 on the rest; of the best few, one cut
after the other is moved a little, as long as that helps. Nothing is proven here: the bound is that of `step_bound`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.solvers.partition.autopipe import Table
from trainplan.solvers.partition.times import Chain

STARTS = 4

Cuts = tuple[int, ...]


def shortest_step(
    instance: Instance, added_ns: Integers, shared_ns: int, cuts: Cuts, stop: Callable[[], bool] = lambda: False
) -> Cuts:
    """Cuts with a step no longer than these. added_ns: (n,), d of each sub-layer; shared_ns: what the first and the last stage
    add beside."""
    if instance.stages == 1:
        return cuts
    chain, sums = Chain(instance), np.concatenate([[0], np.cumsum(added_ns)])

    def steps_ns(firsts: Integers) -> Integers:
        """(N,), of partitions by the first sub-layer of every stage: (N, p)."""
        added = sums[chain.ends(firsts)] - sums[firsts]
        added[:, [0, -1]] += shared_ns
        return (chain.ends_ns(firsts) + added).max(axis=1)

    found = chain.fitting(np.array([[0, *cuts], *_starts(instance)], np.int64))
    times = steps_ns(found)
    best = [(int(times[place]), found[place]) for place in np.argsort(times, kind="stable")[:STARTS]]
    for number, (time, firsts) in enumerate(best):
        while not stop():
            tried = chain.neighbours(firsts)
            own = steps_ns(tried) if len(tried) else np.array([time])
            if own.min() >= time:
                break
            time, firsts = int(own.min()), tried[own.argmin()]
        best[number] = time, firsts
    return tuple(map(int, min(best, key=lambda one: one[0])[1][1:]))


def _starts(instance: Instance) -> list[list[int]]:
    """For every end of the first stage, the first sub-layers of all stages, Algorithm 1 for those behind it (from the end)."""
    n, p = instance.sublayers, instance.stages
    table = Table((instance.forward_ns + instance.backward_ns)[::-1].tolist(), p)
    found = []
    for end in range(1, n - p + 2):
        bounds = table.bounds(n - end, p - 1)
        found.append([0, *(n - bound for bound in reversed(bounds[1:]))])
    return found
