"""From a model and a cluster to a checked plan: profile, instance, proven strategies, programs that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.checks import check
from trainplan.execution.compile import compile_plan
from trainplan.execution.memory import memory_walk
from trainplan.execution.run import EXECUTED_DTYPES, EXECUTED_FAMILIES, MOST_PROCESSES
from trainplan.formulations.layer_strategies import costs as layer_costs
from trainplan.formulations.layer_strategies.problem import Instance, evaluate
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Predicted, Stage
from trainplan.profiling.clusters import Cluster
from trainplan.profiling.complete import for_group
from trainplan.profiling.errors import InputError
from trainplan.profiling.estimate import estimate
from trainplan.profiling.measure import measure
from trainplan.profiling.models import Model
from trainplan.profiling.processes import Report
from trainplan.profiling.profiles import Profile, needed_shapes
from trainplan.solvers.result import Result
from trainplan.solvers.search import Progress
from trainplan.solvers.solve import solve, versions

LARGEST_MEMORY = 2**48


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


def make_profile(
    model: Model | None,
    cluster: Cluster | None,
    samples: int,
    *,
    group: int,
    given: Profile | None = None,
    measured: bool = False,
    progress: Report | None = None,
) -> Profile:
    """The profile to plan with: the given one if it is for this model, else measured on this machine, else estimated.

    What a given profile lacks for these samples is completed from what it has. model, cluster: None where it says all.
    """
    if given is not None:
        if model is not None:
            _check_model(given, model)
        if cluster is not None:
            _check_cluster(given, cluster)
        return for_group(given, group, samples)
    assert model is not None and cluster is not None
    if not measured:
        return estimate(model, cluster, group, samples)
    return measure(model, cluster, needed_shapes(model.tp_degrees(group), group, samples), progress=progress)


def _check_model(given: Profile, model: Model) -> None:
    if given.dtype != model.dtype:
        raise InputError("profile", "dtype", f"is {given.dtype!r}", f"measure for {model.dtype!r}")
    profiled = given.described_model
    if profiled is None:
        told = f"is {given.name!r}, imported, whose sub-layers are not those of {model.name!r}"
        raise InputError("profile", "name", told, "leave --model out and build from the profile alone")
    if profiled.digest != model.digest:
        raise InputError("profile", "model", f"is {profiled.name!r}", f"give a profile of {model.name!r}")
    if profiled.tokens != model.tokens:
        raise InputError("profile", "model.sequence", f"is {profiled.tokens}", f"measure for {model.tokens}")


def _check_cluster(given: Profile, cluster: Cluster) -> None:
    """A profile's times and links are those of its own cluster."""
    kinds, known = {kind.name for kind in cluster.used_kinds}, {kind.name for kind in given.device_kinds}
    if given.cluster != cluster.name or (known and kinds != known):
        fix = f"give a profile of {cluster.name!r}, or leave --cluster out"
        raise InputError("profile", "cluster", f"is {given.cluster!r}, of {', '.join(given.kinds)}", fix)


def make_plan(
    model: Model,
    cluster: Cluster,
    batch: int,
    memory_bytes: int | None = None,
    *,
    profile: Profile | None = None,
    measured: bool = False,
    method: str = "exact",
    micro_batches: int = 1,
    by_unit: bool = False,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    measuring: Report | None = None,
) -> Planned:
    """Find the fastest plan of one stage over all devices of the cluster within the memory, with its proof.

    Costs are those of the `executed` cost model, so that the plan is costed as it will run. Raises InputError.
    """
    memory_bytes = cluster.memory_bytes if memory_bytes is None else memory_bytes
    if not 0 < memory_bytes <= LARGEST_MEMORY:
        raise InputError("command line", "--memory", f"is {memory_bytes} bytes", "give more than 0, such as 8GiB")
    executable = model.family in EXECUTED_FAMILIES and model.dtype in EXECUTED_DTYPES
    if executable:
        model = model.fused()  # as it will run
    stage, costs = layer_costs.Stage(micro_batches=micro_batches), layer_costs.COST_MODELS["executed"]
    group, samples = cluster.devices, stage.samples(batch)
    profile = make_profile(model, cluster, samples, group=group, given=profile, measured=measured, progress=measuring)
    instance = layer_costs.build(profile, memory_bytes, batch, costs=costs, stage=stage, by_unit=by_unit)
    free = solve(instance.with_memory(LARGEST_MEMORY), "exact")
    assert free.solution is not None
    cheapest = evaluate(instance, free.solution["choice"])
    result = solve(instance, method, time_limit=time_limit, seed=seed, progress=progress)
    plan, walks = None, tuple[int, ...]()
    if result.solution is not None:
        plan = _plan_of(model, cluster, batch, micro_batches, instance, result, profile)
        walks = checked_walk(plan) if executable else ()
        if max(walks, default=0) > memory_bytes:
            over = max(walks) - memory_bytes
            raise InputError(
                "plan",
                "memory",
                f"is {over} bytes short for the compiled program",
                f"give --memory of at least {max(walks)} bytes",
            )
    return Planned(plan, result, instance, profile, cheapest.time_ns, cheapest.peak_bytes, walks)


def _plan_of(
    model: Model, cluster: Cluster, batch: int, micro_batches: int, instance: Instance, result: Result, profile: Profile
) -> Plan:
    assert result.solution is not None and result.evaluation is not None and result.objective is not None
    names = [instance.strategies[l][s] for l, s in enumerate(result.solution["choice"])]
    by_layer = len(names) == model.layers + 2
    units = [
        PlannedUnit(name=unit.name, strategy=names[unit.layer if by_layer else place]) for place, unit in enumerate(model.units)
    ]
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
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=cluster.devices,
        memory_bytes=instance.memory_bytes,
        batch=Batch(global_samples=batch, micro_batches=micro_batches),
        stages=[Stage(ranks=list(range(cluster.devices)), first_unit=0, last_unit=len(model.units) - 1)],
        units=units,
        predicted=predicted,
    )


def checked_walk(plan: Plan) -> tuple[int, ...]:
    """Compile a plan, check its programs, and walk them: the peak bytes of every rank.

    Beyond MOST_PROCESSES, which do not run here, of the first rank alone, unchecked.
    """
    if plan.world > MOST_PROCESSES:
        programs = compile_plan(plan, ranks=[0])
    else:
        programs = compile_plan(plan)
        faults = check(programs)
        assert not faults, faults[0]
    return tuple(memory_walk(program).peak_bytes for program in programs)
