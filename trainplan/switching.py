"""Memory switches (H3T): from a model and a cluster to the switches of every sub-layer, and a plan whose programs fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainplan.execution.memory import BACKENDS, Backend
from trainplan.execution.run import EXECUTED_DTYPES, EXECUTED_FAMILIES
from trainplan.formulations.memory_switches.problem import Instance, Solution, load_solution
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Predicted, Stage
from trainplan.formulations.strategies import Strategy
from trainplan.planning import LARGEST_MEMORY, checked_walk, runs
from trainplan.profiling.clusters import Cluster
from trainplan.profiling.errors import InputError, shown
from trainplan.profiling.models import Model
from trainplan.profiling.processes import Report
from trainplan.profiling.profiles import Profile
from trainplan.solvers.registry import problem
from trainplan.solvers.result import Result
from trainplan.solvers.search import Progress
from trainplan.solvers.solve import check_arguments, solve, versions
from trainplan.switch_instances import switch_instance

MOST_ROUNDS = 8
LIMITS = 12  # of a frontier
SLOW = ("milp", "cpsat", "brute-force")


@dataclass(frozen=True)
class SwitchPlan:
    """Memory switches of a model, with their certificate. plan is None where `result` has no solution (its reason says why).

    instance: with the memory that was asked for. reserve_bytes: how much less the method was given, so that the compiled
    programs fit. walk_bytes: the peak of every rank by the memory walk over its program, on `backend` or `serial`, whichever is
    higher.
    """

    plan: Plan | None
    result: Result
    model: Model
    instance: Instance
    profile: Profile
    reserve_bytes: int
    walk_bytes: tuple[int, ...]
    backend: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "reserve_bytes": self.reserve_bytes,
            "walk_bytes": list(self.walk_bytes),
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
    than the limit, the method gets as much less, and the bound stays that of the limit asked for. backend: the programs fit on
    this one, and on `serial`, which needs the least. options: of the method. Raises InputError.
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
    limit, given, first = instance.memory_bytes, instance, None
    shortest: int | None = None  # of the programs walked so far
    for _ in range(MOST_ROUNDS):
        left = None if time_limit is None else max(0.01, time_limit - (time.perf_counter() - started))
        result = solve(given, method, time_limit=left, **choices)
        first = first or result
        if result.solution is None:
            break
        solution, result = load_solution(result.solution), _certified(result, first)
        plan = plan_of(model, instance, solution, found, result)
        walks = checked_walk(plan, backends)
        if max(walks) <= limit:
            return SwitchPlan(plan, result, model, instance, found, limit - given.memory_bytes, walks, backend)
        shortest = min(max(walks), shortest or max(walks))
        tighter = given.memory_bytes - (max(walks) - limit)
        if tighter <= 0:
            break
        given = replace(instance, memory_bytes=tighter)
    assert first is not None
    if shortest is None:
        return SwitchPlan(None, first, model, instance, found, 0, (), backend)
    told = f"is {shortest - limit} bytes short for the compiled programs"
    other = "" if backend == "serial" else "; --backend serial needs less"
    raise InputError("plan", "memory", told, f"give --memory of at least {shortest} bytes{other}")


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


@dataclass(frozen=True)
class FrontierPoint:
    """What one method found under one memory limit."""

    memory_bytes: int
    result: Result

    def to_dict(self) -> dict[str, Any]:
        return {"memory_bytes": self.memory_bytes, "result": self.result.to_dict()}


def switch_frontier(
    instance: Instance,
    limits: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = 30,
    seed: int = 0,
    progress: Callable[[str, FrontierPoint], None] | None = None,
) -> list[FrontierPoint]:
    """Every method under every memory limit, method by method; the instance's own limit does not count.

    limits: bytes of one device, rising (default: twelve, from the least that anything fits into to what the shortest step
    needs). methods: names (default: all but the MILP, CP-SAT and brute force). time_limit: seconds for each. progress: called
    with the method and what it found. Raises InputError.
    """
    names = list(methods) if methods is not None else [name for name in _names(instance) if name not in SLOW]
    limits = memory_limits(instance) if limits is None else limits
    for limit in limits:
        if not 0 < limit <= LARGEST_MEMORY:
            raise InputError("limits", "", f"hold {limit}", "give bytes of one device, above 0")
    found = []
    for name in names:
        for limit in limits:
            result = solve(replace(instance, memory_bytes=limit), name, time_limit=time_limit, seed=seed)
            found.append(FrontierPoint(limit, result))
            if progress:
                progress(name, found[-1])
    return found


def _names(instance: Instance) -> list[str]:
    return [entry.name for entry in problem(instance.problem).methods]


def memory_limits(instance: Instance, count: int = LIMITS) -> list[int]:
    """Bytes from the least that anything fits into to what the shortest of all steps needs, evenly spaced."""
    reason = problem(instance.problem).explainer()(replace(instance, memory_bytes=1))
    ample = solve(replace(instance, memory_bytes=LARGEST_MEMORY), "exact")
    assert reason is not None and ample.evaluation is not None
    least, most = reason.least_memory_bytes, ample.evaluation["peak_bytes"]
    return [least + (most - least) * step // (count - 1) for step in range(count)]
