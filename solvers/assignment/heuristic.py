"""stage-assignment in milliseconds: a bound in closed form, and the first cuts of the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.assignment.sweep import NEVER, Step, steps_of

SOURCE = "every layer on its fastest stage, every boundary at its cheapest cut, the least largest stage"
STEPS = 50  # of the sweep, in which the first one mostly has cuts


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """No cuts within the memory are faster than these nanoseconds; and why.

    Proof: each layer takes its fastest stage's time at least, each boundary its cheapest transfer, and the largest stage an
    even part of all layers, any one of them, and what the first step of the sweep finds of all stages within their memory.
    """
    fastest = instance.layer_ns.min(axis=0)
    once = int(fastest.sum()) + (int(instance.transfer_ns.min(axis=1).sum()) if instance.stages > 1 else 0)
    largest = max(int(fastest.max()), -(-int(fastest.sum()) // instance.stages))
    bound = (instance.micro_batches - 1) * largest + once
    step = next(_steps(instance), None)
    return max(bound, step.bound if step is not None and step.bound < NEVER else 0), SOURCE


def first_plan(instance: Instance) -> Solution | None:
    """The cuts of the least largest stage, or nearly so, that fit; None where a few steps of the sweep find none."""
    return next((Solution(step.cuts) for step in islice(_steps(instance), STEPS) if step.cuts is not None), None)


def _steps(instance: Instance) -> Iterator[Step]:
    return steps_of(instance.layer_ns, instance.transfer_ns, instance.micro_batches, instance.windows)
