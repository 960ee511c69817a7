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
    """Times in ns of one block (a transformer layer, the embedding or the head) for one micro-batch under fully sharded data
    parallelism.

    Attributes:
        forward_ns, backward_ns: its passes.
        gather_ns: the all-gather of its parameters.
        reduce_ns: the reduce-scatter of its gradients to shards.
        copies_ns: in the last micro-batch only, the sum of these shards over the copies of the model states (hybrid
            sharding).
    """

    forward_ns: float
    backward_ns: float
    gather_ns: float
    reduce_ns: float
    copies_ns: float = 0.0


def sharded_ns(
    blocks: Sequence[Block], micro_batches: int, gathers_again: bool = True, prefetched: int = 1, reduces_last: bool = False
) -> float:
    """The time in ns from the beginning of a step until its last gradient is reduced, with fully sharded data parallelism. One
    lane of the device computes; another moves parameters and gradients at the same time.

    Args:
        blocks: the times of each block (transformer layer, embedding or head), in the order of the forward pass.
        micro_batches: the number of micro-batches per step.
        gathers_again: whether parameters are gathered again for the backward pass, and in every micro-batch (ZeRO-3),
            instead of once per step (ZeRO-2).
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


def first_forward_ns(blocks: Sequence[Block], prefetched: int = 1) -> float:
    """The time in ns of a forward pass that gathers the parameters of its blocks on the way, from its beginning to its end.
    blocks: the times of each block, in the order of the pass. prefetched: the number of blocks that may be gathered in
    advance."""
    return _pass(blocks, 0.0, 0.0, True, prefetched)[0]


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
    """The times in ns, from the step's beginning, at which the two lanes of a device (computations; collectives) end one more
    micro-batch.

    blocks: the times of each block, in the order of the forward pass. lanes: the times at which both lanes end the
    micro-batch before. gathers: whether the forward pass gathers parameters. last: whether it is the step's last
    micro-batch. gathers_again: whether parameters are gathered again for the backward pass (ZeRO-3). prefetched: the number
    of blocks that may be gathered in advance. reduces_last: whether gradients are reduced in the last micro-batch alone.
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
    """The times in ns, from the step's beginning, at which the two lanes of a device (computations; collectives) end `count`
    more equal micro-batches.

    step: takes the times at which the lanes end one micro-batch, returns those at which they end the next. lanes: the times
    at which they end the micro-batches before.

    The end of each lane is the later of both lanes' ends, each plus a constant, so a micro-batch is a matrix of the
    max-plus algebra, which adds where others multiply and takes the maximum where they add; many micro-batches are a power
    of this matrix.
    """
    power = step((0.0, NEVER)), step((NEVER, 0.0))
    while count:
        if count % 2:
            lanes = _applied(power, lanes)
        power, count = (_applied(power, power[0]), _applied(power, power[1])), count // 2
    return lanes


def _applied(columns: tuple[Lanes, Lanes], lanes: Lanes) -> Lanes:
    """The product of a 2 by 2 matrix of the max-plus algebra (add for times, maximum for plus) with a vector. columns: the
    matrix's two columns. lanes: the vector, the times at which the lanes of computations and of collectives end."""
    (a, b), (c, d) = columns
    return max(a + lanes[0], c + lanes[1]), max(b + lanes[0], d + lanes[1])


def _reduced(block: Block, last: bool) -> float:
    """The time in ns to reduce a block's gradients in one micro-batch; in the step's last one also to sum them over the copies.
    last: whether it is the step's last micro-batch."""
    return block.reduce_ns + block.copies_ns * last


def _pass(blocks: Sequence[Block], compute: float, lane: float, gathers: bool, prefetched: int) -> Lanes:
    """The times in ns, from the step's beginning, at which the lanes of computations and of collectives end a forward pass.
    blocks: the times of each block, in the order of the pass. compute, lane: the times at which the two lanes end what came
    before. gathers: whether the pass gathers parameters. prefetched: the number of blocks that may be gathered in advance."""
    ends: list[float] = []
    for index, block in enumerate(blocks):
        ready = NEVER
        if gathers:
            waited_for = ends[index - prefetched - 1] if index > prefetched else NEVER
            ready = lane = max(lane, waited_for) + block.gather_ns
        compute = max(compute, ready) + block.forward_ns
        ends.append(compute)
    return compute, lane
