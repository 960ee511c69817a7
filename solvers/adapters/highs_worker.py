"""HiGHS in a process of its own: `python -m trainplan.solvers.adapters.highs_worker NUMBER`, see `worker`.

Sends ("built", seconds), ("solution", solution) and ("bound", ns) as they come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyomo.contrib.solver.solvers.highs import Highs
from trainplan.formulations.milp import Columns, columns_of
from trainplan.formulations.problem import problem_of
from trainplan.solvers.adapters.formulation import formulation
from trainplan.solvers.adapters.worker import Send, serve

REPAIRS = 5
LEAST_SECONDS = 0.1
# With its presolve, HiGHS 1.13.1 calls some feasible instances infeasible, crashes on others or never ends (they are in the
# tests); 1.12.0 too. Without it all are solved, in about the time that it takes on the others.
PRESOLVE = "off"
# HiGHS solves its linear programs to this tolerance too; what the bound is off by in all is taken for at most NOISE units.
TOLERANCE = 1e-9
CUT_OFF, CUT_NS = "objectiveLimit", 0.5
NOISE = 1e-6


class _Highs(Highs):
    """Pyomo's interface to HiGHS, extended by a starting solution and by callbacks for solutions and bounds (in model units).

    start: the names of the integer variables that are 1, while the others are 0; empty without a start.
    """

    start: set[str]
    solution: Callable[[Columns, Any], None]
    bound: Callable[[float], None]

    def _solve(self) -> Any:
        """Set the start and the callbacks, solve as Pyomo does, and pass on the final solution."""
        highs = self._solver_model
        columns = columns_of(self._model, self._pyomo_var_to_solver_var_map)
        if self.start:
            whole = {place: variable.name for variable, place in columns.whole}
            if self.start <= set(whole.values()):
                values = [float(name in self.start) for name in whole.values()]
                highs.setSolution(len(whole), np.array(list(whole), np.int32), np.array(values))
        highs.cbMipImprovingSolution.subscribe(lambda event: self.solution(columns, event.data_out.mip_solution))
        highs.cbMipLogging.subscribe(lambda event: self.bound(event.data_out.mip_dual_bound))
        results = super()._solve()
        if results.incumbent_objective is not None:
            self.solution(columns, highs.getSolution().col_value)
        return results


@dataclass
class _Solving:
    """One request's solves: of the instance, and, where rounding exceeds its memory, of the instance with less memory."""

    request: dict[str, Any]
    deadline: float
    send: Send

    def solved(self, instance: Any, first: bool) -> tuple[Any, Any]:
        """Build and solve the model of an instance; return Pyomo's results and the last solution.

        first: whether this is the instance as requested, whose bounds count and which begins from the given start.
        """
        request, milp, last = self.request, formulation(instance, "milp"), None
        started = time.perf_counter()
        model = milp.build(instance)
        built = time.perf_counter()
        ns_per_unit, noise_ns = milp.units(instance)[0], noise(milp, instance)
        starting = first and request["start"] is not None
        # HiGHS cuts off what is not below this objective; half a nanosecond keeps its tolerance away from the next whole one.
        below = {"objective_bound": (request["below_ns"] - CUT_NS) / ns_per_unit} if request["below_ns"] is not None else {}

        def bound(units: float) -> None:
            if first and math.isfinite(units):
                self.send(("bound", whole_bound(units * ns_per_unit, noise_ns)))

        def solution(columns: Columns, values: Any) -> None:
            nonlocal last
            last = milp.extract(instance, columns.values(values))
            self.send(("solution", last))

        solver = _Highs()
        solver.start = problem_of(instance).models.start(instance, request["start"]) if starting else set()
        solver.solution, solver.bound = solution, bound
        if first:
            self.send(("built", built - started))
        results = solver.solve(
            model,
            time_limit=None if self.deadline == math.inf else max(LEAST_SECONDS, self.deadline - built),
            rel_gap=request["gap"],
            threads=1,
            load_solutions=False,
            raise_exception_on_nonoptimal_result=False,
            solver_options={
                "random_seed": request["seed"],
                "mip_abs_gap": 0.0,
                "presolve": PRESOLVE,
                "mip_feasibility_tolerance": TOLERANCE,
                **({} if solver.start else below),
            },
        )
        return results, last


def noise(milp: Any, instance: Any) -> float:
    """How far off a bound of HiGHS may be, in ns, by its tolerances. milp: the module that states the instance's problem."""
    weight = milp.weight(instance) if hasattr(milp, "weight") else 0
    return float(milp.units(instance)[0] * (NOISE + TOLERANCE * weight))


def whole_bound(bound_ns: float, noise_ns: float) -> int:
    """A float bound on an integer objective as an integer that is surely a bound, if the float is off by at most noise_ns."""
    return math.ceil(bound_ns - noise_ns) if math.isfinite(bound_ns) else 0


def solve(request: dict[str, Any], send: Send) -> dict[str, Any]:
    """Solve one instance with HiGHS; where rounding lets a choice exceed the memory, solve again with that much less memory.

    request: instance, seed, gap, time_limit, below_ns (only solutions below this objective are wanted), start. Returns
    termination, bound in ns (always the first solve's), noise_ns, the number of repairs, and the choice.
    """
    instance, limit_s = request["instance"], request["time_limit"]
    solving = _Solving(request, math.inf if limit_s is None else time.perf_counter() + limit_s, send)
    results, choice = solving.solved(instance, first=True)
    milp, problem, repairs = formulation(instance, "milp"), problem_of(instance), 0
    if milp.units(instance)[1] is not None:  # else its model has no bytes that could be rounded
        limit = tightened = instance.common_memory_bytes
        assert limit is not None, "a model with bytes has one limit"
        while choice is not None and (excess := problem.describe(instance, choice)["peak_bytes"] - limit) > 0:
            choice, tightened, repairs = None, tightened - excess, repairs + 1
            if tightened > 0 and repairs <= REPAIRS and time.perf_counter() < solving.deadline:
                _, choice = solving.solved(instance.with_memory(tightened), first=False)
    noise_ns, below_ns, unit_ns = noise(milp, instance), request["below_ns"], milp.units(instance)[0]
    bound, incumbent = results.objective_bound, results.incumbent_objective
    bounds = [] if bound is None else [whole_bound(bound * unit_ns, noise_ns)]
    if results.termination_condition.name == CUT_OFF and below_ns is not None:
        better = incumbent is not None and incumbent * unit_ns < below_ns - CUT_NS
        bounds += [] if better else [whole_bound(below_ns - CUT_NS, noise_ns)]  # nothing is below what it was to cut off at
    return {
        "termination": results.termination_condition.name,
        "bound": max(bounds, default=None),
        "noise_ns": noise_ns,
        "repairs": repairs,
        "choice": choice,
    }


if __name__ == "__main__":
    serve(solve)
