"""A lower bound on the whole step of any partition into p stages, however many of the m micro-batches are sliced.

The first stage ends its step with what its sub-layers add (gradients, optimizer): d(e), the sum of their `sync_ns` where the
stage ends before sub-layer e. So the step is at least T + d(e), with T the iteration, for which three paths through any stage x
are bounds. f_l and b_l are the passes of a sub-layer, f_x and b_x those of a stage; g is f, or its first half where
micro-batches may be sliced; c is the least transfer of any cut, and r = c, or its first half; a_x = max(0, m - (p - x)) is the
number of forward passes of x after its first backward pass. [..] is 1 where it holds, else 0.

    one micro-batch to x, all m passes of x, and one back
        T >= sum_{l before x} (g_l + b_l) + x (r + c) + m (f_x + b_x) + [x > 0] (m - 1) c + [x < p - 1] m c
    one to the last stage and back to x, what x then still has to run, and one back
        T >= sum_l (g_l + b_l) + (p - 1)(r + c) + a_x (f_x + [x > 0] c) + (m - 1)(b_x + [x < p - 1] c)
    one to x, what x runs up to its last forward pass, and one to the last stage and back
        T >= sum_{l before x} (g_l + b_l) + x (r + c) + m f_x + (a_x + 1) b_x + sum_{l after x} (f_l + b_l) + 2 (p - 1 - x) c
             + [x > 0] (m - 1) c + [x < p - 1] a_x c
        (the last micro-batch is whole after x if m >= p - x, or where none is sliced)

A given time bounds where each stage can end at most, and the later a stage begins the further it reaches, so the stages of any
partition end no later than these in turn; the least step with which all sub-layers are reached, from any e, is found by
bisection.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.formulations.pipeline_partition.problem import Instance


def least_step_ns(instance: Instance, sliced: bool) -> int:
    """A lower bound in ns on the whole step of every partition into stages, whatever the memory. sliced: whether some
    micro-batches may run in two halves; the bound then holds for any number of them. instance: the times of a chain of
    sub-layers, the numbers of stages and micro-batches, and the memory limits.
    """
    n, p, m = instance.sublayers, instance.stages, instance.micro_batches
    ends_ns = np.concatenate([[0], np.cumsum(instance.sync_ns)])  # d
    f, b = (np.concatenate([[0], np.cumsum(times)]) for times in (instance.forward_ns, instance.backward_ns))
    g = np.concatenate([[0], np.cumsum(instance.forward_ns // 2)]) if sliced else f
    c = int(instance.transfer_ns.min()) if n > 1 and p > 1 else 0
    r = c // 2 if sliced else c
    firsts = np.arange(1, n - p + 2) if p > 1 else np.array([n])

    def furthest(x: int, start: Integers, time_ns: Integers) -> Integers:
        """For each possible start of stage x, the furthest sub-layer before which it can end within a time."""
        left, before, after = max(0, m - (p - x)), int(x > 0) * c, int(x < p - 1) * c
        there = g[start] + b[start] + x * (r + c)
        paths = [
            (m * (f + b), there + (m - 1) * before + m * after),
            (left * f + (m - 1) * b, g[n] + b[n] + (p - 1) * (r + c) + left * before + (m - 1) * after),
        ]
        if m >= p - x or not sliced:
            on = f[n] + b[n] - f[start] - b[start] + 2 * (p - 1 - x) * c
            paths.append(((m - 1) * f + left * b, there + on + (m - 1) * before + left * after))
        ends = [np.searchsorted(sums, time_ns - fixed + sums[start], side="right") - 1 for sums, fixed in paths]
        return np.minimum.reduce(ends)

    def reaches_end(step_ns: int) -> bool:
        """Whether stages that take no longer than `step_ns` can reach all sub-layers."""
        time_ns = step_ns - ends_ns[firsts]
        possible = furthest(0, np.zeros_like(firsts), time_ns) >= firsts
        start, time_ns = firsts[possible], time_ns[possible]
        for x in range(1, p):
            start = np.maximum(start, furthest(x, start, time_ns))
        return bool((start == n).any())

    low, high = 0, m * int(f[n] + b[n] + 2 * p * c) + int(ends_ns.max())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches_end(middle) else (middle + 1, high)
    return low
