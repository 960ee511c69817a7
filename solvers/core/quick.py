"""What every method may begin or end with: a bound and a plan in milliseconds, of the problems that `registry` lists."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.registry import CHEAP_BOUNDS, FIRST_PLANS


def cheap_bound(instance: Any) -> tuple[int, str] | None:
    """Nanoseconds that no solution is below, and why; None for problems without such a bound."""
    target = CHEAP_BOUNDS.get(instance.problem)
    bound: tuple[int, str] | None = None if target is None else attribute(target)(instance)
    return bound


def first_plan(instance: Any) -> Any | None:
    """A solution that fits; None where the problem has no such function, or that finds none."""
    target = FIRST_PLANS.get(instance.problem)
    return None if target is None else attribute(target)(instance)
