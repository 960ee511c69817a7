"""Quick facts about stage-assignment, in milliseconds: a lower bound in closed form, and the first cuts of the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.assignment.sweep import NEVER, Step, steps_of

SOURCE = "every layer on its fastest stage, every boundary at its cheapest cut, the least largest stage"
STEPS = 50  # of the sweep, in which the first one mostly has cuts


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns on all cuts within the memory, with its reason.

    Proof: each layer takes at least the time of its fastest stage, and each boundary its cheapest transfer. The largest stage
    takes at least an even part of all layers, any one of them, and the bound that the first step of the sweep finds for stages
    within their memory.
    """
    fastest = instance.layer_ns.min(axis=0)
    once = int(fastest.sum()) + (int(instance.transfer_ns.min(axis=1).sum()) if instance.stages > 1 else 0)
    largest = max(int(fastest.max()), -(-int(fastest.sum()) // instance.stages))
    bound = (instance.micro_batches - 1) * largest + once
    step = next(_steps(instance), None)
    return max(bound, step.bound if step is not None and step.bound < NEVER else 0), SOURCE


def first_plan(instance: Instance) -> Solution | None:
    """Cuts that fit, with the least largest stage or nearly so; None where a few steps of the sweep find none."""
    return next((Solution(step.cuts) for step in islice(_steps(instance), STEPS) if step.cuts is not None), None)


def _steps(instance: Instance) -> Iterator[Step]:
    """The steps of the sweep over an instance."""
    return steps_of(instance.layer_ns, instance.transfer_ns, instance.micro_batches, instance.windows)
