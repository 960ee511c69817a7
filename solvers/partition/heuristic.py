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
    """A lower bound in ns on the iteration of any partition within the memory, with its reason.

    Proof: those of `even_bound_ns` and `bottleneck_bound_ns`.
    """
    return max(even_bound_ns(instance), bottleneck_bound_ns(instance)), SOURCE


def even_bound_ns(instance: Instance) -> int:
    """No partition's iteration T in ns is below A + (m - 1) A / p where m > p; else below A + (m - 1) A / 2p (symbols: see the
    module's head).

    Proof: were T less, then by the first of the paths of `spans`, with S twice, the sums of t over the last stages would be
    less than their shares of A, one after the other, and so would A. For m <= p, T >= A + (m - 1) max(f_x, b_x) of the largest
    stage, whose t = f_x + b_x is at least A / p.
    """
    p, m, one_ns = instance.stages, instance.micro_batches, _micro_batch_ns(instance)
    return one_ns - (1 - m) * one_ns // (p if m > p else 2 * p)


def bottleneck_bound_ns(instance: Instance) -> int:
    """No partition's iteration within the memory is below A + X ns, with X the least, over partitions, of the most that any
    stage adds to the time A of one micro-batch.

    Proof: a stage adds `extra_ns` at least, with the least transfers. The further the stages before it reach, the further it
    does. So where stages that reach as far as X and the memory allow do not come to the end, some stage adds more than X.
    """
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
    """A: a lower bound in ns on one micro-batch's time through all stages and back."""
    moves = 2 * (instance.stages - 1) * int(instance.transfer_ns.min()) if instance.stages > 1 else 0
    return int(instance.forward_ns.sum() + instance.backward_ns.sum()) + moves


def first_plan(instance: Instance) -> Solution | None:
    """Cuts that fit, with the least largest stage or nearly so; None where a few steps of the sweep find none."""
    row, stages = instance.forward_ns + instance.backward_ns, instance.stages
    times, moves = np.tile(row, (stages, 1)), np.tile(2 * instance.transfer_ns, (stages - 1, 1))
    steps = steps_of(times, moves, instance.micro_batches, instance.windows)
    return next((Solution(step.cuts) for step in islice(steps, STEPS) if step.cuts is not None), None)
