"""The search for the batch size with the largest predicted throughput, for each planner.

It is Galvatron's outer loop (Algorithm 1, lines 2 to 16): batch sizes rise in steps until nothing fits. The planners are those
of `presets.PLANNERS`, the paper's own variants and baselines, and the exact optimum of any space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from trainplan.formulations.pipeline.batches import LARGEST_BATCH, BatchInstances
from trainplan.planning.presets import Planner
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve
from trainplan.solvers.pipeline.memory import fits

PATIENCE = 4


@dataclass(frozen=True)
class Point:
    """One batch size, and the result of the search with it. batch: samples per step."""

    batch: int
    result: Result

    @property
    def throughput(self) -> float:
        """Samples per second; 0 if no plan was found."""
        return self.batch / self.result.objective * 1e9 if self.result.objective else 0.0


@dataclass(frozen=True)
class Throughput:
    """The batch sizes that were tried with one planner, in rising order, and the result of the search with each. planner: the
    search space, the schedule and the method. points: a batch size and its result each.
    """

    planner: Planner
    points: tuple[Point, ...] = field(default_factory=tuple)

    def __repr__(self) -> str:
        return f"<Throughput {self}>"

    @property
    def best(self) -> Point | None:
        """The point (batch size and result) with the largest throughput; None if nothing fits."""
        fitting = (point for point in self.points if point.throughput > 0)
        return max(fitting, key=lambda point: point.throughput, default=None)

    @property
    def interrupted(self) -> bool:
        """Whether the user interrupted the search before all batch sizes were tried."""
        return any(point.result.stopped == "interrupt" for point in self.points)

    @property
    def seconds(self) -> float:
        """The seconds that the searches of all batch sizes took together."""
        return sum(point.result.build_seconds + point.result.solve_seconds for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """The search as a JSON-ready dict. Keys: `planner` (its fields as a dict), `best_batch` (samples per step with the
        largest throughput, None if nothing fits), `points` (for each batch size a dict with `batch`,
        `throughput_samples_per_s`, 0 without a plan, and `result`, the solver's result as a dict), and `unfinished` (whether
        the user interrupted the search)."""
        points = [
            {"batch": p.batch, "throughput_samples_per_s": p.throughput, "result": p.result.to_dict()} for p in self.points
        ]
        best = None if self.best is None else self.best.batch
        return {"planner": asdict(self.planner), "best_batch": best, "points": points, "unfinished": self.interrupted}

    def __str__(self) -> str:
        ended = " (interrupted: larger batches were not tried)" * self.interrupted
        if self.best is None:
            return f"{self.planner.label}: out of memory{ended}"
        return f"{self.planner.label}: {self.best.throughput:.2f} samples/s at batch {self.best.batch}{ended}"


def search_throughput(
    batches: BatchInstances,
    planner: Planner,
    memory_bytes: int,
    *,
    largest_batch: int = LARGEST_BATCH,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    progress: Callable[[Point], None] | None = None,
) -> Throughput:
    """Try rising batch sizes until nothing fits (Galvatron, Algorithm 1).

    The exact planner searches only for plans with more throughput than the best so far. A batch size that no strategy of the
    search space divides is skipped. The search ends after PATIENCE sizes in a row without a plan, since a larger batch may
    split better into micro-batches.

    Args:
        batches: makes an instance for each batch size.
        planner: the search space, the schedule and the method.
        memory_bytes: the memory of each device.
        largest_batch: in samples; larger ones are not tried.
        time_limit: seconds for each search.
        gap: relative gap at which each search may stop.
        progress: called with each new point.

    Raises:
        InputError: if the memory is not positive or too large, or if no batch size can be split in the planner's space.
    """
    if not 0 < memory_bytes <= 2**48:
        raise InputError("command line", "--memory", f"is {memory_bytes} bytes", "give more than 0, such as 8GiB")
    points: list[Point] = []
    best, failures = 0.0, 0
    ruled = planner.method != "exact" and dict(planner.options).get("micro_batches", "rule") == "rule"
    for batch in batches.sizes(largest_batch):
        try:
            instance = batches.instance(batch, memory_bytes, planner.space, planner.schedule, ruled=ruled)
        except InputError:
            continue
        options = dict(planner.options)
        if planner.method == "exact" and best:
            options["cutoff_ns"] = max(1, int(batch / best * 1e9))
        limits: dict[str, Any] = {"time_limit": time_limit, "gap": gap, "explained": False}
        points.append(Point(batch, solve(instance, planner.method, **limits, **options)))
        best = max(best, points[-1].throughput)
        if progress:
            progress(points[-1])
        failures = 0 if points[-1].throughput or ("cutoff_ns" in options and fits(instance)) else failures + 1
        if failures == PATIENCE or points[-1].result.stopped == "interrupt":
            break
    if not points:
        problem = f"is {planner.space}, which supports no batch size up to {largest_batch}"
        raise InputError("command line", "--planner", problem, "give another planner, or a larger --largest-batch")
    return Throughput(planner, tuple(points))
