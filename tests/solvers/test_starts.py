"""The start of a model stands for the solution: fixed to it, they have its objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from ortools.sat.python import cp_model
from trainplan.formulations.problem import Subproblem, problem_of
from trainplan.solvers.adapters.cpsat_worker import hint
from trainplan.solvers.adapters.formulation import formulation
from trainplan.solvers.core.solve import solve

from tests.helpers.assignments import random_assignment
from tests.helpers.instances import random_instance, random_pipeline
from tests.helpers.partition_instances import random_partition
from tests.helpers.switch_instances import random_instance as random_switches

INSTANCES: dict[str, Callable[[int], Any]] = {
    "layer-strategies": random_instance,
    "pipeline": random_pipeline,
    "stage-assignment": lambda seed: random_assignment(seed, 8, 4, memory=seed % 2 > 0),
    "pipeline-partition": lambda seed: random_partition(seed, 8, 4, 6, memory=seed % 2 > 0),
    "memory-switches": lambda seed: random_switches(np.random.default_rng(seed), 3),
}


def started(name: str, seed: int) -> tuple[Any, int, set[str]] | None:
    """The part with an instance's optimum, that optimum, and what the part's models start from; None where nothing fits."""
    instance = INSTANCES[name](seed)
    problem, exact = problem_of(instance), solve(instance)
    if exact.solution is None or exact.objective is None:
        return None
    solution = problem.load_solution(exact.solution)
    parts = problem.models.subproblems(instance, lambda: False) or [Subproblem(instance, 0, lowered=lambda same: same)]
    lowered = [(part, low) for part in parts if (low := part.lowered(solution)) is not None]
    [(part, low)] = lowered
    assert part.lifted(low) == solution
    return part.instance, exact.objective, problem.models.start(part.instance, low)


@pytest.mark.parametrize("name", INSTANCES)
def test_models_fixed_to_their_start_have_its_objective(name: str) -> None:
    checked = 0
    for seed in range(12):
        if (start := started(name, seed)) is None or not start[2]:
            continue
        instance, objective, ones = start
        model, _ = formulation(instance, "cpsat").build(instance)
        hint(model, ones)
        names = {variable.name for variable in model.proto.variables}
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.num_workers = 1
        if ones <= names:
            assert solver.status_name(solver.solve(model)) == "OPTIMAL", (seed, ones)
            assert round(solver.objective_value) == objective
            checked += 1
        milp = formulation(instance, "milp").build(instance)
        whole = {v.name for v in milp.component_data_objects(pyo.Var) if not v.is_continuous()}
        assert {one[:1] for one in ones} == {entry[:1] for entry in whole}
        assert ones <= whole or name == "memory-switches"  # whose columns may be left out for others as good
    assert checked > 2
