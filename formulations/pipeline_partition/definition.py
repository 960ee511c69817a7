"""The problem pipeline-partition as the rest of trainplan uses it: requests, instances, plans, enumeration, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from trainplan.formulations.parameters import DP, IGNORE_MEMORY, MICRO_BATCHES, PIPELINE, RECOMPUTE, TP, Parameter
from trainplan.formulations.pipeline_partition import problem
from trainplan.formulations.pipeline_partition.costs import build
from trainplan.formulations.pipeline_partition.degrees import PipelineDegrees, degrees_of, possible_degrees
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.pipeline_partition.tables import stage_tables
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Stage
from trainplan.formulations.problem import Problem, Table
from trainplan.formulations.request import Request
from trainplan.formulations.step.schedules import most_sliced
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.plugins import attribute

BY_UNIT = Parameter("by_unit", bool, "cut between any two sub-layers, not between layers only", True)
SLICED = Parameter("sliced", int, "micro-batches to begin in two halves (default: the fewest that do; 0: none)", least=0)
OBJECTIVE = Parameter(
    "objective",
    str,
    "of the exact method: the whole step, or the iteration alone, which is proven",
    "step",
    ("step", "iteration"),
)


class PipelinePartition(Problem):
    """Cutting a chain of sub-layers into pipeline stages for the least simulated 1F1B iteration (AutoPipe)."""

    home = problem
    name = problem.NAME
    record = problem.InstanceRecord
    solution_record = problem.SolutionRecord
    solution_field = "cuts"
    picture = "trainplan.pictures.timeline:draw_partition"
    parameters = (PIPELINE, MICRO_BATCHES, DP, TP, RECOMPUTE, IGNORE_MEMORY, BY_UNIT, SLICED, OBJECTIVE)

    # Judging

    def explain(self, instance: Instance) -> Any:
        """Why no cuts fit, as an `Infeasibility`; None where some do."""
        return attribute("trainplan.solvers.assignment.memory:explain")(instance)

    def cost_model(self, instance: Instance) -> str:
        """The costs, which are those of trainplan's own programs, and the objective of a plan's claim: the simulated step."""
        return f"{instance.provenance.get('cost_model', 'executed')}, simulated 1F1B step"

    # Memory

    def memory_bytes(self, instance: Instance) -> int | None:
        """The limit of one device; None without one, or where stages have different ones."""
        limits = set() if instance.memory is None else set(instance.memory.limit_bytes.tolist())
        return limits.pop() if len(limits) == 1 else None

    def with_memory(self, instance: Instance, memory_bytes: int) -> Instance:
        """The instance under another limit of every device. Raises InputError where it does not say what sub-layers need."""
        if instance.memory is None:
            raise InputError("instance", "memory", "is missing", "build it without --ignore-memory")
        limits = np.full(instance.stages, memory_bytes, np.int64)
        return replace(instance, memory=instance.memory.with_limits(limits))

    # From a request to a plan

    def instance(self, request: Request) -> Instance:
        """One of dp pipelines of one depth (default: one stage, one micro-batch, all devices). Raises InputError."""
        options = request.options
        degrees = (options[name] for name in ("pipeline", "micro_batches", "dp", "tp"))
        [instance] = self._built(request, [degrees_of(request.origin.devices, *degrees)])
        return instance

    def instances(self, request: Request) -> list[Instance]:
        """The instances of all depths and numbers of micro-batches that are possible, or asked for. Raises InputError."""
        options = request.options
        asked = (options[name] for name in ("pipeline", "micro_batches", "dp", "tp"))
        possible = possible_degrees(request.origin.devices, len(request.chain.units), request.samples, *asked)
        if options["sliced"]:
            possible = _that_slice(possible, request.samples, options["sliced"])
        return self._built(request, possible)

    def _built(self, request: Request, degrees: Sequence[PipelineDegrees]) -> list[Instance]:
        """The instances of these degrees, all of one tensor-parallel degree, from one profile."""
        options, batch, tp = request.options, request.samples, degrees[0].tp
        if tp not in (tps := request.chain.tp_degrees(tp)):
            raise InputError("command line", "--tp", f"is {tp}", f"give one of: {', '.join(map(str, tps))}")
        profile = request.profile_for(sorted({depth.rows(batch) for depth in degrees}), [tp])
        instances = [
            build(
                profile,
                batch,
                depth,
                memory_bytes=None if options["ignore_memory"] else request.limit_bytes,
                recompute=options["recompute"],
                name=f"{profile.name} on {request.place}, {depth.pp} stages",
                provenance={"cluster": request.place},
            )
            for depth in degrees
        ]
        if options["by_unit"]:
            return instances
        whole = [instance.between_layers()[0] for instance in instances]
        if not (possible := [instance for instance in whole if instance.stages <= instance.sublayers]):
            fix = f"give at most {whole[0].sublayers}, one layer a stage, or --by-unit"
            raise InputError("command line", "--pipeline", f"is {whole[0].stages}", fix)
        return possible

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution; of an instance with whole layers, too. Raises InputError where the request has no model."""
        if (model := request.model) is None:
            raise InputError("command line", "--model", "is missing", "give it: a plan names the units of a model")
        source, units = instance.provenance, model.units
        degrees = PipelineDegrees(instance.stages, source["dp"], source["tp"], instance.micro_batches)
        strategy, size = str(degrees.strategy(source["recompute"])), degrees.stage_size
        cuts = solution.cuts
        if instance.sublayers < len(units):
            firsts = {unit.layer: place for place, unit in reversed(list(enumerate(units)))}
            cuts = tuple(firsts[int(instance.layers[cut])] for cut in cuts)
        return Plan(
            model=model.shape(),
            model_digest=model.digest,
            world=degrees.devices,
            memory_bytes=request.limit_bytes + request.reserve_bytes,
            batch=Batch(global_samples=request.samples, micro_batches=instance.micro_batches),
            sliced=solution.sliced,
            stages=[
                Stage(ranks=list(range(x * size, (x + 1) * size)), first_unit=first, last_unit=last)
                for x, (first, last) in enumerate(Solution(cuts).spans(len(units)))
            ],
            units=[PlannedUnit(name=unit.name, strategy=strategy) for unit in units],
        )

    # Brute force

    def count(self, instance: Instance) -> int:
        """The number of partitions: the ways to choose p - 1 of n - 1 cuts."""
        return comb(instance.sublayers - 1, instance.stages - 1)

    def solutions(self, instance: Instance) -> Iterator[Solution]:
        """Every partition, in lexicographic order of its cuts."""
        return map(Solution, combinations(range(1, instance.sublayers), instance.stages - 1))

    # For people

    def size(self, instance: Instance) -> dict[str, int]:
        """Sub-layers, stages and micro-batches, and the memory limit where there is one."""
        sizes = {"sublayers": instance.sublayers, "stages": instance.stages, "micro_batches": instance.micro_batches}
        limit = self.memory_bytes(instance)
        return sizes if limit is None else sizes | {"memory_bytes": limit}

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """The stages of a partition, and what its simulated step is made of."""
        return stage_tables(instance, problem.describe(instance, solution))


def _that_slice(possible: Sequence[PipelineDegrees], batch: int, sliced: int) -> list[PipelineDegrees]:
    """The degrees with which so many micro-batches can be sliced. Raises InputError where there are none."""
    counts = [most_sliced(depth.pp, depth.micro_batches) if depth.rows(batch) % 2 == 0 else 0 for depth in possible]
    if sliced > (most := max(counts)):
        fix = f"give at most {most}" if most else "give more than one stage, and an even number of samples a micro-batch"
        raise InputError("command line", "--sliced", f"is {sliced}", fix)
    return [depth for depth, count in zip(possible, counts, strict=True) if count >= sliced]


PROBLEM = PipelinePartition()
