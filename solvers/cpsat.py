"""CP-SAT: the adapter between its solver and our searches."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from ortools.sat.python import cp_model
from trainplan.formulations.layer_strategies import cpsat as layer_strategies
from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.solvers.search import Outcome, Search

MOST_WORKERS = 256


class _Reporter(cp_model.CpSolverSolutionCallback):
    def __init__(self, search: Search, x: layer_strategies.Choice) -> None:
        super().__init__()
        self.search, self.x = search, x

    def on_solution_callback(self) -> None:
        self.search.report(_choice(self.x, self.boolean_value))


def cpsat(instance: Instance, search: Search) -> Outcome:
    """CP-SAT on whole bytes and nanoseconds. Option `workers`: search threads (default: the cores, at most 8).

    With one worker a seed gives the same search each time; with more, only the proven optimum is repeatable.
    """
    started = time.perf_counter()
    model, x = layer_strategies.build(instance)
    build_seconds = time.perf_counter() - started
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = search.seed
    solver.parameters.num_workers = min(MOST_WORKERS, search.options.get("workers") or min(8, os.cpu_count() or 1))
    solver.parameters.relative_gap_limit = search.gap
    if search.time_limit is not None:
        solver.parameters.max_time_in_seconds = max(0.0, search.remaining())
    solver.best_bound_callback = lambda value: search.report(bound=_whole(value))
    status = solver.solve(model, _Reporter(search, x))
    source = f"CP-SAT, {solver.parameters.num_workers} workers"
    if status == cp_model.INFEASIBLE:
        return Outcome(infeasible=True, bound_source=source, build_seconds=build_seconds)
    if status == cp_model.MODEL_INVALID:
        return Outcome(
            failed=True, message=f"CP-SAT refused the model: {model.validate().splitlines()[0]}", build_seconds=build_seconds
        )
    statistics: dict[str, Any] = {"branches": solver.num_branches, "conflicts": solver.num_conflicts}
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        search.report(_choice(x, solver.boolean_value))
    bound = _whole(solver.best_objective_bound)
    if status == cp_model.OPTIMAL and not search.gap and search.objective is not None:
        bound = search.objective  # proven on whole numbers; the float that says so may be off by its rounding
    search.report(bound=bound)
    return Outcome(bound=max(bound, search.bound or 0), bound_source=source, build_seconds=build_seconds, statistics=statistics)


def _choice(x: layer_strategies.Choice, value: Any) -> tuple[int, ...]:
    return tuple(next(s for s, v in enumerate(row) if value(v)) for row in x)


def _whole(value: float) -> int:
    """CP-SAT's bounds are whole numbers that come as floats: exact below 2^53, lowered by their rounding above."""
    if not math.isfinite(value):
        return 0
    if abs(value) >= 2**53:
        return math.floor(value) - math.ceil(abs(value) * 2**-52)
    nearest = round(value)
    return nearest if abs(value - nearest) < 1e-3 else math.ceil(value)
