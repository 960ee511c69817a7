"""MILP on HiGHS, by Pyomo, as a solution method: sends instances to HiGHS's own process, and turns its answers into
outcomes."""

from __future__ import annotations

from functools import partial
from typing import Any

from trainplan.solvers.adapters.subproblems import by_configuration
from trainplan.solvers.adapters.worker import Worker, outcome
from trainplan.solvers.core.search import Outcome, Search

SOURCE = "HiGHS's dual bound, rounded up within its tolerance"
FINISHED = "convergenceCriteriaSatisfied"

LATE = "time ran out while the MILP was built", "HiGHS did not stop at its limit and was ended"

_worker = Worker("trainplan.solvers.adapters.highs_worker")


def milp(instance: Any, search: Search) -> Outcome:
    """The method `milp`: solve an instance by its problem's Pyomo MILP on HiGHS with one thread, with a proof of optimality or
    a lower bound. HiGHS runs in a process of its own, which is killed if it overruns the time limit.

    instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to which
    better ones are reported."""
    return by_configuration(solve_one, instance, search)


def solve_one(instance: Any, search: Search) -> Outcome:
    """Solve an instance as one MILP in HiGHS's own process. If the search has a solution already, only better ones are looked
    for. Returns the outcome; solutions are also reported to the search.

    instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to which
    better ones are reported."""
    return outcome(_worker, instance, search, SOURCE, LATE, partial(_outcome, search))


def _outcome(search: Search, answer: dict[str, Any]) -> Outcome:
    """Turn the answer of HiGHS's process into an outcome, and report its solution and lower bound to the search. answer: the
    dict that `highs_worker.solve` returns (termination, bound in ns, noise_ns, repairs, choice), or one with `error`, a
    traceback.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    if "error" in answer:
        return Outcome(failed=True, message=f"HiGHS: {answer['error'].splitlines()[-1]}")
    termination, choice = answer["termination"], answer["choice"]
    if termination in ("provenInfeasible", "infeasibleOrUnbounded"):
        return Outcome(infeasible=True, bound_source="HiGHS")
    search.report(choice, answer["bound"], SOURCE if choice is None else None)
    return Outcome(
        choice=choice,
        bound=answer["bound"],
        bound_source=SOURCE,
        stopped="time limit" if termination == "maxTimeLimit" else None,
        message=_message(answer, search),
        statistics={"termination": termination},
    )


def _message(answer: dict[str, Any], search: Search) -> str | None:
    """A remark for users on why HiGHS, although it reached no limit, gives no solution or proves the solution only up to
    rounding; None if nothing needs a remark. answer: the dict that `highs_worker.solve` returns.

    search: the run's limits and options, and its best solution so far; only read here."""
    if answer["choice"] is None and answer["repairs"]:
        return (
            f"HiGHS's solution exceeds the memory by its rounding, and {answer['repairs']} searches in less memory found none "
            "that fits: too few bytes are left to decide for floating point; cpsat and exact decide on whole bytes"
        )
    if answer["choice"] is None:
        if answer["bound"] is not None and search.closed(answer["bound"]):
            return None
        return f"HiGHS ended with {answer['termination']} and no solution"
    if answer["termination"] == FINISHED and not search.closed(answer["bound"]):
        return (
            f"HiGHS is done, but in floating point, which proves these times to {answer['noise_ns']:.0f} ns only"
            + (", and the memory to its rounding" if answer["repairs"] else "")
            + "; cpsat and exact prove them on whole numbers"
        )
    return None
