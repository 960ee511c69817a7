"""The least memory that any pipeline plan needs; and the reason for users where no plan fits."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.problem import Evaluation, Solution, evaluate
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.result import Infeasibility, short_of_memory
from trainplan.solvers.pipeline.span_costs import SpanCosts


def least_pipeline_memory(instance: Instance) -> Solution:
    """The plan whose fullest stage needs the least memory, exactly, over all configurations (numbers of stages and
    micro-batches, with a schedule).

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). Method: find the partition whose largest lower bound is least, solve the spans of layers that it uses exactly,
    and repeat until all of its spans are exact."""
    best, least = None, np.inf
    for index in range(len(instance.configurations)):
        candidate = _least(instance, index, least)
        if candidate is not None:
            best, least = candidate, evaluate(instance, candidate).peak_bytes
    assert best is not None
    return best


def fits(instance: Instance) -> bool:
    """Whether any plan of a pipeline instance, with any cuts and strategies, fits its memory, exactly.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
    indices = range(len(instance.configurations))
    return any(_least(instance, index, instance.memory_bytes + 1) is not None for index in indices)


def _least(instance: Instance, index: int, limit: float) -> Solution | None:
    """The plan of least memory in one configuration (number of stages and micro-batches, with a schedule), given by its index;
    None if in every plan the fullest stage needs `limit` bytes or more.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
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
    """The reason, for users, why no plan of a pipeline instance fits its memory; None if some plan fits.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
    solution = least_pipeline_memory(instance)
    return reason(instance, solution, evaluate(instance, solution))


def reason(instance: Instance, solution: Solution, evaluation: Evaluation) -> Infeasibility | None:
    """The reason, with advice for users, why a pipeline instance has no plan within its memory; None if the given solution
    fits. solution: the plan of least memory. evaluation: its stages' memory.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule)."""
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
