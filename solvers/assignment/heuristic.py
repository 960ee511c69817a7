"""Quick facts about stage-assignment, in milliseconds: a lower bound in closed form, and the first cuts of the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from trainplan.formulations.stage_assignment.problem import Instance, Solution
from trainplan.solvers.assignment.sweep import NEVER, Step, steps_of

SOURCE = "every layer on its fastest stage, every boundary at its cheapest cut, the least largest stage"
STEPS = 50  # of the sweep, in which the first one mostly has cuts


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns on the step time of all cuts of layers into pipeline stages that fit the memory, found in
    milliseconds, and the text that says why it holds.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits.

    Proof: each layer takes at least the time of its fastest stage, and each boundary its cheapest transfer. The slowest stage
    takes at least an even share of the sum over all layers, at least the time of any one layer, and at least the bound that the
    first step of the method `sweep` finds for stages within their memory."""
    fastest = instance.layer_ns.min(axis=0)
    one_micro_batch_ns = int(fastest.sum()) + (int(instance.transfer_ns.min(axis=1).sum()) if instance.stages > 1 else 0)
    largest = max(int(fastest.max()), -(-int(fastest.sum()) // instance.stages))
    bound = (instance.micro_batches - 1) * largest + one_micro_batch_ns
    step = next(_steps(instance), None)
    return max(bound, step.bound if step is not None and step.bound < NEVER else 0), SOURCE


def first_plan(instance: Instance) -> Solution | None:
    """Cuts of layers into pipeline stages that fit the memory and whose slowest stage takes the least time, or nearly the
    least, found in milliseconds; None if a few steps of the exact method `sweep` find none.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits."""
    return next((Solution(step.cuts) for step in islice(_steps(instance), STEPS) if step.cuts is not None), None)


def _steps(instance: Instance) -> Iterator[Step]:
    """Run the exact method `sweep` (it tightens a cap on the slowest stage) on an instance step by step: yields, after each
    step, the best cuts so far and a lower bound.

    instance: the times of layers in the stages of a pipeline, the transfers between stages, and memory limits."""
    return steps_of(instance.layer_ns, instance.transfer_ns, instance.micro_batches, instance.windows)
