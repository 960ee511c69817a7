"""CP-SAT: the adapter between its solver and our searches."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

from ortools.sat.python import cp_model
from trainplan.solvers.adapters.formulation import formulation
from trainplan.solvers.adapters.parts import by_configuration
from trainplan.solvers.core.search import Outcome, Search

MOST_WORKERS = 256


class _Reporter(cp_model.CpSolverSolutionCallback):
    def __init__(self, search: Search, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.search, self.read = search, read

    def on_solution_callback(self) -> None:
        self.search.report(self.read(self.boolean_value))


def cpsat(instance: Any, search: Search) -> Outcome:
    """CP-SAT on whole bytes and nanoseconds. Option `workers`: search threads (default: the cores, at most 8).

    With one worker a seed gives the same search each time; with more, only the proven optimum is repeatable.
    """
    return by_configuration(solve_one, instance, search)


def solve_one(instance: Any, search: Search) -> Outcome:
    """One model. Where the search has an objective already, CP-SAT looks for a better solution only."""
    started, stated = time.perf_counter(), formulation(instance, "cpsat")
    model, variables = stated.build(instance)

    def read(value: Callable[[Any], bool]) -> Any:
        return stated.extract(instance, variables, value)

    if search.objective is not None:
        model.proto.objective.domain.extend([-(2**62), search.objective - 1])
    build_seconds = time.perf_counter() - started
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = search.seed
    solver.parameters.num_workers = min(MOST_WORKERS, search.options.get("workers") or min(8, os.cpu_count() or 1))
    solver.parameters.relative_gap_limit = search.gap
    if search.time_limit is not None:
        solver.parameters.max_time_in_seconds = max(0.0, search.remaining())
    solver.best_bound_callback = lambda value: search.report(bound=_whole(value))
    status = solver.solve(model, _Reporter(search, read))
    source = f"CP-SAT, {solver.parameters.num_workers} workers"
    if status == cp_model.INFEASIBLE:
        return Outcome(infeasible=True, bound_source=source, build_seconds=build_seconds)
    if status == cp_model.MODEL_INVALID:
        return Outcome(
            failed=True, message=f"CP-SAT refused the model: {model.validate().splitlines()[0]}", build_seconds=build_seconds
        )
    statistics: dict[str, Any] = {"branches": solver.num_branches, "conflicts": solver.num_conflicts}
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        search.report(read(solver.boolean_value))
    bound = _whole(solver.best_objective_bound)
    if status == cp_model.OPTIMAL and not search.gap and search.objective is not None:
        bound = search.objective  # proven on whole numbers; the float that says so may be off by its rounding
    search.report(bound=bound)
    return Outcome(bound=max(bound, search.bound or 0), bound_source=source, build_seconds=build_seconds, statistics=statistics)


def _whole(value: float) -> int:
    """CP-SAT's bounds are whole numbers that come as floats: exact below 2^53, lowered by their rounding above."""
    if not math.isfinite(value):
        return 0
    if abs(value) >= 2**53:
        return math.floor(value) - math.ceil(abs(value) * 2**-52)
    nearest = round(value)
    return nearest if abs(value - nearest) < 1e-3 else math.ceil(value)
