"""What every method may begin or end with: a bound and a plan in milliseconds, of the problems whose solvers have them."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.problem import problem_of


def cheap_bound(instance: Any) -> tuple[int, str] | None:
    """Nanoseconds that no solution is below, and why; None for problems without such a bound."""
    bound: tuple[int, str] | None = problem_of(instance).solvers().call("cheap_bound", instance)
    return bound


def first_plan(instance: Any) -> Any | None:
    """A solution that fits; None where the problem has no such function, or that finds none."""
    return problem_of(instance).solvers().call("first_plan", instance)
