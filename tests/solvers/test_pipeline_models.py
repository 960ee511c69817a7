"""The pipeline problem as MILP and as CP-SAT model, against every solution one after the other."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.instance_file import load
from trainplan.formulations.pipeline.problem import evaluate, violations
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profile_sources import shapes_needed
from trainplan.solvers.adapters.cpsat import cpsat
from trainplan.solvers.adapters.highs import milp
from trainplan.solvers.core.brute_force import brute_force
from trainplan.solvers.core.search import Method, Outcome, Search, Unsupported
from trainplan.solvers.core.solve import solve

from tests.helpers.instances import random_pipeline
from tests.helpers.published import as_engine
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others, some_and_all

METHODS: dict[str, Method] = {"brute-force": brute_force, "milp": milp, "cpsat": cpsat}


def run(instance: Instance, name: str, **limits: Any) -> tuple[Search, Outcome]:
    def objective(solution: Any) -> int | None:
        return None if violations(instance, solution) else evaluate(instance, solution).objective

    search = Search(objective, options={"workers": 1} if name == "cpsat" else {}, **limits)
    return search, METHODS[name](instance, search)


def answers(instance: Instance, **limits: Any) -> dict[str, tuple[bool, int | None, int | None]]:
    """For every method: whether it claims that nothing fits, its objective and its bound."""
    found = {name: run(instance, name, **limits) for name in METHODS}
    return {name: (outcome.infeasible, search.objective, outcome.bound) for name, (search, outcome) in found.items()}


def paper_pipeline(memory_gib: int, **shape: Any) -> Instance:
    model = load_model("bert-huge-32")
    shapes = shapes_needed(model.tp_degrees(8), [1, 2, 4, 8], [1, 2, 4, 8, 16, 32])
    profile = estimate_shapes(model, load_cluster("rtx-titan-8"), shapes, 8)
    return PipelineCosts(profile).instance(32, memory_gib << 30, **shape)


@pytest.mark.parametrize("count", some_and_all(60, 500, 200))
def test_random_instances_agree_to_the_nanosecond(count: int) -> None:
    """Brute force = MILP = CP-SAT: objective, bound, and that nothing fits."""
    feasible = 0
    for seed in range(count):
        found = answers(random_pipeline(seed, 5 if seed % 4 else 7))
        assert len(set(found.values())) == 1, (seed, found)
        infeasible, objective, bound = found["milp"]
        assert objective == bound
        assert infeasible == (objective is None)
        feasible += not infeasible
    assert 0.3 * count < feasible < 0.8 * count


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.floats(1e-4, 0.3))
def test_a_gap_is_a_certificate(seed: int, gap: float) -> None:
    instance = random_pipeline(seed)
    found = answers(instance, gap=gap)
    infeasible, optimum, _ = found["brute-force"]
    for _, objective, bound in found.values():
        assert infeasible == (objective is None)
        if objective is not None:
            assert bound <= optimum <= objective
            assert objective - bound <= gap * objective + 1e-6


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_less_memory_or_fewer_configurations_are_never_faster(seed: int) -> None:
    instance = random_pipeline(seed)
    search, _ = run(instance, "cpsat")
    tighter = instance.with_memory(max(1, instance.memory_bytes * 9 // 10))
    fewer = replace(instance, configurations=instance.configurations[:1])
    for harder in (tighter, fewer):
        found, outcome = run(harder, "milp")
        if search.objective is None:
            assert outcome.infeasible
        elif found.objective is not None:
            assert found.objective >= search.objective


@pytest.mark.parametrize("name", ["milp", "cpsat"])
@pytest.mark.parametrize("stages, optimum_ns", first_and_others([(1, 1_598_755_558), (2, 1_830_638_962)]))
def test_a_paper_model_of_34_layers_is_proven(name: str, stages: int, optimum_ns: int) -> None:
    instance = paper_pipeline(12, stages=[stages], micro_batches=[1 if stages == 1 else 4])
    search, outcome = run(instance, name)
    assert search.objective == outcome.bound == optimum_ns


@pytest.mark.long
def test_all_configurations_of_a_paper_model_are_proven() -> None:
    """24 configurations, up to 22 options. The best is 8 stages and 32 micro-batches."""
    instance = paper_pipeline(12)
    search, outcome = run(instance, "milp")
    assert search.objective == outcome.bound == 1_373_824_621
    assert str(instance.configurations[search.best.configuration]) == "8 stages, 32 micro-batches, 1f1b"
    bounds = [point.bound for point in search.history if point.bound is not None]
    assert bounds == sorted(bounds)
    assert bounds[-1] == outcome.bound


@pytest.mark.parametrize("name", ["milp", "cpsat"])
def test_a_time_limit_is_an_outcome(name: str) -> None:
    search, outcome = run(paper_pipeline(12, stages=[4, 8], micro_batches=[8]), name, time_limit=1.0)
    assert not outcome.infeasible
    assert not outcome.failed
    assert outcome.bound is not None
    assert outcome.bound <= 1_823_036_825
    assert search.objective is None or search.objective >= 1_823_036_825


@pytest.mark.parametrize("name", METHODS)
def test_too_little_memory_is_infeasible(name: str) -> None:
    search, outcome = run(random_pipeline(0).with_memory(1), name)
    least = min(
        int(given.tables.state_bytes.min(axis=1).sum() + given.tables.forward_bytes.min(axis=1).sum())
        for given in random_pipeline(0).configurations
    )
    assert least > 1
    assert outcome.infeasible
    assert search.objective is outcome.bound is None


@pytest.mark.parametrize("name", ["milp", "cpsat"])
def test_another_iteration_time_is_refused_in_one_line(name: str) -> None:
    with refused("method", problem=name, fix=("exact", "even-stages", "published", "brute-force")) as caught:
        solve(as_engine(random_pipeline(0)), name)
    assert "\n" not in str(caught.value)


def test_brute_force_refuses_what_is_too_large() -> None:
    with refused("method", problem="brute-force", fix=("exact", "2e6"), kind=Unsupported):
        run(paper_pipeline(12), "brute-force")


def test_an_infeasible_configuration_leaves_the_answer_to_the_others() -> None:
    """Nothing fits in one stage; four stages fit."""
    option = {"strategy": "single", "time_ns": 1, "forward_bytes": 4, "backward_bytes": 0, "state_bytes": 0}
    four = {**option, "strategy": "dp4"}
    move: dict[str, Any] = {"transitions_ns": [[[0]]], "entries_ns": [[1]]}
    instance = load(
        {
            "problem": "pipeline",
            "version": 1,
            "devices": 4,
            "memory_bytes": 8,
            "batch": 8,
            "layer_names": list("abcd"),
            "layer_kinds": [0] * 4,
            "boundary_kinds": [0] * 3,
            "configurations": [
                {"stages": 1, "micro_batches": 1, "options": [[four]], **move},
                {"stages": 4, "micro_batches": 2, "options": [[option]], **move},
            ],
        }
    )
    assert set(answers(instance).values()) == {(False, 9, 9)}
