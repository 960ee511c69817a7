"""Papers' problems as restrictions of the joint problem: every solution costs the same, and breaks the same limits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.cluster_strategy.instance_file import load as load_cluster
from trainplan.formulations.joint.enumeration import solutions
from trainplan.formulations.joint.evaluation import evaluate, violations
from trainplan.formulations.memory_switches.problem import Solution as SwitchSolution
from trainplan.formulations.pipeline.problem import Solution as PipelineSolution
from trainplan.formulations.pipeline_partition.problem import Solution as PartitionSolution
from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.errors import Unsupported

import trainplan as tp
from tests.helpers.assignments import random_assignment
from tests.helpers.cluster_instances import random_cluster_dict
from tests.helpers.instances import random_instance, random_pipeline
from tests.helpers.papers_as_joint.restrict import Restriction, restrict
from tests.helpers.partition_instances import random_partition
from tests.helpers.refusals import refused
from tests.helpers.switch_instances import random_instance as random_switches


def compare(instance: Any, restriction: Restriction, solution: Any, peaks: bool = True) -> None:
    """One solution of a problem against its joint one."""
    problem, lifted = problem_of(instance), restriction.lift(solution)
    assert restriction.lower(lifted) == solution
    costs, evaluation = problem.describe(instance, solution), evaluate(restriction.instance, lifted)
    assert evaluation.time_ns == problem.evaluate(instance, solution).objective == costs["time_ns"]
    assert bool(violations(restriction.instance, lifted)) == bool(problem.violations(instance, solution))
    if peaks and costs.get("peak_bytes") is not None:
        assert costs["peak_bytes"] in [stage.peak_bytes for stage in evaluation.stages]


def all_joint(restriction: Restriction) -> Iterator[Any]:
    """Every solution of a restriction, lowered."""
    return (restriction.lower(solution) for solution in solutions(restriction.instance) if solution is not None)


@pytest.mark.parametrize("seed", range(20))
def test_layer_strategies(seed: int) -> None:
    instance = random_instance(seed, 4, 3)
    restriction = restrict(instance)
    lowered = list(all_joint(restriction))
    assert len(set(lowered)) == len(lowered) == int(np.prod(instance.options))
    for solution in lowered:
        compare(instance, restriction, solution)


@pytest.mark.parametrize("seed", range(20))
def test_pipeline(seed: int) -> None:
    instance = random_pipeline(seed, 4, 2)
    restriction = restrict(instance)
    lowered = list(all_joint(restriction))
    assert len(set(lowered)) == len(lowered) == problem_of(instance).enumeration.count(instance)
    for solution in lowered:
        compare(instance, restriction, solution)


@pytest.mark.parametrize("seed", range(20))
def test_stage_assignment(seed: int) -> None:
    instance = random_assignment(seed, 7, 4, memory=seed % 3 > 0)
    restriction = restrict(instance)
    expected = list(problem_of(instance).enumeration.solutions(instance))
    assert list(all_joint(restriction)) == expected
    for solution in expected:
        compare(instance, restriction, solution)


@pytest.mark.parametrize("seed", range(20))
def test_pipeline_partition(seed: int) -> None:
    instance = random_partition(seed, 7, 4, 6, memory=seed % 3 > 0)
    restriction = restrict(instance)
    expected = list(problem_of(instance).enumeration.solutions(instance))
    assert list(all_joint(restriction)) == expected
    for solution in expected:
        compare(instance, restriction, solution)


def equal_cluster(seed: int) -> Any:
    """Devices of one kind on links of one kind."""
    rng = random.Random(seed)
    content = random_cluster_dict(rng, rng.choice([2, 4, 6]))
    devices = sum(run["count"] for run in content["devices"])
    link = {"devices": devices, "bandwidth_bytes_per_s": rng.choice([1e9, 7e8]), "latency_ns": rng.randint(0, 9)}
    network = {"islands": [link], "algorithm": rng.choice(["ring", "tree", "fastest"])}
    kinds, tables = content["kinds"][:1], [table | {"layer_ns": table["layer_ns"][:1]} for table in content["tables"]]
    return load_cluster(
        content | {"kinds": kinds, "devices": [{"kind": 0, "count": devices}], "network": network, "tables": tables}
    )


@pytest.mark.parametrize("seed", range(30))
def test_cluster_strategy(seed: int) -> None:
    instance = equal_cluster(seed)
    if not list(instance.degrees()):
        return
    restriction = restrict(instance)
    lowered = list(all_joint(restriction))
    assert {solution.degrees for solution in lowered} == set(instance.degrees())
    for solution in lowered:
        compare(instance, restriction, solution)
        placement = random.Random(seed).sample(range(instance.devices), instance.devices)
        moved = replace(solution, placement=tuple(placement))
        assert (
            problem_of(instance).evaluate(instance, moved).objective
            == evaluate(restriction.instance, restriction.lift(moved)).time_ns
        )


def test_unlike_devices_are_no_restriction() -> None:
    with refused("devices", kind=Unsupported):
        restrict(tp.build("cluster-strategy", model="gpt2", cluster="amp-heterogeneous-16", batch=32))


@pytest.mark.parametrize("seed", range(12))
def test_memory_switches(seed: int) -> None:
    rng = random.Random(seed)
    instance = random_switches(np.random.default_rng(seed), 1 + seed % 5)
    restriction = restrict(instance)
    for _ in range(60):
        switches = tuple(rng.choice(instance.options) for _ in range(instance.layers))
        compare(instance, restriction, SwitchSolution(switches))


BUILT: dict[str, dict[str, Any]] = {
    "layer-strategies": {"model": "bert-huge-32", "cluster": "rtx-titan-8", "batch": 32},
    "pipeline": {"model": "t5-large-32", "cluster": "rtx-titan-8", "batch": 64, "cost_model": "executed", "by_unit": True},
    "pipeline-partition": {
        "model": "gpt2-345m",
        "dtype": "float32",
        "cluster": "autopipe-3090-16",
        "batch": 64,
        "pipeline": 8,
        "micro_batches": 32,
    },
    "memory-switches": {"model": "bert-large", "dtype": "float32", "cluster": "h3t-2080ti-8", "batch": 64},
}


@pytest.mark.parametrize("name", list(BUILT))
def test_instances_of_the_papers_models(name: str) -> None:
    """Random solutions of what the papers plan."""
    instance = tp.build(name, **BUILT[name], memory="8GiB")
    restriction, rng = restrict(instance), random.Random(0)
    for _ in range(50):
        compare(instance, restriction, random_solution(rng, instance))


def random_solution(rng: random.Random, instance: Any) -> Any:
    """Any choices, of any configuration, with any cuts."""
    if instance.problem == "layer-strategies":
        return tuple(rng.randrange(count) for count in instance.options)
    if instance.problem == "memory-switches":
        return SwitchSolution(tuple(rng.choice(instance.options) for _ in range(instance.layers)))
    if instance.problem == "pipeline-partition":
        return PartitionSolution(tuple(sorted(rng.sample(range(1, instance.sublayers), instance.stages - 1))))
    index = rng.randrange(len(instance.configurations))
    configuration = instance.configurations[index]
    borders = [0, *sorted(rng.sample(range(1, instance.layers), configuration.stages - 1)), instance.layers]
    options = len(configuration.tables.strategies)
    sizes = tuple(end - first for first, end in pairwise(borders))
    return PipelineSolution(index, sizes, tuple(rng.randrange(options) for _ in range(instance.layers)))
