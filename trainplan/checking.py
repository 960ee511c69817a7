"""Instances, solutions and plans from files, and what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainplan.asking import compiles
from trainplan.execution.compiled import compiled, default_backend
from trainplan.execution.run.processes import EXECUTED_FAMILIES
from trainplan.formulations.plan import Plan, load_plan
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


@dataclass(frozen=True)
class CheckedPlan:
    """What `check` says of a plan: what is wrong with its programs, and what its fullest device needs.

    programs: those that were checked, of every rank, or of one of each class of equal ranks where there are many;
    instructions: of these. peak_bytes, host_bytes: of rank `peak_rank`, by the memory walk (None where there are faults).
    """

    model: str
    ranks: int
    programs: int
    instructions: int
    peak_bytes: int | None
    peak_rank: int | None
    host_bytes: int | None
    memory_bytes: int
    faults: tuple[str, ...]

    @property
    def violations(self) -> tuple[str, ...]:
        """What is wrong, in words: faults of the programs, or more memory than the plan was made for."""
        if self.peak_bytes is None or self.peak_bytes <= self.memory_bytes:
            return self.faults
        over = f"rank {self.peak_rank} needs {self.peak_bytes} bytes, more than memory_bytes = {self.memory_bytes}"
        return (*self.faults, over)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "violations": self.violations}


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


def plan_or_instance(source: Plan | Any | Source) -> Plan | Any:
    """A plan or an instance: itself, or from its file or a dict in its format. Raises InputError."""
    if not isinstance(source, str | os.PathLike | Mapping):
        return source
    content = source if isinstance(source, Mapping) else read_data(source)
    if isinstance(content, Mapping) and "problem" in content:
        return load(source)
    if isinstance(content, Mapping) and "format" not in content:
        where = "source" if isinstance(source, Mapping) else os.fspath(source)
        raise InputError(where, "", "is neither a plan nor an instance", "give a plan's file, or an instance's")
    return load_plan(source)


def check(
    source: Plan | InstanceLike | Source, solution: Result | Source | Sequence[int] | None = None
) -> Checked | CheckedPlan:
    """Check a plan's programs, or a solution against an instance. Raises InputError for malformed files.

    source: a plan or an instance (a file, a dict or the object). A plan's programs are compiled, checked, and walked for
    memory. solution: of an instance, a file, a dict, or a Result's.
    """
    if solution is not None and not isinstance(source, Plan) and not _is_plan(source):
        return check_solution(source, solution)
    subject = plan_or_instance(source)
    if not isinstance(subject, Plan):
        raise InputError("command line", "solution", "is missing", "give one: only a plan is checked by itself")
    if solution is not None:
        raise InputError("command line", "solution", "is given", "leave it out: a plan is checked by itself")
    return check_plan(subject, os.fspath(source) if isinstance(source, str | os.PathLike) else "plan")


def _is_plan(source: Any) -> bool:
    content = read_data(source) if isinstance(source, str | os.PathLike) else source
    return isinstance(content, Mapping) and "format" in content and "problem" not in content


def check_plan(plan: Plan, where: str = "plan") -> CheckedPlan:
    """Compile a plan's programs, check them, and walk them for memory. where: what errors call it. Raises InputError."""
    model = plan.planned_model()
    if not compiles(model):
        fix = f"give a plan of a model that becomes programs: {', '.join(EXECUTED_FAMILIES)}"
        raise InputError(where, "model.config.model_type", f"is {model.family!r}", fix)
    made = compiled(plan, default_backend(plan), by_class=True)
    fullest = None
    if not made.faults:
        walks = zip(made.classes, made.memory(default_backend(plan)), strict=True)
        fullest = max(walks, key=lambda each: each[1].peak_bytes)
    return CheckedPlan(
        model=model.name,
        ranks=plan.world,
        programs=len(made.programs),
        instructions=made.instructions,
        peak_bytes=None if fullest is None else fullest[1].peak_bytes,
        peak_rank=None if fullest is None else fullest[0],
        host_bytes=None if fullest is None else fullest[1].host_bytes,
        memory_bytes=plan.memory_bytes,
        faults=tuple(made.faults),
    )


def check_solution(instance: InstanceLike | Source, solution: Result | Source | Sequence[int]) -> Checked:
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
