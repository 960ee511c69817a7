"""A chain of sub-layers, and the simulated 1F1B iterations of many partitions of it at once.

Cross-check of `formulations.step.recurrences`: the same ends, of many pipelines at once (asserted in
tests/solvers/test_partition_search.py and tests/solvers/test_whole_step.py).

 A device waits while it receives, so the transfer of
a pass that receives a message is as if it were part of the pass. In block y = -(p-1) .. m-1 stage x runs the forward pass of
micro-batch p - 1 - x + y, whose input is of the block before, so all stages are one step. From y = 0 on it then runs the
backward pass of micro-batch y: that goes through the stages one after another in the same block, and ends on x at the largest
of free_z + b_z + .. + b_x over the stages z >= x.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance

SHIFTS = (-3, -2, -1, 1, 2, 3)

Truths = NDArray[np.bool_]


def ends_ns(forward_ns: Integers, backward_ns: Integers, micro_batches: int, last_ns: Integers | None = None) -> Integers:
    """(p, N): when each stage of N pipelines ends. forward_ns, backward_ns: (p, N), of each stage, the message that the pass
    receives included. last_ns: what the last micro-batch's backward pass takes longer.

    The last stages of a longer pipeline are a pipeline themselves, in the same order of passes.
    """
    stages, count = forward_ns.shape
    free = np.zeros((stages, count), np.int64)
    sent = np.zeros((stages + 1, count), np.int64)  # end of the last forward pass of the stage before
    back = np.cumsum(backward_ns[::-1], axis=0)[::-1]  # backward passes from the last stage to this one
    later = np.concatenate([back[1:], np.zeros((1, count), np.int64)])
    for y in range(1 - stages, micro_batches):
        low, high = max(0, stages - micro_batches + y), min(stages, stages + y)
        if low < high:
            np.maximum(free[low:high], sent[low:high], out=free[low:high])
            free[low:high] += forward_ns[low:high]
            sent[low + 1 : high + 1] = free[low:high]
        if y >= 0:
            if y == micro_batches - 1 and last_ns is not None:
                back = np.cumsum((backward_ns + last_ns)[::-1], axis=0)[::-1]
                later = np.concatenate([back[1:], np.zeros((1, count), np.int64)])
            free -= later
            np.maximum.accumulate(free[::-1], axis=0, out=free[::-1])
            free += back
    return free


class SublayerChain:
    """The sub-layers of an instance by the places 0 .. n between them; a span is what lies between two."""

    def __init__(self, instance: Instance) -> None:
        self.stages, self.micro_batches, self.places = instance.stages, instance.micro_batches, instance.sublayers + 1
        moves = np.concatenate([[0], instance.transfer_ns, [0]])
        forward, backward = (np.concatenate([[0], np.cumsum(times)]) for times in (instance.forward_ns, instance.backward_ns))
        self._forward_from, self._forward_to = forward - moves, forward
        self._backward_from, self._backward_to = backward, backward + moves
        self.windows = instance.windows

    def passes_ns(self, first: Integers, end: Integers) -> tuple[Integers, Integers]:
        """The passes f and b of spans between these places, each with the message that it receives."""
        return self._forward_to[end] - self._forward_from[first], self._backward_to[end] - self._backward_from[first]

    def ends(self, firsts: Integers) -> Integers:
        """(N, stages): where the last stages of N pipelines end, which begin at these places."""
        return np.concatenate([firsts[:, 1:], np.full((len(firsts), 1), self.places - 1)], axis=1)

    def fits(self, stage: Integers | int, first: Integers, end: Integers) -> Truths:
        """Whether spans between these places are neither empty nor too large for the memory of their stages."""
        if self.windows is None:
            return first < end
        return (first < end) & (first >= self.windows[stage, np.maximum(end - 1, 0)])

    def fitting(self, firsts: Integers) -> Integers:
        """The partitions, of N by the first places (N, p) of their stages, whose stages are neither empty nor too large."""
        ends = self.ends(firsts)
        inside = np.flatnonzero((firsts < ends).all(axis=1))
        return firsts[inside[self.fits(np.arange(self.stages), firsts[inside], ends[inside]).all(axis=1)]]

    def neighbours(self, firsts: Integers) -> Integers:
        """(N, p): the partitions with one cut of a partition (p,) moved a little, as far as their stages fit."""
        moves = np.array(list(product(range(1, self.stages), SHIFTS)), np.int64).reshape(-1, 2)
        moved = np.tile(firsts, (len(moves), 1))
        moved[np.arange(len(moves)), moves[:, 0]] += moves[:, 1]
        return self.fitting(moved)

    def times_ns(self, firsts: Integers) -> Integers:
        """(N,): the simulated iterations of pipelines of the last stages. firsts: (N, stages), the first place of each."""
        return self.ends_ns(firsts)[:, 0]

    def ends_ns(self, firsts: Integers) -> Integers:
        """(N, stages): when each stage of N pipelines of the last stages ends. firsts: (N, stages), the first places."""
        forward, backward = self.passes_ns(firsts.T, self.ends(firsts).T)
        return ends_ns(forward, backward, self.micro_batches).T
