"""stage-assignment by rules that do not look at times: even numbers of layers, or of parameters.

Both are contiguous partitions whose largest part is as small as possible. Megatron gives every stage L / k layers, and refuses
where that is not whole; here some stages then have one more. DeepSpeed's `partition_balanced` gives the parts the least largest
weight. Neither considers transfers, devices or memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.assignment.sweep import assign
from trainplan.solvers.core.search import Outcome, Search, Unsuited, first_fitting


def uniform_layers(instance: Instance, search: Search) -> Outcome:
    """Cuts with even numbers of layers, Megatron's default, if they fit the memory."""
    cuts = balanced_cuts(np.ones(instance.layers, np.int64), instance.stages)
    return first_fitting(instance, search, [Solution(cuts)], "uniform-layers")


def uniform_parameters(instance: Instance, search: Search) -> Outcome:
    """Cuts with even numbers of parameters, DeepSpeed's partition, if they fit the memory. Raises Unsuited where the instance
    has no parameters."""
    if instance.parameters is None:
        raise Unsuited("instance", "parameters", "is missing", "give the parameters of each layer, or take another method")
    cuts = balanced_cuts(instance.parameters, instance.stages)
    return first_fitting(instance, search, [Solution(cuts)], "uniform-parameters")


def balanced_cuts(weights: Integers, stages: int) -> tuple[int, ...]:
    """The cuts with the least largest weight of a stage; among those, each as near as possible to an even share of the weight
    before it.

    weights: (L,), of the layers. Returns the first layer of every stage but the first.
    """
    layers, shape = len(weights), (stages, len(weights))
    before = [0, *accumulate(weights.tolist())]
    # Two micro-batches without transfers: the objective is the largest stage plus the sum of all.
    answer = assign(np.broadcast_to(weights, shape), np.zeros((stages - 1, layers - 1), np.int64), 2)
    assert answer is not None
    most = answer[0] - before[-1]
    earliest = [layers]
    for i in reversed(range(1, stages)):
        earliest.append(max(i, bisect_left(before, before[earliest[-1]] - most)))
    cuts, first = [], 0
    for i, least in enumerate(reversed(earliest[1:]), 1):
        last = min(bisect_right(before, before[first] + most) - 1, layers - stages + i)
        share = range(max(least, first + 1), last + 1)
        first = min(share, key=lambda cut: abs(before[cut] * stages - before[-1] * i))
        cuts.append(first)
    return tuple(cuts)
