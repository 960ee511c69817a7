"""CP-SAT in a process of its own: `python -m trainplan.solvers.adapters.cpsat_worker NUMBER`, see `worker`.

Sends ("built", seconds), ("solution", solution) and ("bound", ns) as they come.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

from ortools.sat.python import cp_model
from trainplan.formulations.problem import problem_of
from trainplan.solvers.adapters.formulation import formulation
from trainplan.solvers.adapters.worker import Send, serve

MOST_WORKERS = 256
LEAST_SECONDS = 0.01


class _Sender(cp_model.CpSolverSolutionCallback):
    """CP-SAT's callback that sends each better solution to the parent process as soon as it is found.

    send: sends a message (kind, content). read: turns a function that gives the 0/1 value of a model variable into a solution
    of the planning problem.
    """

    def __init__(self, send: Send, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.send, self.read = send, read

    def on_solution_callback(self) -> None:
        """Send the solution that CP-SAT has just found as the message ("solution", solution). CP-SAT calls this method."""
        self.send(("solution", self.read(self.boolean_value)))


def solve(request: dict[str, Any], send: Send) -> dict[str, Any]:
    """Solve one instance with CP-SAT, in the process that runs it.

    request: a dict with instance; seed; gap (relative); workers (threads, None for the default); time_limit (seconds) and
    memory_bytes, None for no limit; below_ns (only solutions below this objective are wanted, but `start` may have exactly it)
    and start (a solution to begin from), or None. send: sends messages to the parent process: ("built", seconds), ("solution",
    solution) and ("bound", ns). Returns a dict: status (CP-SAT's name of it), bound in ns, workers, refused (why the model is
    invalid, else None), and statistics.
    """
    instance, below, started = request["instance"], request["below_ns"], time.perf_counter()
    stated = formulation(instance, "cpsat")
    model, variables = stated.build(instance)
    if request["start"] is not None:
        hint(model, problem_of(instance).models.start(instance, request["start"]))
    if below is not None:
        model.proto.objective.domain.extend([-(2**62), below - (request["start"] is None)])
    build_seconds = time.perf_counter() - started
    send(("built", build_seconds))

    def read(value: Callable[[Any], bool]) -> Any:
        """The solution in the values of the model's variables."""
        return stated.extract(instance, variables, value)

    solver = cp_model.CpSolver()
    solver.parameters.random_seed = request["seed"]
    solver.parameters.num_workers = min(MOST_WORKERS, request["workers"] or min(8, os.cpu_count() or 1))
    solver.parameters.relative_gap_limit = request["gap"]
    if request["time_limit"] is not None:
        solver.parameters.max_time_in_seconds = max(LEAST_SECONDS, request["time_limit"] - build_seconds)
    if request["memory_bytes"] is not None:
        solver.parameters.max_memory_in_mb = request["memory_bytes"] >> 20
    solver.best_bound_callback = lambda value: send(("bound", whole(value)))
    status = solver.solve(model, _Sender(send, read))
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        send(("solution", read(solver.boolean_value)))
    return {
        "status": solver.status_name(status),
        "bound": whole(solver.best_objective_bound),
        "workers": solver.parameters.num_workers,
        "refused": model.validate().partition("\n")[0] if status == cp_model.MODEL_INVALID else None,
        "statistics": {"branches": solver.num_branches, "conflicts": solver.num_conflicts},
    }


def hint(model: cp_model.CpModel, ones: set[str]) -> None:
    """Hint CP-SAT at a starting solution: 1 for the variables whose names are in `ones`, 0 for every other variable of the same
    families. The family is the name before the bracket: with ones = {"x[1,2]"}, all variables x[...] get a hint. Changes the
    model."""
    letters = {name.partition("[")[0] for name in ones}
    for index, variable in enumerate(model.proto.variables):
        if variable.name.partition("[")[0] in letters:
            model.proto.solution_hint.vars.append(index)
            model.proto.solution_hint.values.append(int(variable.name in ones))


def whole(value: float) -> int:
    """Convert CP-SAT's lower bound, a whole number that it returns as a float, into an integer that is surely still a bound: a
    value above 2^53 is lowered by its possible rounding error, and an infinite value gives 0. value: CP-SAT's bound."""
    if not math.isfinite(value):
        return 0
    if abs(value) >= 2**53:
        return math.floor(value) - math.ceil(abs(value) * 2**-52)
    nearest = round(value)
    return nearest if abs(value - nearest) < 1e-3 else math.ceil(value)


if __name__ == "__main__":
    serve(solve)
