"""The search over depths: the shortest whole step counts, bounds hold for every depth, time and slicing are shared."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.parameters import chosen
from trainplan.formulations.pipeline_partition.definition import PROBLEM
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, load_solution, violations
from trainplan.formulations.plan.request import Request
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model
from trainplan.solvers.partition.depths import search, step_bound_ns

from tests.helpers.partition_instances import random_partition
from tests.helpers.refusals import refused


def requested(batch: int = 64, memory_bytes: int | None = None, **options: Any) -> Request:
    model, cluster = load_model("gpt2-345m", dtype="float32").fused(), load_cluster("autopipe-3090-16")
    return Request(model, cluster, batch, memory_bytes, options=chosen(PROBLEM.parameters, options, PROBLEM.name))


def test_the_shortest_step_of_all_depths_is_the_answer() -> None:
    request = requested(micro_batches=4)
    instances = PROBLEM.instances(request)
    assert sorted(instance.stages for instance in instances) == [1, 2, 4, 8, 16]
    answer = search(instances, "algorithm-1")
    assert answer.objective_ns == answer.alternatives[0]["step_ns"] == evaluate(answer.instance, answer.solution).step_ns
    steps = [row["step_ns"] for row in answer.alternatives]
    assert steps == sorted(steps)
    assert answer.bound_ns is not None and answer.bound_ns == min(row["bound_ns"] for row in answer.alternatives)
    alone = [search([instance], "algorithm-1").objective_ns for instance in instances]
    assert answer.objective_ns == min(step for step in alone if step is not None)
    assert len(answer.alternatives) == 5
    plan = PROBLEM.plan(answer.instance, answer.solution, request)
    assert plan.predicted is None and plan.sliced == answer.solution.sliced
    assert [(stage.first_unit, stage.last_unit) for stage in plan.stages] == answer.solution.spans(50)


def test_slicing_and_the_objective_are_as_requested() -> None:
    [instance] = PROBLEM.instances(requested(pipeline=4, micro_batches=8))
    whole, half = search([instance], "autopipe", sliced=0), search([instance], "autopipe")
    assert whole.solution.sliced == 0 < half.solution.sliced
    assert whole.objective_ns is not None and half.objective_ns is not None and half.objective_ns < whole.objective_ns
    assert search([instance], "autopipe", sliced=3).solution.sliced == 3
    iteration = search([instance], objective="iteration", sliced=0)
    assert load_solution(iteration.result.solution) == iteration.solution
    step = search([instance], sliced=0)
    assert step.objective_ns <= iteration.objective_ns
    assert step.bound_ns <= step.objective_ns
    with refused("objective", problem="speed", fix=("step", "iteration")):
        search([instance], objective="speed")


def test_layers_stay_whole_where_requested() -> None:
    request = requested(pipeline=4, micro_batches=8, by_unit=False)
    [instance] = PROBLEM.instances(request)
    answer = search([instance], "algorithm-1", sliced=0)
    plan = PROBLEM.plan(instance, answer.solution, request)
    layers = [unit.layer for unit in load_model("gpt2-345m", dtype="float32").fused().units]
    assert instance.sublayers == 26
    assert all(layers[stage.first_unit - 1] != layers[stage.first_unit] for stage in plan.stages[1:])
    small = replace(requested(pipeline=16, by_unit=False), model=load_model("gpt2", dtype="float32").fused())
    with refused("pipeline", problem=16, fix=(14, "--by-unit")):
        PROBLEM.instances(small)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sliced": 9}, ("sliced", 9, 3)),
        ({"sliced": 1, "micro_batches": 16}, ("sliced", 1, "stage")),
        ({"micro_batches": 3}, ("micro_batches", 3, 16)),
        ({"tp": 3}, ("tp", 3, 16)),
    ],
)
def test_requests_that_nothing_answers_are_reported(options: dict[str, Any], message: tuple[Any, ...]) -> None:
    with refused(*message):
        PROBLEM.instances(requested(**({"pipeline": 4, "micro_batches": 8} | options)))


def test_what_does_not_fit_has_no_solution() -> None:
    answer = search(PROBLEM.instances(requested(pipeline=4, micro_batches=8, memory_bytes=2**30)))
    assert (answer.solution, answer.objective_ns, answer.result.status) == (None, None, "infeasible")
    assert answer.result.reason is not None
    free = PROBLEM.instances(requested(pipeline=4, micro_batches=8, memory_bytes=2**30, ignore_memory=True))
    assert free[0].memory is None and search(free, "autopipe").solution is not None


def steps_of(instance: Instance) -> list[tuple[int, int]]:
    """The whole step of every partition within the memory, and the least over all numbers of sliced micro-batches."""
    steps = []
    for cuts in combinations(range(1, instance.sublayers), instance.stages - 1):
        if not violations(instance, Solution(cuts)):
            counts = range(instance.most_sliced + 1)
            sliced = [evaluate(instance, Solution(cuts, count)).step_ns for count in counts]
            steps.append((sliced[0], min(sliced)))
    return steps


def test_step_bound_ns() -> None:
    """No partition of any instance has a shorter step than the bound, nor than what the search claims."""
    for seed in range(40):
        instance = random_partition(seed, sublayers=7, stages=4, micro_batches=6, memory=seed % 3 == 0)
        rng = np.random.default_rng(seed)
        instance = replace(instance, sync_ns=rng.integers(0, 1 + 2 * instance.forward_ns.max(), instance.sublayers))
        if not (steps := steps_of(instance)):
            continue
        whole, sliced = search([instance], sliced=0), search([instance])
        assert step_bound_ns(instance, whole.result.bound, False) == whole.bound_ns <= min(step for step, _ in steps)
        assert sliced.bound_ns is not None and sliced.bound_ns <= min(step for _, step in steps) <= sliced.objective_ns
