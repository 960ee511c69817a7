"""A step of fully sharded data parallelism (ZeRO-3): two lanes, one of computations, one of collectives.

The collective lane gathers the parameters of each block one block ahead of its pass, and reduces a block's gradients behind its
backward pass; of the last micro-batch of hybrid sharding they are then summed over the copies. A block is a transformer
layer, or embedding and head by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Of one block: passes, the gathering of its parameters, the reduction of its gradients, and at the end over copies."""

    forward_ns: float
    backward_ns: float
    gather_ns: float
    reduce_ns: float
    copies_ns: float = 0.0


def sharded_ns(blocks: Sequence[Block], micro_batches: int, again: bool = True, ahead: int = 1) -> float:
    """Until the last gradient is reduced. again: parameters are gathered for the backward pass, too, and in every micro-batch
    (else once a step, ZeRO-2). ahead: blocks whose parameters may be there before the one that is computed."""
    compute = lane = 0.0
    for number in range(micro_batches):
        gathers = again or not number
        last = number == micro_batches - 1
        compute, lane = _pass(blocks, compute, lane, gathers, ahead)
        ends: list[float] = []
        ready = lane
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            kept = place == len(blocks) - 1  # its forward pass has just been
            if again and not kept:
                behind = ends[-ahead - 1] if len(ends) > ahead else 0.0
                lane = max(lane, behind) + block.gather_ns
                ready = lane
            compute = max(compute, ready if again and not kept else 0.0) + block.backward_ns
            ends.append(compute)
            if len(ends) > 1:  # the block before's gradients go behind this block's gathering
                lane = max(lane, ends[-2]) + _reduced(blocks[place + 1], last)
        lane = max(lane, compute) + _reduced(blocks[0], last)
    return max(compute, lane)


def _reduced(block: Block, last: bool) -> float:
    return block.reduce_ns + block.copies_ns * last


def _pass(blocks: Sequence[Block], compute: float, lane: float, gathers: bool, ahead: int) -> tuple[float, float]:
    """The forward pass."""
    ends: list[float] = []
    for place, block in enumerate(blocks):
        ready = 0.0
        if gathers:
            behind = ends[place - ahead - 1] if place > ahead else 0.0
            ready = lane = max(lane, behind) + block.gather_ns
        compute = max(compute, ready) + block.forward_ns
        ends.append(compute)
    return compute, lane
