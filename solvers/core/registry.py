"""Which methods a problem has: those of its own package of solvers, those of other packages, and brute force.

Another package adds a method by an entry point of the group `trainplan.methods` that refers to an `Entry` with its problem.
"""

from __future__ import annotations

from functools import cache

from trainplan.formulations.problem import problem
from trainplan.profiling.base.errors import InputError, named, one_of
from trainplan.profiling.base.plugins import plugins
from trainplan.solvers.core.entries import BRUTE_FORCE, Entry, solvers_of

GROUP = "trainplan.methods"


@cache
def methods(problem_name: str) -> tuple[Entry, ...]:
    """The methods for a problem, those of plug-ins and brute force last; `exact` stands for the first. Raises InputError."""
    stated = problem(problem_name)
    entries = [point.load() for point in plugins(GROUP).values()]
    return (*solvers_of(stated).entries, *(entry for entry in entries if entry.problem == stated.name), BRUTE_FORCE)


def method(problem_name: str, name: str) -> Entry:
    """A method for a problem by name, or `exact`. Raises InputError."""
    entries = methods(problem_name)
    names = ["exact", *(entry.name for entry in entries)]
    chosen = named(name, names)
    for entry in entries:
        if chosen in (entry.name, "exact"):
            return entry
    raise InputError("command line", "--method", f"is {name!r}", one_of(name, names))
