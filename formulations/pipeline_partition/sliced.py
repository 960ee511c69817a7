"""A bound on the step of 1F1B however many micro-batches are sliced, over all partitions into p stages.

The first half of a micro-batch reaches stage x after at least half of every forward pass and message before it; from then to
the end of its last backward pass the stage runs m forward and m backward passes, and waits for the messages of all but the
first half (here: the first micro-batch); and the last micro-batch still goes back to stage 0. With c the least transfer of any
cut and all sub-layers l before stage x,

    T >= sum_l (floor(f_l / 2) + b_l) + x (floor(c / 2) + c) + m (f_x + b_x) + [x > 0] (m - 1) c + [x < p - 1] m c

A time T bounds where each stage can end at most, and the later a stage begins the further it reaches, so the stages of any
partition end no later than these in turn; the least T with which all sub-layers are reached is found by bisection.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.pipeline_partition.problem import Instance


def least_sliced_ns(instance: Instance) -> int:
    """No partition takes less, in ns, whether or not passes are sliced. Memory is not looked at."""
    n, p, m = instance.sublayers, instance.stages, instance.micro_batches
    whole = np.concatenate([[0], np.cumsum(m * (instance.forward_ns + instance.backward_ns))])
    around = np.concatenate([[0], np.cumsum(instance.forward_ns // 2 + instance.backward_ns)])
    shortest = int(instance.transfer_ns.min(initial=2**62)) if p > 1 else 0
    step = shortest // 2 + shortest

    def reaches_end(time_ns: int) -> bool:
        first = 0
        for x in range(p):
            messages = ((m - 1) * (x > 0) + m * (x < p - 1)) * shortest
            most = time_ns - x * step - messages - around[first] + whole[first]
            end = int(np.searchsorted(whole, most, side="right")) - 1
            if end == n:
                return True
            first = max(first, end)
        return False

    low, high = 0, int(whole[-1]) + m * shortest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches_end(middle) else (middle + 1, high)
    return low
