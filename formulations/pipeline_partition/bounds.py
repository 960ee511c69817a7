"""Lower bounds on the iteration from single paths through one stage.

Consider 1F1B with p stages and m micro-batches. f_x and b_x are the forward and backward pass of stage x, c_x the transfer
between the stages x - 1 and x, and c_0 = c_p = 0. Stage x runs min(m, p - x) forward passes up to its first backward pass, so
a_x = max(0, m - (p - x)) after it. Two paths lead through stage x:

    the first micro-batch through all stages and back to x, f_0 + c_1 + f_1 + .. + f_{p-1} + b_{p-1} + c_{p-1} + .. + b_x;
    then all that x still runs, a_x forward and m - 1 backward passes; then the last micro-batch back from x to stage 0:

        T >= sum_j (f_j + b_j) + 2 sum_j c_j + a_x (f_x + c_x) + (m - 1) (b_x + c_{x+1})

    the first micro-batch up to x; then all that x runs up to its last forward pass, m forward and a_x backward passes; then
    the last micro-batch from x through the last stage and back to stage 0:

        T >= sum_j (f_j + b_j) + 2 sum_j c_j + (m - 1) (f_x + c_x) + a_x (b_x + c_{x+1})

Each pass on them waits for the one before it: the passes of one micro-batch in their order, and those of a stage in its order.
All sub-layers lie on each path, so apart from the transfers the bounds differ only by the layers of stage x: the least of the
largest over all partitions is found stage by stage.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.formulations.pipeline_partition.problem import Instance

FAR = np.int64(2**62)


def left_over(instance: Instance, stage: int) -> int:
    """The number of forward passes that a stage still has to run after its first backward pass under 1F1B. stage: the stage's
    index. instance: the times of a chain of sub-layers, the numbers of stages and micro-batches, and the memory limits.
    """
    return max(0, instance.micro_batches - (instance.stages - stage))


def extra_ns(instance: Instance, stage: int, forward_ns: Integers, backward_ns: Integers) -> Integers:
    """A lower bound in ns on the time by which a step is longer than one round trip of a micro-batch through all stages,
    because of one stage: the longer of two chains of passes through it.

    stage: the stage's index. forward_ns, backward_ns: the stage's passes, each with the transfer that it receives, for
    several possible choices of its sub-layers; the result has their shape. instance: the times of a chain of sub-layers,
    the numbers of stages and micro-batches, and the memory limits.
    """
    fewer, more = left_over(instance, stage), instance.micro_batches - 1
    return np.maximum(fewer * forward_ns + more * backward_ns, more * forward_ns + fewer * backward_ns)


def least_ns(instance: Instance) -> int:
    """A lower bound in ns on the iteration of every partition that fits into memory; 2^62 or more if no partition fits. Takes
    time n^2 p for n sub-layers and p stages.

    Proof: every partition takes a round trip of a micro-batch through all stages, with at least the p - 1 least transfers,
    plus the time that any of its stages adds to it (`extra_ns`). A bottleneck path through spans of sub-layers finds the
    least, over partitions, of the largest time that a stage adds. instance: the times of a chain of sub-layers, the numbers
    of stages and micro-batches, and the memory limits.
    """
    n, p, windows = instance.sublayers, instance.stages, instance.windows
    f, b = (np.concatenate([[0], np.cumsum(times)]) for times in (instance.forward_ns, instance.backward_ns))
    c = np.concatenate([[0], instance.transfer_ns, [0]])
    least = np.full(n + 1, FAR)  # by the first sub-layer after the stages so far
    least[0] = 0
    for x in range(p):
        before, least = least, np.full(n + 1, FAR)
        for end in range(x + 1, n - p + x + 2):
            starts = slice(x if windows is None else max(x, int(windows[x, end - 1])), end)
            extra = extra_ns(instance, x, f[end] - f[starts] + c[starts], b[end] - b[starts] + c[end])
            least[end] = np.maximum(before[starts], extra).min(initial=FAR)
    moves = int(np.sort(instance.transfer_ns)[: p - 1].sum())
    return int(f[n] + b[n]) + 2 * moves + int(least[n])


def most_ns(instance: Instance) -> int:
    """An upper bound in ns on the iteration of every partition: all passes one after the other, with the p - 1 longest
    transfers before each of them, p being the number of stages. instance: the times of a chain of sub-layers, the numbers
    of stages and micro-batches, and the memory limits.
    """
    moves = int(np.sort(instance.transfer_ns)[instance.sublayers - instance.stages :].sum())
    return instance.micro_batches * (int(instance.forward_ns.sum() + instance.backward_ns.sum()) + 2 * moves)
