"""Quick facts about pipeline-partition, in milliseconds: a lower bound in closed form, and cuts with a small largest stage.

A is the time of one micro-batch through all p stages and back, m the number of micro-batches, f_x and b_x the passes of stage
x.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice

import numpy as np
from trainplan.formulations.pipeline_partition.bounds import left_over
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.solvers.assignment.heuristic import STEPS
from trainplan.solvers.assignment.sweep import steps_of

SOURCE = "one micro-batch through all stages, the others on the largest of them"


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns on the iteration of any partition within the memory, in milliseconds, and the text that says why it
    holds: the larger of the bounds by `even_bound_ns` (stages as even as possible) and `bottleneck_bound_ns` (the slowest stage
    within the memory), whose docstrings have the proofs.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits."""
    return max(even_bound_ns(instance), bottleneck_bound_ns(instance)), SOURCE


def even_bound_ns(instance: Instance) -> int:
    """A lower bound in ns on the 1F1B iteration T of any partition into p stages: A + (m - 1) A / p if m > p, else A + (m - 1)
    A / 2p, with A the time of one micro-batch through all stages and back, and m micro-batches.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits.

    Proof: let stage x have the passes f_x and b_x and t_x = f_x + b_x. Were T less, then by the first of the paths of `spans`,
    which waits twice for the stages after a stage, the sums of t over the last stages would be less than their shares of A, one
    after the other, and so would A. For m <= p, T >= A + (m - 1) max(f_x, b_x) of the largest stage, whose t_x is at least A /
    p."""
    p, m, one_ns = instance.stages, instance.micro_batches, _micro_batch_ns(instance)
    return one_ns - (1 - m) * one_ns // (p if m > p else 2 * p)


def bottleneck_bound_ns(instance: Instance) -> int:
    """A lower bound in ns on the 1F1B iteration of any partition within the memory: A + X, with A the time of one micro-batch
    through all stages and back, and X the least, over partitions, of the most that any stage adds to A with the other
    micro-batches.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits.

    Proof: what a stage adds grows with its sub-layers. So if stages that each take as many sub-layers as X and the memory
    allow, one after the other, do not reach the end of the chain, some stage of every partition adds more than X; the least X
    with which they reach it is found by bisection."""
    p, m, n, windows = instance.stages, instance.micro_batches, instance.sublayers, instance.windows
    move = int(instance.transfer_ns.min()) if p > 1 else 0
    f, b = (np.concatenate([[0], np.cumsum(times)]) for times in (instance.forward_ns, instance.backward_ns))
    sums: list[tuple[list[int], int]] = []  # per stage two: sums before each boundary, and its messages
    for x in range(p):
        received, returned = move * (x > 0), move * (x < p - 1)
        for many, few in ((m - 1, left_over(instance, x)), (left_over(instance, x), m - 1)):
            sums.append(((many * f + few * b).tolist(), many * received + few * returned))
    firsts = None if windows is None else windows.tolist()

    def reaches_end(extra_ns: int) -> bool:
        """Whether stages that each add at most `extra_ns` can hold all sub-layers."""
        end = 0
        for x in range(p):
            ends = [bisect_right(of, of[end] + extra_ns - messages) - 1 for of, messages in sums[2 * x : 2 * x + 2]]
            end = max(0, min(ends) if firsts is None else min(*ends, bisect_right(firsts[x], end)))
        return end == n

    most = max(of[-1] + messages for of, messages in sums)
    extra = bisect_left(range(most), True, key=reaches_end)
    return _micro_batch_ns(instance) + (extra if reaches_end(most) else 0)


def _micro_batch_ns(instance: Instance) -> int:
    """A lower bound in ns on the time of one micro-batch through all stages and back: all forward and backward passes, and
    twice the cheapest transfer at each boundary between stages.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits."""
    moves = 2 * (instance.stages - 1) * int(instance.transfer_ns.min()) if instance.stages > 1 else 0
    return int(instance.forward_ns.sum() + instance.backward_ns.sum()) + moves


def first_plan(instance: Instance) -> Solution | None:
    """Cuts of sub-layers into pipeline stages that fit the memory and whose slowest stage takes the least time, or nearly the
    least, found in milliseconds; None if a few steps of the method `sweep` of the problem stage-assignment find none.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits."""
    row, stages = instance.forward_ns + instance.backward_ns, instance.stages
    times, moves = np.tile(row, (stages, 1)), np.tile(2 * instance.transfer_ns, (stages - 1, 1))
    steps = steps_of(times, moves, instance.micro_batches, instance.windows)
    return next((Solution(step.cuts) for step in islice(steps, STEPS) if step.cuts is not None), None)
