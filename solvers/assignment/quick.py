"""stage-assignment in milliseconds: a bound in closed form, and the first cuts of the sweep."""

from __future__ import annotations

from itertools import islice

from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.assignment.sweep import steps_of

SOURCE = "every layer on its fastest stage, every boundary at its cheapest cut, stages as even as they can be"
STEPS = 50  # of the sweep, in which the first one mostly has cuts


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """No cuts are faster than these nanoseconds, whatever the memory; and why.

    Proof: each layer takes its fastest stage's time at least, each boundary its cheapest transfer, and the largest stage an
    even part of all layers, and any one of them.
    """
    fastest = instance.layer_ns.min(axis=0)
    once = int(fastest.sum()) + (int(instance.transfer_ns.min(axis=1).sum()) if instance.stages > 1 else 0)
    largest = max(int(fastest.max()), -(-int(fastest.sum()) // instance.stages))
    return (instance.micro_batches - 1) * largest + once, SOURCE


def first_plan(instance: Instance) -> Solution | None:
    """The cuts of the least largest stage, or nearly so, that fit; None where a few steps of the sweep find none."""
    steps = steps_of(instance.layer_ns, instance.transfer_ns, instance.micro_batches, instance.windows)
    return next((Solution(step.cuts) for step in islice(steps, STEPS) if step.cuts is not None), None)
