"""Lower bounds of the simulated step from chains of passes that wait for each other.

For stage x of P, with w = P - 1 - x stages after it and m micro-batches: u is both passes of one micro-batch with the messages
that they receive; H and S are the sums of u over the stages before and after it. Every function bounds the time from the first
pass of stage x to the end of its last backward pass, whatever part of u is forward. With H added, that is a bound on the end of
stage 0; with the forward passes of the stages before it added, on the end of stage x. All bounds rise with u and S, so lower
bounds of these give lower bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from trainplan.formulations.schedule.orders import by_order


def one_f_one_b_ns(u: Any, after: Any, w: int, m: int) -> Any:
    """A lower bound in ns on the time from the first pass of stage x to the end of its last pass under 1F1B. u: forward plus
    backward pass of a micro-batch on x, in ns. after: S, the sum of u over the stages after x. w: the number of stages after x.
    m: micro-batches. u and after: numbers or arrays.

    Proof: where w < m, micro-batch 0 goes from x to the last stage and back, or x runs its w warm-up passes meanwhile; then x
    runs m - w - 1 pairs; then the last micro-batch goes to the end and back, or x runs the w backward passes left. So (m - w) u
    + max(S, w f) + max(S, w b), with f and b the forward and the backward part of u, and f + b = u makes the two maxima at
    least 2 S, S + w u / 2 and w u. Where w >= m, x runs its m forward before its m backward passes; or one of them waits for S
    while the other m - 1 of its kind, of which the longer kind takes u / 2 or more, follow.
    """
    if w < m:
        if not w:
            return m * u + 2 * after
        return (m - w) * u + np.maximum(np.maximum(2 * after, after + w * u / 2), w * u)
    return np.maximum(m * u, after + (m + 1) * u / 2)


def gpipe_ns(u: Any, after: Any, w: int, m: int) -> Any:
    """A lower bound in ns on the time from the first pass of stage x to the end of its last pass under GPipe. u: forward plus
    backward pass of a micro-batch on x, in ns. after: S, the sum of u over the stages after x. w: unused; part of the signature
    that the schedules share. m: micro-batches. u and after: numbers or arrays.

    Proof: x runs m forward passes, the last micro-batch goes to the last stage, and micro-batch 0's gradients, which that stage
    has no earlier, come back to x, which runs m backward passes: m f + S + m b.
    """
    return m * u + after


def sliced_ns(u: Any, after: Any, w: int, m: int, trip: Any) -> Any:
    """A lower bound in ns on the time from the first pass of stage x to the end of its last pass under 1F1B whose first
    micro-batches are sliced in halves. u: forward plus backward pass of a micro-batch on x, in ns. after: S, the sum of u over
    the stages after x. w: the number of stages after x. m: micro-batches. trip: the least time in ns of a first half from the
    beginning of x through the last stage, and of its gradients back to the end of x's first backward pass. u, after and trip:
    numbers or arrays.

    Proof: x runs m passes of each kind. Or, where w < m: its first backward pass ends after the trip; m - w - 1 pairs follow,
    and the last micro-batch, which is whole where fewer than m are sliced, goes to the end and back.
    """
    if w < m:
        return np.maximum(m * u, trip + (m - 1 - w) * u + after) if m - 1 - w else np.maximum(m * u, trip + after)
    return m * u


def slope(schedule: str, w: int, m: int) -> int:
    """The least slope of the lower bounds of this module (time from a stage's first to its last pass) in u, the stage's forward
    plus backward pass: by how many ns a bound rises at least for each ns of u, rounded down. schedule: `gpipe`, `1f1b` or
    `sliced`. w: the number of stages after the stage. m: micro-batches.

    Proof: the derivative of each maximum's least rising part: m - w of `one_f_one_b_ns` where w < m, else (m + 1) / 2, which no
    other part is below; m of `gpipe_ns`; m - 1 - w of `sliced_ns`, else m."""
    if schedule == "sliced":
        return m - 1 - w if w < m else m
    return by_order(schedule, gpipe=m, one_f_one_b=m - w if w < m else (m + 1) // 2)
