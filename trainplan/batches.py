"""The batch size with the largest throughput: Galvatron's outer loop (Algorithm 1, lines 2 to 16), for every planner by name.

A variant is a search space, a schedule and a method. The paper's own variants and baselines are here, and the optimum of any
space beside them. Batch sizes rise in steps until nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from trainplan.formulations.layer_strategies.costs import COST_MODELS, CostModel
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.problem import Instance, Schedule
from trainplan.formulations.pipeline.spaces import space, stage_powers
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import shapes_needed
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve
from trainplan.solvers.pipeline.galvatron_bmw import MOST_MICRO_BATCHES, ruled_micro_batches
from trainplan.solvers.pipeline.memory import fits

LARGEST_BATCH = 4096
PATIENCE = 4


@dataclass(frozen=True)
class Variant:
    """A planner by name: its space, its pipeline schedule, its method with options, and the paper's name for it."""

    name: str
    label: str
    space: str
    schedule: Schedule
    method: str
    options: tuple[tuple[str, Any], ...] = ()


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("ddp", "PyTorch DDP (DP)", "dp", "1f1b", "galvatron-base"),
        Variant("megatron", "Megatron (TP)", "tp", "1f1b", "galvatron-base"),
        Variant("gpipe", "PyTorch GPipe (PP)", "pp", "gpipe", "galvatron-base"),
        Variant("fsdp", "FSDP/ZeRO-3 (SDP)", "sdp", "1f1b", "galvatron-base"),
        Variant("deepspeed-3d", "DeepSpeed 3D", "3d", "gpipe", "galvatron-base"),
        Variant("galvatron-dp-tp", "Galvatron (DP+TP)", "dp+tp", "gpipe", "galvatron-base"),
        Variant("galvatron-dp-pp", "Galvatron (DP+PP)", "dp+pp", "gpipe", "galvatron-base"),
        Variant("galvatron", "Galvatron", "no-ckpt", "gpipe", "galvatron-base"),
        Variant("galvatron-base", "Galvatron-Base", "full", "gpipe", "galvatron-base"),
        Variant("galvatron-1f1b-bi-obj", "Galvatron (1F1B+Bi-obj)", "no-ckpt", "1f1b", "galvatron-bmw"),
        Variant("galvatron-bmw", "Galvatron-BMW", "full", "1f1b", "galvatron-bmw"),
    )
}


def variant(name: str, given_space: str | None = None, schedule: Schedule = "1f1b") -> Variant:
    """A planner by name; `optimum` is the exact one, of `given_space` (default: full) and `schedule`. Raises InputError."""
    if name == "optimum":
        chosen = space(given_space or "full").name
        return Variant(f"optimum-{chosen}", f"optimum of {chosen}", chosen, schedule, "exact")
    if name not in VARIANTS:
        raise InputError("command line", "--planner", f"is {name!r}", f"give one of: {', '.join([*VARIANTS, 'optimum'])}")
    return VARIANTS[name]


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

    planner: Variant
    points: tuple[Point, ...] = field(default_factory=tuple)

    @property
    def best(self) -> Point | None:
        found = [point for point in self.points if point.throughput > 0]
        return max(found, key=lambda point: point.throughput, default=None)

    @property
    def seconds(self) -> float:
        return sum(point.result.build_seconds + point.result.solve_seconds for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        points = [
            {"batch": p.batch, "throughput_samples_per_s": p.throughput, "result": p.result.to_dict()} for p in self.points
        ]
        best = None if self.best is None else self.best.batch
        return {"planner": asdict(self.planner), "best_batch": best, "points": points}

    def __str__(self) -> str:
        if self.best is None:
            return f"{self.planner.label}: out of memory"
        return f"{self.planner.label}: {self.best.throughput:.2f} samples/s at batch {self.best.batch}"


class Batches:
    """The pipeline instances of a model on a cluster by batch size, from estimated costs; tables are kept for all planners."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        *,
        costs: CostModel = COST_MODELS["paper"],
        most_micro_batches: int | None = MOST_MICRO_BATCHES,
        step: int | None = None,
    ) -> None:
        """most_micro_batches: at most so many to a batch (without a limit 1F1B-Flush never runs out of memory, and there is no
        largest batch). step: samples between two batch sizes (default: 8)."""
        self.model, self.cluster, self.costs = model, cluster, costs
        self.most, self.step = most_micro_batches, step or 8
        self._kept: dict[tuple[int, str], PipelineCosts] = {}
        self._profiles: dict[int, Any] = {}

    def sizes(self, largest: int = LARGEST_BATCH) -> Iterator[int]:
        return iter(range(self.step, largest + 1, self.step))

    def micro_batches(self, batch: int) -> list[int]:
        return [m for m in divisors(batch) if self.most is None or m <= self.most]

    def instance(self, batch: int, memory_bytes: int, space_name: str, schedule: Schedule, *, ruled: bool = False) -> Instance:
        """ruled: only the numbers of micro-batches that the paper's methods take. Raises InputError where no strategy of the
        space divides the batch."""
        chunk = (-(-batch // self.step) - 1).bit_length()  # batch sizes up to step 2^chunk share one profile
        key = (chunk, space_name)
        if key not in self._kept:
            self._kept[key] = PipelineCosts(self._profile(chunk), costs=self.costs, space=space(space_name))
        costs = self._kept[key]

        def counts(stages: int) -> list[int]:
            group = self.cluster.devices // stages
            possible = [m for m in self.micro_batches(batch) if costs.strategies(group, batch // m)]
            return [ruled_micro_batches(batch, stages, possible)] if ruled and possible else possible

        return costs.instance(batch, memory_bytes, schedule=schedule, micro_batches=counts)

    def _profile(self, chunk: int) -> Any:
        if chunk not in self._profiles:
            first, last = (self.step * (1 << chunk >> 1) + 1 if chunk else 1), self.step << chunk
            batches = [batch for batch in range(self.step, last + 1, self.step) if batch >= first]
            sizes = sorted({batch // m for batch in batches for m in self.micro_batches(batch)})
            devices = self.cluster.devices
            shapes = shapes_needed(self.model.tp_degrees(devices), stage_powers(devices), sizes)
            self._profiles[chunk] = estimate_shapes(self.model, self.cluster, shapes, devices)
        return self._profiles[chunk]


def search_throughput(
    batches: Batches,
    planner: Variant,
    memory_bytes: int,
    *,
    largest_batch: int = LARGEST_BATCH,
    gap: float = 0.0,
    time_limit: float | None = None,
    every: bool = False,
    progress: Callable[[Point], None] | None = None,
) -> Throughput:
    """Try batch sizes, from the smallest, until nothing fits (Algorithm 1). gap, time_limit: of each batch size.

    The exact planner looks only for plans of more throughput than the best so far; every: for the optimum of every batch size.
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
        if planner.method == "exact" and best and not every:
            options["cutoff_ns"] = max(1, int(batch / best * 1e9))
        points.append(Point(batch, solve(instance, planner.method, gap=gap, time_limit=time_limit, explained=False, **options)))
        best = max(best, points[-1].throughput)
        if progress:
            progress(points[-1])
        failures = 0 if points[-1].throughput or ("cutoff_ns" in options and fits(instance)) else failures + 1
        if failures == PATIENCE:
            break
    if not points:
        told = f"is {planner.space}, which no batch size up to {largest_batch} suits"
        raise InputError("command line", "--planner", told, "give another planner, or a larger --largest-batch")
    return Throughput(planner, tuple(points))
