"""stage-assignment: cut a chain of L layers into k pipeline stages (AMP, Sections 3.4 and 3.5).

Stage i = 0 .. k-1 holds consecutive layers, at least one; gas micro-batches run through all stages. Choose the cuts that

    minimise    (gas - 1) max_i t_i + sum_i e_i + sum_i t_i                                          Eq. 5, nanoseconds
    with        t_i = sum of c(i, l) over the layers l of stage i         where devices differ, c depends on the stage, too
                e_i = e(i, l), sending what leaves layer l, the last one of stage i < k-1, to stage i + 1
    subject to  sum O_ms(l) + n_i sum O_f(l) + max O_w(l) <= E_i     over the layers of stage i, bytes, where memory is given
                n_i = min(gas, k - i) micro-batches in flight under 1F1B.

AMP knows no memory; this part is ours. O_ms: model states; O_f: what one micro-batch keeps from its forward pass to its
backward pass; O_w: what the layer's own computation adds for its duration. `evaluate` and `violations` know no solver; all
numbers are integers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator
from trainplan.formulations.layer_strategies.problem import Integers, TimeNs
from trainplan.formulations.step.schedules import most_in_flight
from trainplan.formulations.step.stage_memory import Memory, MemoryRecord, check_length
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, Source, parse
from trainplan.profiling.base.quantities import format_bytes

NAME = "stage-assignment"
LARGEST_NS, LARGEST_BYTES = 2**53, 2**62


def _branch(value: Any) -> str:
    """Which of the two forms a field is given in. The names are of the kind that errors leave out of a field's path."""
    return "list[list]" if isinstance(value, list) and value and isinstance(value[0], list) else "list[one]"


Row = Annotated[list[TimeNs], Tag("list[one]")]
Rows = Annotated[list[list[TimeNs]], Tag("list[list]")]
Times = Annotated[Row | Rows, Discriminator(_branch)]


class InstanceRecord(Record):
    """The file format of a stage-assignment instance, version 1."""

    problem: Literal["stage-assignment"]
    version: Literal[1]
    name: str | None = None
    provenance: dict[str, Any] | None = None
    stages: Annotated[int, Field(ge=1, le=10_000)]
    micro_batches: Annotated[int, Field(ge=1, le=10**6, description="gas: micro-batches of one iteration")]
    layer_ns: Annotated[Times, Field(description="c: time of each layer; or such a list for each stage, where devices differ")]
    transfer_ns: Annotated[Times, Field(description="e: time of each cut between two layers; or such a list for each boundary")]
    parameters: Annotated[
        list[Annotated[int, Field(ge=0, le=2**40)]] | None,
        Field(description="of each layer, for the method uniform-parameters"),
    ] = None
    memory: MemoryRecord | None = None

    @model_validator(mode="after")
    def _shapes(self) -> InstanceRecord:
        times: list[Any] = self.layer_ns if _many(self.layer_ns) else [self.layer_ns]
        layers = len(times[0])
        if not 1 <= layers <= 10_000:
            raise InputError("", "layer_ns", f"has {layers} entries", "give 1 to 10000, one for each layer")
        if self.stages > layers:
            raise InputError("", "stages", f"is {self.stages}", f"give at most {layers}: every stage needs a layer")
        self._check_times("layer_ns", layers, self.stages)
        if self.stages > 1 or self.transfer_ns:
            self._check_times("transfer_ns", layers - 1, self.stages - 1)
        if self.parameters is not None:
            check_length("parameters", self.parameters, layers, "one for each layer")
        moves: list[Any] = self.transfer_ns if _many(self.transfer_ns) else [self.transfer_ns] * (self.stages - 1)
        slowest = sum(max(column) for column in zip(*times, strict=True)) + sum(max(row, default=0) for row in moves)
        most = [("ns", self.micro_batches * slowest, LARGEST_NS)]
        if self.memory is not None:
            self.memory.check(layers, self.stages)
            most.append(("bytes", self.memory.most_bytes(min(self.stages, self.micro_batches)), LARGEST_BYTES))
        for unit, total, limit in most:
            if total >= limit:
                problem = f"is {self.micro_batches}, with which {layers} layers may take {total:.3g} {unit}"
                raise InputError("", "micro_batches", problem, f"give numbers that stay below {limit:.3g}")
        return self

    def _check_times(self, name: str, length: int, count: int) -> None:
        times: list[Any] = getattr(self, name)
        meaning = "one for each layer" if name == "layer_ns" else "one for each cut between two layers"
        if not _many(times):
            check_length(name, times, length, meaning)
            return
        check_length(name, times, count, "one for each stage" if name == "layer_ns" else "one for each boundary of two stages")
        for place, row in enumerate(times):
            check_length(f"{name}[{place}]", row, length, meaning)


class SolutionRecord(Record):
    """The file format of a solution: the first layer of every stage but the first, layers numbered from 0."""

    cuts: list[Annotated[int, Field(ge=0)]]


def _many(value: list[Any]) -> bool:
    return _branch(value) == "list[list]"


@dataclass(frozen=True, eq=False)
class Instance:
    """The problem in arrays. layer_ns: (k, L); transfer_ns: (k-1, L-1), by boundary of two stages and by the layer before."""

    micro_batches: int
    layer_ns: Integers
    transfer_ns: Integers
    memory: Memory | None = None
    parameters: Integers | None = None
    name: str = NAME
    provenance: dict[str, Any] = field(default_factory=dict)

    problem = NAME

    @property
    def stages(self) -> int:
        """The number of stages, k."""
        return len(self.layer_ns)

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return self.layer_ns.shape[1]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the answer depends on (not of names or provenance)."""
        content = {name: value for name, value in self.to_dict().items() if name not in ("name", "provenance")}
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at once, under 1F1B."""
        return most_in_flight("1f1b", self.stages, self.micro_batches, stage)

    def name_of(self, layer: int) -> str:
        """What users see of a layer, which instances do not name."""
        return f"layer {layer}"

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format: one list where all stages have the same."""
        fields: dict[str, Any] = {
            "problem": NAME,
            "version": 1,
            "name": self.name,
            "provenance": self.provenance,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "layer_ns": compact(self.layer_ns),
            "transfer_ns": compact(self.transfer_ns),
        }
        if self.parameters is not None:
            fields["parameters"] = self.parameters.tolist()
        if self.memory is not None:
            fields["memory"] = self.memory.to_dict()
        return fields


def compact(rows: Integers) -> list[Any]:
    """Rows in the file format: a single list where all rows are equal."""
    equal = len(rows) > 0 and bool((rows == rows[0]).all())
    return rows[0].tolist() if equal else rows.tolist()


@dataclass(frozen=True)
class Solution:
    """The first layer of every stage but the first."""

    cuts: tuple[int, ...]


@dataclass(frozen=True)
class AssignedStage:
    """One stage of a solution. transfer_ns: sending to the next stage. peak_bytes: where memory is given."""

    first: int
    last: int
    time_ns: int
    transfer_ns: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Evaluation:
    """What a solution costs, stage by stage. time_ns: Eq. 5."""

    time_ns: int
    stages: tuple[AssignedStage, ...]

    @property
    def objective(self) -> int:
        """Eq. 5, nanoseconds."""
        return self.time_ns


def load(source: Source, where: str = "instance") -> Instance:
    """An instance from a file or a dict (which errors then call `where`). Raises InputError naming file, field and fix."""
    record = parse(source, InstanceRecord, where if isinstance(source, Mapping) else None)
    stages = record.stages
    layer_ns = np.array(record.layer_ns, np.int64)
    layers = layer_ns.shape[-1]
    moves = np.array(record.transfer_ns if stages > 1 else [0] * (layers - 1), np.int64)
    memory = None if record.memory is None else Memory.of(record.memory, stages)
    return Instance(
        micro_batches=record.micro_batches,
        layer_ns=np.broadcast_to(layer_ns, (stages, layers)),
        transfer_ns=np.broadcast_to(moves, (stages - 1, layers - 1)),
        memory=memory,
        parameters=None if record.parameters is None else np.array(record.parameters, np.int64),
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
    """Time and memory of a solution, by Eq. 5 and the sum above. Raises ValueError where it is no solution of the instance."""
    if wrong := _malformed(instance, solution):
        raise ValueError(wrong[0])
    stages = []
    for i, (first, end) in enumerate(pairwise((0, *solution.cuts, instance.layers))):
        time = int(instance.layer_ns[i, first:end].sum())
        sent = int(instance.transfer_ns[i, end - 1]) if i + 1 < instance.stages else 0
        peak = None if instance.memory is None else instance.memory.peak_bytes(first, end, instance.in_flight(i))
        stages.append(AssignedStage(first, end - 1, time, sent, peak))
    slowest = max(stage.time_ns for stage in stages)
    whole = sum(stage.time_ns + stage.transfer_ns for stage in stages)
    return Evaluation((instance.micro_batches - 1) * slowest + whole, tuple(stages))


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """What users see of a solution's costs."""
    result = evaluate(instance, solution)
    costs: dict[str, Any] = {
        "time_ns": result.time_ns,
        "pipeline": instance.stages,
        "micro_batches": instance.micro_batches,
        "slowest_ns": max(stage.time_ns for stage in result.stages),
        "transfers_ns": sum(stage.transfer_ns for stage in result.stages),
        "stages": [asdict(stage) for stage in result.stages],
    }
    if (memory := instance.memory) is not None:
        fullest = memory.fullest_stage([stage.peak_bytes for stage in result.stages])
        stage = result.stages[fullest]
        costs |= {"peak_bytes": stage.peak_bytes, "peak_stage": fullest}
        costs["peak_layer"] = memory.peak_layer(stage.first, stage.last + 1)
        costs["peak_layer_name"] = f"{instance.name_of(costs['peak_layer'])} in stage {fullest}"
    return costs


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, in words; empty where it is feasible."""
    if wrong := _malformed(instance, solution):
        return wrong
    if instance.memory is None:
        return []
    broken = []
    for number, stage in enumerate(evaluate(instance, solution).stages):
        peak, limit = stage.peak_bytes or 0, int(instance.memory.limit_bytes[number])
        if peak > limit:
            broken.append(
                f"stage {number}: layers {stage.first} to {stage.last} need {peak} bytes ({format_bytes(peak)}), "
                f"{peak - limit} more than its limit of {limit}"
            )
    return broken


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    bounds = (0, *solution.cuts, instance.layers)
    if len(solution.cuts) != instance.stages - 1 or any(first >= end for first, end in pairwise(bounds)):
        fix = f"give {instance.stages - 1}, strictly increasing, of 1 to {instance.layers - 1}"
        return [f"cuts is {list(solution.cuts)}; {fix}"]
    return []


def first_layers(instance: Instance) -> Integers:
    """(k, L): the least first layer with which a stage fits its memory when layer l is its last, see `Memory.first_layers`."""
    assert instance.memory is not None
    return instance.memory.first_layers(_in_flight(instance))


def precedences(instance: Instance) -> list[tuple[int, int, int]]:
    """All (i, first, l): a stage i that holds layer l must not begin before layer `first`, see `Memory.precedences`."""
    return [] if instance.memory is None else instance.memory.precedences(_in_flight(instance))


def _in_flight(instance: Instance) -> list[int]:
    return [instance.in_flight(i) for i in range(instance.stages)]


def most_ns(instance: Instance) -> int:
    """A time that no stage exceeds, nor all stages and transfers together."""
    moves = int(instance.transfer_ns.max(axis=1).sum()) if instance.stages > 1 and instance.layers > 1 else 0
    return int(instance.layer_ns.max(axis=0).sum()) + moves
