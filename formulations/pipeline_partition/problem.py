"""pipeline-partition: cut a chain of n sub-layers into p pipeline stages (AutoPipe, Section III-B).

Stage x = 0 .. p-1 holds consecutive sub-layers, at least one, and takes f_x and b_x, the sums over its sub-layers, for the
forward and the backward pass of one micro-batch; between two stages a message takes the transfer time of their cut, either
way. Choose the cuts that

    minimise    the iteration of m micro-batches under 1F1B, simulated pass by pass                   see `recurrences`
    subject to  the memory of every stage, where it is given                                          see `stage_memory`

No closed formula is the objective. Cuts lie between sub-layers: embedding, attention and feed-forward blocks, head. Planners
that cut between layers only are told by `layers` which sub-layers belong together. `evaluate` and `violations` know no solver;
all numbers are integers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator
from trainplan.formulations.layer_strategies.problem import Integers, TimeNs
from trainplan.formulations.step.critical import Critical, critical_path
from trainplan.formulations.step.recurrences import iteration_ns
from trainplan.formulations.step.schedules import one_f_one_b
from trainplan.formulations.step.stage_memory import Memory, MemoryRecord, check_length
from trainplan.formulations.step.timeline import Timeline, Work, simulate
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, parse
from trainplan.profiling.base.quantities import format_bytes, span

NAME = "pipeline-partition"
LARGEST_NS, LARGEST_BYTES = 2**53, 2**62
LARGEST_STEP = 100_000  # stages x micro-batches: every pass is simulated

Transfer = Annotated[
    Annotated[TimeNs, Tag("list[one]")] | Annotated[list[TimeNs], Tag("list[each]")],
    Discriminator(lambda value: "list[each]" if isinstance(value, list) else "list[one]"),
]


class InstanceRecord(Record):
    """The file format of a pipeline-partition instance, version 1."""

    problem: Literal["pipeline-partition"]
    version: Literal[1]
    name: str | None = None
    provenance: dict[str, Any] | None = None
    forward_ns: Annotated[list[TimeNs], Field(description="forward pass of each sub-layer, one micro-batch")]
    backward_ns: Annotated[list[TimeNs], Field(description="backward pass of each, recomputation included")]
    transfer_ns: Annotated[Transfer, Field(description="Comm: of a message between two stages, or one for each cut")]
    stages: Annotated[int, Field(ge=1, le=10_000)]
    micro_batches: Annotated[int, Field(ge=1, le=10**5)]
    names: Annotated[list[str] | None, Field(description="of the sub-layers")] = None
    layers: Annotated[
        list[Annotated[int, Field(ge=0)]] | None,
        Field(description="layer of each sub-layer, not falling; for planners that cut between layers only"),
    ] = None
    memory: MemoryRecord | None = None

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        count = len(self.forward_ns)
        if not 1 <= count <= 10_000:
            raise InputError("", "forward_ns", f"has {count} entries", "give 1 to 10000, one for each sub-layer")
        each = "one for each sub-layer"
        check_length("backward_ns", self.backward_ns, count, each)
        if isinstance(self.transfer_ns, list):
            check_length("transfer_ns", self.transfer_ns, count - 1, "one for each cut between two sub-layers, or one number")
        if self.stages > count:
            raise InputError("", "stages", f"is {self.stages}", f"give at most {count}: every stage needs a sub-layer")
        for name in ("names", "layers"):
            if (given := getattr(self, name)) is not None:
                check_length(name, given, count, each)
        for place, (before, layer) in enumerate(pairwise(self.layers or []), 1):
            if layer < before:
                raise InputError("", f"layers[{place}]", f"is {layer}, after {before}", f"give at least {before}")
        slowest = max(self.transfer_ns, default=0) if isinstance(self.transfer_ns, list) else self.transfer_ns
        whole = sum(self.forward_ns) + sum(self.backward_ns) + 2 * self.stages * slowest
        most = [("ns", self.micro_batches * whole, LARGEST_NS)]
        if self.memory is not None:
            self.memory.check(count, self.stages)
            most.append(("bytes", self.memory.most_bytes(min(self.stages, self.micro_batches)), LARGEST_BYTES))
        for unit, total, limit in most:
            if total >= limit:
                told = f"is {self.micro_batches}, with which {count} sub-layers may take {total:.3g} {unit}"
                raise InputError("", "micro_batches", told, f"give numbers that stay below {limit:.3g}")
        if self.stages * self.micro_batches > LARGEST_STEP:
            told = f"is {self.micro_batches}, with {self.stages} stages"
            fix = f"give at most {LARGEST_STEP // self.stages}: every pass is simulated"
            raise InputError("", "micro_batches", told, fix)
        return self


class SolutionRecord(Record):
    """The file format of a solution: the first sub-layer of every stage but the first, numbered from 0."""

    cuts: list[Annotated[int, Field(ge=0)]]


@dataclass(frozen=True, eq=False)
class Instance:
    """The problem in arrays. forward_ns, backward_ns: (n,); transfer_ns: (n-1,), by the sub-layer before the cut; layers: (n,),
    the layer of each sub-layer, which is the sub-layer's own number where nothing is given."""

    forward_ns: Integers
    backward_ns: Integers
    transfer_ns: Integers
    stages: int
    micro_batches: int
    layers: Integers
    names: tuple[str, ...] | None = None
    memory: Memory | None = None
    name: str = NAME
    provenance: dict[str, Any] = field(default_factory=dict)

    problem = NAME

    @property
    def sublayers(self) -> int:
        return len(self.forward_ns)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the answer depends on (not of names or provenance)."""
        content = {name: value for name, value in self.to_dict().items() if name not in ("name", "names", "provenance")}
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at once, under 1F1B."""
        return min(self.micro_batches, self.stages - stage)

    def name_of(self, sublayer: int) -> str:
        return self.names[sublayer] if self.names else f"sub-layer {sublayer}"

    def work(self, cuts: tuple[int, ...]) -> Work:
        """What the stages of a partition take."""
        starts = [0, *cuts]
        forward, backward = (np.add.reduceat(times, starts).tolist() for times in (self.forward_ns, self.backward_ns))
        return Work(tuple(forward), tuple(backward), tuple(int(self.transfer_ns[cut - 1]) for cut in cuts))

    @property
    def layer_starts(self) -> Integers:
        """The first sub-layer of every layer."""
        return np.unique(self.layers, return_index=True)[1]

    def between_layers(self) -> tuple[Instance, Integers]:
        """The same with whole layers for sub-layers, and the first sub-layer of each."""
        starts = self.layer_starts
        ends = [*(starts[1:] - 1), self.sublayers - 1]
        names = [span(self.name_of(first), self.name_of(last)) for first, last in zip(starts, ends, strict=True)]
        memory = None if self.memory is None else self.memory.grouped(starts)
        merged = replace(
            self,
            forward_ns=np.add.reduceat(self.forward_ns, starts),
            backward_ns=np.add.reduceat(self.backward_ns, starts),
            transfer_ns=self.transfer_ns[starts[1:] - 1],
            layers=self.layers[starts],
            names=tuple(names),
            memory=memory,
        )
        return merged, starts

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format."""
        moves = self.transfer_ns.tolist()
        given: dict[str, Any] = {
            "problem": NAME,
            "version": 1,
            "name": self.name,
            "provenance": self.provenance,
            "forward_ns": self.forward_ns.tolist(),
            "backward_ns": self.backward_ns.tolist(),
            "transfer_ns": moves[0] if len(set(moves)) == 1 else moves,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "names": None if self.names is None else list(self.names),
            "layers": self.layers.tolist(),
        }
        if self.memory is not None:
            given["memory"] = self.memory.to_dict()
        return given


@dataclass(frozen=True)
class Solution:
    """The first sub-layer of every stage but the first."""

    cuts: tuple[int, ...]

    def spans(self, sublayers: int) -> list[tuple[int, int]]:
        """First and last sub-layer of every stage."""
        return [(first, end - 1) for first, end in pairwise((0, *self.cuts, sublayers))]


@dataclass(frozen=True)
class StageCosts:
    """One stage of a solution. transfer_ns: of a message to the next stage. peak_bytes: where memory is given."""

    first: int
    last: int
    forward_ns: int
    backward_ns: int
    transfer_ns: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Evaluation:
    """What a solution costs. time_ns: the simulated iteration."""

    time_ns: int
    micro_batches: int
    work: Work
    stages: tuple[StageCosts, ...]

    @property
    def objective(self) -> int:
        return self.time_ns

    @cached_property
    def timeline(self) -> Timeline:
        """Every pass, of the event simulation, which agrees with the recurrences to the nanosecond."""
        found = simulate(self.work, one_f_one_b(self.work.stages, self.micro_batches))
        assert found.time_ns == self.time_ns
        return found

    @cached_property
    def critical(self) -> Critical:
        """The critical path nearest the last stage, and its master stage."""
        return critical_path(self.timeline)


def load(source: Source, where: str = "instance") -> Instance:
    """An instance from a file or a dict (which errors then call `where`). Raises InputError naming file, field and fix."""
    record = parse(source, InstanceRecord, where if isinstance(source, Mapping) else None)
    count = len(record.forward_ns)
    moves = record.transfer_ns if isinstance(record.transfer_ns, list) else [record.transfer_ns] * (count - 1)
    return Instance(
        forward_ns=np.array(record.forward_ns, np.int64),
        backward_ns=np.array(record.backward_ns, np.int64),
        transfer_ns=np.array(moves, np.int64),
        stages=record.stages,
        micro_batches=record.micro_batches,
        layers=np.array(range(count) if record.layers is None else record.layers, np.int64),
        names=None if record.names is None else tuple(record.names),
        memory=None if record.memory is None else Memory.of(record.memory, record.stages),
        name=record.name or NAME,
        provenance=record.provenance or {},
    )


def load_solution(source: Source) -> Solution:
    """A solution from a file or a dict. Raises InputError."""
    return Solution(tuple(parse(source, SolutionRecord, "solution" if isinstance(source, Mapping) else None).cuts))


def solution_dict(solution: Solution) -> dict[str, Any]:
    """A solution in its file format."""
    return {"cuts": [int(first) for first in solution.cuts]}


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """Time and memory of a solution. Raises ValueError where it is no solution of the instance."""
    if wrong := _malformed(instance, solution):
        raise ValueError(wrong[0])
    work, memory = instance.work(solution.cuts), instance.memory
    moves, found = (*work.transfer_ns, 0), []
    for x, (first, last) in enumerate(solution.spans(instance.sublayers)):
        peak = None if memory is None else memory.peak_bytes(first, last + 1, instance.in_flight(x))
        found.append(StageCosts(first, last, work.forward_ns[x], work.backward_ns[x], moves[x], peak))
    return Evaluation(iteration_ns(work, instance.micro_batches), instance.micro_batches, work, tuple(found))


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """What users see of a solution's costs."""
    result = evaluate(instance, solution)
    told: dict[str, Any] = {
        "time_ns": result.time_ns,
        "pipeline": instance.stages,
        "micro_batches": instance.micro_batches,
        "startup_ns": result.timeline.startup_ns,
        "bubble": result.timeline.bubble,
        "master_stage": result.critical.master,
        "stages": [asdict(stage) for stage in result.stages],
    }
    if (memory := instance.memory) is not None:
        fullest = memory.fullest_stage([stage.peak_bytes for stage in result.stages])
        stage = result.stages[fullest]
        told |= {"peak_bytes": stage.peak_bytes, "peak_stage": fullest}
        told["peak_layer"] = memory.peak_layer(stage.first, stage.last + 1)
        told["peak_layer_name"] = f"{instance.name_of(told['peak_layer'])} in stage {fullest}"
    return told


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, in words; empty where it is feasible."""
    if wrong := _malformed(instance, solution):
        return wrong
    if (memory := instance.memory) is None:
        return []
    found = []
    for number, (first, last) in enumerate(solution.spans(instance.sublayers)):
        peak, limit = memory.peak_bytes(first, last + 1, instance.in_flight(number)), int(memory.limit_bytes[number])
        if peak > limit:
            found.append(
                f"stage {number}: {instance.name_of(first)} to {instance.name_of(last)} need {peak} bytes "
                f"({format_bytes(peak)}), {peak - limit} more than its limit of {limit}"
            )
    return found


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    bounds = (0, *solution.cuts, instance.sublayers)
    if len(solution.cuts) != instance.stages - 1 or any(first >= end for first, end in pairwise(bounds)):
        told = f"give {instance.stages - 1}, strictly increasing, of 1 to {instance.sublayers - 1}"
        return [f"cuts is {list(solution.cuts)}; {told}"]
    return []
