"""Who found a bound, when, with which versions and on which machine."""

from __future__ import annotations

from datetime import date
from typing import Any

from trainplan.libraries.records import LowerBound, UpperBound
from trainplan.solvers.core.result import Result
from trainplan.studies.environment import machine

WHO = "trainplan"


def seconds_of(result: Result) -> float:
    """The wall seconds of a method's run, without imports."""
    return round(result.build_seconds + result.solve_seconds, 3)


def found_by(result: Result, options: dict[str, Any] | None = None, who: str = WHO) -> dict[str, Any]:
    """The fields of a bound that say how it was found. result: of the method. options: the method's own, as they were given.
    who: a person or a program."""
    fields: dict[str, Any] = {"options": options or {}, "who": who, "date": date.today().isoformat()}
    return fields | {"versions": result.versions, "machine": machine(), "seconds": seconds_of(result)}


def upper_bound_of(result: Result, options: dict[str, Any] | None = None, who: str = WHO) -> UpperBound | None:
    """The solution that a method found, with its provenance; None if it found none."""
    if result.objective is None or result.solution is None:
        return None
    method = result.solution_source or result.method
    return UpperBound(value=result.objective, solution=result.solution, method=method, **found_by(result, options, who))


def lower_bound_of(result: Result, options: dict[str, Any] | None = None, who: str = WHO) -> LowerBound | None:
    """The lower bound that a method proved, with its provenance; None if it proved none."""
    if result.bound is None or result.status == "infeasible":
        return None
    return LowerBound(value=result.bound, method=result.bound_source or result.method, **found_by(result, options, who))
