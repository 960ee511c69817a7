"""Instances and solutions from files, and what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainplan.formulations.problem import InstanceLike, Problem, problem, problem_names, problem_of
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.base.files import Source, read_data
from trainplan.solvers.core.result import Result


@dataclass(frozen=True)
class Checked:
    """What `check` found: time and memory of a solution, and every constraint that it breaks, in words.

    peak_layer_name, peak_ns: where in the model, or when in the step, the peak is, whichever the problem tells.
    """

    problem: str
    objective: int | None
    peak_bytes: int | None
    peak_layer_name: str | None
    peak_ns: int | None
    memory_bytes: int | None
    violations: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def load(source: InstanceLike | Source) -> Any:
    """An instance from a file's path or a dict in its format (an instance is given back). Raises InputError."""
    if not isinstance(source, str | os.PathLike | Mapping):
        return source
    value = source if isinstance(source, Mapping) else read_data(source)
    where = "instance" if isinstance(source, Mapping) else os.fspath(source)
    if not isinstance(value, Mapping):
        raise InputError(where, "", f"holds {shown(value)}", "give a JSON object")
    name = value.get("problem")
    if not isinstance(name, str) or name not in problem_names():
        problem_text = f"is {shown(name)}" if "problem" in value else "is missing"
        raise InputError(where, "problem", problem_text, one_of(name, problem_names()))
    return problem(name).load(value, where)


def check(instance: InstanceLike | Source, solution: Result | Source | Sequence[int]) -> Checked:
    """Check a solution (a file, a dict, or a Result's) against an instance. Raises InputError for malformed files."""
    loaded = load(instance)
    stated = problem_of(loaded)
    answer = stated.solution_of(loaded, solution_source(stated, solution))
    broken, limit = tuple(stated.violations(loaded, answer)), stated.memory_bytes(loaded)
    try:
        costs = stated.describe(loaded, answer)
    except ValueError:
        return Checked(loaded.problem, None, None, None, None, limit, broken)
    peak = {name: costs.get(name) for name in ("peak_bytes", "peak_layer_name", "peak_ns")}
    return Checked(loaded.problem, costs["time_ns"], **peak, memory_bytes=limit, violations=broken)


def solution_source(stated: Problem, solution: Result | Source | Sequence[int]) -> Source:
    """A solution as the problem reads it: a Result's, a bare sequence of numbers as its one list. Raises InputError."""
    if isinstance(solution, Result):
        if solution.solution is None:
            raise InputError("solution", "", f"is a result without one ({solution.status})", "solve the instance first")
        return solution.solution
    return solution if isinstance(solution, str | os.PathLike | Mapping) else {stated.solution_field: list(solution)}
