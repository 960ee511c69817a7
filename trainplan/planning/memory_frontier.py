"""The trade-off of step time against memory: the results of methods under rising memory limits, for any problem with one
limit."""

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
    """The result of one solving method under one memory limit. memory_bytes: the memory limit of one device. result: the
    method's result, which has its name.
    """

    memory_bytes: int
    result: Result

    def to_dict(self) -> dict[str, Any]:
        """The point as a JSON-ready dict: `memory_bytes`, the memory limit, and `result`, the method's result with that limit
        as a dict (`status`, `objective` and `bound` in ns, `solution` and so on)."""
        return {"memory_bytes": self.memory_bytes, "result": self.result.to_dict()}


class Frontier(Tabular, list[FrontierPoint]):
    """The results of several methods under several memory limits, method by method. instance: the name of the instance that was
    solved."""

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
        """untried: pairs of method and limit in bytes that were not solved, since an interrupt came first."""
        super().__init__(points)
        self.untried = list(untried)

    def to_list(self) -> list[dict[str, Any]]:
        """A list of JSON-ready dicts: for each point `memory_bytes` and `result`; for each pair of method and limit that was
        not tried `method`, `memory_bytes`, `result` None, and `unfinished` "interrupt".
        """
        missing = {"result": None, "unfinished": "interrupt"}
        untried = [{"method": method, "memory_bytes": limit, **missing} for method, limit in self.untried]
        return [*(point.to_dict() for point in self), *untried]

    def notes(self) -> list[str]:
        """Lines for people on what an interrupt left unfinished: the point whose search it ended, and the number of points not
        tried."""
        stopped = [point for point in self if point.result.stopped == "interrupt"]
        texts = [f"{point.result.method} at {format_bytes(point.memory_bytes)} was interrupted" for point in stopped]
        return texts + [f"interrupted: {plural(len(self.untried), 'point')} not tried"] * bool(self.untried)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each point: `instance` (its name), `method`, `memory_bytes` (the limit), `status`, `time_ns`, `bound_ns`,
        `gap`, `peak_bytes` and `seconds`.
        """
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
    """The result of every method under every memory limit, method by method; the limit of the instance itself is not used.

    A solution under one limit fits under every larger limit, and a bound under one limit holds under every smaller one. So the
    points of a method that proves bounds take over a better solution or bound from their neighbours: both fall as memory grows.

    Args:
        instance: an instance of any problem with one memory limit.
        limits: bytes of one device, rising (default: twelve, from the least memory that any solution needs to what the shortest
            step needs).
        methods: names of methods (default: all but the MILP, CP-SAT and brute force).
        time_limit: seconds for each search.
        gap: relative gap at which each search may stop.
        seed: of each method's random numbers.
        progress: called with the method's name and each new point.

    Returns:
        A list of points, with `frame()` and `picture()`.

    Raises:
        InputError: for limits that are not a device's memory.
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
            named = [(method_named(instance.problem, method).name, limit) for method in names for limit in limits]
            points.untried = [pair for pair in named if pair not in done]
            break
    return points


def _falling(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Share results among the points of one method, so that steps and bounds fall as memory grows: each memory limit gets the
    best solution found under it or any smaller limit, and the best lower bound found under it or any larger limit. points:
    the method's points, by rising limit.
    """
    results, best, bound = dict[int, Result](), None, None
    for point in sorted(points, key=lambda point: point.memory_bytes):
        result = point.result
        if best is not None and best.objective is not None and (result.objective is None or result.objective > best.objective):
            improved = replace(result, objective=best.objective, solution=best.solution, evaluation=best.evaluation)
            result = replace(improved, status="feasible", reason=None, message=None)
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
    """The default memory limits of a frontier in bytes of one device: `count` evenly spaced numbers from the least that any
    solution needs to what the shortest step needs. instance: the numbers (costs, memory limits) that a solver searches.
    Raises InputError if either is not known in time.
    """
    reason = explain(instance.with_memory(1))
    ample = solve(instance.with_memory(LARGEST_MEMORY), "exact")
    if reason is None or ample.evaluation is None:
        problem_text = f"{instance.name!r} has no memory that is known to be the least, or no plan in time"
        raise InputError(
            "command line", "--from", f"is not given, and {problem_text}", "give --from and --to, such as 4GiB and 24GiB"
        )
    least, most = reason.least_memory_bytes, ample.evaluation["peak_bytes"]
    return [least + (most - least) * step // (count - 1) for step in range(count)]
