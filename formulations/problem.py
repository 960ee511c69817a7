"""The protocol of problems: twelve methods that every planning problem has, and objects that only some of them have.

A problem is one folder with one object of a subclass of `Problem`, and one line in `BUILT_IN` (or an entry point
`trainplan.problems` of another package). Its instances and solutions are its own types. An instance has the attributes of
`InstanceLike`. The twelve methods are those without which a request does not become a plan with a claim:

    files              load, load_solution, solution_dict
    costs of solutions evaluate, violations, describe, cost_model
    requests and plans instance, instances, plan
    for people         size, tables

How all solutions of a tiny instance are listed (`Enumeration`), how MILP and CP-SAT state an instance (`Models`) and how plans
of one strategy are found (`SingleStrategy`) are records of functions that a problem holds. Three further objects, each of them
optional, let the planner go on from a solver's answer (`refinement.Refinement`), prove a claim (`certificate.Certificate`) and
say which part of a request instances cover (`request_scope.RequestScope`). Methods, bounds, and why nothing fits belong to the
solvers (`solvers.core.method_registry.Methods`).

`tests/formulations/test_conformance.py` holds every problem to this protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from trainplan.formulations.certificate import Certificate
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.refinement import Refinement
from trainplan.formulations.request_scope import RequestScope
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import FileFormat, Source
from trainplan.profiling.base.plugins import attribute, load_named, names

GROUP = "trainplan.problems"
MOST_SOLUTIONS = 2_000_000  # of an instance that brute force takes, unless its problem says otherwise


@runtime_checkable
class InstanceLike(Protocol):
    """The attributes that instances of all planning problems have, including problems of other packages. An instance holds the
    numbers of one question, such as costs and memory limits.

    Attributes:
        problem: the name of the problem.
        name: the instance's own name, for people.
        provenance: where its numbers come from; its entry `cost_model` is `streams` if costs count overlap.

    An instance also has the attribute `digest`, the SHA-256 of all that the answer depends on in hexadecimal digits. It is not
    listed here because `isinstance` reads every attribute, and a digest takes time to compute.
    """

    problem: Any
    name: Any
    provenance: Any

    def to_dict(self) -> dict[str, Any]:
        """The instance in its JSON file format: a dict of JSON-ready values."""
        ...

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit that all devices share, in bytes; None if there is no limit, or if devices have different limits."""
        ...

    def with_memory(self, memory_bytes: int) -> Self:
        """A copy of the instance in which every device has a memory limit of `memory_bytes`. Raises InputError if the instance
        does not state what layers need."""
        ...


class Evaluation(Protocol):
    """The cost of a solution: its objective, a whole number of nanoseconds to be minimised, and whatever else a problem
    computes, such as peak memory.
    """

    @property
    def objective(self) -> int:
        """The number to be minimised, in whole nanoseconds."""
        ...


@dataclass(frozen=True)
class Table:
    """A table for people: a title, names of columns, and rows of texts. The command, notebooks and pictures read the same
    rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Enumeration:
    """How brute force lists all solutions of a tiny instance.

    Attributes:
        count: takes an instance; returns the number of solutions that are looked at.
        solutions: takes an instance; yields every solution, or, if the problem evaluates many at a time, the best feasible
            solution of each batch. It may yield None in between, so that the caller can check the time limit.
        most: the largest count that brute force accepts.
    """

    count: Callable[[Any], int]
    solutions: Callable[[Any], Iterator[Any]]
    most: Callable[[Any], int] = lambda instance: MOST_SOLUTIONS


@dataclass
class Subproblem:
    """A part of an instance that MILP and CP-SAT solve with a model of its own.

    Attributes:
        instance: the part, as an instance.
        bound: a lower bound, in ns, on the objective of the part's solutions; infinite if the part has no feasible
            solution.
        lifted: turns a solution of the part into one of the whole instance.
        lowered: turns a solution of the whole instance into one of the part; None if the solution lies in another part.
    """

    instance: Any
    bound: float
    lifted: Callable[[Any], Any] = lambda solution: solution
    lowered: Callable[[Any], Any | None] = lambda solution: None


@dataclass(frozen=True)
class Models:
    """How the MILP and the CP-SAT model of a problem (its modules `milp` and `cpsat`) are built part by part and warm-started.

    Attributes:
        subproblems: takes an instance, and a function that returns whether the time is up; returns the parts that get a
            model each, or None if one model holds the whole instance. Raises `Unsupported` of `profiling.base.errors` if
            the models cannot express the instance, `TooLarge` if it is only too large for them.
        start: takes an instance and a solution; returns the names of the models' whole-number variables that are 1 in the
            solution. Other variables whose names begin with the same letters are 0. The letters cover all whole-number
            variables of the MILP, unless the set is empty: then models do not start from a solution.
    """

    subproblems: Callable[[Any, Callable[[], bool]], list[Subproblem] | None] = lambda instance, out_of_time: None
    start: Callable[[Any, Any], set[str]] = lambda instance, solution: set()


@dataclass(frozen=True)
class SingleStrategy:
    """How the best solution in which all layers have the same choice (strategy) is found.

    Attributes:
        instances: takes an instance; returns narrower instances, whose solutions are the given instance's solutions with
            one choice for all layers, and which become plans in the same way. Empty if there are none.
        method: the name of the solution method that finds their best solution.
        widened: takes an instance and a solution of the first of the narrower instances; returns it as a solution of the
            given instance, or None if the problem does not support that.
    """

    instances: Callable[[Any], Sequence[Any]]
    method: str = "exact"
    widened: Callable[[Any, Any], Any | None] = lambda instance, solution: None


class Problem(ABC):
    """A planning problem: its parameters and file formats, the costs of solutions, and how requests become instances and
    solutions become plans. Subclasses state one problem, and the rest of trainplan uses it through this class alone (except
    for `prediction.simulate`, which also takes pipeline-partition instances, and `papers.FILES`).

    An instance holds the numbers (costs, memory limits) of one question; a solution holds the decisions. A request holds
    the user's model, cluster, batch and options; a plan states how each rank trains each sub-layer.

    Attributes:
        name: the problem's name, as users write it.
        record: the file format of instances.
        solution_record: the file format of solutions.
        solution_field: the field of that format that a solution given as a bare sequence of numbers stands for.
        solution_reader: the name, as `module:name`, of a function that takes a source and an instance and reads a solution
            from a file of another program, or returns None if the source is no such file; None if only the problem's own
            format is read.
        parameters: the parameters whose values `instance` and `instances` read from `request.options`.
        constraints: parameters with which users restrict what the problem would otherwise choose; planning reports what
            each restriction costs.
        widest: for parameters whose default excludes something, by name, the value that excludes nothing.
        needs: what a request has to name if it has no profile.
        solved_by: the package of the problem's solvers, whose module `methods` lists them; by default a package without
            any, so that only brute force and methods of other packages solve it.
        picture: the name, as `module:name`, of a function that takes an instance and a solution and draws it; None if there
            is none.
        enumeration: how brute force lists the problem's solutions.
        models: how the problem's integer models are built part by part and warm-started; by default as a whole, and without
            a warm start.
        single_strategy: how the best plan with one strategy is found; None if all plans have one, or if it is not
            supported.
        refinement: the functions with which the planner improves on a solver's answer; None if it does not.
        certificate: how lower bounds are proven without any solver; None if they are not.
        scope: which part of a request the problem's instances cover; None if they cover all of it.
    """

    name: ClassVar[str]
    record: ClassVar[type[FileFormat]]
    solution_record: ClassVar[type[FileFormat]]
    solution_field: ClassVar[str] = "choice"
    solution_reader: ClassVar[str | None] = None
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    constraints: ClassVar[tuple[Parameter, ...]] = ()
    widest: ClassVar[Mapping[str, Any]] = {}
    needs: ClassVar[tuple[str, ...]] = ("model", "cluster")
    solved_by: ClassVar[str] = "trainplan.solvers.core"
    picture: ClassVar[str | None] = None
    enumeration: ClassVar[Enumeration]
    models: ClassVar[Models] = Models()
    single_strategy: ClassVar[SingleStrategy | None] = None
    refinement: ClassVar[Refinement | None] = None
    certificate: ClassVar[Certificate | None] = None
    scope: ClassVar[RequestScope | None] = None

    # Files

    @abstractmethod
    def load(self, source: Source, where: str = "instance") -> Any:
        """Read an instance from a file or a dict of the problem's JSON format. where: what errors call a dict. Raises
        InputError if it cannot be read or its fields contradict each other.
        """

    @abstractmethod
    def load_solution(self, source: Source) -> Any:
        """Read a solution from a file or a dict in the problem's own format. Raises InputError if it cannot be read or is no
        solution.
        """

    @abstractmethod
    def solution_dict(self, solution: Any, /) -> dict[str, Any]:
        """The solution as a dict in its JSON file format."""

    # Costs of solutions

    @abstractmethod
    def evaluate(self, instance: Any, solution: Any, /) -> Evaluation:
        """The time and the memory that a solution costs. Raises ValueError if it is no solution of the instance."""

    @abstractmethod
    def violations(self, instance: Any, solution: Any, /) -> list[str]:
        """A text for every constraint that a solution violates, such as a memory limit; empty if the solution is feasible."""

    @abstractmethod
    def describe(self, instance: Any, solution: Any, /) -> dict[str, Any]:
        """The costs of a solution as a JSON-ready dict, as result files and screens show them: `time_ns` (the step), usually
        `peak_bytes` (peak memory of the fullest device) and `peak_layer_name` (the layer at which it is), and further numbers
        that only this problem has."""

    def cost_model(self, instance: Any) -> str:
        """The name of the cost model of an instance's numbers, such as `streams`, which a solver's claim is stated in; the
        problem's own name if the instance names none."""
        return str(instance.provenance.get("cost_model", self.name))

    # Requests and plans

    @abstractmethod
    def instance(self, request: Request) -> Any:
        """The one instance that states a request, as the verb `build` writes it. Raises InputError if the problem cannot
        express the request.
        """

    def instances(self, request: Request) -> Sequence[Any]:
        """The instances that planning solves for a request; the best solution of all of them is kept. By default only the one
        that `instance` builds. Raises InputError if the problem cannot express the request.
        """
        return [self.instance(request)]

    def plan(self, instance: Any, solution: Any, request: Request) -> Plan:
        """The plan that a solution of an instance describes, without a prediction and without a claim. request: the one that
        the instance was built for. Raises InputError if a plan cannot express it, or if the problem has no plans."""
        raise InputError("command line", "problem", f"is {self.name!r}", "which has no plans: give a problem that has")

    # For people

    def size(self, instance: Any) -> dict[str, int]:
        """Numbers that show how large an instance is, by name: layers, options, stages, devices, and `memory_bytes` if there is
        one limit."""
        sizes: dict[str, int] = instance.sizes
        return sizes

    def tables(self, instance: Any, solution: Any) -> list[Table]:
        """Tables about a solution that people see in addition to its time and memory; by default none."""
        return []


BUILT_IN = {
    "layer-strategies": "trainplan.formulations.layer_strategies.definition:PROBLEM",
    "pipeline": "trainplan.formulations.pipeline.definition:PROBLEM",
    "stage-assignment": "trainplan.formulations.stage_assignment.definition:PROBLEM",
    "pipeline-partition": "trainplan.formulations.pipeline_partition.definition:PROBLEM",
    "memory-switches": "trainplan.formulations.memory_switches.definition:PROBLEM",
    "cluster-strategy": "trainplan.formulations.cluster_strategy.definition:PROBLEM",
    "joint": "trainplan.formulations.joint.definition:PROBLEM",
    "galvatron-engine": "trainplan.papers.galvatron_engine.definition:PROBLEM",
}


def problem_names() -> list[str]:
    """The names of all planning problems: the built-in ones first, then those of plug-ins."""
    return names(BUILT_IN, GROUP)


@cache
def problem(name: str) -> Problem:
    """The planning problem of a given name, whose modules are imported on its first use. Raises InputError if there is none."""
    stated = load_named(name, BUILT_IN, GROUP)
    if stated is None:
        raise InputError("command line", "problem", f"is {name!r}", one_of(name, problem_names()))
    assert isinstance(stated, Problem), f"{name} is no Problem"
    return stated


def constraints_of(stated: Problem, options: Mapping[str, Any]) -> dict[str, str]:
    """The user's constraints on plans: those options of a request whose value narrows the problem's search, as texts by
    parameter name: {"pipeline": 4} -> {"pipeline": "--pipeline 4"}. Planning reports what each of them costs.

    stated: the problem. options: the request's values by parameter name.
    """
    texts = {}
    for parameter in stated.constraints:
        neutral = (None, parameter.default, stated.widest.get(parameter.name))
        if (value := options.get(parameter.name)) not in neutral:
            many = [value] if isinstance(value, str) else value
            words = ",".join(many) if parameter.many else value
            texts[parameter.name] = parameter.flag if value is True else f"{parameter.flag} {words}"
    return texts


def problem_of(instance: Any) -> Problem:
    """The planning problem that an instance belongs to. Raises InputError if its name is unknown."""
    return problem(instance.problem)


def solution_of(instance: Any, source: Source) -> Any:
    """Read a solution of an instance from a file or a dict, in any format that its problem reads, including those of other
    programs. Raises InputError if no format fits.
    """
    stated = problem_of(instance)
    read = None if stated.solution_reader is None else attribute(stated.solution_reader)(source, instance)
    return stated.load_solution(source) if read is None else read


def counts_overlap(instance: Any) -> bool:
    """Whether an instance's costs are of the cost model `streams`, in which communication and copies overlap with computation
    as in training frameworks."""
    return bool(instance.provenance.get("cost_model") == "streams")
