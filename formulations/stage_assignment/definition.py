"""stage-assignment as a `Problem`: the layer assignment alone, from a request to a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from trainplan.formulations.cluster_strategy.definition import layout, strategy_instance
from trainplan.formulations.cluster_strategy.problem import Degrees
from trainplan.formulations.cluster_strategy.problem import Instance as StrategyInstance
from trainplan.formulations.cluster_strategy.problem import Solution as Strategy
from trainplan.formulations.parameters import BY_UNIT, IGNORE_MEMORY, MICRO_BATCHES, PIPELINE, RECOMPUTE, TP
from trainplan.formulations.plan import Plan
from trainplan.formulations.problem import Problem, Table
from trainplan.formulations.request import Request
from trainplan.formulations.stage_assignment import enumeration, problem
from trainplan.formulations.stage_assignment.problem import NAME, Instance, InstanceRecord, Solution, SolutionRecord
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time


class StageAssignment(Problem):
    """Which consecutive layers form each stage of a pipeline (AMP, Sections 3.4 and 3.5)."""

    home = problem
    name = NAME
    record = InstanceRecord
    solution_record = SolutionRecord
    solution_field = "cuts"
    parameters = (
        replace(PIPELINE, default=1),
        replace(MICRO_BATCHES, default=1),
        replace(TP, default=1),
        RECOMPUTE,
        IGNORE_MEMORY,
        BY_UNIT,
    )

    def explain(self, instance: Instance) -> Any:
        """Why no cuts fit, as an `Infeasibility`; None where some do."""
        return attribute("trainplan.solvers.assignment.memory:explain")(instance)

    def cost_model(self, instance: Instance) -> str:
        """AMP's costs and Eq. 5."""
        return "amp, Eq. 5"

    def memory_bytes(self, instance: Instance) -> int | None:
        """The limit of every stage, where all have the same; else None."""
        limits = set() if instance.memory is None else set(instance.memory.limit_bytes.tolist())
        return limits.pop() if len(limits) == 1 else None

    def with_memory(self, instance: Instance, memory_bytes: int) -> Instance:
        """Raises InputError where the instance does not say what its layers need."""
        if instance.memory is None:
            raise InputError("instance", "memory", "is missing", "give what each layer needs, to ask for a limit")
        return replace(instance, memory=instance.memory.with_limits(np.full(instance.stages, memory_bytes, np.int64)))

    def instance(self, request: Request) -> Instance:
        """Of `pipeline` stages of `tp` devices, with `micro_batches` micro-batches a pipeline, on devices in order."""
        numbers = (int(request.options.get(name) or 1) for name in (PIPELINE.name, MICRO_BATCHES.name, TP.name))
        return assignment_instance(strategy_instance(request), *numbers)

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """Raises InputError where dp or tmp is no power of two, or the request has no model."""
        whole = strategy_instance(request)
        degrees = Degrees(instance.stages, *(instance.provenance[name] for name in ("dp", "tmp", "mbs")))
        return layout(whole, Strategy(degrees, tuple(range(whole.devices)), solution.cuts, ()), request)

    def count(self, instance: Instance) -> int:
        """The number of ways to cut the layers into stages."""
        return enumeration.count(instance)

    def solutions(self, instance: Instance) -> Iterator[Solution]:
        """All cuts."""
        return enumeration.solutions(instance)

    def size(self, instance: Instance) -> dict[str, int]:
        """Layers and stages, and the memory limit where there is one."""
        sizes = {"layers": instance.layers, "stages": instance.stages}
        limit = self.memory_bytes(instance)
        return sizes if limit is None else sizes | {"memory_bytes": limit}

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """A row for every stage."""
        rows = tuple(
            (
                str(number),
                f"{stage.first} .. {stage.last}",
                str(stage.last - stage.first + 1),
                format_time(stage.time_ns),
                format_time(stage.transfer_ns),
                "-" if stage.peak_bytes is None else format_bytes(stage.peak_bytes),
            )
            for number, stage in enumerate(problem.evaluate(instance, solution).stages)
        )
        return [Table("stages", ("stage", "layers", "count", "time", "transfer", "memory"), rows)]


PROBLEM = StageAssignment()


def assignment_instance(whole: StrategyInstance, pp: int, micro_batches: int, tmp: int = 1) -> Instance:
    """The layer assignment alone, for pp stages of tmp devices and so many micro-batches a pipeline, on devices in order.

    Where pipelines differ, every stage's and boundary's slowest counts, and its smallest device. Raises InputError where the
    cluster or the batch cannot be split so.
    """
    devices, batch = whole.devices, whole.batch
    if tmp not in whole.shards:
        raise InputError("command line", "--tp", f"is {tmp}", f"give one of: {', '.join(map(str, sorted(whole.shards)))}")
    if devices % (pp * tmp) or pp > whole.layers:
        counts = [pp for pp in divisors(devices // tmp) if pp <= whole.layers]
        raise InputError("command line", "--pipeline", f"is {pp}", f"give one of: {', '.join(map(str, counts))}")
    dp = devices // (pp * tmp)
    mbs, rest = divmod(batch, dp * micro_batches)
    if rest or (tmp, mbs) not in whole.tables:
        fix = f"give a multiple of {dp * micro_batches}: {dp} pipelines of {micro_batches} micro-batches"
        raise InputError("command line", "--batch", f"is {batch}", fix)
    placed = whole.placed(Degrees(pp, dp, tmp, mbs), range(devices))
    table, shard = whole.tables[tmp, mbs], whole.shards[tmp]
    memory = {
        "limit_bytes": placed.limits_bytes.min(axis=1).tolist(),
        "state_bytes": shard.state_bytes.tolist(),
        "kept_bytes": table.kept_bytes.tolist(),
        "workspace_bytes": table.workspace_bytes.tolist(),
    }
    return problem.load(
        {
            "problem": NAME,
            "version": 1,
            "name": f"{whole.name}, {pp} stages",
            "provenance": whole.provenance | {"dp": dp, "tmp": tmp, "mbs": mbs},
            "stages": pp,
            "micro_batches": micro_batches,
            "layer_ns": problem.compact(placed.layer_ns.max(axis=1)),
            "transfer_ns": problem.compact(placed.transfer_ns.max(axis=1)) if pp > 1 else [0] * (whole.layers - 1),
            "parameters": shard.gradient_bytes.tolist(),
            "memory": memory if whole.within_memory else None,
        }
    )
