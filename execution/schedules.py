"""The order of forward and backward passes on one pipeline stage."""

from __future__ import annotations

from typing import Literal

from trainplan.formulations.plan import Schedule

Pass = tuple[Literal["forward", "backward"], int]


def passes(stage: int, stages: int, micro_batches: int, schedule: Schedule) -> list[Pass]:
    """Passes of a stage (numbered from 0) in one step, each with its micro-batch; both kinds in order of micro-batches.

    1F1B-Flush: min(m, P - i - 1) forward passes, then one forward and one backward in turn, then the backward passes left:
    activations of min(m, P - i) micro-batches are held at once. GPipe: all forward, then all backward passes; m are held.
    """
    ahead = micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage - 1)
    order: list[Pass] = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append(("forward", ahead + number))
        order.append(("backward", number))
    return order
