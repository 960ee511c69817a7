"""What a problem's solvers offer: methods by name, and what all of them begin and end with.

The package of a problem's solvers has a module `methods` with `METHODS`, an object of `Methods`; the problem names the package
(`Problem.solved_by`). A new method is one new module and one line there. Another package adds a method by an entry point of the
group `trainplan.methods` that refers to an `Entry` with its problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from trainplan.formulations.problem import Problem, problem
from trainplan.profiling.base.errors import InputError, named, one_of
from trainplan.profiling.base.plugins import attribute, plugins
from trainplan.solvers.core.search import Method

GROUP = "trainplan.methods"


@dataclass(frozen=True)
class Option:
    """A method's own parameter: one of `choices`, the default first, or a whole number of at least 1 where there are none.

    Attributes:
        name: as `--option NAME=VALUE` and keywords have it.
        choices: the values that it takes.
        most: the largest number; None where the method itself says which of them suit the instance.
    """

    name: str
    choices: tuple[str, ...] = ()
    most: int | None = 2**53

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices)}" if self.choices else self.name


@dataclass(frozen=True)
class Entry:
    """A method by name. Its module is imported when it is first used.

    Attributes:
        name: as `--method` and `solve` take it.
        target: `package.module:function`, a function of an instance and a `Search` that gives an `Outcome`.
        proves: it can prove optimality.
        about: what it is, in a few words.
        options: parameters of its own.
        problem: of a plug-in's method, the problem that it is for.
        starts: it begins from the problem's first plan, where another method has that only when it is stopped.
        model: it states the problem to a solver, and begins from the plan of a fast method, unless it is to begin cold (see
            `incumbents`).
    """

    name: str
    target: str
    proves: bool
    about: str
    options: tuple[Option, ...] = ()
    problem: str | None = None
    starts: bool = False
    model: bool = False

    def method(self) -> Method:
        """The method itself."""
        method: Method = attribute(self.target)
        return method


def entry(name: str, module: str, about: str, *options: Option, proves: bool = False) -> Entry:
    """A method of trainplan itself, whose function has its name, in a module of `solvers`."""
    return Entry(name, f"trainplan.solvers.{module}:{name.replace('-', '_')}", proves, about, options)


def proving(name: str, module: str, about: str, *options: Option) -> Entry:
    """A method that can prove optimality, likewise."""
    return entry(name, module, about, *options, proves=True)


# Every problem of `formulations` is stated as both.
MODELS = (
    replace(proving("milp", "adapters.highs", "Pyomo MILP on HiGHS"), model=True),
    replace(proving("cpsat", "adapters.cpsat", "OR-Tools CP-SAT", Option("workers")), model=True),
)
# The protocol of problems has an enumeration, so every problem has this.
BRUTE_FORCE = proving("brute-force", "core.brute_force", "every solution, for tiny instances")


@dataclass(frozen=True)
class Methods:
    """What one problem's package of solvers offers.

    Attributes:
        entries: the methods; `exact` stands for the first.

    The others are functions of an instance, as `package.module:function`, or None:

        explain: why no solution fits, as a `solvers.core.result.Infeasibility`; None where one does, and, where there is
            `fits`, where that is not certain, or no reason is known.
        cheap_bound: in milliseconds, nanoseconds that no solution is below, and the reason.
        first_plan: in milliseconds, a solution that fits, or None.
        fits: whether some solution fits, proven either way; None where that is not known.
        leanest: a solution of little memory, and bytes of a device that no solution is below, or None.
        at_least_memory: the instance with the least memory that some solution needs, or None; without this function, with the
            least memory that `explain` names.
        evidence: of an instance, an objective that is known (in ns) and a `Search`, evidence of a bound that
            `Certificate.checked_bound_ns` follows; None where bounds cannot be checked.
        alternatives: of an instance, a result, a number and a seed, up to that many good solutions with their objectives
            (in ns), best first, that trials may run in addition to the result's own.
    """

    entries: tuple[Entry, ...] = ()
    explain: str | None = None
    cheap_bound: str | None = None
    first_plan: str | None = None
    fits: str | None = None
    leanest: str | None = None
    at_least_memory: str | None = None
    evidence: str | None = None
    alternatives: str | None = None

    def call(self, name: str, *arguments: Any) -> Any:
        """The value of the function of that field for these arguments, the first of which is an instance; None without one."""
        target = getattr(self, name)
        return attribute(target)(*arguments) if target else None


def solvers_of(stated: Problem) -> Methods:
    """The methods and functions that a problem's package of solvers offers; brute force comes in addition."""
    offered: Methods = attribute(f"{stated.solved_by}.methods:METHODS")
    return offered


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
