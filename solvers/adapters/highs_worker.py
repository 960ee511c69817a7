"""HiGHS in a process of its own: `python -m trainplan.solvers.adapters.highs_worker NUMBER`, see `worker`.

Sends ("built", seconds), ("solution", solution) and ("bound", ns) as they come.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyomo.common import dependencies
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
    """Pyomo's interface to HiGHS, extended by a starting solution and by callbacks for better solutions and bounds.

    start: the names of the integer variables that are 1 in the starting solution, while the others are 0; empty without a
    start. solution: called with the model's columns and their values for each solution. bound: called with each lower bound, in
    the model's own unit of time.
    """

    start: set[str]
    solution: Callable[[Columns, Any], None]
    bound: Callable[[float], None]

    def _solve(self) -> Any:
        """Give HiGHS the starting solution and the callbacks, solve as Pyomo does, and pass the final solution to `solution`.
        Returns Pyomo's results. Pyomo calls this method."""
        highs = self._solver_model
        columns = columns_of(self._model, self._pyomo_var_to_solver_var_map)
        if self.start:
            whole = {index: variable.name for variable, index in columns.whole}
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
    """Answers one request in HiGHS's process. It solves the requested instance, and, if rounding lets the solution exceed the
    memory, the instance with less memory.

    request: the dict described at `solve`. deadline: the reading of `time.perf_counter` at which time is over, infinite without
    a limit. send: sends a message (kind, content) to the parent process."""

    request: dict[str, Any]
    deadline: float
    send: Send

    def solved(self, instance: Any, first: bool) -> tuple[Any, Any]:
        """Build and solve the MILP of an instance. Returns two values: Pyomo's results object, and the last solution that HiGHS
        found (None if it found none).

        instance: the data of one optimisation problem. first: whether this is the instance as requested; only then are its
        bounds sent to the parent process, and the requested start used."""
        request, milp, last = self.request, formulation(instance, "milp"), None
        started = time.perf_counter()
        model = milp.build(instance)
        built = time.perf_counter()
        ns_per_unit, noise_ns = milp.units(instance)[0], noise(milp, instance)
        starting = first and request["start"] is not None
        # HiGHS cuts off what is not below this objective; half a nanosecond keeps its tolerance away from the next whole one.
        below = {"objective_bound": (request["below_ns"] - CUT_NS) / ns_per_unit} if request["below_ns"] is not None else {}

        def bound(units: float) -> None:
            """Send HiGHS's dual bound, given in the model's units, as nanoseconds."""
            if first and math.isfinite(units):
                self.send(("bound", whole_bound(units * ns_per_unit, noise_ns)))

        def solution(columns: Columns, values: Any) -> None:
            """Keep and send the solution in these values of the model's columns."""
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
    """The largest numerical error in ns that HiGHS's tolerances can cause in its lower bound. milp: the module that states the
    instance's problem as a MILP, which knows in which unit of time the model counts.

    instance: the data of one optimisation problem."""
    weight = milp.weight(instance) if hasattr(milp, "weight") else 0
    return float(milp.units(instance)[0] * (NOISE + TOLERANCE * weight))


def whole_bound(bound_ns: float, noise_ns: float) -> int:
    """A lower bound on an integer objective in ns, from HiGHS's float bound, which is off by at most noise_ns: bound_ns -
    noise_ns, rounded up to an integer; 0 if bound_ns is infinite. (12.3, 0.5) -> 12."""
    return math.ceil(bound_ns - noise_ns) if math.isfinite(bound_ns) else 0


def solve(request: dict[str, Any], send: Send) -> dict[str, Any]:
    """Solve one instance with HiGHS, in the process that runs it; if floating-point rounding lets a solution exceed the memory,
    solve again with the memory reduced by the excess.

    request: a dict with instance; seed; gap (relative); time_limit (seconds, None for no limit); below_ns (only solutions below
    this objective are wanted) and start (a solution to begin from), or None. send: sends messages to the parent process:
    ("built", seconds), ("solution", solution) and ("bound", ns). Returns a dict: termination (its name in Pyomo), bound in ns
    (of the first solve), noise_ns (the bound's possible error), repairs (the number of repeated solves), and choice (the
    solution or None).
    """
    # Pyomo's lock is shared with the processes that were forked before this one; one that was killed may hold it for ever.
    dependencies.capture_output_lock = threading.Lock()
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
        bounds += [] if better else [whole_bound(below_ns - CUT_NS, noise_ns)]  # no solution is below the cutoff
    return {
        "termination": results.termination_condition.name,
        "bound": max(bounds, default=None),
        "noise_ns": noise_ns,
        "repairs": repairs,
        "choice": choice,
    }


if __name__ == "__main__":
    serve(solve)
