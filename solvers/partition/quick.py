"""pipeline-partition in milliseconds: a bound in closed form, and cuts with a small largest stage."""

from __future__ import annotations

from itertools import islice

import numpy as np
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.solvers.assignment.quick import STEPS
from trainplan.solvers.assignment.sweep import steps_of

SOURCE = "one micro-batch through all stages, the others on an even stage or on the slowest sub-layer"


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """No partition has a shorter iteration than these nanoseconds, whatever the memory; and why.

    Proof: those of `even_bound_ns` and `slowest_bound_ns`.
    """
    return max(even_bound_ns(instance), slowest_bound_ns(instance)), SOURCE


def even_bound_ns(instance: Instance) -> int:
    """No partition is below A + (m - 1) A / p where m > p, with A the way of one micro-batch; else A + (m - 1) A / 2p.

    Proof: were T less, then by the first of the paths of `spans`, with S twice, the sums of t over the last stages would be
    less than their shares of A, one after the other, and so would A. For m <= p, T >= A + (m - 1) max(f_x, b_x) of the largest
    stage, whose t is at least A / p.
    """
    p, m, way = instance.stages, instance.micro_batches, _way_ns(instance)
    return way - (1 - m) * way // (p if m > p else 2 * p)


def slowest_bound_ns(instance: Instance) -> int:
    """No partition is below A + (m - 1) max(f, b) + max(0, m - p) min(f, b), with f and b of any one sub-layer.

    Proof: the stage that holds it has no shorter passes, and adds as much to the way A by the paths of
    `formulations.pipeline_partition.bounds`, with at least m - p forward passes left over.
    """
    longer, shorter = (pick(instance.forward_ns, instance.backward_ns) for pick in (np.maximum, np.minimum))
    left = max(0, instance.micro_batches - instance.stages)
    return _way_ns(instance) + int(((instance.micro_batches - 1) * longer + left * shorter).max())


def _way_ns(instance: Instance) -> int:
    """A: one micro-batch through all stages and back, at least."""
    moves = 2 * (instance.stages - 1) * int(instance.transfer_ns.min()) if instance.stages > 1 else 0
    return int(instance.forward_ns.sum() + instance.backward_ns.sum()) + moves


def first_plan(instance: Instance) -> Solution | None:
    """The cuts with a largest stage that is the least, or nearly so, of those that fit; None where a few steps find none."""
    row, stages = instance.forward_ns + instance.backward_ns, instance.stages
    times, moves = np.tile(row, (stages, 1)), np.tile(2 * instance.transfer_ns, (stages - 1, 1))
    steps = steps_of(times, moves, instance.micro_batches, instance.windows)
    return next((Solution(step.cuts) for step in islice(steps, STEPS) if step.cuts is not None), None)
