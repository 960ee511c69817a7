"""Lower bounds of the step under overlap for plans whose units have unlike layouts, as weighted means of four bounds.

For a unit l let f, b be its forward and backward pass on the lane of computations, R_f, R_b the re-layouts before its passes
(computations wait for them), o its optimizer, m what one micro-batch moves of its parameters and gradients on the other lane
(ZeRO stages 2 and 3; s of it scatters gradients), r the reduction of its gradients at the end of the step, and u the part of
gathering its updated parameters that forward passes of the next step do not hide. With M micro-batches and one stage, each of
these is a lower bound of the simulated step of every plan:

    optimizer    M sum (f + b + R) + sum o              the optimizer follows all passes on their lane
    updates      M sum (f + b + R) + sum u              every gathering waits for an optimizer
    collectives  M sum m + sum (r + u)                  the other lane does one thing after the other
    reductions   M sum (f + R_f) + (M - 1) sum (b + R_b) + b of the head + sum (s + r + u)

The last one holds since the gradients that the last micro-batch completes are reduced after the head's backward pass of that
micro-batch, before which only the other passes have run. A mean of the four with weights that add up to 1 is a lower bound,
too, and it is a sum over units, which the problem's tables can have; `best_weights` chooses them for every number of stages
and of micro-batches.

In pipelines the first two hold with the passes simulated stage by stage, whatever the layouts of stages. Of u only the share of
the first bucket counts: it is in every plan at least that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

PARTS = 10  # grid of weights: multiples of 1 / PARTS


class Weights(NamedTuple):
    """The weights, at least 0 and with the sum 1, of the four lower bounds in their mean."""

    optimizer: float = 0.0
    updates: float = 0.0
    collectives: float = 0.0
    reductions: float = 0.0

    @property
    def of_computations(self) -> float:
        """The share of forward passes in the mean."""
        return 1.0 - self.collectives

    def of_backward(self, micro_batches: int) -> float:
        """The share of the backward passes, of all micro-batches, of units before the head. micro_batches: their number."""
        return 1.0 - self.collectives - self.reductions / micro_batches


class UnitTimes(NamedTuple):
    """Times in ns of one sub-layer under one strategy.

    forward, backward: its passes of one micro-batch on the lane of computations. moved_forward, moved_backward: what the other
    lane moves for it in these passes. scattered: the part of `moved_backward` that reduces gradients. reduced, updated: the
    reduction at the end of the step, and the part of the gathering of updated parameters that is not hidden. optimizer: its
    optimizer. is_head: whether it is the model's head.
    """

    forward: int
    backward: int
    moved_forward: int
    moved_backward: int
    scattered: int
    reduced: int
    updated: int
    optimizer: int
    is_head: bool

    def weighted(self, weights: Weights, micro_batches: int) -> tuple[int, int, int]:
        """Three times in ns, rounded down, whose sums over all units and micro-batches are the weighted mean of the four lower
        bounds, without re-layouts: of the forward pass, of the backward pass, and at the end of the step."""
        back = weights.of_computations if self.is_head else weights.of_backward(micro_batches)
        forward = weights.of_computations * self.forward + weights.collectives * self.moved_forward
        backward = back * self.backward + weights.collectives * self.moved_backward
        end = weights.optimizer * self.optimizer + (1 - weights.optimizer) * self.updated
        end += (weights.collectives + weights.reductions) * self.reduced + weights.reductions * self.scattered
        return int(forward), int(backward), int(end)

    def bounds(self, micro_batches: int) -> list[int]:
        """The sub-layer's part of each of the four lower bounds, in ns, in the order of `Weights`."""
        parts = [self.weighted(weights, micro_batches) for weights in CORNERS]
        return [micro_batches * (forward + backward) + end for forward, backward, end in parts]


CORNERS = tuple(Weights(*(float(index == own) for index in range(4))) for own in range(4))  # each bound by itself


def best_weights(
    counts: Sequence[int], plans: Sequence[Sequence[UnitTimes]], fits: Sequence[bool], micro_batches: int, one_stage: bool
) -> Weights:
    """The weights with which two lower bounds of the weighted mean are largest in sum: its least over plans of one strategy
    that fit into memory, and its least where every sub-layer has the strategy that is best for it, whatever memory it needs.

    counts: how often each sub-layer is in the model. plans: for each strategy, the times of the sub-layers. fits: whether the
    plan of a strategy fits; where none does, all count. one_stage: whether the pipeline has one stage; if not, only the first
    two bounds hold.
    """
    parts = np.array([[times.bounds(micro_batches) for times in plan] for plan in plans], float)  # strategy, sub-layer, bound
    parts *= np.array(counts, float)[None, :, None]
    grid = np.array(list(_grid(2 + 2 * one_stage)), float)
    means = parts[:, :, : grid.shape[1]] @ grid.T  # strategy, sub-layer, weights
    counted = np.array(fits) if any(fits) else np.ones(len(plans), bool)
    worth = means.sum(axis=1)[counted].min(axis=0) + means.min(axis=0).sum(axis=0)
    best = grid[int(worth.argmax())]
    return Weights(*map(float, best), *(0.0,) * (4 - len(best)))


def _grid(count: int) -> Iterator[list[float]]:
    """All lists of `count` multiples of 1 / PARTS with the sum 1."""
    for parts in product(range(PARTS + 1), repeat=count - 1):
        if sum(parts) <= PARTS:
            yield [(PARTS - sum(parts)) / PARTS, *(part / PARTS for part in parts)]
