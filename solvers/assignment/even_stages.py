"""Solve stage-assignment by rules that do not look at times: even numbers of layers, or of parameters.

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
from trainplan.solvers.core.search import Outcome, Search, Unsupported, first_fitting


def uniform_layers(instance: Instance, search: Search) -> Outcome:
    """The method `uniform-layers`: cut a chain of layers into pipeline stages of equal numbers of layers, as Megatron does by
    default. The outcome has these cuts if they fit the memory, and no lower bound.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    cuts = balanced_cuts(np.ones(instance.layers, np.int64), instance.stages)
    return first_fitting(instance, search, [Solution(cuts)], "uniform-layers")


def uniform_parameters(instance: Instance, search: Search) -> Outcome:
    """The method `uniform-parameters`: cut a chain of layers into pipeline stages of about equal numbers of parameters, as
    DeepSpeed does. The outcome has these cuts if they fit the memory, and no lower bound. Raises Unsupported if the instance
    does not state the layers' parameters.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    if instance.parameters is None:
        raise Unsupported("instance", "parameters", "is missing", "give the parameters of each layer, or take another method")
    cuts = balanced_cuts(instance.parameters, instance.stages)
    return first_fitting(instance, search, [Solution(cuts)], "uniform-parameters")


def balanced_cuts(weights: Integers, stages: int) -> tuple[int, ...]:
    """Cut a chain of layers into pipeline stages such that the heaviest stage is as light as possible; among the solutions, the
    weight before each cut is as near as possible to an even share.

    weights: (L,), the weight of each of the L layers. stages: the number of stages. Returns the first layer of every stage but
    the first.
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
