"""Cuts for the whole step of a pipeline: the iteration, and the time that every stage adds after its last backward pass.

    step = max over x of  end_x + d_x,      d_x = the sum of `sync_ns` over the sub-layers of stage x

The first stage ends last of all, so a partition with the least iteration may lose more to d than another loses to its
iteration. Starts are that partition, and for every end of the first stage Algorithm 1 on the rest; in each of the best few, one
cut after the other is moved a little, as long as that helps. Nothing is proven here: the bound is that of `step_bound`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.solvers.partition.autopipe import BalanceTable
from trainplan.solvers.partition.times import SublayerChain

STARTS = 4

Cuts = tuple[int, ...]


def shortest_step(instance: Instance, cuts: Cuts, stop: Callable[[], bool] = lambda: False) -> Cuts:
    """Cuts whose whole step (the iteration, and the gradient synchronisation that each stage adds after its last backward pass)
    is no longer than with the given cuts, found by local search.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. cuts: the first
    sub-layer of every stage but the first; the result has the same form. stop: when it returns True, the best cuts so far are
    returned."""
    if instance.stages == 1:
        return cuts
    chain, sums = SublayerChain(instance), np.concatenate([[0], np.cumsum(instance.sync_ns)])

    def steps_ns(firsts: Integers) -> Integers:
        """The whole steps in ns of N partitions, (N,). firsts: (N, p), the first sub-layer of every stage."""
        return (chain.ends_ns(firsts) + sums[chain.ends(firsts)] - sums[firsts]).max(axis=1)

    starts = chain.fitting(np.array([[0, *cuts], *_starts(instance)], np.int64))
    times = steps_ns(starts)
    best = [(int(times[index]), starts[index]) for index in np.argsort(times, kind="stable")[:STARTS]]
    for number, (time, firsts) in enumerate(best):
        while not stop():
            moved = chain.neighbours(firsts)
            times = steps_ns(moved) if len(moved) else np.array([time])
            if times.min() >= time:
                break
            time, firsts = int(times.min()), moved[times.argmin()]
        best[number] = time, firsts
    return tuple(map(int, min(best, key=lambda start: start[0])[1][1:]))


def _starts(instance: Instance) -> list[list[int]]:
    """Starting partitions for the local search, each as the first sub-layers of all stages: one for every possible end of the
    first stage, with the later stages balanced by AutoPipe's Algorithm 1.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits."""
    n, p = instance.sublayers, instance.stages
    table = BalanceTable((instance.forward_ns + instance.backward_ns)[::-1].tolist(), p)
    starts = []
    for end in range(1, n - p + 2):
        bounds = table.bounds(n - end, p - 1)
        starts.append([0, *(n - bound for bound in reversed(bounds[1:]))])
    return starts
