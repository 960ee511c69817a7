"""MILP on HiGHS, by Pyomo, as a method: sends instances to its process, and turns its answers into outcomes."""

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
    """The Pyomo MILP on HiGHS, with one thread, in a process that is ended when it overruns its limit."""
    return by_configuration(solve_one, instance, search)


def solve_one(instance: Any, search: Search) -> Outcome:
    """Solve one model. Where the search has an objective already, HiGHS looks for better solutions only."""
    return outcome(_worker, instance, search, SOURCE, LATE, partial(_outcome, search))


def _outcome(search: Search, answer: dict[str, Any]) -> Outcome:
    """The outcome that HiGHS's answer stands for, reported to the search. answer: as `highs_worker.solve` returns it."""
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
    """Why there is no solution, or no proof, although no limit was reached; None where there is, or where one was."""
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
