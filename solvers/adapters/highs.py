"""Pyomo on HiGHS: the adapter between a solver process and our searches. The only place that knows how HiGHS is called."""

from __future__ import annotations

from typing import Any

from trainplan.solvers.adapters.parts import by_configuration
from trainplan.solvers.adapters.worker import Late, Worker
from trainplan.solvers.core.search import Outcome, Search

SOURCE = "HiGHS's dual bound, rounded up within its tolerance"
FINISHED = "convergenceCriteriaSatisfied"

_worker = Worker("trainplan.solvers.adapters.highs_worker")


def milp(instance: Any, search: Search) -> Outcome:
    """The Pyomo MILP on HiGHS, one thread, in a process that is ended when it overruns its limit."""
    return by_configuration(solve_one, instance, search)


def solve_one(instance: Any, search: Search) -> Outcome:
    """One model. Where the search has an objective already, HiGHS looks for a better solution only."""
    build_seconds: list[float] = []

    def receive(kind: str, content: Any) -> None:
        if kind == "built":
            build_seconds.append(content)
        elif kind == "solution":
            search.report(content)
        else:
            search.report(bound=content, source=SOURCE)

    request = {"instance": instance, "gap": search.gap, "seed": search.seed, "below_ns": search.objective}
    try:
        answer = _worker.answer({**request, "start": search.start}, search, receive)
    except Late:
        spent = build_seconds[0] if build_seconds else search.elapsed()
        what = "HiGHS did not stop at its limit and was ended" if build_seconds else "time ran out while the MILP was built"
        return Outcome(
            bound=search.bound, bound_source=search.bound_source, build_seconds=spent, stopped="time limit", message=what
        )
    if answer.get("out_of_memory"):
        raise MemoryError
    spent = sum(build_seconds)
    if "error" in answer:
        return Outcome(failed=True, message=f"HiGHS: {answer['error'].splitlines()[-1]}", build_seconds=spent)
    termination, choice = answer["termination"], answer["choice"]
    if termination in ("provenInfeasible", "infeasibleOrUnbounded"):
        return Outcome(infeasible=True, bound_source="HiGHS", build_seconds=spent)
    search.report(choice, answer["bound"], SOURCE if choice is None else None)
    return Outcome(
        choice=choice,
        bound=answer["bound"],
        bound_source=SOURCE,
        build_seconds=spent,
        stopped="time limit" if termination == "maxTimeLimit" else None,
        message=_message(answer, search),
        statistics={"termination": termination},
    )


def _message(answer: dict[str, Any], search: Search) -> str | None:
    """Why there is no solution, or no proof, though no limit was reached; None where there is, or where one was."""
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
