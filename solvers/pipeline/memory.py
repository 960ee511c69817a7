"""The least memory that any pipeline plan needs; and the reason for users where no plan fits."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.problem import Evaluation, Solution, evaluate
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.result import Infeasibility, short_of_memory
from trainplan.solvers.pipeline.span_costs import SpanCosts


def least_pipeline_memory(instance: Instance) -> Solution:
    """A solution whose fullest stage needs as little memory as possible, over all configurations.

    It is a bottleneck partition by lower bounds on all spans of layers; the spans that it uses are then solved exactly, until
    all of them are exact.
    """
    best, least = None, np.inf
    for index in range(len(instance.configurations)):
        candidate = _least(instance, index, least)
        if candidate is not None:
            best, least = candidate, evaluate(instance, candidate).peak_bytes
    assert best is not None
    return best


def fits(instance: Instance) -> bool:
    """Whether any plan fits the memory."""
    indices = range(len(instance.configurations))
    return any(_least(instance, index, instance.memory_bytes + 1) is not None for index in indices)


def _least(instance: Instance, index: int, limit: float) -> Solution | None:
    """The solution of least memory in one configuration, given by its index; None where its fullest stage is not below `limit`
    bytes."""
    costs = SpanCosts(instance, index)
    bounds, number = costs.least_bytes().copy(), costs.spans.number
    exact: dict[tuple[int, int], tuple[int, ...]] = {}
    while True:
        least, path = costs.cheapest(bounds, np.maximum)
        if least >= limit:
            return None
        keys = [(depth, int(number[span])) for depth, span in zip(costs.depth_of, path, strict=True)]
        missing = {key: span for key, span in zip(keys, path, strict=True) if key not in exact}
        if not missing:
            sizes = tuple(last - first + 1 for first, last in path)
            return Solution(index, sizes, tuple(costs.options[s] for key in keys for s in exact[key]))
        for (depth, number_of), span in missing.items():
            stage = costs.stage_instance(*span, costs.depths[depth], (1, 1))
            bounds[depth, number_of], exact[depth, number_of] = least_memory(stage)


def explain(instance: Instance) -> Infeasibility | None:
    """Why no plan fits the memory, for users; None where one does."""
    solution = least_pipeline_memory(instance)
    return reason(instance, solution, evaluate(instance, solution))


def reason(instance: Instance, solution: Solution, evaluation: Evaluation) -> Infeasibility | None:
    """Why the solution of least memory does not fit, and what to change; None where it fits. evaluation: that of the
    solution."""
    stages = evaluation.stages
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    if worst.peak_bytes <= instance.memory_bytes:
        return None
    if worst.state_bytes > instance.memory_bytes:
        advice = "use a --cluster of more devices: the model states alone do not fit"
    else:
        advice = f"take a smaller --batch than {instance.batch}, or a --cluster of more devices"
    configuration, layer = instance.configurations[solution.configuration], worst.peak_layer
    name = f"{instance.layer_names[layer]} in stage {stages.index(worst)} of {configuration}"
    return short_of_memory(instance.memory_bytes, worst.peak_bytes, layer, name, worst.state_bytes, advice)
