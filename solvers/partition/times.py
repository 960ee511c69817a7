"""A chain of sub-layers, and the simulated 1F1B iterations of many partitions of it at the same time."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.formulations.schedule.vectorised import one_f_one_b_ends_ns

SHIFTS = (-3, -2, -1, 1, 2, 3)

Booleans = NDArray[np.bool_]


class SublayerChain:
    """The n sub-layers of an instance, with the boundaries 0 .. n before, between and after them. A span is the sub-layers
    between two boundaries; a partition divides all sub-layers into p stages, each a span. windows: (stages, n), entry [x, j]:
    the earliest first sub-layer with which stage x, if it ends with sub-layer j, fits its memory; None without a memory limit.
    """

    def __init__(self, instance: Instance) -> None:
        self.stages, self.micro_batches, self.boundaries = instance.stages, instance.micro_batches, instance.sublayers + 1
        moves = np.concatenate([[0], instance.transfer_ns, [0]])
        forward, backward = (np.concatenate([[0], np.cumsum(times)]) for times in (instance.forward_ns, instance.backward_ns))
        self._forward_from, self._forward_to = forward - moves, forward
        self._backward_from, self._backward_to = backward, backward + moves
        self.windows = instance.windows

    def passes_ns(self, first: Integers, end: Integers) -> tuple[Integers, Integers]:
        """Forward and backward passes in ns of spans, each with the message that the pass receives. first, end: the boundaries
        where the spans begin and end; arrays that broadcast."""
        return self._forward_to[end] - self._forward_from[first], self._backward_to[end] - self._backward_from[first]

    def ends(self, firsts: Integers) -> Integers:
        """The boundaries where the stages of N pipelines end, (N, stages). firsts: (N, stages), the boundaries where they
        begin; the last stage ends with the chain."""
        return np.concatenate([firsts[:, 1:], np.full((len(firsts), 1), self.boundaries - 1)], axis=1)

    def fits(self, stage: Integers | int, first: Integers, end: Integers) -> Booleans:
        """Whether each span is not empty and fits the memory of its stage. stage: index of the stage. first, end: the
        boundaries where the span begins and ends. All are arrays that broadcast."""
        if self.windows is None:
            return first < end
        return (first < end) & (first >= self.windows[stage, np.maximum(end - 1, 0)])

    def fitting(self, firsts: Integers) -> Integers:
        """Keep only the partitions whose stages are not empty and fit the memory: the rows of `firsts` that stay. firsts: (N,
        stages), the first boundary of every stage of N partitions."""
        ends = self.ends(firsts)
        inside = np.flatnonzero((firsts < ends).all(axis=1))
        return firsts[inside[self.fits(np.arange(self.stages), firsts[inside], ends[inside]).all(axis=1)]]

    def neighbours(self, firsts: Integers) -> Integers:
        """All partitions that differ from the given one by one cut moved by up to three sub-layers, and that fit the memory:
        (N, stages) for N partitions. firsts: (stages,), the first boundary of every stage of the given partition.
        """
        moves = np.array(list(product(range(1, self.stages), SHIFTS)), np.int64).reshape(-1, 2)
        moved = np.tile(firsts, (len(moves), 1))
        moved[np.arange(len(moves)), moves[:, 0]] += moves[:, 1]
        return self.fitting(moved)

    def times_ns(self, firsts: Integers) -> Integers:
        """The simulated 1F1B iteration times in ns of N pipelines, (N,). firsts: (N, stages), the boundary where each stage
        begins; the last stage ends with the chain. A pipeline may have only the last stages of a partition, and is then
        simulated on its own."""
        return self.ends_ns(firsts)[:, 0]

    def ends_ns(self, firsts: Integers) -> Integers:
        """The simulated time in ns at which each stage of N pipelines ends its last pass under 1F1B, (N, stages). firsts: (N,
        stages), the boundary where each stage begins; the last stage ends with the chain. A pipeline may have only the last
        stages of a partition, and is then simulated on its own."""
        forward, backward = self.passes_ns(firsts.T, self.ends(firsts).T)
        return one_f_one_b_ends_ns(forward, backward, self.micro_batches).T
