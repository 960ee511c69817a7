"""First and last steps of methods: bounds in closed form, and first plans, held against all solutions of tiny instances."""

import pytest
from trainplan.formulations.problem import problem
from trainplan.solvers.core.heuristic import cheap_bound, first_plan
from trainplan.solvers.core.method_registry import solvers_of

import trainplan as tp
from tests.formulations.test_conformance import TINY
from trainplan.testing import optimum

SEEDS = {"memory-switches": 8, "cluster-strategy": 15}  # whose solutions are many


@pytest.mark.parametrize("name", [name for name in TINY if solvers_of(problem(name)).first_plan])
def test_no_solution_is_below_the_cheap_bound_and_first_plans_fit(name: str) -> None:
    checked, solvable, planned, tight = problem(name), 0, 0, 0
    for seed in range(SEEDS.get(name, 40)):
        instance = TINY[name](seed)
        bound, source = cheap_bound(instance)
        assert type(bound) is int and bound >= 0 and source
        plan, best = first_plan(instance), optimum(checked, instance)
        if best is None:
            assert plan is None
            continue
        solvable += 1
        assert bound <= best
        if plan is not None:
            assert not checked.violations(instance, plan)
            planned += 1
            tight += checked.evaluate(instance, plan).objective <= 2 * best
    assert solvable and planned >= 0.6 * solvable and tight >= 0.5 * planned


def test_clusters_of_more_groups_than_can_be_listed_have_both() -> None:
    """A tied table on 1,024 devices: its reduction is over groups of too many makes to list."""
    instance = tp.build("cluster-strategy", model="gpt3-175b", dtype="float32", cluster="h200-1024", batch=1024)
    checked, plan, bound = problem("cluster-strategy"), first_plan(instance), cheap_bound(instance)
    assert plan is not None and bound is not None and instance.tied_bytes > 0
    assert not checked.violations(instance, plan)
    assert 0 < bound[0] <= checked.evaluate(instance, plan).objective <= 2 * bound[0]


def test_a_problem_whose_solvers_have_neither_says_so() -> None:
    instance = TINY["galvatron-engine"](0)
    assert cheap_bound(instance) is None and first_plan(instance) is None
