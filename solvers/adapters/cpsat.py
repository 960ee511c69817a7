"""CP-SAT: the adapter between its process and our searches."""

from __future__ import annotations

from typing import Any

from trainplan.solvers.adapters.parts import by_configuration
from trainplan.solvers.adapters.worker import Late, Worker
from trainplan.solvers.core.search import Outcome, Search

_worker = Worker("trainplan.solvers.adapters.cpsat_worker")


def cpsat(instance: Any, search: Search) -> Outcome:
    """CP-SAT on whole bytes and nanoseconds. Option `workers`: search threads (default: the cores, at most 8).

    With one worker a seed gives the same search each time; with more, only the proven optimum is repeatable.
    """
    return by_configuration(solve_one, instance, search)


def solve_one(instance: Any, search: Search) -> Outcome:
    """One model. Where the search has an objective already, CP-SAT looks for a better solution only."""
    build_seconds, source = list[float](), "CP-SAT"

    def receive(kind: str, content: Any) -> None:
        if kind == "built":
            build_seconds.append(content)
        elif kind == "solution":
            search.report(content)
        else:
            search.report(bound=content, source=source)

    request = {"instance": instance, "gap": search.gap, "seed": search.seed, "workers": search.options.get("workers")}
    try:
        answer = _worker.answer({**request, "below_ns": search.objective, "start": search.start}, search, receive)
    except Late:
        message = None if build_seconds else "time ran out while CP-SAT's model was built"
        spent = build_seconds[0] if build_seconds else search.elapsed()
        return Outcome(
            bound=search.bound, bound_source=search.bound_source, build_seconds=spent, stopped="time limit", message=message
        )
    if answer.get("out_of_memory"):
        raise MemoryError
    spent, status = sum(build_seconds), answer.get("status")
    if "error" in answer or status == "MODEL_INVALID":
        message = answer["error"].splitlines()[-1] if "error" in answer else f"CP-SAT refused the model: {answer['refused']}"
        return Outcome(failed=True, message=message, build_seconds=spent)
    source = f"CP-SAT, {answer['workers']} workers"
    if status == "INFEASIBLE":
        return Outcome(infeasible=True, bound_source=source, build_seconds=spent)
    bound = answer["bound"]
    if status == "OPTIMAL" and not search.gap and search.objective is not None:
        bound = search.objective  # proven on whole numbers; the float that says so may be off by its rounding
    search.report(bound=bound, source=source)
    return Outcome(
        bound=max(bound, search.bound or 0),
        bound_source=source,
        build_seconds=spent,
        stopped="time limit" if status in ("FEASIBLE", "UNKNOWN") else None,
        statistics=answer["statistics"],
    )
