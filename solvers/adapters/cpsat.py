"""CP-SAT as a solution method: sends instances to CP-SAT's own process, and turns its answers into outcomes."""

from __future__ import annotations

from functools import partial
from typing import Any

from trainplan.solvers.adapters.subproblems import by_configuration
from trainplan.solvers.adapters.worker import Worker, outcome
from trainplan.solvers.core.search import Outcome, Search

LATE = "time ran out while CP-SAT's model was built", None

_worker = Worker("trainplan.solvers.adapters.cpsat_worker")


def cpsat(instance: Any, search: Search) -> Outcome:
    """The method `cpsat`: solve an instance by OR-Tools CP-SAT on whole bytes and nanoseconds, with a proof of optimality or a
    lower bound. The search's option `workers`: the number of search threads (default: the cores, at most 8).

    instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to which
    better ones are reported.

    With one worker a seed gives the same search each time; with more, only the proven optimum is repeatable."""
    return by_configuration(solve_one, instance, search)


def solve_one(instance: Any, search: Search) -> Outcome:
    """Solve an instance as one CP-SAT model in CP-SAT's own process. If the search has a solution already, only better ones are
    looked for. Returns the outcome; solutions are also reported to the search.

    instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to which
    better ones are reported."""
    read, workers = partial(_outcome, search), search.options.get("workers")
    return outcome(_worker, instance, search, "CP-SAT", LATE, read, workers=workers)


def _outcome(search: Search, answer: dict[str, Any]) -> Outcome:
    """Turn the answer of CP-SAT's process into an outcome, and report its lower bound to the search. answer: the dict that
    `cpsat_worker.solve` returns (status, bound in ns, workers, statistics), or one with `error`, a traceback.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    status = answer.get("status")
    if "error" in answer or status == "MODEL_INVALID":
        message = answer["error"].splitlines()[-1] if "error" in answer else f"CP-SAT refused the model: {answer['refused']}"
        return Outcome(failed=True, message=message)
    source = f"CP-SAT, {answer['workers']} workers"
    if status == "INFEASIBLE":
        return Outcome(infeasible=True, bound_source=source)
    bound = answer["bound"]
    if status == "OPTIMAL" and not search.gap and search.objective is not None:
        bound = search.objective  # proven on whole numbers; the float that says so may be off by its rounding
    search.report(bound=bound, source=source)
    return Outcome(
        bound=max(bound, search.bound or 0),
        bound_source=source,
        stopped="time limit" if status in ("FEASIBLE", "UNKNOWN") else None,
        statistics=answer["statistics"],
    )
