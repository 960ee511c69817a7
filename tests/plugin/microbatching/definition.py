"""micro-batching: choose the number of micro-batches of one data-parallel stage for the shortest step that fits.

    minimise    time[c]                  over the candidates c, numbers of micro-batches
    subject to  peak[c] <= M

A candidate's time is that of all its passes, one after the other, and OVERHEAD_NS for each micro-batch. Its peak is
parameters, gradients and optimizer states, and what one micro-batch keeps for its backward pass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.plan import Batch, Plan, Stage
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.unit import planned_unit
from trainplan.formulations.problem import Enumeration, Problem, Table
from trainplan.profiling.base.files import Record, Source, parse
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time

OVERHEAD_NS = 1000
STATE_BYTES = 16  # of a parameter: itself, its gradient, two moments


class CandidateRecord(Record):
    micro_batches: Annotated[int, Field(ge=1)]
    time_ns: Annotated[int, Field(ge=0)]
    peak_bytes: Annotated[int, Field(ge=0)]


class InstanceRecord(Record):
    problem: Literal["micro-batching"]
    version: Literal[1]
    name: str = "micro-batching"
    provenance: dict[str, Any] = Field(default_factory=dict)
    memory_bytes: Annotated[int, Field(gt=0)]
    candidates: Annotated[list[CandidateRecord], Field(min_length=1)]


class SolutionRecord(Record):
    candidate: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Instance:
    memory_bytes: int
    candidates: tuple[CandidateRecord, ...]
    name: str = "micro-batching"
    provenance: dict[str, Any] = field(default_factory=dict)

    problem = "micro-batching"

    @property
    def common_memory_bytes(self) -> int:
        return self.memory_bytes

    def with_memory(self, memory_bytes: int) -> Self:
        return replace(self, memory_bytes=memory_bytes)

    @property
    def digest(self) -> str:
        content = [self.memory_bytes, *(candidate.model_dump() for candidate in self.candidates)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "version": 1,
            "name": self.name,
            "provenance": self.provenance,
            "memory_bytes": self.memory_bytes,
            "candidates": [candidate.model_dump() for candidate in self.candidates],
        }


@dataclass(frozen=True)
class Evaluation:
    objective: int
    peak_bytes: int


class MicroBatching(Problem):
    """A solution is the place of a candidate."""

    name = "micro-batching"
    record = InstanceRecord
    solution_record = SolutionRecord
    solved_by = "microbatching"
    enumeration = Enumeration(
        count=lambda instance: len(instance.candidates), solutions=lambda instance: iter(range(len(instance.candidates)))
    )
    parameters = (Parameter("most", int, "the largest number of micro-batches that is tried", 8, least=1),)

    def load(self, source: Source, where: str = "instance") -> Instance:
        record = parse(source, InstanceRecord, where if isinstance(source, Mapping) else None)
        return Instance(record.memory_bytes, tuple(record.candidates), record.name, record.provenance)

    def load_solution(self, source: Source) -> int:
        return parse(source, SolutionRecord, "solution" if isinstance(source, Mapping) else None).candidate

    def solution_dict(self, solution: int) -> dict[str, Any]:
        return {"candidate": solution}

    def evaluate(self, instance: Instance, solution: int) -> Evaluation:
        if solution >= len(instance.candidates):
            raise ValueError(f"candidate is {solution}; give less than {len(instance.candidates)}")
        candidate = instance.candidates[solution]
        return Evaluation(candidate.time_ns, candidate.peak_bytes)

    def violations(self, instance: Instance, solution: int) -> list[str]:
        peak = self.evaluate(instance, solution).peak_bytes
        return [f"needs {peak} bytes of {instance.memory_bytes}"] if peak > instance.memory_bytes else []

    def describe(self, instance: Instance, solution: int) -> dict[str, Any]:
        costs = self.evaluate(instance, solution)
        return {"time_ns": costs.objective, "peak_bytes": costs.peak_bytes}

    def instance(self, request: Request) -> Instance:
        world = request.origin.devices
        numbers = [m for m in divisors(request.samples // world) if m <= request.options["most"]]
        profile = request.profile_for([request.samples // m for m in numbers], [world])
        units = [unit.sublayer for unit in profile.units]
        states = STATE_BYTES * sum(profile.shapes[unit].shard(1).parameters for unit in units)
        candidates = []
        for m in numbers:
            passes = [profile.cost(unit, 1, request.samples // m // world) for unit in units]
            time = m * (OVERHEAD_NS + sum(costs.forward_ns.value + costs.backward_ns.value for costs in passes))
            peak = states + sum(costs.kept_bytes.value for costs in passes)
            candidates.append(CandidateRecord(micro_batches=m, time_ns=round(time), peak_bytes=round(peak)))
        return Instance(request.limit_bytes, tuple(candidates), provenance={"cost_model": "passes and overheads"})

    def plan(self, instance: Instance, solution: int, request: Request) -> Plan:
        world, model = request.origin.devices, request.model
        assert model is not None
        return Plan(
            model=model.shape(),
            model_digest=model.digest,
            world=world,
            memory_bytes=instance.memory_bytes,
            batch=Batch(global_samples=request.samples, micro_batches=instance.candidates[solution].micro_batches),
            stages=[Stage(ranks=list(range(world)), first_unit=0, last_unit=len(model.units) - 1)],
            units=[planned_unit(unit.name, Strategy.of(("dp", world))) for unit in model.units],
        )

    def size(self, instance: Instance) -> dict[str, int]:
        return {"candidates": len(instance.candidates), "memory_bytes": instance.memory_bytes}

    def tables(self, instance: Instance, solution: int) -> list[Table]:
        rows = ((str(c.micro_batches), format_time(c.time_ns), format_bytes(c.peak_bytes)) for c in instance.candidates)
        return [Table("candidates", ("micro-batches", "time", "memory"), tuple(rows))]


PROBLEM = MicroBatching()
