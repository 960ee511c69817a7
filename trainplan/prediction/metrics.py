"""What the walks over a plan's programs say in an engineer's units: throughput, MFU, where the devices' time and memory go.

    MFU      model FLOPs of a step / (its time x the peak FLOP/s of all its devices, in the model's dtype)
    bubble   the share of the devices' time in a step in which none of a device's lanes runs anything: it waits for others

Model FLOPs are those of the matrix products of the forward pass, three times: the backward pass needs twice as many. What is
recomputed does not count, nor does what causal attention skips. Communication is exposed while a device computes nothing
beside it; so are copies and the host's work, while it does neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trainplan.execution.analysis.memory.peak import peak_buffers
from trainplan.execution.analysis.timing.simulate import TimeWalk
from trainplan.execution.instruction_spec import Stream
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.quantities import format_bytes, format_count
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model

BACKWARD_FLOPS = 2  # of the forward pass
LANES: tuple[frozenset[Stream], ...] = (
    frozenset({"compute"}),
    frozenset({"compute", "communication"}),
    frozenset({"compute", "communication", "copy", "copy-out", "host"}),
)
# By the first word of a buffer's name; all others (gathered parameters, whole gradients, gradients of hidden states, what the
# loss needs, workspace) are buffers.
HOLDS = {
    "parameter": "parameters",
    "copies": "parameters",
    "gradient": "gradients",
    "moments": "optimizer",
    "master": "optimizer",
    "hidden": "activations",
    "input": "activations",
    "prefetched": "activations",
    "graph": "activations",
    "keys": "activations",
    "keys-graph": "activations",
    **dict.fromkeys(("heads", "mixed", "core-graph", "results"), "activations"),
}
PARTS = ("parameters", "gradients", "optimizer", "activations", "buffers")


def part_of(name: str) -> str:
    """Which of PARTS a buffer belongs to, by its name."""
    return HOLDS.get(name.partition(".")[0], "buffers")


@dataclass(frozen=True)
class StageMemory:
    """Bytes of the device that is fullest in a stage, at its peak, by what holds them; peak_bytes is their sum.

    optimizer: its moments and master copies. activations: what forward passes keep for backward passes. buffers: whatever
    lives for less.
    """

    stage: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    buffers_bytes: int
    peak_bytes: int


@in_one_line
@dataclass(frozen=True)
class Performance:
    """A plan's step in an engineer's units, as the walks over its programs predict it (see the head of this module). Of a plan
    that another runtime runs (`software`), the step is as that is predicted; the shares of the devices' time and the memory of
    stages are those of the walks.

    tokens are those that the model's last layer works on. mfu: None where no cluster tells the devices' peak;
    peak_dtype: of that peak, where some products are in another one. compute,
    exposed_communication, exposed_copies, bubble: shares of the devices' time, 1 in all. stages: memory, stage by stage.
    """

    step_ns: int
    samples_per_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float | None
    compute: float
    exposed_communication: float
    exposed_copies: float
    bubble: float
    stages: tuple[StageMemory, ...]
    peak_dtype: str | None = None
    software: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)

    def summary(self) -> list[tuple[str, str]]:
        """Label and text of each line that people want to see."""
        tokens = f"{format_count(self.tokens_per_s)} tokens/s, {format_count(self.tokens_per_s_per_device)} tokens/s per device"
        shares = [("compute", self.compute), ("exposed communication", self.exposed_communication)]
        shares += [("exposed copies", self.exposed_copies)] * (self.exposed_copies > 0) + [("bubble", self.bubble)]
        rows = [("throughput", f"{tokens}, {self.samples_per_s:.4g} samples/s")]
        rows += (
            [] if self.mfu is None else [("MFU", f"{self.mfu:.1%} ({self._of_peak}model FLOPs, without what is recomputed)")]
        )
        whose = "" if not self.software else ", simulated by the plan's own programs"
        return [*rows, ("device time", ", ".join(f"{name} {share:.1%}" for name, share in shares) + whose)]

    @property
    def _of_peak(self) -> str:
        return f"of the peak in {self.peak_dtype}; " if self.peak_dtype else ""

    def memory_rows(self) -> list[list[str]]:
        """A row for each stage: its number, what holds the memory, and the peak."""
        sizes = [f"{name}_bytes" for name in (*PARTS, "peak")]
        return [[str(stage.stage), *(format_bytes(getattr(stage, size)) for size in sizes)] for stage in self.stages]


def performance(plan: Plan, judged: PlanPrediction, cluster: Cluster | None = None) -> Performance:
    """What the walks say of a plan. cluster: whose devices' peak MFU compares with."""
    theirs = plan.predicted if plan.predicted is not None and plan.predicted.software else None
    step_ns = judged.step_ns if theirs is None else theirs.step_ns
    model, seconds = plan.planned_model(), step_ns / 1e9
    samples = plan.batch.global_samples
    tokens = samples * model.tokens / seconds
    peak = None if cluster is None else peak_flops_per_s(plan, cluster, model.dtype)
    weights = [len(ranks) for ranks in judged.classes.values()]
    busy = [_busy_ns(judged.time, index) for index in range(len(weights))]
    compute, communicate, run = (float(mean) for mean in np.average(busy, axis=0, weights=weights))
    step = judged.step_ns
    return Performance(
        step_ns=step_ns,
        samples_per_s=samples / seconds,
        tokens_per_s=tokens,
        tokens_per_s_per_device=tokens / plan.world,
        mfu=None if peak is None else model_flops(model) * samples / (seconds * peak),
        compute=compute / step,
        exposed_communication=(communicate - compute) / step,
        exposed_copies=(run - communicate) / step,
        bubble=1 - run / step,
        stages=tuple(stage_memory(plan, judged)),
        peak_dtype=model.dtype if any(unit.precision != "model" for unit in plan.units) else None,
        software="" if theirs is None else theirs.software,
    )


def model_flops(model: Model) -> int:
    """FLOPs of the matrix products that one sample needs, forward and backward."""
    return (1 + BACKWARD_FLOPS) * sum(unit.sublayer.forward_flops(1, 1) for unit in model.units)


def peak_flops_per_s(plan: Plan, cluster: Cluster, dtype: str) -> float | None:
    """Of all devices that the plan is on, in a dtype; None where that of some kind is not known."""
    kinds = {kind.name: dict(kind.flops_per_s).get(dtype) for kind in cluster.used_kinds}  # type: ignore[call-overload]
    of_device = cluster.device_kinds
    rates = [kinds[of_device[device]] for device in plan.placement or range(plan.world)]
    return None if None in rates else float(sum(rates))


def stage_memory(plan: Plan, judged: PlanPrediction) -> list[StageMemory]:
    """What holds the memory of the fullest device of each stage, at its peak, by the memory walk; of interleaved stages, under
    the first of those of the same ranks."""
    rows = []
    for number, index in enumerate(fullest_places(plan, judged)):
        sizes = dict.fromkeys((f"{part}_bytes" for part in PARTS), 0)
        for name, size in peak_buffers(judged.time.rounds[index].few, judged.memory[index]).items():
            sizes[f"{part_of(name)}_bytes"] += size
        rows.append(StageMemory(number, **sizes, peak_bytes=judged.memory[index].peak_bytes))
    return rows


def fullest_places(plan: Plan, judged: PlanPrediction) -> list[int]:
    """For each stage on ranks of its own, the place of the program of its fullest rank."""
    return stage_places(plan, judged, lambda place: judged.memory[place].peak_bytes)


def stage_places(plan: Plan, judged: PlanPrediction, key: Callable[[int], int]) -> list[int]:
    """For each stage on ranks of its own, the place, among the walked programs, of the first whose key is the largest; of
    interleaved stages, among the programs of the ranks that have them. key: of a place."""
    by_stage: dict[int, list[int]] = {}
    for index, rounds in enumerate(judged.time.rounds):
        by_stage.setdefault(rounds.few.units[0], []).append(index)
    return [max(by_stage[stage.first_unit], key=key) for stage in plan.stages[: plan.depth]]


def first_places(plan: Plan, judged: PlanPrediction) -> list[int]:
    """For each stage on ranks of its own, the index, among the walked programs, of the first program of one of its ranks, which
    ends last."""
    return stage_places(plan, judged, lambda place: max(judged.time.end_ns[place]))


def stage_shares(plan: Plan, judged: PlanPrediction) -> list[tuple[float, float, float]]:
    """Of each stage (of interleaved ones those of the same ranks together), the shares of its devices' time in a step in which
    they compute, in which communication or copies are exposed, and in which nothing of theirs runs."""
    sums: dict[int, list[tuple[int, list[int]]]] = {}
    for index, (rounds, ranks) in enumerate(zip(judged.time.rounds, judged.classes.values(), strict=True)):
        sums.setdefault(rounds.few.units[0], []).append((len(ranks), _busy_ns(judged.time, index)))
    rows = []
    for stage in plan.stages[: plan.depth]:
        weights, busy = zip(*sums[stage.first_unit], strict=True)
        compute, _, run = np.average(busy, axis=0, weights=weights) / judged.step_ns
        rows.append((float(compute), float(run - compute), float(1 - run)))
    return rows


def _busy_ns(walk: TimeWalk, place: int) -> list[int]:
    """Of a program, how long it computes; computes or communicates; does anything."""
    mine = _busy_here_ns(walk, place)
    if walk.shorter is None:
        return mine
    return [ns + walk.more * (ns - less) for ns, less in zip(mine, _busy_here_ns(walk.shorter, place), strict=True)]


def _busy_here_ns(walk: TimeWalk, place: int) -> list[int]:
    streams = np.array([instruction.stream for instruction in walk.rounds[place].issued])
    starts, ends = np.array(walk.start_ns[place]), np.array(walk.end_ns[place])
    chosen = [np.isin(streams, list(lanes)) for lanes in LANES]
    return [union_ns(starts[lane], ends[lane]) for lane in chosen]


def union_ns(starts: ArrayLike, ends: ArrayLike) -> int:
    """How long some of these spans of time lasts: spans that overlap count once."""
    begin, end = np.asarray(starts), np.asarray(ends)
    if not begin.size:
        return 0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    before = np.concatenate((begin[:1], end[:-1]))
    return int(np.maximum(end - np.maximum(begin, before), 0).sum())
