"""Quick facts about an instance, without a search: a lower bound and a first plan in milliseconds, and whether anything fits.

Each function calls the one that the problem's package of solvers registers under that name in its `METHODS`.
"""

from __future__ import annotations

from typing import Any

from trainplan.formulations.problem import problem_of
from trainplan.solvers.core.method_registry import Methods, solvers_of
from trainplan.solvers.core.result import Infeasibility


def _solvers(instance: Any) -> Methods:
    """The registry record of the optimisation problem that an instance belongs to: its solution methods, and its quick
    functions (lower bound, first plan, explanation), which the functions of this module call.

    instance: the data of one optimisation problem."""
    return solvers_of(problem_of(instance))


def cheap_bound(instance: Any) -> tuple[int, str] | None:
    """A lower bound in ns on the time of every solution of an instance, found in milliseconds without a search, and a text that
    says why it holds; None if the instance's problem registers no function for it.

    instance: the data of one optimisation problem."""
    bound: tuple[int, str] | None = _solvers(instance).call("cheap_bound", instance)
    return bound


def first_plan(instance: Any) -> Any | None:
    """A solution of an instance that fits the memory, found in milliseconds without a search; None if the instance's problem
    registers no function for it, or that function finds none.

    instance: the data of one optimisation problem."""
    return _solvers(instance).call("first_plan", instance)


def explain(instance: Any) -> Infeasibility | None:
    """The reason why no solution of the instance fits the memory.

    instance: the data of one optimisation problem.

    Returns None if some solution fits, if no reason is known, or if it is not certain that nothing fits."""
    reason: Infeasibility | None = _solvers(instance).call("explain", instance)
    return reason


def fits(instance: Any) -> bool | None:
    """Whether an instance has a solution within its memory: True if some solution is proven to fit, False if it is proven that
    none does, None if neither is known.

    instance: the data of one optimisation problem."""
    solvers, known = _solvers(instance), None
    if solvers.fits:
        known = solvers.call("fits", instance)
    elif solvers.explain:
        known = explain(instance) is None
    return known


def leanest(instance: Any) -> tuple[Any, int] | None:
    """A solution of an instance that needs little memory, and a lower bound in bytes on the memory per device that any solution
    needs; None if the instance's problem registers no function for it, or that function finds none.

    instance: the data of one optimisation problem."""
    found: tuple[Any, int] | None = _solvers(instance).call("leanest", instance)
    return found


def at_least_memory(instance: Any) -> Any | None:
    """A copy of an instance whose memory per device is the least with which some solution is known to fit.

    instance: the data of one optimisation problem. Returns None if a solution fits even into one byte per device, or if no
    sufficient limit is known (for example because the hosts' memory is too small whatever the devices have)."""
    if _solvers(instance).at_least_memory:
        return _solvers(instance).call("at_least_memory", instance)
    if (reason := explain(instance.with_memory(1))) is None:
        return None
    least = instance.with_memory(reason.least_memory_bytes)
    return least if explain(least) is None else None
