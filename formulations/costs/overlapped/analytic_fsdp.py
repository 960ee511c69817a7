"""A step of fully sharded data parallelism (ZeRO-3): two lanes, one of computations, one of collectives.

The collective lane gathers the parameters of each block one block ahead of its pass, and reduces a block's gradients behind its
backward pass; of the last micro-batch of hybrid sharding they are then summed over the copies. A block is a transformer
layer, or embedding and head by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

Lanes = tuple[float, float]  # until when, in ns, that of computations and that of collectives are taken
NEVER = float("-inf")


@dataclass(frozen=True)
class Block:
    """Of one block: passes, the gathering of its parameters, the reduction of its gradients, and at the end over copies."""

    forward_ns: float
    backward_ns: float
    gather_ns: float
    reduce_ns: float
    copies_ns: float = 0.0


def sharded_ns(
    blocks: Sequence[Block], micro_batches: int, again: bool = True, ahead: int = 1, reduces_last: bool = False
) -> float:
    """Until the last gradient is reduced. again: parameters are gathered for the backward pass, too, and in every micro-batch
    (else once a step, ZeRO-2). ahead: blocks whose parameters may be there before the one that is computed. reduces_last:
    gradients are reduced in the last micro-batch alone."""
    step = partial(_micro_batch, blocks, again=again, ahead=ahead, reduces_last=reduces_last)
    last = micro_batches == 1
    lanes = step((0.0, 0.0), gathers=True, last=last)
    if not last:
        lanes = _often(partial(step, gathers=again, last=False), lanes, micro_batches - 2)
        lanes = step(lanes, gathers=again, last=True)
    return max(lanes)


def _micro_batch(
    blocks: Sequence[Block], lanes: Lanes, *, gathers: bool, last: bool, again: bool, ahead: int, reduces_last: bool
) -> Lanes:
    """Until when both lanes are taken after one more micro-batch. lanes: before it; gathers: for its forward pass, too."""
    compute, lane = _pass(blocks, *lanes, gathers, ahead)
    ends: list[float] = []
    ready, reduces = lane, last or not reduces_last
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        kept = index == len(blocks) - 1  # its forward pass has just been
        if again and not kept:
            lane = max(lane, ends[-ahead - 1] if len(ends) > ahead else NEVER) + block.gather_ns
            ready = lane
        compute = max(compute, ready if again and not kept else NEVER) + block.backward_ns
        ends.append(compute)
        if len(ends) > 1 and reduces:  # the block before's gradients go behind this block's gathering
            lane = max(lane, ends[-2]) + _reduced(blocks[index + 1], last)
    return compute, max(lane, compute) + _reduced(blocks[0], last) if reduces else lane


def _often(step: Callable[[Lanes], Lanes], lanes: Lanes, count: int) -> Lanes:
    """The lanes after so many equal micro-batches: each end is the later one of both lanes with what comes behind it, so a
    micro-batch is a matrix that adds where others multiply, and takes the latest where they add; many are a power of it."""
    power = step((0.0, NEVER)), step((NEVER, 0.0))
    while count:
        if count % 2:
            lanes = _applied(power, lanes)
        power, count = (_applied(power, power[0]), _applied(power, power[1])), count // 2
    return lanes


def _applied(columns: tuple[Lanes, Lanes], lanes: Lanes) -> Lanes:
    (a, b), (c, d) = columns
    return max(a + lanes[0], c + lanes[1]), max(b + lanes[0], d + lanes[1])


def _reduced(block: Block, last: bool) -> float:
    return block.reduce_ns + block.copies_ns * last


def _pass(blocks: Sequence[Block], compute: float, lane: float, gathers: bool, ahead: int) -> Lanes:
    """The forward pass."""
    ends: list[float] = []
    for index, block in enumerate(blocks):
        ready = NEVER
        if gathers:
            behind = ends[index - ahead - 1] if index > ahead else NEVER
            ready = lane = max(lane, behind) + block.gather_ns
        compute = max(compute, ready) + block.forward_ns
        ends.append(compute)
    return compute, lane
