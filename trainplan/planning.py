"""From a model and a cluster to a checked plan: profile, instance, proven stages and strategies, programs that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.run.processes import EXECUTED_DTYPES, EXECUTED_FAMILIES, MOST_PROCESSES
from trainplan.execution.walk.checks import check
from trainplan.execution.walk.memory import Backend, memory_walk
from trainplan.formulations.layer_strategies.costs import COST_MODELS
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.problem import Instance, Schedule, Solution, load_solution
from trainplan.formulations.pipeline.spaces import space, stage_powers
from trainplan.formulations.pipeline_partition.costs import PlannedWork, planned_work
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Predicted, Stage, StageTimes
from trainplan.formulations.step.timeline import Work
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Progress
from trainplan.solvers.core.solve import solve, versions

LARGEST_MEMORY = 2**48
LARGEST_BATCH = 10**9


@dataclass(frozen=True)
class Planned:
    """A plan with its certificate. plan is None where `result` has no solution (its status and reason say why).

    cheapest_time_ns, cheapest_bytes: the best plan without a memory limit, and what it needs. walk_bytes: the peak of every
    rank by the memory walk over its program.
    """

    plan: Plan | None
    result: Result
    instance: Instance
    profile: Profile
    cheapest_time_ns: int
    cheapest_bytes: int
    walk_bytes: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "cheapest_time_ns": self.cheapest_time_ns,
            "cheapest_bytes": self.cheapest_bytes,
            "walk_bytes": list(self.walk_bytes),
        }


def runs(model: Model) -> bool:
    """Whether plans of the model run."""
    return model.family in EXECUTED_FAMILIES and model.dtype in EXECUTED_DTYPES


def make_plan(
    model: Model,
    cluster: Cluster,
    batch: int,
    memory_bytes: int | None = None,
    *,
    profile: Profile | None = None,
    measured: bool = False,
    method: str = "exact",
    pipeline: int | None = None,
    micro_batches: int | None = None,
    schedule: Schedule = "1f1b",
    space_name: str = "full",
    by_unit: bool = False,
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    measuring: Report | None = None,
) -> Planned:
    """Find the fastest plan over all devices of the cluster within the memory, with its proof.

    pipeline, micro_batches: their numbers (default: all that are possible, the best is found). space_name: see
    `formulations.pipeline.spaces`. Costs are those of the `executed` cost model, so that the plan is costed as it will run.
    Raises InputError.
    """
    memory_bytes = cluster.memory_bytes if memory_bytes is None else memory_bytes
    if not 0 < memory_bytes <= LARGEST_MEMORY:
        raise InputError("command line", "--memory", f"is {memory_bytes} bytes", "give more than 0, such as 8GiB")
    executable = runs(model)
    if executable:
        model = model.fused()  # as it will run
    counts, numbers = stage_counts(cluster.devices, pipeline), micro_batch_counts(batch, micro_batches)
    groups, sizes = [cluster.devices // count for count in reversed(counts)], [batch // m for m in numbers]
    profile = obtain_profile(
        model, cluster, sizes, groups, devices=cluster.devices, earlier=profile, measured=measured, progress=measuring
    )
    costs = PipelineCosts(profile, costs=COST_MODELS["executed"], space=space(space_name), by_unit=by_unit)
    name = f"{profile.name} on {cluster.name}"
    instance = costs.instance(batch, memory_bytes, schedule=schedule, stages=counts, micro_batches=numbers, name=name)
    free = solve(instance.with_memory(LARGEST_MEMORY), "exact")
    assert free.solution is not None and free.evaluation is not None and free.objective is not None
    result = solve(instance, method, time_limit=time_limit, gap=gap, seed=seed, progress=progress)
    plan, walks = None, tuple[int, ...]()
    if result.solution is not None:
        plan = plan_of(model, cluster.devices, instance, load_solution(result.solution), result, profile)
        walks = checked_walk(plan) if executable else ()
        if max(walks, default=0) > memory_bytes:
            over = max(walks) - memory_bytes
            raise InputError(
                "plan",
                "memory",
                f"is {over} bytes short for the compiled program",
                f"give --memory of at least {max(walks)} bytes",
            )
    return Planned(plan, result, instance, profile, free.objective, free.evaluation["peak_bytes"], walks)


def stage_counts(devices: int, pipeline: int | None) -> list[int]:
    """Numbers of stages to try: all powers of two that divide the devices, or the one asked for. Raises InputError."""
    possible = stage_powers(devices)
    if pipeline is None:
        return possible
    if pipeline not in possible:
        raise InputError("command line", "--pipeline", f"is {pipeline}", f"give one of: {', '.join(map(str, possible))}")
    return [pipeline]


def micro_batch_counts(batch: int, micro_batches: int | None) -> list[int]:
    """Numbers of micro-batches to try: all divisors of the batch, or the one asked for. Raises InputError."""
    if not 1 <= batch <= LARGEST_BATCH:
        raise InputError("command line", "--batch", f"is {batch}", f"give 1 to {LARGEST_BATCH} samples")
    if micro_batches is None:
        return divisors(batch)
    if micro_batches < 1 or batch % micro_batches:
        problem = f"is {batch} in {micro_batches} micro-batches"
        raise InputError("command line", "--batch", problem, "give a multiple of --micro-batches")
    return [micro_batches]


def plan_of(model: Model, devices: int, instance: Instance, solution: Solution, result: Result, profile: Profile) -> Plan:
    """The plan of a solution: a layer's strategy is that of all its units."""
    assert result.evaluation is not None and result.objective is not None
    given = instance.configurations[solution.configuration]
    names = [given.tables.strategies[s] for s in solution.choice]
    by_layer = instance.layers == model.units[-1].layer + 1
    layer_of = [unit.layer if by_layer else place for place, unit in enumerate(model.units)]
    size, stages = devices // given.stages, []
    for number, (first, last) in enumerate(solution.spans()):
        units = [place for place, layer in enumerate(layer_of) if first <= layer <= last]
        ranks = list(range(number * size, (number + 1) * size))
        stages.append(Stage(ranks=ranks, first_unit=units[0], last_unit=units[-1]))
    predicted = Predicted(
        step_ns=result.objective,
        peak_bytes=result.evaluation["peak_bytes"],
        lower_bound_ns=result.bound,
        gap=result.gap,
        method=result.method,
        status=result.status,
        profile_origin=profile.origin,
        versions=versions(),
    )
    made = Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=devices,
        memory_bytes=instance.memory_bytes,
        batch=Batch(global_samples=instance.batch, micro_batches=given.micro_batches),
        schedule=given.schedule,
        stages=stages,
        units=[PlannedUnit(name=unit.name, strategy=names[layer]) for unit, layer in zip(model.units, layer_of, strict=True)],
        predicted=predicted,
    )
    return timed(made, profile)


def timed(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None) -> Plan:
    """The plan with the times of its stages, by which it can be simulated. kinds: of the devices, where there are several."""
    assert plan.predicted is not None
    found = work_of(plan, profile, kinds)
    return plan.changed(predicted=plan.predicted.changed(stages=stage_times(found.work, found.syncs_ns)))


def work_of(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None) -> PlannedWork:
    """What the stages of a plan take. kinds: as of `timed`. Raises InputError."""
    return planned_work(plan, [_of_stage(profile, plan, stage, kinds) for stage in plan.stages])


def stage_times(work: Work, syncs_ns: Sequence[int]) -> list[StageTimes]:
    """In the plan's form."""
    rows = zip(work.forward_ns, work.backward_ns, (*work.transfer_ns, 0), syncs_ns, strict=True)
    return [StageTimes(forward_ns=f, backward_ns=b, transfer_ns=c, sync_ns=d) for f, b, c, d in rows]


def _of_stage(profile: Profile, plan: Plan, stage: Stage, kinds: Sequence[str] | None) -> Profile:
    """What the profile knows of the kinds of device that a stage is on."""
    if kinds is None or len(set(kinds)) == 1:
        return profile
    devices = plan.placement or range(plan.world)
    own = {kinds[devices[rank]] for rank in stage.ranks}
    return profile.changed(costs=[entry for entry in profile.costs if entry.device in own])


def checked_walk(plan: Plan, backends: Sequence[Backend] = ("serial",)) -> tuple[int, ...]:
    """Compile a plan, check its programs, and walk them: the peak bytes of every rank, on whichever back-end needs the most.

    Beyond MOST_PROCESSES, which do not run here, of one rank of each stage alone, unchecked: of the pipeline with the most
    micro-batches.
    """
    if plan.world > MOST_PROCESSES:
        shares = plan.batch.shares
        busiest = 0 if shares is None else shares.index(max(shares)) * (plan.stage_size // len(shares))
        programs = compile_plan(plan, ranks=[stage.ranks[busiest] for stage in plan.stages])
    else:
        programs = compile_plan(plan)
        faults = check(programs)
        assert not faults, faults[0]
    return tuple(max(memory_walk(program, backend).peak_bytes for backend in backends) for program in programs)
