"""The registry of methods: which methods solve a problem, under which names, and the quick functions around them.

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
    """A parameter that one method has: one of `choices`, the default first, or, without choices, a whole number of at least 1.

    Attributes:
        name: as written in `--option NAME=VALUE` and in keyword arguments.
        choices: the values that it takes.
        most: the largest number; None if the method itself checks which numbers the instance allows.
    """

    name: str
    choices: tuple[str, ...] = ()
    most: int | None = 2**53

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices)}" if self.choices else self.name


@dataclass(frozen=True)
class Entry:
    """A method by name. Its module is imported when the method is first used.

    Attributes:
        name: as `--method` and `solve` take it.
        target: `package.module:function`, a function of an instance and a `Search` that returns an `Outcome`.
        proves: the method can prove optimality.
        about: a description in a few words.
        options: the method's own parameters.
        problem: for a plug-in's method, the name of the problem that it solves.
        starts: the method begins from the problem's first plan; others get that plan only when they are stopped without one.
        model: the method states the problem to a general solver, and begins from the plan of a fast method, unless the caller
            wants it cold (see `incumbents`).
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
        """Import the module of the method and return the method's function, which takes an instance and a `Search`, and returns
        an `Outcome`."""
        method: Method = attribute(self.target)
        return method


def entry(name: str, module: str, about: str, *options: Option, proves: bool = False) -> Entry:
    """The registry entry of one of trainplan's own solution methods, whose function has the method's name with underscores for
    dashes: entry("galvatron-dp", "chain.galvatron_dp", ...) refers to trainplan.solvers.chain.galvatron_dp:galvatron_dp.

    module: the module below `trainplan.solvers`. about: a description in a few words. options: the method's own parameters.
    proves: whether the method can prove optimality.
    """
    return Entry(name, f"trainplan.solvers.{module}:{name.replace('-', '_')}", proves, about, options)


def proving(name: str, module: str, about: str, *options: Option) -> Entry:
    """The registry entry of one of trainplan's own methods that can prove optimality. name: the method's name; its function has
    this name with underscores for dashes. module: the module below `trainplan.solvers`. about: a description in a few words.
    options: the method's own parameters."""
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
    """The methods and quick functions that the solvers of one problem offer. All fields but the first name a function of an
    instance, as `package.module:function`; None if the problem has no such function.

    Attributes:
        entries: the methods; the name `exact` stands for the first.
        explain: why no solution fits, as a `solvers.core.result.Infeasibility`; None if one does, if no reason is known,
            and, for problems with `fits`, if it is not certain.
        cheap_bound: a lower bound in ns on all solutions, in milliseconds, with its reason.
        first_plan: a solution that fits, in milliseconds, or None.
        fits: whether some solution fits, proven either way; None if that is not known.
        leanest: a solution of little memory, and a lower bound in bytes per device on the memory of any solution; or None.
        at_least_memory: the instance with the least memory that some solution needs, or None; without this function, with the
            least memory that `explain` names.
        evidence: evidence for a bound, which `Certificate.checked_bound_ns` checks, from an instance, a known objective in ns
            and a `Search`; None if bounds cannot be checked.
        alternatives: from an instance, a result, a count and a seed, at most that many good solutions with their objectives in
            ns, best first, that trial runs may take in addition to the result's own.
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
        """Call one of the registered functions. name: the field of this record that names the function, such as "cheap_bound".
        arguments: the function's arguments, an instance first. Returns the function's result; None if the field is None."""
        target = getattr(self, name)
        return attribute(target)(*arguments) if target else None


def solvers_of(stated: Problem) -> Methods:
    """The registry record of a problem: the solution methods and quick functions that its own package of solvers registers;
    methods of plug-ins and brute force are not included. stated: the optimisation problem."""
    offered: Methods = attribute(f"{stated.solved_by}.methods:METHODS")
    return offered


@cache
def methods(problem_name: str) -> tuple[Entry, ...]:
    """The registry entries of all solution methods of a problem, in this order: its own methods, of which the first is also
    known as `exact`, the methods of plug-ins, and brute force. problem_name: such as "joint". Raises InputError if no problem
    has this name."""
    stated = problem(problem_name)
    entries = [point.load() for point in plugins(GROUP).values()]
    return (*solvers_of(stated).entries, *(entry for entry in entries if entry.problem == stated.name), BRUTE_FORCE)


def method(problem_name: str, name: str) -> Entry:
    """The registry entry of a problem's solution method. problem_name: such as "joint". name: the method's name, or `exact` for
    the problem's first method. Raises InputError, which lists the possible names, if there is no such method."""
    entries = methods(problem_name)
    names = ["exact", *(entry.name for entry in entries)]
    chosen = named(name, names)
    for entry in entries:
        if chosen in (entry.name, "exact"):
            return entry
    raise InputError("command line", "--method", f"is {name!r}", one_of(name, names))
