"""Brute force: evaluate every solution of a tiny instance. It is the reference that other methods are tested against."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.problem import problem_of
from trainplan.solvers.core.search import Outcome, Search, Unsupported

EVERY = 4096  # solutions that are evaluated between two checks of the clock
SOURCE = "enumeration of all choices"


def brute_force(instance: Any, search: Search) -> Outcome:
    """The method `brute-force`: find the optimal solution of a tiny instance by evaluating every solution.

    instance: the data of one optimisation problem. search: the run's limits, to which each better solution is reported. Returns
    an outcome whose bound equals the best objective (a proof of optimality, or that nothing fits), or an outcome without a
    bound if time runs out. Raises Unsupported if the instance has more solutions than its problem allows for brute force."""
    enumeration = problem_of(instance).enumeration
    count, most = enumeration.count(instance), enumeration.most(instance)
    if count > most:
        shown = f"{count:.3g}" if count < 10**300 else "over 1e300"
        fix = f"give 'exact'; brute force takes {most / 1e6:.0f}e6"
        raise Unsupported("command line", "--method", f"is 'brute-force' for {shown} choices", fix)
    for number, solution in enumerate(enumeration.solutions(instance)):
        if solution is not None:
            search.report(solution)
        if (solution is None or number % EVERY == 0) and search.out_of_time():
            return Outcome(message="time ran out")
    if search.objective is None:
        return Outcome(infeasible=True, bound_source=SOURCE)
    search.report(bound=search.objective)
    return Outcome(bound=search.objective, bound_source=SOURCE)
