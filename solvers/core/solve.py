"""One way to run any method: time it, check its answer on the integers, and say what is proven."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainplan.formulations.problem import Problem, problem_of
from trainplan.profiling.base.errors import InputError, shown
from trainplan.solvers.core.registry import Entry
from trainplan.solvers.core.registry import method as method_named
from trainplan.solvers.core.registry import methods as methods_of
from trainplan.solvers.core.result import Infeasibility, Result, Status, relative_gap
from trainplan.solvers.core.search import Outcome, Progress, Search, Unsuited, judge

PACKAGES = ("trainplan", "numpy", "pyomo", "highspy", "ortools")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of every package that may have had a part in an answer."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


def solve(
    instance: Any,
    method: str = "exact",
    *,
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    explained: bool = True,
    **options: Any,
) -> Result:
    """Run a method on an instance; the answer is checked by the problem's own `evaluate` and `violations`.

    method: a name of `methods`; `exact` is the best proven one. time_limit: seconds; reaching it is an outcome, not an error.
    gap: relative gap at which to stop; `optimal` then means within it. explained: where a method finds nothing, find out
    whether anything fits. options: the method's own, see `methods`.
    Raises InputError for a method, limit or option that does not exist.
    """
    problem, entry = problem_of(instance), method_named(instance.problem, method)
    check_arguments(time_limit, gap, seed)
    _check_options(entry, options)
    search = Search(judge(instance), time_limit, seed, gap, options, progress)
    try:
        outcome = entry.method()(instance, search)
    except (InputError, KeyboardInterrupt):
        raise
    except MemoryError:
        outcome = Outcome(message="memory ran out", bound=search.bound, bound_source="the bound before memory ran out")
    except Exception as error:
        outcome = Outcome(failed=True, message=f"{type(error).__name__}: {error}")
    return _result(instance, entry, problem, search, outcome, explained)


def check_arguments(time_limit: float | None, gap: float, seed: int) -> None:
    """Raises InputError."""
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise InputError("command line", "--time-limit", f"is {time_limit}", "give seconds above 0, such as 10")
    if not 0 <= gap < 1:
        raise InputError("command line", "--gap", f"is {gap}", "give a share such as 1e-4")
    if not 0 <= seed < 2**31:
        raise InputError("command line", "--seed", f"is {seed}", "give 0 to 2147483647")


def _check_options(entry: Entry, options: dict[str, Any]) -> None:
    possible = {option.name: option for option in entry.options}
    for name, value in options.items():
        if name not in possible:
            names = ", ".join(map(str, entry.options)) or "none"
            raise InputError("command line", f"option {name}", f"is not an option of {entry.name}", f"it has: {names}")
        choices, most = possible[name].choices, possible[name].most
        if value is None:
            continue
        if choices and value not in choices:
            raise InputError("command line", f"option {name}", f"is {value!r}", f"give one of: {', '.join(choices)}")
        if not choices and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= (most or value)):
            fix = f"give a whole number of at least 1{f' and at most {most}' if most else ''}"
            raise InputError("command line", f"option {name}", f"is {shown(value)}", fix)


def _result(instance: Any, entry: Entry, problem: Problem, search: Search, outcome: Outcome, explained: bool) -> Result:
    """What is proven, from a method's claims and our own checks of them."""
    elapsed = search.elapsed()
    broken = [] if outcome.choice is None else problem.violations(instance, outcome.choice)
    search.report(outcome.choice)
    choice, objective, bound, message = search.best, search.objective, outcome.bound, outcome.message
    reason: Infeasibility | None = None
    if not outcome.failed and (outcome.infeasible or broken or (objective is None and explained)):
        reason = problem.explain(instance)

    status: Status
    if outcome.failed:
        status = "failed"
    elif outcome.infeasible and (reason is None or choice is not None):
        status, message = "failed", f"{entry.name} claims that nothing fits, but a choice within the memory exists"
    elif broken and reason is None:
        status, message = "failed", f"{entry.name} gave a choice that breaks the constraints"
    elif reason is not None:
        status = "infeasible"
        outcome.bound_source = outcome.bound_source if outcome.infeasible else "least memory over all choices"
    elif objective is None:
        status = "unknown"
    elif bound is not None and bound > objective:
        status, message = "failed", f"{entry.name} claims a bound of {bound} above its own objective {objective}"
    else:
        status = "optimal" if bound is not None and search.closed(bound) else "feasible"
    if status in ("infeasible", "failed"):
        bound = None
    return Result(
        problem=instance.problem,
        method=entry.name,
        status=status,
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        solution=None if choice is None else problem.solution_dict(choice),
        build_seconds=round(outcome.build_seconds, 6),
        solve_seconds=round(max(0.0, elapsed - outcome.build_seconds), 6),
        history=tuple(search.history),
        seed=search.seed,
        versions=versions(),
        instance_hash=instance.digest,
        bound_source=outcome.bound_source if bound is not None or status == "infeasible" else None,
        tolerance=search.gap,
        evaluation=None if choice is None else problem.describe(instance, choice),
        violations=tuple(broken),
        reason=reason,
        message=message,
        statistics=outcome.statistics,
    )


def compare(
    instance: Any,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Any = None,
) -> tuple[list[Result], list[str]]:
    """Run several methods (default: all that the instance's size admits), and list every contradiction between them.

    A contradiction is a proven bound above another's objective, or one that found a solution where another proved that none
    exists. progress: called with (method, point).
    """
    names = list(methods) if methods else [entry.name for entry in methods_of(instance.problem)]
    check_arguments(time_limit, 0.0, seed)
    results = []
    for name in names:
        try:
            notify = (lambda point, name=name: progress(name, point)) if progress else None
            results.append(solve(instance, name, time_limit=time_limit, seed=seed, progress=notify))
        except Unsuited:
            if methods:
                raise
    return results, contradictions(results)


def contradictions(results: Sequence[Result]) -> list[str]:
    """Pairs of results that cannot both be right, in words."""
    contradicted = []
    for a in results:
        if a.status == "failed":
            contradicted.append(f"{a.method} failed: {a.message}")
        for b in results:
            if a.bound is not None and b.objective is not None and a.bound > b.objective:
                contradicted.append(f"{a.method} proves at least {a.bound} ns, but {b.method} has {b.objective} ns")
            if a.status == "infeasible" and b.objective is not None:
                contradicted.append(f"{a.method} proves that nothing fits, but {b.method} has a solution")
    return contradicted
