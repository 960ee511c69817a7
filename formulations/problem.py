"""The protocol of problems: what every planning problem offers, and how the rest of trainplan uses it.

A problem is one folder with one object of a subclass of `Problem`, and one line in `BUILT_IN` (or an entry point
`trainplan.problems` of another package). Its instances and solutions are its own types. An instance has the attributes
`problem` (the name), `name`, `provenance` and `digest` (SHA-256 of what the answer depends on), and `to_dict()`.

`tests/formulations/test_conformance.py` holds every problem to this protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import Record, Source
from trainplan.profiling.base.plugins import attribute, load_named, names

GROUP = "trainplan.problems"


@runtime_checkable
class InstanceLike(Protocol):
    """What instances of all problems have, also of those in other packages."""

    problem: Any
    name: Any
    provenance: Any

    def to_dict(self) -> dict[str, Any]:
        """The instance as its file has it."""
        ...


class Evaluation(Protocol):
    """What a solution costs: a whole number to be minimised (nanoseconds), whatever else the problem tells."""

    @property
    def objective(self) -> int:
        """What is minimised, in whole nanoseconds."""
        ...


@dataclass(frozen=True)
class Table:
    """Rows for people: a title, names of columns, and texts. The command, notebooks and pictures read the same rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass
class Part:
    """A part of an instance that MILP and CP-SAT state by itself.

    bound: no solution of it is below (infinite where nothing fits); lifted: its solution as one of the whole instance;
    lowered: a solution of the whole instance as one of the part, None where it lies in another.
    """

    instance: Any
    bound: float
    lifted: Callable[[Any], Any] = lambda solution: solution
    lowered: Callable[[Any], Any | None] = lambda solution: None


class Problem(ABC):
    """One planning problem. Subclasses state it; nothing else in trainplan asks which problem it has before it
    (but `simulating`, which also takes pipeline-partition instances, and `papers.FILES`).

    home: the module whose functions `load`, `load_solution`, `solution_dict`, `evaluate`, `violations` and `describe` the
    methods of these names call. solved_by: the package of its solvers, whose module `methods` lists them; by default
    none: brute force solves it, and methods of other packages. name: as users write it.
    record, solution_record: the file formats. parameters: what `instance` reads from `request.options`. needs: what a request
    has to name where it has no profile. largest: the most solutions that brute force takes. solution_field: of the solution's
    file format, the list that a bare sequence of numbers stands for. picture: the function that draws a solution,
    given the instance and it, as `module:name`. constraints: parameters that users set though the problem would choose them;
    planning says what each costs. widest: the value that leaves nothing out, of parameters whose default leaves something out.
    """

    home: ModuleType  # no ClassVar, which mypy takes no assigned module for
    solved_by: ClassVar[str] = "trainplan.solvers.core"
    name: ClassVar[str]
    record: ClassVar[type[Record]]
    solution_record: ClassVar[type[Record]]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ("model", "cluster")
    largest: ClassVar[int] = 2_000_000
    solution_field: ClassVar[str] = "choice"
    picture: ClassVar[str | None] = None
    constraints: ClassVar[tuple[Parameter, ...]] = ()
    widest: ClassVar[Mapping[str, Any]] = {}

    # Files

    def load(self, source: Source, where: str = "instance") -> Any:
        """An instance from a file or a dict, which errors call `where`. Raises InputError."""
        return self.home.load(source, where)

    def load_solution(self, source: Source) -> Any:
        """A solution from a file or a dict. Raises InputError."""
        return self.home.load_solution(source)

    def solution_of(self, instance: Any, source: Source) -> Any:
        """A solution of an instance from a file or a dict, in any format that the problem reads. Raises InputError."""
        return self.load_solution(source)

    def solution_dict(self, solution: Any) -> dict[str, Any]:
        """A solution in its file format."""
        return self.home.solution_dict(solution)

    # Judging

    def evaluate(self, instance: Any, solution: Any) -> Evaluation:
        """Time and memory of a solution. Raises ValueError where it is no solution of the instance."""
        return self.home.evaluate(instance, solution)

    def violations(self, instance: Any, solution: Any) -> list[str]:
        """Every constraint that a solution breaks, in words; empty where it is feasible."""
        return self.home.violations(instance, solution)

    def describe(self, instance: Any, solution: Any) -> dict[str, Any]:
        """What users see of a solution's costs: `time_ns`, mostly `peak_bytes` and `peak_layer_name`, and the problem's own."""
        return self.home.describe(instance, solution)

    def explain(self, instance: Any) -> Any:
        """Why no solution fits, as a `solvers.core.result.Infeasibility`; None where one does, and, of a problem whose solvers
        have `fits`, where that is not certain, or no reason is known."""
        return self.solvers().call("explain", instance)

    def fits(self, instance: Any) -> bool | None:
        """Whether some solution fits, proven either way; None where that is not known."""
        fits: bool | None = None
        if self.solvers().fits:
            fits = self.solvers().call("fits", instance)
        elif self.solvers().explain or type(self).explain is not Problem.explain:
            fits = self.explain(instance) is None
        return fits

    def leanest(self, instance: Any) -> tuple[Any, int] | None:
        """A solution of little memory, and bytes of a device that no solution is below; None where none is looked for."""
        found: tuple[Any, int] | None = self.solvers().call("leanest", instance)
        return found

    def on_lanes(self, instance: Any) -> bool:
        """Whether plans of an instance are predicted under the cost model `streams`, on the lanes of frameworks."""
        return bool(instance.provenance.get("cost_model") == "streams")

    def layouts(self, instance: Any) -> Sequence[str]:
        """Under `streams`, the layout that all units have in each configuration of an instance."""
        raise NotImplementedError(f"{self.name} has no layouts of all sub-layers")

    def shapes(self, instance: Any) -> Sequence[str]:
        """The schedule and the numbers of stages and micro-batches of each configuration of an instance."""
        raise NotImplementedError(f"{self.name} has no configurations")

    def passes(self, instance: Any) -> Sequence[str]:
        """The kind of order of passes of each configuration of an instance: claims are about as far from walks in all of a
        kind."""
        raise NotImplementedError(f"{self.name} has no configurations")

    def alike(self, instance: Any) -> Sequence[tuple[str, str]]:
        """Of each configuration of an instance, its layout and its shape, in which solutions need about as much memory beyond
        the tables."""
        raise NotImplementedError(f"{self.name} has no configurations")

    def only(self, instance: Any, places: Sequence[int]) -> Any:
        """The instance with these of its configurations alone."""
        return instance.only(places)

    def evenly(self, instance: Any, places: Sequence[int]) -> Any | None:
        """The same, with as many units in every stage as can be; None where cuts are not to be chosen."""
        raise NotImplementedError(f"{self.name} has no configurations")

    def cost_model(self, instance: Any) -> str:
        """The name of the costs and the objective that a claim about the instance speaks of."""
        return str(instance.provenance.get("cost_model", self.name))

    def solvers(self) -> Any:
        """What its package of solvers offers, as `solvers.core.entries.Methods`; brute force comes in addition."""
        return attribute(f"{self.solved_by}.methods:METHODS")

    # Certificates

    def any_schedule_ns(self, instance: Any, solution: Any) -> int | None:
        """A bound on the step with the stages and strategies of a solution under every order of passes, whatever memory that
        needs; None where the problem has none."""
        return None

    def checked_bound_ns(self, instance: Any, proof: Mapping[str, Any] | None) -> int:
        """The bound in ns on the objective of every solution that a proof shows, followed without any solver.

        proof: the evidence that its solvers make, in its file format; None for what can be shown without any. Raises ValueError
        where the proof is of another instance, or shows less than it claims.
        """
        raise ValueError(f"bounds of {self.name} have no evidence")

    # Why this solution

    def changes(self, instance: Any, solution: Any, stop: Callable[[], bool]) -> Sequence[Any]:
        """What the solution's units could have in place of what they have, a row of numbers for each run of equal ones.

        stop: asked now and then; once it says so, nothing more is tried. Raises InputError where the problem has none.
        """
        raise InputError("plan", "claim.problem", f"is {self.name!r}, which does not tell", "give a plan of joint")

    # Memory

    def memory_bytes(self, instance: Any) -> int | None:
        """The limit of one device; None without one, or where devices differ."""
        return instance.memory_bytes

    def with_memory(self, instance: Any, memory_bytes: int) -> Any:
        """The instance under another limit of every device."""
        return instance.with_memory(memory_bytes)

    def with_more(self, instance: Any, more: Sequence[tuple[int, int]]) -> Any:
        """The instance with so many bytes more on a device while any unit's passes run, and while those of the last one do, by
        configuration."""
        return instance.with_more(more)

    def site_bytes(self, instance: Any, solution: Any) -> Sequence[tuple[int, bool]]:
        """What a solution needs of each stage's devices, and whether it is the last unit that needs it; of stages that share
        devices once."""
        raise NotImplementedError(f"{self.name} has no sites")

    def tightest(self, instance: Any) -> Any | None:
        """The instance with the least memory that some solution is known to need; None where nothing needs any."""
        reason = self.explain(self.with_memory(instance, 1))
        return None if reason is None else self.with_memory(instance, reason.least_memory_bytes)

    # From a request to a plan

    def unsuited(self, request: Request) -> str | None:
        """What the instance of a request leaves out of the request, which another problem may state; None where nothing."""
        return None

    @abstractmethod
    def instance(self, request: Request) -> Any:
        """The instance that `build` writes. Raises InputError."""

    def instances(self, request: Request) -> Sequence[Any]:
        """The instances that planning solves, of which the best counts: by default the one of `instance`. Raises InputError."""
        return [self.instance(request)]

    def within(self, request: Request) -> Request:
        """The request with what its options leave of each other, and of the memory: as its instances have it. Raises
        InputError."""
        return request

    def options_of(self, instance: Any, request: Request) -> dict[str, Any]:
        """The options of a request, with what is settled in one of its instances: of a request of them, it is the only one."""
        return dict(request.options)

    def plan(self, instance: Any, solution: Any, request: Request) -> Plan:
        """The plan of a solution, without prediction and claim. Raises InputError where plans cannot say it."""
        raise InputError("command line", "problem", f"is {self.name!r}", "which has no plans: give a problem that has")

    def alternatives(self, instance: Any, result: Any, top: int, seed: int) -> Sequence[tuple[Any, int]]:
        """Up to `top` good solutions with their claimed times, best first, that trials may run beside a result's own.

        By default none: few methods list what they have looked at.
        """
        return []

    def uniform(self, instance: Any) -> tuple[Sequence[Any], str]:
        """Instances whose solutions are those of this one with one choice for all layers, and a method that finds the best of
        them; none by default: where all solutions are such, or where the problem does not say.

        Their solutions become plans as those of the instance do.
        """
        return (), "exact"

    def of_uniform(self, instance: Any, solution: Any) -> Any | None:
        """A solution of the first instance of `uniform` as one of the instance; None where the problem does not say."""
        return None

    def eased(self, instance: Any, solution: Any) -> Any:
        """A solution as good as this one that does without what saves nothing, such as recomputation while memory is free; by
        default the solution itself."""
        return solution

    def plainer_costs(self, request: Request) -> str | None:
        """Why plans of a request have other costs than those that are usual for its devices, and do not compare with plans that
        have these; None where they have them, or were asked for with others."""
        return None

    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """What a request and the cost model leave out, as the command's options say it: what is not proven."""
        return []

    def beyond(self, instance: Any, narrower: Any, left_out: str) -> Any | None:
        """What an instance has beside another one, made of the same request with one constraint more, the parameter `left_out`:
        what is best of both is best of the instance. None where it has nothing beside; by default all of the instance."""
        return instance

    def incumbent_of(self, instance: Any, plan: Plan) -> Any | None:
        """The solution of an instance that a plan stands for, whoever made it; None where there is none, or where the problem
        does not say."""
        return None

    # Brute force

    @abstractmethod
    def count(self, instance: Any) -> int:
        """The number of solutions that brute force looks at."""

    def most_solutions(self, instance: Any) -> int:
        """The most solutions that brute force takes of an instance."""
        return self.largest

    @abstractmethod
    def solutions(self, instance: Any) -> Iterator[Any]:
        """Every solution; or, where the problem compares many at once, the best of each lot that fits.

        None among them is a moment to look at the clock. Only tiny instances are asked for.
        """

    # Models

    def parts(self, instance: Any, out_of_time: Callable[[], bool]) -> list[Part] | None:
        """The parts that MILP and CP-SAT state one by one; None where they state the whole instance.

        Raises `Unsuited` of `profiling.base.errors` where they cannot state it, `TooLarge` where it is only too large for them.
        """
        return None

    def start(self, instance: Any, solution: Any) -> set[str]:
        """The whole variables of an instance's models, by name, that are 1 in a solution; others of the same letters are 0.

        What models start from: all letters of the MILP's whole variables are among them, unless none is.
        """
        return set()

    # For people

    @abstractmethod
    def size(self, instance: Any) -> dict[str, int]:
        """What tells an instance's size: layers, options, stages, devices; and memory_bytes where there is one limit."""

    def tables(self, instance: Any, solution: Any) -> list[Table]:
        """Tables of a solution that people want to see beside time and memory."""
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
