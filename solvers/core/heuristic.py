"""Quick facts about an instance, without a search: a lower bound and a first plan in milliseconds, and whether anything fits.

Each function calls the one that the problem's package of solvers registers under that name in its `METHODS`.
"""

from __future__ import annotations

from typing import Any

from trainplan.formulations.problem import problem_of
from trainplan.solvers.core.method_registry import Methods, solvers_of
from trainplan.solvers.core.result import Infeasibility


def _solvers(instance: Any) -> Methods:
    """The registered methods and quick functions of the instance's problem."""
    return solvers_of(problem_of(instance))


def cheap_bound(instance: Any) -> tuple[int, str] | None:
    """A lower bound in ns on all solutions, with its reason; None for problems that register no such bound."""
    bound: tuple[int, str] | None = _solvers(instance).call("cheap_bound", instance)
    return bound


def first_plan(instance: Any) -> Any | None:
    """A solution that fits the memory, found in milliseconds; None where the problem registers no such function, or it finds
    none."""
    return _solvers(instance).call("first_plan", instance)


def explain(instance: Any) -> Infeasibility | None:
    """Why no solution fits the memory; None where one does.

    None is also returned where that is not certain, for a problem whose solvers have `fits`, and where no reason is known.
    """
    reason: Infeasibility | None = _solvers(instance).call("explain", instance)
    return reason


def fits(instance: Any) -> bool | None:
    """Whether some solution fits the memory, proven either way; None where that is not known."""
    solvers, known = _solvers(instance), None
    if solvers.fits:
        known = solvers.call("fits", instance)
    elif solvers.explain:
        known = explain(instance) is None
    return known


def leanest(instance: Any) -> tuple[Any, int] | None:
    """A solution that needs little memory, and a lower bound in bytes on the memory per device of any solution; None where the
    problem registers no such function, or it finds none."""
    found: tuple[Any, int] | None = _solvers(instance).call("leanest", instance)
    return found


def at_least_memory(instance: Any) -> Any | None:
    """A copy of the instance with the least memory per device with which some solution is known to fit.

    None where no solution needs any memory, or no such limit is known: host memory may be too small whatever the devices have.
    """
    if _solvers(instance).at_least_memory:
        return _solvers(instance).call("at_least_memory", instance)
    if (reason := explain(instance.with_memory(1))) is None:
        return None
    least = instance.with_memory(reason.least_memory_bytes)
    return least if explain(least) is None else None
