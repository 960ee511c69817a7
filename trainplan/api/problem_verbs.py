"""Problems by themselves: instances built, loaded, solved, checked and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainplan.asking import request_of
from trainplan.checking import check, load
from trainplan.formulations.plan import Plan
from trainplan.formulations.problem import problem, problem_names
from trainplan.frontiers import frontier
from trainplan.papers import FILES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.registry import Entry
from trainplan.solvers.core.registry import methods as methods_of
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import compare as compare_methods
from trainplan.solvers.core.solve import solve as solve_instance

__all__ = ["InputError", "build", "check", "compare", "frontier", "load", "methods", "schema", "solve"]


def build(problem_name: str = "layer-strategies", **request: Any) -> Any:
    """An instance of a problem from a model and a cluster, or from a profile alone. Raises InputError.

    request: model (name, config.json or Model), cluster (name, file or Cluster), batch (samples of one step, over all devices),
    memory (of one device, such as "8GiB" or bytes; default: what is usable of the cluster's), reserve (what stays free of it,
    in place of the cluster's own), sequence (default: the longest that the model allows), dtype (default: the config's),
    profile (numbers made earlier; it may stand in for model and cluster), measure (the model, on this machine), and the
    problem's parameters, which `trainplan build PROBLEM --help` lists.
    """
    stated = problem(problem_name)
    if stated.name in FILES and (instance := attribute(FILES[stated.name])(**{"profile": None, **request})) is not None:
        return instance
    return stated.instance(request_of(stated.parameters, stated.name, needs=stated.needs, planned=False, **request))


def solve(instance: Any, method: str = "exact", **options: Any) -> Result:
    """Solve an instance (or its file, or a dict) with one method; options as of `core.solve.solve`. Raises InputError."""
    return solve_instance(load(instance), method, **options)


def compare(
    instance: Any,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = 30,
    **options: Any,
) -> tuple[list[Result], list[str]]:
    """Results of several methods on one instance, and every contradiction between them (there should be none).

    options: as of `core.solve.compare`.
    """
    return compare_methods(load(instance), methods, time_limit=time_limit, **options)


def methods(problem_name: str = "layer-strategies") -> tuple[Entry, ...]:
    """The methods for a problem; `exact` stands for the first one."""
    return methods_of(problem_name)


def schema(name: str = "layer-strategies") -> dict[str, Any]:
    """The JSON Schema of a file format: a problem, a problem's `-solution`, plan, profile or cluster. Raises InputError."""
    records: dict[str, type[Record]] = {"plan": Plan, "profile": Profile, "cluster": Cluster}
    if name in records:
        return records[name].model_json_schema()
    base = name.removesuffix("-solution")
    if base not in problem_names():
        formats = ", ".join(f"{each}, {each}-solution" for each in problem_names())
        raise InputError("command line", "format", f"is {name!r}", f"give one of: {formats}, {', '.join(records)}")
    stated = problem(base)
    return (stated.record if base == name else stated.solution_record).model_json_schema()
