"""Every problem keeps the protocol of `formulations.problem`: on tiny random instances, and from a request to a plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.parameters import chosen
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Problem, problem, problem_names
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model

from tests.helpers.assignments import random_assignment
from tests.helpers.cluster_instances import random_cluster
from tests.helpers.instances import random_instance, random_pipeline
from tests.helpers.joint_instances import random_instance as random_joint
from tests.helpers.partition_instances import random_partition
from tests.helpers.refusals import refused
from tests.helpers.switch_instances import random_instance as random_switches
from trainplan.testing import check_files, check_method, check_problem, check_request, optimum


def tiny_joint(seed: int) -> Any:
    """One whose hosts have no limit: `explain` speaks of devices alone."""
    instance = random_joint(random.Random(seed), 4, 2)
    return replace(instance, classes=tuple(replace(device_class, host_bytes=None) for device_class in instance.classes))


SEEDS = range(6)
TINY: dict[str, Callable[[int], Any]] = {
    "layer-strategies": lambda seed: random_instance(seed, 4, 3),
    "pipeline": lambda seed: random_pipeline(seed, 3, 2),
    "stage-assignment": lambda seed: random_assignment(seed, 6, 4, memory=seed % 2 > 0),
    "pipeline-partition": lambda seed: random_partition(seed, 6, 4, 6, memory=seed % 2 > 0),
    "memory-switches": lambda seed: random_switches(np.random.default_rng(seed), 1 + seed % 2),
    "cluster-strategy": lambda seed: random_cluster(seed, 4, 4),
    "joint": tiny_joint,
    "galvatron-engine": lambda seed: import_module("tests.helpers.published").as_engine(random_pipeline(seed, 3, 2)),
}
FROM_FILES = ("galvatron-engine",)  # of another program, which stand in for model and cluster
SIZES = {"n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 16, "vocab_size": 96}


@pytest.fixture(params=problem_names())
def checked(request: pytest.FixtureRequest) -> Problem:
    """Each problem that is there."""
    return problem(request.param)


def instances(checked: Problem) -> list[Any]:
    """Tiny random ones, those with room to spare among them, and those into which nothing fits."""
    drawn = [TINY[checked.name](seed) for seed in SEEDS]
    limited = [instance for instance in drawn if instance.common_memory_bytes is not None][:2]
    return drawn + [instance.with_memory(limit) for instance in limited for limit in (1, 2**47)]


def test_instances_solutions_and_words_are_as_the_protocol_says(checked: Problem) -> None:
    found = instances(checked)
    check_problem(checked, found)
    fits = [optimum(checked, instance) is not None for instance in found]
    assert any(fits)
    assert not all(fits) or all(instance.common_memory_bytes is None for instance in found)


@pytest.mark.parametrize("method", ["exact", "brute-force"])
def test_the_exact_method_and_brute_force_agree(checked: Problem, method: str) -> None:
    found = instances(checked)
    for instance, result in zip(found, check_method(checked, method, found), strict=True):
        best = optimum(checked, instance)
        if method == "exact" and checked.name in FROM_FILES:
            assert best is None or result.objective == best  # found, but not always proven: it is evidence
            continue
        assert (result.status, result.objective) == ("infeasible" if best is None else "optimal", best)


def test_a_request_becomes_instances_and_a_plan(checked: Problem) -> None:
    model = load_model("gpt2", 16, "float32").with_fields(**SIZES).fused()
    options = chosen(checked.parameters, {}, checked.name)
    requested = Request(model, load_cluster("cpu-4"), 8, options=options)
    if checked.name in FROM_FILES:
        with refused("engine_files", fix="profile"):
            checked.instance(requested)
        return
    plan = check_request(checked, requested)
    if plan is not None:
        assert plan.model_digest == model.digest and plan.world == 4
    tight = checked.instance(Request(model, load_cluster("cpu-4"), 8, memory_bytes=2**30, options=options, margin_bytes=2**20))
    check_files(checked, tight)
    assert tight.common_memory_bytes in (2**30 - 2**20, None)


@pytest.mark.parametrize("wrong", [0, -1, None])
def test_a_batch_that_is_none_is_reported_in_one_line(checked: Problem, wrong: int | None) -> None:
    model = load_model("gpt2", 16, "float32").with_fields(**SIZES).fused()
    requested = Request(model, load_cluster("cpu-4"), wrong, options=chosen(checked.parameters, {}, checked.name))
    with pytest.raises(InputError) as caught:
        checked.instance(requested)
    assert "\n" not in str(caught.value)


def test_a_problem_has_twelve_methods() -> None:
    methods = [name for name, value in vars(Problem).items() if callable(value) and not name.startswith("_")]
    files, costs = ["load", "load_solution", "solution_dict"], ["evaluate", "violations", "describe", "cost_model"]
    assert methods == [*files, *costs, "instance", "instances", "plan", "size", "tables"]


def test_no_problem_overrides_more_than_the_protocol_has(checked: Problem) -> None:
    """Everything that a definition has beyond the twelve methods lies in its records of functions and optional objects."""
    own = {name for base in type(checked).__mro__[:-1] for name, value in vars(base).items() if callable(value)}
    assert {name for name in own if not name.startswith("_")} <= set(vars(Problem)) | {"name", "record", "solution_record"}
