"""What every method may begin or end with: a bound and a plan in milliseconds, of the problems that `registry` lists."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.registry import CHEAP_BOUNDS, FIRST_PLANS
from trainplan.solvers.core.search import Outcome, Search


def cheap_bound(instance: Any) -> tuple[int, str] | None:
    """Nanoseconds that no solution is below, and why; None for problems without such a bound."""
    target = CHEAP_BOUNDS.get(instance.problem)
    bound: tuple[int, str] | None = None if target is None else attribute(target)(instance)
    return bound


def first_plan(instance: Any) -> Any | None:
    """A solution that fits; None where the problem has no such function, or that finds none."""
    target = FIRST_PLANS.get(instance.problem)
    return None if target is None else attribute(target)(instance)


def timed_out(instance: Any, search: Search, message: str, **fields: Any) -> Outcome:
    """What a method comes to whose time is over: the first plan, where there is no solution so far. fields: of the outcome."""
    if search.best is None and (search.around is None or search.around.best is None):
        search.report(first_plan(instance))
        message += "" if search.best is None else "; the plan is the first that fits"
    return Outcome(message=message, **fields)
