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
    """The attributes that instances of all problems have, also those of problems in other packages.

    Attributes:
        problem: the name of the problem.
        name: the instance's own name, for people.
        provenance: where its numbers come from; its entry `cost_model` is `streams` where costs count overlap.

    An instance also has the attribute `digest`, the SHA-256 of all that the answer depends on in hexadecimal digits. It is not
    listed here because `isinstance` reads every attribute, and a digest takes time to compute.
    """

    problem: Any
    name: Any
    provenance: Any

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format, as plain values."""
        ...

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit of every device in bytes; None where there is none, or where devices have different ones."""
        ...

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance with `memory_bytes` as the memory limit of every device. Raises InputError where it knows nothing of
        memory."""
        ...


class Evaluation(Protocol):
    """The cost of a solution: a whole number to be minimised (nanoseconds), and whatever else the problem reports."""

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
    """How brute force goes through all solutions of a tiny instance.

    Attributes:
        count: the number of solutions of an instance that are looked at.
        solutions: every solution of an instance; or, where the problem compares many at a time, the best of each batch that
            fits. It may yield None in between, for the caller to look at the clock.
        most: the largest count of an instance that brute force accepts.
    """

    count: Callable[[Any], int]
    solutions: Callable[[Any], Iterator[Any]]
    most: Callable[[Any], int] = lambda instance: MOST_SOLUTIONS


@dataclass
class Subproblem:
    """A part of an instance that MILP and CP-SAT state by itself.

    Attributes:
        instance: the part.
        bound: nanoseconds that no solution of the part is below; infinite where nothing fits.
        lifted: turns a solution of the part into one of the whole instance.
        lowered: turns a solution of the whole instance into one of the part; None where the solution lies in another part.
    """

    instance: Any
    bound: float
    lifted: Callable[[Any], Any] = lambda solution: solution
    lowered: Callable[[Any], Any | None] = lambda solution: None


@dataclass(frozen=True)
class Models:
    """How the MILP and the CP-SAT model of a problem (its modules `milp` and `cpsat`) are stated part by part and warm-started.

    Attributes:
        subproblems: takes an instance and a function that returns whether the time is up; returns the parts that are stated one
            by one, or None where the whole instance is stated at once. Raises `Unsuited` of `profiling.base.errors` where the
            models cannot state the instance, `TooLarge` where it is only too large for them.
        start: takes an instance and a solution; returns the names of the models' whole variables that are 1 in it. Other
            variables of the same letters are 0. The letters cover all whole variables of the MILP, unless the set is empty:
            then models do not start from a solution.
    """

    subproblems: Callable[[Any, Callable[[], bool]], list[Subproblem] | None] = lambda instance, out_of_time: None
    start: Callable[[Any, Any], set[str]] = lambda instance, solution: set()


@dataclass(frozen=True)
class SingleStrategy:
    """How the best solution with one choice for all layers is found.

    Attributes:
        instances: takes an instance; returns instances whose solutions are those of the given one with one choice for all
            layers. They become plans in the same way. Empty where there are none.
        method: the name of the method that finds their best solution.
        widened: takes an instance and a solution of the first of these instances; returns it as a solution of the instance, or
            None where the problem does not say.
    """

    instances: Callable[[Any], Sequence[Any]]
    method: str = "exact"
    widened: Callable[[Any, Any], Any | None] = lambda instance, solution: None


class Problem(ABC):
    """One planning problem. Subclasses state it, and the rest of trainplan uses it through this class alone (except for
    `prediction.simulate`, which also takes pipeline-partition instances, and `papers.FILES`).

    Attributes:
        name: as users write it.
        record: the file format of instances.
        solution_record: the file format of solutions.
        solution_field: the list in that format that a bare sequence of numbers stands for.
        solution_reader: a function as `module:name` that takes a source and an instance and reads a solution from a file of
            another program, or returns None where the source is no such file; None where only the problem's own format is read.
        parameters: what `instance` and `instances` read from `request.options`.
        constraints: parameters that users set although the problem would choose them; planning reports what each of them costs.
        widest: by name of a parameter whose default leaves something out, the value that leaves nothing out.
        needs: what a request has to name where it has no profile.
        solved_by: the package of its solvers, whose module `methods` lists them; by default a package without any, so that only
            brute force and methods of other packages solve it.
        picture: a function as `module:name` that takes an instance and a solution and draws it; None where there is none.
        enumeration: how brute force lists its solutions.
        models: how its models are stated part by part and warm-started; by default whole, and from nothing.
        single_strategy: how the best plan with one strategy is found; None where all plans have one, or it does not say.
        refinement: what the planner needs to go on from a solver's answer to better plans; None where it does not.
        certificate: how claims are proven without any solver; None where they are not.
        scope: which part of a request its instances cover; None where they cover all of it.
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
        """Read an instance from a file or a dict. where: the name that errors call a dict by. Raises InputError."""

    @abstractmethod
    def load_solution(self, source: Source) -> Any:
        """Read a solution from a file or a dict in the problem's own format. Raises InputError."""

    @abstractmethod
    def solution_dict(self, solution: Any, /) -> dict[str, Any]:
        """The solution in its file format, as plain values."""

    # Costs of solutions

    @abstractmethod
    def evaluate(self, instance: Any, solution: Any, /) -> Evaluation:
        """Time and memory of a solution. Raises ValueError where it is no solution of the instance."""

    @abstractmethod
    def violations(self, instance: Any, solution: Any, /) -> list[str]:
        """Every constraint that a solution breaks, one text each; empty where it is feasible."""

    @abstractmethod
    def describe(self, instance: Any, solution: Any, /) -> dict[str, Any]:
        """The costs of a solution as users see them, by name: `time_ns`, mostly `peak_bytes` and `peak_layer_name`, and the
        problem's own."""

    def cost_model(self, instance: Any) -> str:
        """The name of the costs and the objective that a claim about the instance speaks of."""
        return str(instance.provenance.get("cost_model", self.name))

    # Requests and plans

    @abstractmethod
    def instance(self, request: Request) -> Any:
        """The one instance of a request, which `build` writes. Raises InputError."""

    def instances(self, request: Request) -> Sequence[Any]:
        """The instances of a request that planning solves, of which the best solution counts; by default the one that
        `instance` gives. Raises InputError."""
        return [self.instance(request)]

    def plan(self, instance: Any, solution: Any, request: Request) -> Plan:
        """The plan of a solution, without prediction and claim. Raises InputError where a plan cannot express it."""
        raise InputError("command line", "problem", f"is {self.name!r}", "which has no plans: give a problem that has")

    # For people

    def size(self, instance: Any) -> dict[str, int]:
        """Numbers that show how large an instance is, by name: layers, options, stages, devices; and memory_bytes where there
        is one limit."""
        sizes: dict[str, int] = instance.sizes
        return sizes

    def tables(self, instance: Any, solution: Any) -> list[Table]:
        """Tables of a solution that people want to see in addition to time and memory; by default none."""
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
    """The names of all problems, those of plug-ins last."""
    return names(BUILT_IN, GROUP)


@cache
def problem(name: str) -> Problem:
    """The problem of a given name; its modules are imported now. Raises InputError where there is none."""
    stated = load_named(name, BUILT_IN, GROUP)
    if stated is None:
        raise InputError("command line", "problem", f"is {name!r}", one_of(name, problem_names()))
    assert isinstance(stated, Problem), f"{name} is no Problem"
    return stated


def constraints_of(stated: Problem, options: Mapping[str, Any]) -> dict[str, str]:
    """The constraints that options of a request set on the plans of a problem.

    Returns, by name of the parameter, the text of the command's option, such as `--pipeline 4`.
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
    """The problem that an instance belongs to."""
    return problem(instance.problem)


def solution_of(instance: Any, source: Source) -> Any:
    """Read a solution of an instance from a file or a dict, in any format that its problem reads. Raises InputError."""
    stated = problem_of(instance)
    read = None if stated.solution_reader is None else attribute(stated.solution_reader)(source, instance)
    return stated.load_solution(source) if read is None else read


def counts_overlap(instance: Any) -> bool:
    """Whether the costs of an instance, and the predictions of its plans, count what frameworks overlap: the cost model
    `streams`."""
    return bool(instance.provenance.get("cost_model") == "streams")
