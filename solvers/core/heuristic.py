"""What a problem's solvers say of an instance without a search: a bound and a plan in milliseconds, and what fits."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.problem import problem_of
from trainplan.solvers.core.method_registry import Methods, solvers_of
from trainplan.solvers.core.result import Infeasibility


def _solvers(instance: Any) -> Methods:
    return solvers_of(problem_of(instance))


def cheap_bound(instance: Any) -> tuple[int, str] | None:
    """Nanoseconds that no solution is below, and why; None for problems without such a bound."""
    bound: tuple[int, str] | None = _solvers(instance).call("cheap_bound", instance)
    return bound


def first_plan(instance: Any) -> Any | None:
    """A solution that fits; None where the problem has no such function, or that finds none."""
    return _solvers(instance).call("first_plan", instance)


def explain(instance: Any) -> Infeasibility | None:
    """Why no solution fits; None where one does, and, of a problem whose solvers have `fits`, where that is not certain, or no
    reason is known."""
    reason: Infeasibility | None = _solvers(instance).call("explain", instance)
    return reason


def fits(instance: Any) -> bool | None:
    """Whether some solution fits, proven either way; None where that is not known."""
    solvers, known = _solvers(instance), None
    if solvers.fits:
        known = solvers.call("fits", instance)
    elif solvers.explain:
        known = explain(instance) is None
    return known


def leanest(instance: Any) -> tuple[Any, int] | None:
    """A solution of little memory, and bytes of a device that no solution is below; None where none is looked for."""
    found: tuple[Any, int] | None = _solvers(instance).call("leanest", instance)
    return found


def at_least_memory(instance: Any) -> Any | None:
    """The instance with the least memory that some solution is known to need; None where nothing needs any, or none is known:
    hosts may be too small."""
    if _solvers(instance).at_least_memory:
        return _solvers(instance).call("at_least_memory", instance)
    if (reason := explain(instance.with_memory(1))) is None:
        return None
    least = instance.with_memory(reason.least_memory_bytes)
    return least if explain(least) is None else None
