"""Time of a step of fully sharded data parallelism (ZeRO-2 and 3) on two lanes, one of computations and one of collectives.

The collective lane gathers the parameters of each block one block before its pass, and reduces a block's gradients after its
backward pass; in the last micro-batch of hybrid sharding they are then summed over the copies. A block is a transformer layer;
embedding and head are blocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

Lanes = tuple[float, float]  # until when, in ns, that of computations and that of collectives are taken
NEVER = float("-inf")


@dataclass(frozen=True)
class Block:
    """Times of one block in ns, for one micro-batch.

    Attributes:
        forward_ns, backward_ns: its passes.
        gather_ns: gathering its parameters.
        reduce_ns: reducing its gradients to shards.
        copies_ns: summing these shards over the copies, in the last micro-batch only.
    """

    forward_ns: float
    backward_ns: float
    gather_ns: float
    reduce_ns: float
    copies_ns: float = 0.0


def sharded_ns(
    blocks: Sequence[Block], micro_batches: int, gathers_again: bool = True, prefetched: int = 1, reduces_last: bool = False
) -> float:
    """Time in ns until the last gradient of a step is reduced.

    Args:
        blocks: in order of the forward pass.
        micro_batches: of the step.
        gathers_again: whether parameters are gathered again for the backward pass, and in every micro-batch (ZeRO-3), instead
            of once a step (ZeRO-2).
        prefetched: the number of blocks whose parameters may be gathered before the block that is being computed.
        reduces_last: whether gradients are reduced in the last micro-batch alone.
    """
    step = partial(_micro_batch, blocks, gathers_again=gathers_again, prefetched=prefetched, reduces_last=reduces_last)
    last = micro_batches == 1
    lanes = step((0.0, 0.0), gathers=True, last=last)
    if not last:
        lanes = _repeated(partial(step, gathers=gathers_again, last=False), lanes, micro_batches - 2)
        lanes = step(lanes, gathers=gathers_again, last=True)
    return max(lanes)


def _micro_batch(
    blocks: Sequence[Block],
    lanes: Lanes,
    *,
    gathers: bool,
    last: bool,
    gathers_again: bool,
    prefetched: int,
    reduces_last: bool,
) -> Lanes:
    """The ends of both lanes after one more micro-batch.

    lanes: their ends before it.
    gathers: whether its forward pass gathers parameters.
    last: whether it is the step's last micro-batch.
    gathers_again, prefetched, reduces_last: as in `sharded_ns`.
    """
    compute, lane = _pass(blocks, *lanes, gathers, prefetched)
    ends: list[float] = []
    ready, reduces = lane, last or not reduces_last
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        kept = index == len(blocks) - 1  # its forward pass has just been
        if gathers_again and not kept:
            lane = max(lane, ends[-prefetched - 1] if len(ends) > prefetched else NEVER) + block.gather_ns
            ready = lane
        compute = max(compute, ready if gathers_again and not kept else NEVER) + block.backward_ns
        ends.append(compute)
        if (
            len(ends) > 1 and reduces
        ):  # the gradients of the block before are reduced after this block's parameters are gathered
            lane = max(lane, ends[-2]) + _reduced(blocks[index + 1], last)
    return compute, max(lane, compute) + _reduced(blocks[0], last) if reduces else lane


def _repeated(step: Callable[[Lanes], Lanes], lanes: Lanes, count: int) -> Lanes:
    """The ends of both lanes after `count` equal micro-batches.

    The end of each lane is the later of both lanes' ends, each plus a constant, so a micro-batch is a matrix of the algebra
    that adds where others multiply and takes the maximum where they add; many micro-batches are a power of this matrix.
    """
    power = step((0.0, NEVER)), step((NEVER, 0.0))
    while count:
        if count % 2:
            lanes = _applied(power, lanes)
        power, count = (_applied(power, power[0]), _applied(power, power[1])), count // 2
    return lanes


def _applied(columns: tuple[Lanes, Lanes], lanes: Lanes) -> Lanes:
    """A matrix of that algebra, given by its columns, applied to the ends of both lanes."""
    (a, b), (c, d) = columns
    return max(a + lanes[0], c + lanes[1]), max(b + lanes[0], d + lanes[1])


def _reduced(block: Block, last: bool) -> float:
    """Time to reduce a block's gradients in one micro-batch. last: whether it is the step's last one."""
    return block.reduce_ns + block.copies_ns * last


def _pass(blocks: Sequence[Block], compute: float, lane: float, gathers: bool, prefetched: int) -> Lanes:
    """The ends of both lanes after a forward pass. compute, lane: their ends before it."""
    ends: list[float] = []
    for index, block in enumerate(blocks):
        ready = NEVER
        if gathers:
            waited_for = ends[index - prefetched - 1] if index > prefetched else NEVER
            ready = lane = max(lane, waited_for) + block.gather_ns
        compute = max(compute, ready) + block.forward_ns
        ends.append(compute)
    return compute, lane
