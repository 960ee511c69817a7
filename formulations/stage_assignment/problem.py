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
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator
from trainplan.formulations.layer_strategies.problem import Bytes, Integers, TimeNs
from trainplan.profiling.errors import InputError
from trainplan.profiling.files import Record, Source, parse
from trainplan.profiling.quantities import format_bytes

NAME = "stage-assignment"
LARGEST_NS, LARGEST_BYTES = 2**53, 2**62
COLUMNS = ("state_bytes", "kept_bytes", "workspace_bytes")


def _branch(value: Any) -> str:
    """Which of the two forms a field is given in. The names are of the kind that errors leave out of a field's path."""
    return "list[list]" if isinstance(value, list) and value and isinstance(value[0], list) else "list[one]"


Row = Annotated[list[TimeNs], Tag("list[one]")]
Rows = Annotated[list[list[TimeNs]], Tag("list[list]")]
Times = Annotated[Row | Rows, Discriminator(_branch)]
Limit = Annotated[int, Field(gt=0, le=2**48)]
Limits = Annotated[
    Annotated[Limit, Tag("list[one]")] | Annotated[list[Limit], Tag("list[each]")],
    Discriminator(lambda value: "list[each]" if isinstance(value, list) else "list[one]"),
]


class MemoryRecord(Record):
    """What the layers need, and what the devices have."""

    limit_bytes: Annotated[Limits, Field(description="E: of every stage's device, or a list with one for each stage")]
    state_bytes: Annotated[list[Bytes], Field(description="O_ms: parameters, gradients, optimizer states of each layer")]
    kept_bytes: Annotated[list[Bytes], Field(description="O_f: kept for one micro-batch until its backward pass")]
    workspace_bytes: Annotated[list[Bytes], Field(description="O_w: held while the layer itself is computed")]


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
            _check("parameters", self.parameters, layers, "one for each layer")
        moves: list[Any] = self.transfer_ns if _many(self.transfer_ns) else [self.transfer_ns] * (self.stages - 1)
        slowest = sum(max(column) for column in zip(*times, strict=True)) + sum(max(row, default=0) for row in moves)
        most = [("ns", self.micro_batches * slowest, LARGEST_NS)]
        if self.memory is not None:
            for name in COLUMNS:
                _check(f"memory.{name}", getattr(self.memory, name), layers, "one for each layer")
            if isinstance(self.memory.limit_bytes, list):
                _check("memory.limit_bytes", self.memory.limit_bytes, self.stages, "one for each stage")
            state, kept, workspace = (sum(getattr(self.memory, name)) for name in COLUMNS)
            most.append(("bytes", state + min(self.stages, self.micro_batches) * kept + workspace, LARGEST_BYTES))
        for unit, total, limit in most:
            if total >= limit:
                told = f"is {self.micro_batches}, with which {layers} layers may take {total:.3g} {unit}"
                raise InputError("", "micro_batches", told, f"give numbers that stay below {limit:.3g}")
        return self

    def _check_times(self, name: str, length: int, count: int) -> None:
        given: list[Any] = getattr(self, name)
        told = "one for each layer" if name == "layer_ns" else "one for each cut between two layers"
        if not _many(given):
            _check(name, given, length, told)
            return
        _check(name, given, count, "one for each stage" if name == "layer_ns" else "one for each boundary of two stages")
        for place, row in enumerate(given):
            _check(f"{name}[{place}]", row, length, told)


class SolutionRecord(Record):
    """The file format of a solution: the first layer of every stage but the first, layers numbered from 0."""

    cuts: list[Annotated[int, Field(ge=0)]]


def _many(value: list[Any]) -> bool:
    return _branch(value) == "list[list]"


def _check(name: str, found: list[Any], wanted: int, told: str) -> None:
    if len(found) != wanted:
        raise InputError("", name, f"has {len(found)} entries", f"give {wanted}, {told}")


@dataclass(frozen=True, eq=False)
class Memory:
    """limit_bytes: of each of the k stages. state_bytes, kept_bytes, workspace_bytes: of each of the L layers."""

    limit_bytes: Integers
    state_bytes: Integers
    kept_bytes: Integers
    workspace_bytes: Integers


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
        return len(self.layer_ns)

    @property
    def layers(self) -> int:
        return self.layer_ns.shape[1]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the answer depends on (not of names or provenance)."""
        content = {name: value for name, value in self.to_dict().items() if name not in ("name", "provenance")}
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at once, under 1F1B."""
        return min(self.micro_batches, self.stages - stage)

    def with_limits(self, limit_bytes: Integers) -> Instance:
        """The same instance under other limits of memory."""
        assert self.memory is not None
        return replace(self, memory=replace(self.memory, limit_bytes=limit_bytes))

    def to_dict(self) -> dict[str, Any]:
        """The instance in its file format: one list where all stages have the same."""
        given: dict[str, Any] = {
            "problem": NAME,
            "version": 1,
            "name": self.name,
            "provenance": self.provenance,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "layer_ns": _compact(self.layer_ns),
            "transfer_ns": _compact(self.transfer_ns),
        }
        if self.parameters is not None:
            given["parameters"] = self.parameters.tolist()
        if self.memory is not None:
            limits = self.memory.limit_bytes.tolist()
            given["memory"] = {"limit_bytes": limits[0] if len(set(limits)) == 1 else limits}
            given["memory"] |= {name: getattr(self.memory, name).tolist() for name in COLUMNS}
        return given


def _compact(rows: Integers) -> list[Any]:
    equal = len(rows) > 0 and bool((rows == rows[0]).all())
    return rows[0].tolist() if equal else rows.tolist()


@dataclass(frozen=True)
class Solution:
    """The first layer of every stage but the first."""

    cuts: tuple[int, ...]


@dataclass(frozen=True)
class StageCosts:
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
    stages: tuple[StageCosts, ...]

    @property
    def objective(self) -> int:
        return self.time_ns


def load(source: Source, where: str = "instance") -> Instance:
    """An instance from a file or a dict (which errors then call `where`). Raises InputError naming file, field and fix."""
    record = parse(source, InstanceRecord, where if isinstance(source, Mapping) else None)
    stages = record.stages
    layer_ns = np.array(record.layer_ns, np.int64)
    layers = layer_ns.shape[-1]
    moves = np.array(record.transfer_ns if stages > 1 else [0] * (layers - 1), np.int64)
    memory = None
    if record.memory is not None:
        limits = np.broadcast_to(np.array(record.memory.limit_bytes, np.int64), (stages,))
        memory = Memory(limits, *(np.array(getattr(record.memory, name), np.int64) for name in COLUMNS))
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
    found = []
    for i, (first, end) in enumerate(pairwise((0, *solution.cuts, instance.layers))):
        time = int(instance.layer_ns[i, first:end].sum())
        sent = int(instance.transfer_ns[i, end - 1]) if i + 1 < instance.stages else 0
        found.append(StageCosts(first, end - 1, time, sent, _peak_bytes(instance, i, first, end)))
    slowest = max(stage.time_ns for stage in found)
    whole = sum(stage.time_ns + stage.transfer_ns for stage in found)
    return Evaluation((instance.micro_batches - 1) * slowest + whole, tuple(found))


def _peak_bytes(instance: Instance, stage: int, first: int, end: int) -> int | None:
    memory = instance.memory
    if memory is None:
        return None
    state, kept = int(memory.state_bytes[first:end].sum()), int(memory.kept_bytes[first:end].sum())
    return state + instance.in_flight(stage) * kept + int(memory.workspace_bytes[first:end].max())


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """What users see of a solution's costs."""
    result = evaluate(instance, solution)
    told: dict[str, Any] = {
        "time_ns": result.time_ns,
        "pipeline": instance.stages,
        "micro_batches": instance.micro_batches,
        "slowest_ns": max(stage.time_ns for stage in result.stages),
        "transfers_ns": sum(stage.transfer_ns for stage in result.stages),
        "stages": [asdict(stage) for stage in result.stages],
    }
    if instance.memory is not None:
        fullest = fullest_stage(instance, result)
        stage = result.stages[fullest]
        told |= {"peak_bytes": stage.peak_bytes, "peak_stage": fullest, "peak_layer": peak_layer(instance, stage)}
        told["peak_layer_name"] = f"layer {told['peak_layer']} in stage {fullest}"
    return told


def fullest_stage(instance: Instance, result: Evaluation) -> int:
    """The stage that comes nearest to its limit, or goes furthest past it."""
    assert instance.memory is not None
    spare = [
        int(limit) - (stage.peak_bytes or 0) for limit, stage in zip(instance.memory.limit_bytes, result.stages, strict=True)
    ]
    return spare.index(min(spare))


def peak_layer(instance: Instance, stage: StageCosts) -> int:
    """The layer during which a stage needs most."""
    assert instance.memory is not None
    return stage.first + int(instance.memory.workspace_bytes[stage.first : stage.last + 1].argmax())


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, in words; empty where it is feasible."""
    if wrong := _malformed(instance, solution):
        return wrong
    if instance.memory is None:
        return []
    found = []
    for number, stage in enumerate(evaluate(instance, solution).stages):
        peak, limit = stage.peak_bytes or 0, int(instance.memory.limit_bytes[number])
        if peak > limit:
            found.append(
                f"stage {number}: layers {stage.first} to {stage.last} need {peak} bytes ({format_bytes(peak)}), "
                f"{peak - limit} more than its limit of {limit}"
            )
    return found


def _malformed(instance: Instance, solution: Solution) -> list[str]:
    bounds = (0, *solution.cuts, instance.layers)
    if len(solution.cuts) != instance.stages - 1 or any(first >= end for first, end in pairwise(bounds)):
        told = f"give {instance.stages - 1}, strictly increasing, of 1 to {instance.layers - 1}"
        return [f"cuts is {list(solution.cuts)}; {told}"]
    return []


def first_layers(instance: Instance) -> Integers:
    """(k, L): the least first layer with which stage i fits its limit when layer l is its last; l + 1 where l alone does not.

    A longer stage needs no less, so stage i fits exactly where it begins at this layer or later. Found by doubling: a span
    grows to the left by the largest power of two with which it still fits, then by smaller ones.
    """
    memory, layers = instance.memory, instance.layers
    assert memory is not None
    largest = [memory.workspace_bytes]  # of 1, 2, 4, .. layers from each on
    while 2 << len(largest) - 1 <= layers:
        half = 1 << len(largest) - 1
        largest.append(np.maximum(largest[-1][:-half], largest[-1][half:]))
    found = np.empty((instance.stages, layers), np.int64)
    known: dict[tuple[int, int], int] = {}
    for i, limit in enumerate(memory.limit_bytes.tolist()):
        same = known.setdefault((instance.in_flight(i), limit), i)
        if same < i:
            found[i] = found[same]
            continue
        held = np.concatenate([[0], np.cumsum(memory.state_bytes + instance.in_flight(i) * memory.kept_bytes)])
        first, peak = np.arange(1, layers + 1), np.zeros(layers, np.int64)
        for level in reversed(range(len(largest))):
            tried = first - (1 << level)
            place = np.maximum(tried, 0)
            grown = np.maximum(peak, largest[level][np.minimum(place, len(largest[level]) - 1)])
            fits = (tried >= 0) & (held[1:] - held[place] + grown <= limit)
            first, peak = np.where(fits, tried, first), np.where(fits, grown, peak)
        found[i] = first
    return found


def precedences(instance: Instance) -> list[tuple[int, int, int]]:
    """(i, first, l): a stage i that holds layer l must not begin before layer `first`. Those that follow from others are left
    out; there are none without memory. The last stage holds the last layer, and the others leave one for each after them."""
    if instance.memory is None:
        return []
    windows, found = first_layers(instance), []
    for i, row in enumerate(windows.tolist()):
        for l in range(i, instance.layers - instance.stages + i + 1):
            implied = row[l - 1] if l > i else 0
            if row[l] > max(implied, i):
                found.append((i, row[l], l))
    return found


def most_ns(instance: Instance) -> int:
    """A time that no stage exceeds, nor all stages and transfers together."""
    moves = int(instance.transfer_ns.max(axis=1).sum()) if instance.stages > 1 and instance.layers > 1 else 0
    return int(instance.layer_ns.max(axis=0).sum()) + moves
