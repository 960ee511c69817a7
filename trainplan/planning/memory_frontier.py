"""Step time against memory: what methods find under a row of memory limits, of any problem with one limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trainplan.formulations.problem import InstanceLike
from trainplan.inputs import LARGEST_MEMORY
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, plural
from trainplan.solvers.core.heuristic import explain
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.solvers.core.method_registry import methods as methods_of
from trainplan.solvers.core.result import Result, relative_gap
from trainplan.solvers.core.solve import solve
from trainplan.tabular import Tabular

LIMITS = 12  # of a frontier
SLOW = ("milp", "cpsat", "brute-force")


@in_one_line
@dataclass(frozen=True)
class FrontierPoint:
    """What one method found under one memory limit."""

    memory_bytes: int
    result: Result

    def to_dict(self) -> dict[str, Any]:
        """Both as plain values."""
        return {"memory_bytes": self.memory_bytes, "result": self.result.to_dict()}


class Frontier(Tabular, list[FrontierPoint]):
    """Points of methods under memory limits, method by method. instance: the name of the one that they are of."""

    instance: str = ""
    headings: ClassVar = {
        "method": "method",
        "memory_bytes": "memory",
        "status": "status",
        "time_ns": "time",
        "bound_ns": "lower bound",
        "gap": "gap",
        "seconds": "seconds",
    }
    drawn_by = "trainplan.pictures.lanes:draw_frontier"

    def __init__(self, points: Iterable[FrontierPoint] = (), untried: Iterable[tuple[str, int]] = ()) -> None:
        """untried: the methods and limits that were not come to, since an interrupt ended it."""
        super().__init__(points)
        self.untried = list(untried)

    def to_list(self) -> list[dict[str, Any]]:
        """A dict for each point, and for each that was not come to, with no result."""
        missing = {"result": None, "unfinished": "interrupt"}
        untried = [{"method": method, "memory_bytes": limit, **missing} for method, limit in self.untried]
        return [*(point.to_dict() for point in self), *untried]

    def notes(self) -> list[str]:
        """What an interrupt left unfinished."""
        stopped = [point for point in self if point.result.stopped == "interrupt"]
        texts = [f"{each.result.method} at {format_bytes(each.memory_bytes)} was interrupted" for each in stopped]
        return texts + [f"interrupted: {plural(len(self.untried), 'point')} not tried"] * bool(self.untried)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each point: the instance's name, method, memory_bytes, status, time_ns, bound_ns, gap, peak_bytes,
        seconds."""
        about = {"instance": self.instance}
        return [
            {**about, "method": point.result.method, "memory_bytes": point.memory_bytes, **point.result.row()} for point in self
        ]


def frontier(
    instance: InstanceLike,
    limits: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    seed: int = 0,
    progress: Callable[[str, FrontierPoint], None] | None = None,
) -> Frontier:
    """Every method under every memory limit, method by method; the instance's own limit does not count.

    A solution under one limit is one under every larger limit, too, and a bound under one a bound under every smaller one. So
    the points of a method that proves take the better of their neighbours': they fall, and so do their bounds.

    Args:
        instance: of any problem with one memory limit.
        limits: bytes of one device, rising (default: twelve, from the least that anything fits into to what the shortest step
            needs).
        methods: names (default: all but the MILP, CP-SAT and brute force).
        time_limit: seconds for each.
        gap: relative gap at which each may stop.
        seed: of each method.
        progress: called with the method and what it found.

    Returns:
        A list of points, with `frame()` and `picture()`.

    Raises:
        InputError: for limits that are none.
    """
    entries = [entry.name for entry in methods_of(instance.problem) if entry.name not in SLOW]
    limits = memory_limits(instance) if limits is None else limits
    for limit in limits:
        if not 0 < limit <= LARGEST_MEMORY:
            raise InputError("limits", "", f"hold {limit}", "give bytes of one device, above 0")
    points = Frontier()
    points.instance = instance.name
    names = entries if methods is None else list(methods)
    for name in names:
        row: list[FrontierPoint] = []
        for limit in limits:
            result = solve(instance.with_memory(limit), name, time_limit=time_limit, gap=gap, seed=seed)
            row.append(FrontierPoint(limit, result))
            if progress:
                progress(name, row[-1])
            if result.stopped == "interrupt":
                break
        points += _falling(row) if method_named(instance.problem, name).proves else row
        if row[-1].result.stopped == "interrupt":
            done = {(point.result.method, point.memory_bytes) for point in points} | {(name, row[-1].memory_bytes)}
            named = [(method_named(instance.problem, each).name, limit) for each in names for limit in limits]
            points.untried = [each for each in named if each not in done]
            break
    return points


def _falling(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """The points of one method with the best solution of all smaller limits, and the best bound of all larger ones."""
    results, best, bound = dict[int, Result](), None, None
    for point in sorted(points, key=lambda each: each.memory_bytes):
        result = point.result
        if best is not None and best.objective is not None and (result.objective is None or result.objective > best.objective):
            taken = replace(result, objective=best.objective, solution=best.solution, evaluation=best.evaluation)
            result = replace(taken, status="feasible", reason=None, message=None)
        best = result
        results[point.memory_bytes] = result
    for limit in sorted(results, reverse=True):
        result = results[limit]
        if bound is not None and result.bound is not None and bound[0] > result.bound:
            result = replace(result, bound=bound[0], bound_source=bound[1])
        bound = (result.bound, result.bound_source) if result.bound is not None else bound
        gap = relative_gap(result.objective, result.bound)
        if gap is not None:
            result = replace(result, gap=gap, status="optimal" if gap <= result.tolerance else "feasible")
        results[limit] = result
    return [FrontierPoint(point.memory_bytes, results[point.memory_bytes]) for point in points]


def memory_limits(instance: Any, count: int = LIMITS) -> list[int]:
    """Bytes from the least that anything fits into to what the shortest of all steps needs, evenly spaced."""
    reason = explain(instance.with_memory(1))
    ample = solve(instance.with_memory(LARGEST_MEMORY), "exact")
    if reason is None or ample.evaluation is None:
        problem_text = f"{instance.name!r} has no memory that is known to be the least, or no plan in time"
        raise InputError(
            "command line", "--from", f"is not given, and {problem_text}", "give --from and --to, such as 4GiB and 24GiB"
        )
    least, most = reason.least_memory_bytes, ample.evaluation["peak_bytes"]
    return [least + (most - least) * step // (count - 1) for step in range(count)]
