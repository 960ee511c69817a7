"""The protocol of problems: twelve methods that every planning problem has, and what only some of them have.

A problem is one folder with one object of a subclass of `Problem`, and one line in `BUILT_IN` (or an entry point
`trainplan.problems` of another package). Its instances and solutions are its own types. An instance has the attributes of
`InstanceLike`. The twelve methods are those without which a request does not become a plan with a claim:

    files              load, load_solution, solution_dict
    costs of solutions evaluate, violations, describe, cost_model
    requests and plans instance, instances, plan
    for people         size, tables

How all solutions of a tiny instance are listed (`Enumeration`), how MILP and CP-SAT state an instance (`Models`) and how plans
of one strategy are found (`SingleStrategy`) are records of functions that a problem holds. What lets the planner go on from a
solver's answer (`refinement.Refinement`), what proves a claim (`certificate.Certificate`) and which part of a request instances
cover (`request_scope.RequestScope`) are objects that a problem holds, or None. Methods, bounds, and why nothing fits are the
solvers' (`solvers.core.method_registry.Methods`).

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
    """What instances of all problems have, also of those in other packages.

    Attributes:
        problem: the name of the problem.
        name: the instance's own, for people.
        provenance: where its numbers come from; its `cost_model` is `streams` where costs count overlap.

    An instance also has the attribute `digest`, SHA-256 of what the answer depends on in hexadecimal digits, which is not asked
    for here: it takes its time, and `isinstance` reads every attribute.
    """

    problem: Any
    name: Any
    provenance: Any

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format, as plain values."""
        ...

    @property
    def common_memory_bytes(self) -> int | None:
        """The memory limit of every device; None where there is none, or where devices have different ones."""
        ...

    def with_memory(self, memory_bytes: int) -> Self:
        """The instance under this memory limit of every device. Raises InputError where it knows nothing of memory."""
        ...


class Evaluation(Protocol):
    """What a solution costs: a whole number to be minimised (nanoseconds), and whatever else the problem tells."""

    @property
    def objective(self) -> int:
        """The number to be minimised, in whole nanoseconds."""
        ...


@dataclass(frozen=True)
class Table:
    """Rows for people: a title, names of columns, and texts. The command, notebooks and pictures read the same rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Enumeration:
    """How brute force goes through all solutions of a tiny instance.

    Attributes:
        count: the number of solutions of an instance that are looked at.
        solutions: every solution of an instance; or, where the problem compares many at once, the best of each batch that
            fits. None among them is a moment to look at the clock.
        most: the most solutions that brute force takes of an instance.
    """

    count: Callable[[Any], int]
    solutions: Callable[[Any], Iterator[Any]]
    most: Callable[[Any], int] = lambda instance: MOST_SOLUTIONS


@dataclass
class Subproblem:
    """A part of an instance that MILP and CP-SAT state by itself.

    Attributes:
        instance: the part.
        bound: nanoseconds that no solution of it is below; infinite where nothing fits.
        lifted: makes of a solution of the part one of the whole instance.
        lowered: makes of a solution of the whole instance one of the part; None where it lies in another part.
    """

    instance: Any
    bound: float
    lifted: Callable[[Any], Any] = lambda solution: solution
    lowered: Callable[[Any], Any | None] = lambda solution: None


@dataclass(frozen=True)
class Models:
    """How the MILP and the CP-SAT model of a problem (its modules `milp` and `cpsat`) are stated part by part and begun.

    Attributes:
        subproblems: of an instance and a function that says whether the time is up, the parts that are stated one by one; None
            where the whole instance is stated at once. Raises `Unsuited` of `profiling.base.errors` where they cannot state the
            instance, `TooLarge` where it is only too large for them.
        start: of an instance and a solution, the names of the models' whole variables that are 1 in it; others of the same
            letters are 0. Among the letters are those of all whole variables of the MILP, unless none is named: then
            models do not begin from a solution.
    """

    subproblems: Callable[[Any, Callable[[], bool]], list[Subproblem] | None] = lambda instance, out_of_time: None
    start: Callable[[Any, Any], set[str]] = lambda instance, solution: set()


@dataclass(frozen=True)
class SingleStrategy:
    """How the best solution with one choice for all layers is found.

    Attributes:
        instances: of an instance, those whose solutions are its own with one choice for all layers; they become plans as those
            of the instance do. Empty where it has none.
        method: the name of the method that finds the best solution of them.
        widened: of an instance and a solution of the first of these instances, the same as a solution of the instance; None
            where the problem does not say.
    """

    instances: Callable[[Any], Sequence[Any]]
    method: str = "exact"
    widened: Callable[[Any, Any], Any | None] = lambda instance, solution: None


class Problem(ABC):
    """One planning problem. Subclasses state it; nothing else in trainplan asks which problem it has before it
    (but `simulating`, which also takes pipeline-partition instances, and `papers.FILES`).

    Attributes:
        name: as users write it.
        record: the file format of instances.
        solution_record: the file format of solutions.
        solution_field: the list of that format that a bare sequence of numbers stands for.
        solution_reader: the function, as `module:name`, of a source and an instance that reads a solution from a file of
            another program, or gives None where it is none; None where only the problem's own format is read.
        parameters: what `instance` and `instances` read from `request.options`.
        constraints: parameters that users set though the problem would choose them; planning says what each of them costs.
        widest: the value that leaves nothing out, of parameters whose default leaves something out.
        needs: what a request has to name where it has no profile.
        solved_by: the package of its solvers, whose module `methods` lists them; by default one without any, so that only
            brute force and methods of other packages solve it.
        picture: the function, as `module:name`, that draws a solution, given the instance and it; None where there is none.
        enumeration: how brute force lists its solutions.
        models: how its models are stated part by part and begun; by default whole, and from nothing.
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
        """An instance from a file or a dict, which errors call `where`. Raises InputError."""

    @abstractmethod
    def load_solution(self, source: Source) -> Any:
        """A solution from a file or a dict in the problem's own format. Raises InputError."""

    @abstractmethod
    def solution_dict(self, solution: Any, /) -> dict[str, Any]:
        """A solution in its file format, as plain values."""

    # Costs of solutions

    @abstractmethod
    def evaluate(self, instance: Any, solution: Any, /) -> Evaluation:
        """Time and memory of a solution. Raises ValueError where it is no solution of the instance."""

    @abstractmethod
    def violations(self, instance: Any, solution: Any, /) -> list[str]:
        """Every constraint that a solution breaks, in words; empty where it is feasible."""

    @abstractmethod
    def describe(self, instance: Any, solution: Any, /) -> dict[str, Any]:
        """The costs of a solution as users see them: `time_ns`, mostly `peak_bytes` and `peak_layer_name`, and the problem's
        own."""

    def cost_model(self, instance: Any) -> str:
        """The name of the costs and the objective that a claim about the instance speaks of."""
        return str(instance.provenance.get("cost_model", self.name))

    # Requests and plans

    @abstractmethod
    def instance(self, request: Request) -> Any:
        """The one instance of a request, which `build` writes. Raises InputError."""

    def instances(self, request: Request) -> Sequence[Any]:
        """The instances of a request that planning solves, of which the best solution counts: by default the one of `instance`.
        Raises InputError."""
        return [self.instance(request)]

    def plan(self, instance: Any, solution: Any, request: Request) -> Plan:
        """The plan of a solution, without prediction and claim. Raises InputError where plans cannot say it."""
        raise InputError("command line", "problem", f"is {self.name!r}", "which has no plans: give a problem that has")

    # For people

    def size(self, instance: Any) -> dict[str, int]:
        """The numbers that tell an instance's size: layers, options, stages, devices; and memory_bytes where there is one
        limit."""
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
    """A problem by name; its modules are imported now. Raises InputError where there is none."""
    stated = load_named(name, BUILT_IN, GROUP)
    if stated is None:
        raise InputError("command line", "problem", f"is {name!r}", one_of(name, problem_names()))
    assert isinstance(stated, Problem), f"{name} is no Problem"
    return stated


def constraints_of(stated: Problem, options: Mapping[str, Any]) -> dict[str, str]:
    """The constraints that options set on the plans of a problem, by argument, as the command's options say them."""
    texts = {}
    for parameter in stated.constraints:
        neutral = (None, parameter.default, stated.widest.get(parameter.name))
        if (value := options.get(parameter.name)) not in neutral:
            many = [value] if isinstance(value, str) else value
            words = ",".join(many) if parameter.many else value
            texts[parameter.name] = parameter.flag if value is True else f"{parameter.flag} {words}"
    return texts


def problem_of(instance: Any) -> Problem:
    """The problem that an instance is of."""
    return problem(instance.problem)


def solution_of(instance: Any, source: Source) -> Any:
    """A solution of an instance from a file or a dict, in any format that its problem reads. Raises InputError."""
    stated = problem_of(instance)
    read = None if stated.solution_reader is None else attribute(stated.solution_reader)(source, instance)
    return stated.load_solution(source) if read is None else read


def counts_overlap(instance: Any) -> bool:
    """Whether the costs of an instance, and the predictions of its plans, count what frameworks overlap: the cost model
    `streams`."""
    return bool(instance.provenance.get("cost_model") == "streams")
