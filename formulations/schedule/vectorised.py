"""The ends of many pipelines together, in arrays: 1F1B in steps of one block of all stages, GPipe in closed form.

A specialised evaluation of the graphs of these two schedules (`graph`), kept because searches spend their time here: the same
ends as by the graph and by `autopipe_recurrences`, asserted in tests/solvers/test_partition_search.py,
tests/solvers/test_whole_step.py and tests/formulations/test_joint.py.

A device waits while it receives, so the transfer of a pass that receives a message is as if it were part of the pass. The last
stages of a longer pipeline are a pipeline themselves, in the same order of passes.
"""

from __future__ import annotations

import numpy as np
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.orders import by_order

LONG = 64  # blocks that are left, for which it is looked whether all stages move on by one time


def one_f_one_b_ends_ns(
    forward_ns: Integers, backward_ns: Integers, micro_batches: int, last_ns: Integers | None = None
) -> Integers:
    """(p, N): the time in ns at which each of p stages of N pipelines ends its last pass under 1F1B.

    forward_ns, backward_ns: (p, N), times of the passes of each stage, including the message that a pass receives.
    micro_batches: the number of micro-batches per step. last_ns: (p, N), the additional time of the last micro-batch's
    backward pass (default: none).

    Stages are x = 0 .. p-1, micro-batches 0 .. m-1. In block y = -(p-1) .. m-1 stage x runs the forward pass of micro-batch
    p - 1 - x + y, whose input is from the block before, so all stages are computed together. From y = 0 on it then runs the
    backward pass of micro-batch y, which goes through the stages one after another in the same block and ends on x at the
    largest of free_z + b_z + .. + b_x over the stages z >= x, where free_z is the end of stage z's pass before it and b_z
    the time of z's backward pass. If a block delays all ends by one and the same time, so do all later blocks, which are
    then skipped.
    """
    stages, count = forward_ns.shape
    free = np.zeros((stages, count), np.int64)
    sent = np.zeros((stages + 1, count), np.int64)  # end of the last forward pass of the stage before
    back = np.cumsum(backward_ns[::-1], axis=0)[::-1]  # backward passes from the last stage to this one
    later = np.concatenate([back[1:], np.zeros((1, count), np.int64)])
    steady = min(micro_batches - stages, micro_batches - 2)  # the last block like the one before, except for its micro-batches
    y, before = -stages, np.concatenate([free, sent[1:]])
    while (y := y + 1) < micro_batches:
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
        if y >= 0 and steady - y > LONG:
            now = np.concatenate([free, sent[1:]])
            added, before = now - before, now
            if y and (added == added[0]).all():  # so does every block up to the last steady one
                free += (steady - y) * added[0]
                sent[1:] += (steady - y) * added[0]
                y = steady
    return free


def gpipe_ends_ns(forward_ns: Integers, backward_ns: Integers, micro_batches: int, last_ns: Integers) -> Integers:
    """(p, N): the time in ns at which each of p stages of N pipelines ends its last pass under GPipe.

    forward_ns, backward_ns: (p, N), times of the passes of each stage, including the message that a pass receives.
    micro_batches: the number of micro-batches per step. last_ns: (p, N), the additional time of the last micro-batch's
    backward pass.

    With f, b and l for these times and m micro-batches, the last stage begins its backward passes when all forward passes
    are done: sum f + (m - 1) max f. Back to stage z, the longest path goes down to some stage y, stays there for the first
    m - 1 micro-batches, and takes the last one, which is longer by l, from there: sum_{j>=y} b + (m - 2) max_{j>=y} b +
    sum_{z<=j<=y} (b + l).
    """
    m = micro_batches
    turned = forward_ns.sum(axis=0) + (m - 1) * forward_ns.max(axis=0)
    longer = np.cumsum((backward_ns + last_ns)[::-1], axis=0)[::-1]
    if m == 1:
        return turned + longer
    after = np.concatenate([longer[1:], np.zeros((1, longer.shape[1]), np.int64)])
    largest = np.maximum.accumulate(backward_ns[::-1], axis=0)[::-1]
    first = np.cumsum(backward_ns[::-1], axis=0)[::-1] + (m - 2) * largest
    waiting = np.maximum.accumulate((first - after)[::-1], axis=0)[::-1]
    ends: Integers = turned + longer + waiting
    return ends


def pass_ends_ns(order: str, forward_ns: Integers, backward_ns: Integers, micro_batches: int, last_ns: Integers) -> Integers:
    """(p, N): the time in ns at which each of p stages of N pipelines ends its last pass.

    order: the schedule, "1f1b" or "gpipe". forward_ns, backward_ns: (p, N), times of the passes of each stage, including
    the message that a pass receives. micro_batches: the number of micro-batches per step. last_ns: (p, N), the additional
    time of the last micro-batch's backward pass.
    """
    many = by_order(order, gpipe=gpipe_ends_ns, one_f_one_b=one_f_one_b_ends_ns)
    return many(forward_ns, backward_ns, micro_batches, last_ns)
