"""Memory switches (H3T): from a model and a cluster to the switches of every sub-layer, and a plan whose programs fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainplan.execution.run.processes import EXECUTED_DTYPES, EXECUTED_FAMILIES
from trainplan.execution.walk.memory import BACKENDS, Backend
from trainplan.formulations.memory_switches.problem import Instance, Solution, load_solution
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Predicted, Stage
from trainplan.formulations.strategies import Strategy
from trainplan.planning import checked_walk, runs
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.registry import problem
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Progress
from trainplan.solvers.core.solve import check_arguments, solve, versions
from trainplan.switch_instances import switch_instance

MOST_ROUNDS = 8


@dataclass(frozen=True)
class SwitchPlan:
    """Memory switches of a model, with their certificate. plan is None where `result` has no solution: its reason says why, or
    its message.

    instance: with the memory that was asked for. reserve_bytes: how much less the method was given, so that the compiled
    programs fit. walk_bytes: the peak of every rank by the memory walk over its program, on `backend` or `serial`, whichever is
    higher. needed_bytes: where the memory is too little, one with which there is a plan.
    """

    plan: Plan | None
    result: Result
    model: Model
    instance: Instance
    profile: Profile
    reserve_bytes: int
    walk_bytes: tuple[int, ...]
    backend: str
    needed_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "reserve_bytes": self.reserve_bytes,
            "walk_bytes": list(self.walk_bytes),
            "needed_bytes": self.needed_bytes,
        }


def switch(
    model: Model,
    cluster: Cluster,
    batch: int,
    *,
    memory_bytes: int | None = None,
    synchronisation: str = "forced",
    profile: Profile | None = None,
    measured: bool = False,
    measuring: Report | None = None,
    method: str = "exact",
    backend: str = "streams",
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> SwitchPlan:
    """Find the switches of every sub-layer for the shortest step within the memory, all devices one sharded-data group.

    What the method knows of memory is the simulated step. The plan's programs are compiled and walked; where they need more
    than the limit, the method gets as much less, at last the least that any synchronised step needs, and the bound stays that
    of the limit asked for. backend: the programs fit on this one, and on `serial`, which needs the least. options: of the
    method. Raises InputError.
    """
    _check(model, cluster)
    backends: tuple[Backend, ...] = tuple(one for one in BACKENDS if one in ("serial", backend))
    if backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {shown(backend)}", f"give one of: {', '.join(BACKENDS)}")
    check_arguments(time_limit, gap, seed)
    model, started = model.fused(), time.perf_counter()  # as it will run
    instance, found = switch_instance(
        model,
        cluster,
        batch,
        memory_bytes=memory_bytes,
        synchronisation=synchronisation,
        profile=profile,
        measured=measured,
        measuring=measuring,
    )
    choices: dict[str, Any] = {"gap": gap, "seed": seed, "progress": progress, **options}

    def late() -> bool:
        return time_limit is not None and time.perf_counter() - started >= time_limit

    limit, tightest, tried = instance.memory_bytes, _tightest(instance), list[SwitchPlan]()
    given = instance
    while True:
        left = None if time_limit is None else max(0.01, time_limit - (time.perf_counter() - started))
        result = solve(given, method, time_limit=left, **choices)
        first = tried[0].result if tried else result
        plan, walks = None, tuple[int, ...]()
        if result.solution is not None:
            solution, result = load_solution(result.solution), _certified(result, first)
            plan = plan_of(model, instance, solution, found, result)
            walks = checked_walk(plan, backends)
        tried.append(SwitchPlan(plan, result, model, instance, found, limit - given.memory_bytes, walks, backend))
        if plan is not None and max(walks) <= limit:
            return tried[-1]
        if tried[0].plan is None or given is tightest:
            break
        tighter = given.memory_bytes - (max(walks) - limit) if plan else 0
        more = tighter > tightest.memory_bytes and len(tried) < MOST_ROUNDS - 1 and not late()
        given = replace(instance, memory_bytes=tighter) if more else tightest
    if tried[0].plan is None:
        return _explained(tried[0], tightest, backends)
    return _short(tried, late())


def _tightest(instance: Instance) -> Instance:
    """The instance with just the memory that some synchronised step needs."""
    forced = replace(instance, synchronisation="forced")
    reason = problem(instance.problem).explainer()(replace(forced, memory_bytes=1))
    assert reason is not None
    return replace(forced, memory_bytes=reason.least_memory_bytes)


def _explained(found: SwitchPlan, tightest: Instance, backends: Sequence[Backend]) -> SwitchPlan:
    """Where no step fits: why, and the memory that does, of the programs too."""
    reason = found.result.reason
    if reason is None:
        return found
    least = solve(tightest, "exact")
    assert least.solution is not None
    plan = plan_of(found.model, found.instance, load_solution(least.solution), found.profile, least)
    needed, serial = (max(tightest.memory_bytes, *checked_walk(plan, on)) for on in (backends, ("serial",)))
    whole = sum(int(found.instance[f"gathered_{of}_bytes"][reason.peak_layer]) for of in ("parameter", "gradient"))
    advice = [
        *_advice(needed, serial),
        f"take a smaller batch or shorter samples (the whole parameters and gradients of {reason.peak_layer_name} take "
        f"{whole} bytes in any case)",
    ]
    told = replace(
        reason,
        memory_bytes=found.instance.memory_bytes,
        least_memory_bytes=needed,
        activation_bytes=needed - reason.state_bytes,
        advice=tuple(advice),
    )
    return replace(found, result=replace(found.result, reason=told), needed_bytes=needed)


def _short(tried: Sequence[SwitchPlan], late: bool) -> SwitchPlan:
    """Where steps fit, but none whose programs do: by how much they are short, and what would do, if that is known.

    tried: with less and less memory. late: time ran out meanwhile.
    """
    first, last = tried[0], tried[-1]
    shortest = min(max(one.walk_bytes) for one in tried if one.plan)
    told = f"the compiled programs are {plural(shortest - first.instance.memory_bytes, 'byte')} short"
    needed = None
    if last.plan is None:
        told += f", and {first.result.method} found nothing that needs less" + (" before time ran out" if late else "")
    else:
        needed = max(last.walk_bytes)
        told = "; ".join((told, " or ".join(_advice(needed, max(checked_walk(last.plan, ("serial",)))))))
    result = replace(first.result, status="unknown", objective=None, gap=None, solution=None, evaluation=None, message=told)
    return replace(first, plan=None, result=result, walk_bytes=(), needed_bytes=needed)


def _advice(needed: int, serial: int) -> list[str]:
    """serial: what the programs need on that back-end."""
    other = [f"--backend serial, whose programs need {serial} bytes"] if serial < needed else []
    return [f"give --memory of at least {needed} bytes", *other]


def _check(model: Model, cluster: Cluster) -> None:
    """Whether plans of the model run on such a cluster. Raises InputError."""
    if not runs(model):
        fix = (
            f"give a model of {', '.join(EXECUTED_FAMILIES)} in {' or '.join(EXECUTED_DTYPES)}; "
            "`build memory-switches` and `solve` take any"
        )
        raise InputError(
            "command line", "--model", f"is {model.name!r} ({model.family}, {model.dtype}), which does not run", fix
        )
    if len(cluster.used_kinds) > 1:
        kinds = " and ".join(kind.name for kind in cluster.used_kinds)
        fix = "give a cluster of one kind, or use `place`: all devices hold as much and work at one pace"
        raise InputError("command line", "--cluster", f"is {cluster.name!r}, of {kinds}", fix)
    if cluster.devices & (cluster.devices - 1):
        fix = f"give one of {1 << cluster.devices.bit_length() - 1}: plans have powers of two"
        raise InputError("command line", "--cluster", f"has {cluster.devices} devices", fix)


def _certified(result: Result, first: Result) -> Result:
    """A result with less memory than was asked for, beside the bound of `first`, which had all of it."""
    if result is first or result.objective is None:
        return result
    bound, gap = first.bound, None
    if bound is not None:
        gap = (result.objective - bound) / result.objective if result.objective else 0.0
    proven = gap is not None and gap <= result.tolerance
    return replace(
        result,
        status="optimal" if proven else "feasible",
        bound=bound,
        bound_source=first.bound_source,
        gap=gap,
        instance_hash=first.instance_hash,
    )


def plan_of(model: Model, instance: Instance, solution: Solution, profile: Profile, result: Result) -> Plan:
    """The plan of a solution, a layer for each unit. result: who found it, and its bound."""
    assert result.objective is not None and result.evaluation is not None
    world = profile.devices
    levels: Any = (("sdp", world),) if world > 1 else ()
    units = [
        PlannedUnit(
            name=unit.name,
            strategy=str(Strategy(levels, chosen.ckpt)),
            switches=[name for name in chosen.names if name != "ckpt"],
        )
        for unit, chosen in zip(model.units, solution.switches, strict=True)
    ]
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=world,
        memory_bytes=instance.memory_bytes,
        batch=Batch(global_samples=instance.provenance["batch"]),
        nvlink=instance.nvlink,
        stages=[Stage(ranks=list(range(world)), first_unit=0, last_unit=len(units) - 1)],
        units=units,
        predicted=Predicted(
            step_ns=result.objective,
            peak_bytes=result.evaluation["peak_bytes"],
            lower_bound_ns=result.bound,
            gap=result.gap,
            method=result.method,
            status=result.status,
            profile_origin=profile.origin,
            versions=versions(),
        ),
    )
