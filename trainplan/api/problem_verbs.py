"""Single problems: their instances built, loaded, solved and checked, and their methods and file formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, ClassVar

from pydantic import TypeAdapter

from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.problem import InstanceLike, problem, problem_names
from trainplan.inputs import check_spelling, request_of
from trainplan.papers import FILES
from trainplan.planning.compare_methods import Comparison
from trainplan.planning.memory_frontier import frontier
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import FilePath, Record, Source
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.solvers.core.method_registry import Entry, Option
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.solvers.core.method_registry import methods as methods_of
from trainplan.solvers.core.result import Point, Result
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.core.solve import compare as compare_methods
from trainplan.solvers.core.solve import solve as solve_instance
from trainplan.tabular import Tabular
from trainplan.validation.rows import Run
from trainplan.verification import check, load

RUNS = "runs"  # the file format of measured runs

__all__ = [
    "Entry",
    "InputError",
    "Option",
    "Outcome",
    "Search",
    "build",
    "check",
    "compare",
    "frontier",
    "load",
    "methods",
    "schema",
    "solve",
]


def build(
    problem_name: str = "layer-strategies",
    *,
    model: FilePath | Model | None = None,
    cluster: FilePath | Cluster | None = None,
    batch: int | None = None,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    profile: FilePath | Profile | None = None,
    measure: bool = False,
    measuring: Callable[[dict[str, Any]], None] | None = None,
    **choices: Any,
) -> Any:
    """An instance of a problem from a model and a cluster, or from a profile alone.

    Args:
        problem_name: the name of a problem, such as layer-strategies, pipeline or joint.
        model: a name, a config.json or a Model.
        cluster: a name, a file or a Cluster.
        batch: samples of one step, over all devices.
        memory: the memory of one device, such as "8GiB", or a number of bytes (default: that of the cluster's devices, less
            their reserve).
        reserve: the part of the memory that stays free, in place of the cluster's own reserve.
        sequence: tokens of a sample (default: the longest that the model allows).
        dtype: the model's, such as "bf16" (default: the config's, else half precision).
        profile: times and bytes measured or estimated earlier, which may stand in for model and cluster.
        measure: measure the model on this machine, rather than estimate it from shapes.
        measuring: called with progress reports (dicts) while the model is measured.
        **choices: the parameters of the problem, which `trainplan build PROBLEM --help` lists.

    Returns:
        The instance, with `to_dict()` for its file.

    Raises:
        InputError: for an argument that the problem does not have, or a bad value.
    """
    the_problem = problem(problem_name)
    possible = [*signature(build).parameters, *(parameter.name for parameter in the_problem.parameters)]
    check_spelling(choices, possible, (), the_problem.name)
    subject: dict[str, Any] = {"model": model, "cluster": cluster, "batch": batch, "memory": memory, "reserve": reserve}
    subject |= {"sequence": sequence, "dtype": dtype, "profile": profile, "measure": measure, "measuring": measuring}
    request = {name: value for name, value in {**subject, **choices}.items() if value is not None}
    if (
        the_problem.name in FILES
        and (instance := attribute(FILES[the_problem.name])(**{"profile": None, **request})) is not None
    ):
        return instance
    return the_problem.instance(
        request_of(the_problem.parameters, the_problem.name, needs=the_problem.needs, planned=False, **request)
    )


def solve(
    instance: InstanceLike | Source,
    method: str = "exact",
    *,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    seed: int = 0,
    progress: Callable[[Point], None] | None = None,
    cold: bool = False,
    solver_memory: str | int | None = None,
    **options: Any,
) -> Result:
    """Solve an instance with one method, and check the answer. Ctrl-C gives the best until then.

    Args:
        instance: the instance, its file, or a dict.
        method: the name of one of `methods`; `exact` is the first of them, the best that proves optimality.
        time_limit: seconds; reaching it is an outcome, not an error.
        gap: relative gap at which to stop.
        seed: the method's random seed.
        progress: called with a `Point` (seconds, objective, bound, in ns) for each better solution or bound.
        cold: MILP and CP-SAT do not begin from the plan of a fast method.
        solver_memory: memory that the method may take in addition to that of the process, such as "8GiB" or bytes (on Linux).
        **options: the method's own options, which `methods` lists.

    Returns:
        The result: status, objective and lower bound in ns, and the solution.

    Raises:
        InputError: for a file that is no instance, or an unknown method or option.
    """
    loaded = load(instance)
    chosen = method_named(loaded.problem, method)
    possible = [*signature(solve).parameters, "explained", "clock"]
    check_spelling(options, possible, [option.name for option in chosen.options], chosen.name)
    limits: dict[str, Any] = {"time_limit": time_limit, "gap": gap, "seed": seed, "progress": progress}
    limits |= {"cold": cold, "solver_memory": solver_memory}
    return solve_instance(loaded, method, **limits, **options)


def compare(
    instance: InstanceLike | Source,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = TIME_LIMIT_S,
    seed: int = 0,
    cold: bool = True,
    solver_memory: str | int | None = None,
    progress: Callable[[str, Point], None] | None = None,
) -> Comparison:
    """Results of several methods on one instance, and every contradiction between them (there should be none).

    Args:
        instance: the instance, its file, or a dict.
        methods: the names of methods (default: all that support the instance's size).
        time_limit: seconds for each method.
        seed: the random seed of each method.
        cold: no method begins from the plan of another.
        solver_memory: memory that each method may take in addition to that of the process, such as "8GiB" or bytes.
        progress: called with the method's name and a `Point` for each better solution or bound.

    Returns:
        A pair of results and contradictions, with `frame()` and `picture()`.

    Raises:
        InputError: for a file that is no instance, or an unknown method.
    """
    limits: dict[str, Any] = {"time_limit": time_limit, "seed": seed, "cold": cold, "solver_memory": solver_memory}
    loaded = load(instance)
    compared = Comparison(*compare_methods(loaded, methods, progress=progress, **limits))
    compared.instance = loaded.name
    return compared


class Methods(Tabular, tuple[Entry, ...]):
    """A table of the solution methods for a problem; `exact` stands for the first one."""

    headings: ClassVar = {"method": "method", "proves": "proves optimality", "about": "what it is", "options": "options"}

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each method: method, its name; proves, whether it proves optimality; about, its description; and options,
        its options as one text."""
        return [
            {
                "method": method.name,
                "proves": method.proves,
                "about": method.about,
                "options": ", ".join(map(str, method.options)),
            }
            for method in self
        ]


def methods(problem_name: str = "layer-strategies") -> Methods:
    """The solution methods for a problem; `exact` stands for the first one.

    Args:
        problem_name: the name of a problem, such as layer-strategies, pipeline or joint.

    Returns:
        A table of methods, an `Entry` each, with `frame()`; methods of other packages and brute force are last.

    Raises:
        InputError: for an unknown problem.
    """
    return Methods(methods_of(problem_name))


def schema(name: str = "layer-strategies") -> dict[str, Any]:
    """The JSON Schema of a file format.

    Args:
        name: a problem, a problem's `-solution`, plan, profile, cluster, or runs, which `validate` reads.

    Returns:
        The schema, as a dict.

    Raises:
        InputError: for an unknown format.
    """
    records: dict[str, type[Record]] = {"plan": Plan, "profile": Profile, "cluster": Cluster}
    if name in records:
        return records[name].model_json_schema()
    if name == RUNS:
        return TypeAdapter(list[Run]).json_schema()
    base = name.removesuffix("-solution")
    if base not in problem_names():
        formats = [form for name in problem_names() for form in (name, f"{name}-solution")]
        raise InputError("command line", "format", f"is {name!r}", one_of(name, [*formats, *records, RUNS]))
    the_problem = problem(base)
    return (the_problem.record if base == name else the_problem.solution_record).model_json_schema()
