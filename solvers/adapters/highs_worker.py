"""HiGHS in a process of its own, which can be ended: `python -m trainplan.solvers.adapters.highs_worker NUMBER`.

Receives requests from the connection of that file number, one after the other, and sends answers there: any number of
`("progress", incumbent, bound)` in ns as logged, then one `("done", {...})`. It lives on between requests, because starting
Python and Pyomo costs more than a small solve; and it keeps HiGHS apart from OR-Tools, with which it shares a library name.
"""

from __future__ import annotations

import io
import re
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from trainplan.formulations.problem import problem_of
from trainplan.solvers.adapters.formulation import formulation

REPAIRS = 5
# With its presolve, HiGHS 1.13.1 calls some feasible instances infeasible, crashes on others or never ends (they are in the
# tests); 1.12.0 too. Without it all are solved, in about the time that it takes on the others.
PRESOLVE = "off"
# HiGHS solves its linear programs to this tolerance too; what the bound is off by in all is taken for at most NOISE units.
TOLERANCE = 1e-9
NOISE = 1e-6

# Lines of HiGHS's branch-and-bound table: ... | explored% bound incumbent gap | cuts inLP conflicts | iterations time
_TABLE = re.compile(r"\s([\d.]+)%\s+(\S+)\s+(\S+)\s+\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+[\d.]+s\s*$")


class _Log(io.TextIOBase):
    """Reads the table of HiGHS's log as it is written."""

    def __init__(self, report: Callable[[float | None, float | None], None]) -> None:
        self.report, self.pending = report, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.pending += text
        *lines, self.pending = self.pending.split("\n")
        for line in lines:
            if match := _TABLE.search(line):
                bound, primal = (_number(match[i]) for i in (2, 3))
                self.report(primal, bound)
        return len(text)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None


def _solve(request: dict[str, Any], send: Any) -> dict[str, Any]:
    """Solve; where rounding let a choice overshoot the memory, solve again with that much less. The first bound stands."""
    instance, deadline = request["instance"], request["time_limit"] and time.perf_counter() + request["time_limit"]
    answer = _solve_once(instance, request, deadline, send)
    if formulation(instance, "milp").units(instance)[1] is None:  # no bytes in its model that could be rounded
        return answer
    problem = problem_of(instance)
    limit = problem.memory_bytes(instance)
    assert limit is not None, "a model with bytes has one limit"

    tightened, repairs = limit, REPAIRS
    while (choice := answer["choice"]) is not None:
        excess = problem.describe(instance, choice)["peak_bytes"] - limit
        if excess <= 0:
            break
        answer["choice"], tightened, repairs = None, tightened - excess, repairs - 1
        if tightened > 0 and repairs >= 0 and not (deadline and time.perf_counter() > deadline):
            tighter = problem.with_memory(instance, tightened)
            answer["choice"] = _solve_once(tighter, request, deadline, lambda message: None)["choice"]
    return answer


def _solve_once(instance: Any, request: dict[str, Any], deadline: float | None, send: Any) -> dict[str, Any]:
    from pyomo.contrib.solver.common.factory import SolverFactory
    from trainplan.formulations.milp import solved_values

    milp, started = formulation(instance, "milp"), time.perf_counter()
    model = milp.build(instance)
    built = time.perf_counter()
    ns_per_unit, _ = milp.units(instance)
    # HiGHS cuts off what is not below this objective; half a nanosecond keeps its tolerance away from the next whole one.
    below = {} if request["below_ns"] is None else {"objective_bound": (request["below_ns"] - 0.5) / ns_per_unit}

    def report(primal: float | None, bound: float | None) -> None:
        send(("progress", primal and primal * ns_per_unit, bound and bound * ns_per_unit))

    results = SolverFactory("highs").solve(
        model,
        time_limit=None if deadline is None else max(0.1, deadline - built),
        rel_gap=request["gap"],
        threads=1,
        tee=[_Log(report)],
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
        solver_options={
            "random_seed": request["seed"],
            "mip_abs_gap": 0.0,
            "presolve": PRESOLVE,
            "mip_feasibility_tolerance": TOLERANCE,
            **below,
        },
    )
    choice = None
    if results.incumbent_objective is not None:
        choice = milp.extract(instance, solved_values(model, results.solution_loader.get_vars()))
    bound = results.objective_bound
    return {
        "build_seconds": built - started,
        "termination": results.termination_condition.name,
        "bound_ns": None if bound is None else bound * ns_per_unit,
        "noise_ns": ns_per_unit * (NOISE + TOLERANCE * getattr(milp, "weight", lambda instance: 0)(instance)),
        "choice": choice,
    }


def main() -> None:
    """Solve requests until the connection is closed."""
    connection = Connection(int(sys.argv[1]))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            answer = _solve(request, connection.send)
        except Exception:
            answer = {"error": traceback.format_exc(limit=-3).strip()}
        connection.send(("done", answer))


if __name__ == "__main__":
    main()
