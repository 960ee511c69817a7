"""A plan's predicted step in an engineer's units: throughput, MFU, and where the devices' time and memory go.

All of it comes from the simulation of the plan's programs, one program per rank:

    MFU      model FLOPs of a step / (its time x the peak FLOP/s of all its devices, in the model's dtype)
    bubble   the share of the devices' time in a step in which nothing runs on a device: it waits for others

Model FLOPs are those of the matrix products of the forward pass, three times: the backward pass needs twice as many. Recomputed
products do not count, nor do those that causal attention skips. Communication is exposed while its device computes nothing at
the same time; copies and the host's work are exposed while their device neither computes nor communicates.
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

BACKWARD_FLOPS = 2  # times those of the forward pass
# Streams that are busy while a device computes; computes or communicates; does anything.
BUSY_STREAMS: tuple[frozenset[Stream], ...] = (
    frozenset({"compute"}),
    frozenset({"compute", "communication"}),
    frozenset({"compute", "communication", "copy", "copy-out", "host"}),
)
# The part of memory that a buffer belongs to, by the first word of the buffer's name. All others (gathered parameters, whole
# gradients, gradients of hidden states, tensors of the loss, workspace) are "buffers".
PART_OF = {
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
    """The part of memory that a buffer of a plan's program belongs to: "parameters", "gradients", "optimizer", "activations"
    or "buffers".

    name: the buffer's name in the program, such as "moments.3".
    """
    return PART_OF.get(name.partition(".")[0], "buffers")


@dataclass(frozen=True)
class StageMemory:
    """Memory of the fullest device of a pipeline stage at its peak, in bytes, split into parts; peak_bytes is their sum.

    stage: its index. optimizer: moments and master copies of parameters. activations: tensors that forward passes keep for
    backward passes. buffers: everything that lives for a shorter time, such as gathered parameters and workspace.
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
    """A plan's step in an engineer's units, as the simulation of its programs (the instruction lists of its ranks) predicts
    it.

    For a plan that a runtime other than trainplan's own runs (named in `software`), step_ns, throughput and MFU are those
    predicted for that runtime; the shares of the devices' time and the memory of stages are still those of the plan's own
    programs.

    Tokens are those that the model's last layer works on. mfu: model FLOPs over peak FLOPs, None if no cluster states the
    devices' peak. peak_dtype: the dtype of that peak, if some matrix multiplications are in another dtype. compute,
    exposed_communication, exposed_copies, bubble: shares of the devices' time, which add up to 1. stages: memory of the
    pipeline's stages, in order.
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
        """The performance as a JSON-ready dict. Keys: `step_ns`, `samples_per_s`, `tokens_per_s`, `tokens_per_s_per_device`,
        the fractions `mfu`, `compute`, `exposed_communication`, `exposed_copies` and `bubble`, `peak_dtype`, `software`, and
        `stages`, for each stage a dict of its index and of bytes (such as `parameters_bytes` and `peak_bytes`)."""
        return asdict(self)

    def summary(self) -> list[tuple[str, str]]:
        """Pairs (label, text) for throughput, MFU if it is known, and how the devices spend their time."""
        tokens = f"{format_count(self.tokens_per_s)} tokens/s, {format_count(self.tokens_per_s_per_device)} tokens/s per device"
        shares = [("compute", self.compute), ("exposed communication", self.exposed_communication)]
        shares += [("exposed copies", self.exposed_copies)] * (self.exposed_copies > 0) + [("bubble", self.bubble)]
        rows = [("throughput", f"{tokens}, {self.samples_per_s:.4g} samples/s")]
        rows += (
            [] if self.mfu is None else [("MFU", f"{self.mfu:.1%} ({self._of_peak}model FLOPs, without what is recomputed)")]
        )
        whose = "" if not self.software else ", of trainplan's programs of this plan"
        return [*rows, ("device time", ", ".join(f"{name} {share:.1%}" for name, share in shares) + whose)]

    @property
    def _of_peak(self) -> str:
        """A phrase that names the dtype of the peak that MFU compares with; empty if all matrix multiplications are in that
        dtype.
        """
        return f"of the peak in {self.peak_dtype}; " if self.peak_dtype else ""

    def memory_rows(self) -> list[list[str]]:
        """One row of texts per pipeline stage: the stage's index, its memory for each part in PARTS (such as activations), and
        the sum of the parts, which is the peak.
        """
        sizes = [f"{name}_bytes" for name in (*PARTS, "peak")]
        return [[str(stage.stage), *(format_bytes(getattr(stage, size)) for size in sizes)] for stage in self.stages]


def performance(plan: Plan, prediction: PlanPrediction, cluster: Cluster | None = None) -> Performance:
    """Express the step of a plan in an engineer's units (throughput, MFU, shares of time, memory), from the prediction of its
    programs, which are the instruction lists that ranks execute.

    cluster: the devices whose peak FLOP/s MFU compares with; None for no MFU.
    """
    theirs = plan.predicted if plan.predicted is not None and plan.predicted.software else None
    step_ns = prediction.step_ns if theirs is None else theirs.step_ns
    model, seconds = plan.planned_model(), step_ns / 1e9
    samples = plan.batch.global_samples
    tokens = samples * model.tokens / seconds
    peak = None if cluster is None else peak_flops_per_s(plan, cluster, model.dtype)
    weights = [len(ranks) for ranks in prediction.classes.values()]
    busy = [_busy_ns(prediction.time, index) for index in range(len(weights))]
    compute, communicate, run = (float(mean) for mean in np.average(busy, axis=0, weights=weights))
    step = prediction.step_ns
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
        stages=tuple(stage_memory(plan, prediction)),
        peak_dtype=model.dtype if any(unit.precision != "model" for unit in plan.units) else None,
        software="" if theirs is None else theirs.software,
    )


def model_flops(model: Model) -> int:
    """FLOPs of the matrix multiplications in a model's forward and backward pass of one sample, without recomputation."""
    return (1 + BACKWARD_FLOPS) * sum(unit.sublayer.forward_flops(1, 1) for unit in model.units)


def peak_flops_per_s(plan: Plan, cluster: Cluster, dtype: str) -> float | None:
    """Peak FLOP/s in one dtype of all devices of a plan together; None if the peak of some kind of device is not known."""
    kinds = {kind.name: dict(kind.flops_per_s).get(dtype) for kind in cluster.used_kinds}  # type: ignore[call-overload]
    of_device = cluster.device_kinds
    rates = [kinds[of_device[device]] for device in plan.placement or range(plan.world)]
    return None if None in rates else float(sum(rates))


def stage_memory(plan: Plan, prediction: PlanPrediction) -> list[StageMemory]:
    """The memory of each stage's fullest device at its peak, split into parameters, gradients, optimizer states, activations
    and buffers, as the simulation of the plan's programs (instruction lists of its ranks) gives it.

    Interleaved stages that run on the same ranks are one entry, with the index of the first of them. prediction: the
    simulation of the plan's programs (instruction lists of ranks).
    """
    rows = []
    for number, index in enumerate(fullest_programs(plan, prediction)):
        sizes = dict.fromkeys((f"{part}_bytes" for part in PARTS), 0)
        for name, size in peak_buffers(prediction.time.rounds[index].few, prediction.memory[index]).items():
            sizes[f"{part_of(name)}_bytes"] += size
        rows.append(StageMemory(number, **sizes, peak_bytes=prediction.memory[index].peak_bytes))
    return rows


def fullest_programs(plan: Plan, prediction: PlanPrediction) -> list[int]:
    """For each stage, the index (among the simulated programs) of the program of the rank that needs the most memory in that
    stage. A program is the instruction list of a rank; ranks with equal programs share one simulated program.

    Interleaved stages that run on the same ranks are one entry. plan: a training plan, with its stages and strategies.
    prediction: the simulation of the plan's programs (instruction lists of ranks).
    """
    return _program_per_stage(plan, prediction, lambda index: prediction.memory[index].peak_bytes)


def last_programs(plan: Plan, prediction: PlanPrediction) -> list[int]:
    """For each stage, the index (among the simulated programs) of the program of the rank that ends last in that stage. A
    program is the instruction list of a rank; ranks with equal programs share one simulated program.

    Interleaved stages that run on the same ranks are one entry. plan: a training plan, with its stages and strategies.
    prediction: the simulation of the plan's programs (instruction lists of ranks).
    """
    return _program_per_stage(plan, prediction, lambda index: max(prediction.time.end_ns[index]))


def _program_per_stage(plan: Plan, prediction: PlanPrediction, key: Callable[[int], int]) -> list[int]:
    """For each stage, the index (among the simulated programs, the instruction lists of ranks) of the program with the largest
    key among the programs of the stage's ranks; the first of equal ones. Interleaved stages that run on the same ranks are one
    entry.

    plan: a training plan, with its stages and strategies. prediction: the simulation of the plan's programs (instruction
    lists of ranks). key: gives the value to compare by, from a program's index.
    """
    by_stage: dict[int, list[int]] = {}
    for index, rounds in enumerate(prediction.time.rounds):
        by_stage.setdefault(rounds.few.units[0], []).append(index)
    return [max(by_stage[stage.first_unit], key=key) for stage in plan.stages[: plan.depth]]


def stage_shares(plan: Plan, prediction: PlanPrediction) -> list[tuple[float, float, float]]:
    """How the devices of each stage spend a step: one tuple (compute, exposed, idle) per stage, shares of time that add up to
    1.

    exposed: communication, copies or the host's work while nothing is computed. Interleaved stages that run on the same ranks
    are one entry. plan: a training plan, with its stages and strategies. prediction: the simulation of the plan's programs
    (instruction lists of ranks).
    """
    sums: dict[int, list[tuple[int, list[int]]]] = {}
    for index, (rounds, ranks) in enumerate(zip(prediction.time.rounds, prediction.classes.values(), strict=True)):
        sums.setdefault(rounds.few.units[0], []).append((len(ranks), _busy_ns(prediction.time, index)))
    rows = []
    for stage in plan.stages[: plan.depth]:
        weights, busy = zip(*sums[stage.first_unit], strict=True)
        compute, _, run = np.average(busy, axis=0, weights=weights) / prediction.step_ns
        rows.append((float(compute), float(run - compute), float(1 - run)))
    return rows


def _busy_ns(simulated: TimeWalk, index: int) -> list[int]:
    """Three times in ns in the step of one program (the instruction list of a rank): in which its device computes; in which it
    computes or communicates; in which it does anything at all.

    simulated: the simulation of the programs. index: index of the program in it. Times of repeated micro-batches that the
    simulation left out are added.
    """
    here = _busy_here_ns(simulated, index)
    if simulated.shorter is None:
        return here
    fewer = _busy_here_ns(simulated.shorter, index)
    return [ns + simulated.more * (ns - less) for ns, less in zip(here, fewer, strict=True)]


def _busy_here_ns(simulated: TimeWalk, index: int) -> list[int]:
    """Three times in ns in the simulated part of one program's step: in which its device computes; in which it computes or
    communicates; in which it does anything at all. Repeated micro-batches that the simulation left out are not counted. index:
    index of the program in `simulated`.
    """
    streams = np.array([instruction.stream for instruction in simulated.rounds[index].issued])
    starts, ends = np.array(simulated.start_ns[index]), np.array(simulated.end_ns[index])
    chosen = [np.isin(streams, list(busy)) for busy in BUSY_STREAMS]
    return [union_ns(starts[on_stream], ends[on_stream]) for on_stream in chosen]


def union_ns(starts: ArrayLike, ends: ArrayLike) -> int:
    """The time in ns that is covered by at least one of several spans of time: where spans overlap, it counts once.

    starts, ends: start and end of each span in ns, in any order.
    """
    begin, end = np.asarray(starts), np.asarray(ends)
    if not begin.size:
        return 0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    before = np.concatenate((begin[:1], end[:-1]))
    return int(np.maximum(end - np.maximum(begin, before), 0).sum())
