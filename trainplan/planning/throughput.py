"""Throughput: of plans, by their predicted steps, and the batch size with the largest one for every planner by name.

The search over batch sizes is Galvatron's outer loop (Algorithm 1, lines 2 to 16): they rise in steps until nothing fits. The
planners are those of `presets.PLANNERS`, the paper's own variants and baselines, and the optimum of any space.
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
    """One batch size: what its planner found."""

    batch: int
    result: Result

    @property
    def throughput(self) -> float:
        """Samples a second; 0 where nothing was found."""
        return self.batch / self.result.objective * 1e9 if self.result.objective else 0.0


@dataclass(frozen=True)
class Throughput:
    """All batch sizes tried by one planner. best: that of the largest throughput; None where nothing fits."""

    planner: Planner
    points: tuple[Point, ...] = field(default_factory=tuple)

    def __repr__(self) -> str:
        return f"<Throughput {self}>"

    @property
    def best(self) -> Point | None:
        """The batch size of the largest throughput; None where nothing fits."""
        fitting = (point for point in self.points if point.throughput > 0)
        return max(fitting, key=lambda point: point.throughput, default=None)

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt ended it before all batch sizes were tried."""
        return any(point.result.stopped == "interrupt" for point in self.points)

    @property
    def seconds(self) -> float:
        """Seconds of all searches."""
        return sum(point.result.build_seconds + point.result.solve_seconds for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
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
    """Try batch sizes, from the smallest, until nothing fits (Algorithm 1).

    The exact planner looks only for plans of more throughput than the best so far. time_limit, gap: of each search.
    A size that no strategy of the space divides is passed over; so is one at which a planner finds nothing although the next
    one may be split into micro-batches better: PATIENCE failures in a row end the search. Raises InputError.
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
        problem = f"is {planner.space}, which no batch size up to {largest_batch} suits"
        raise InputError("command line", "--planner", problem, "give another planner, or a larger --largest-batch")
    return Throughput(planner, tuple(points))
