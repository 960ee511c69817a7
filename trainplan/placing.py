"""Strategies on mixed clusters: from a model and a cluster to AMP's problems, and from their solutions to plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.formulations.cluster_strategy import costs
from trainplan.formulations.cluster_strategy.problem import (
    Degrees,
    Instance,
    Solution,
    SolutionRecord,
    load_solution,
    shares_of,
)
from trainplan.formulations.pipeline.spaces import stage_powers
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Predicted, Stage
from trainplan.formulations.stage_assignment import problem as stage_assignment
from trainplan.formulations.strategies import Paradigm, Strategy
from trainplan.planning import checked_walk, micro_batch_counts, runs, timed
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import versions


@dataclass(frozen=True)
class PlacedPlan:
    """A strategy on a cluster, with its certificate. plan is None where `result` has no solution (its reason says why).

    walk_bytes: the peak of every rank by the memory walk over its program.
    """

    plan: Plan | None
    result: Result
    model: Model
    instance: Instance
    profile: Profile
    walk_bytes: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "walk_bytes": list(self.walk_bytes),
        }


def strategy_instance(
    model: Model | None,
    cluster: Cluster,
    batch: int,
    *,
    profile: Profile | None = None,
    measured: bool = False,
    measuring: Report | None = None,
    **options: Any,
) -> tuple[Instance, Profile]:
    """The cluster-strategy problem of a batch, and the profile that it is made from; options as of
    `cluster_strategy.costs.build`. Raises InputError."""
    sizes, groups = micro_batch_counts(batch, None), stage_powers(cluster.devices)
    found = obtain_profile(
        model, cluster, sizes, groups, devices=cluster.devices, earlier=profile, measured=measured, progress=measuring
    )
    return costs.build(found, cluster, batch, **options), found


def assignment_instance(instance: Instance, pp: int, micro_batches: int, tmp: int = 1) -> stage_assignment.Instance:
    """The layer assignment alone, for pp stages of tmp devices and so many micro-batches a pipeline, on devices in order.

    Where pipelines differ, every stage's and boundary's slowest counts. Raises InputError where the cluster or the batch cannot
    be split so.
    """
    devices, batch = instance.devices, instance.batch
    if tmp not in instance.shards:
        raise InputError("command line", "--tp", f"is {tmp}", f"give one of: {', '.join(map(str, sorted(instance.shards)))}")
    if devices % (pp * tmp) or pp > instance.layers:
        counts = [pp for pp in divisors(devices // tmp) if pp <= instance.layers]
        raise InputError("command line", "--pipeline", f"is {pp}", f"give one of: {', '.join(map(str, counts))}")
    dp = devices // (pp * tmp)
    mbs, rest = divmod(batch, dp * micro_batches)
    if rest or (tmp, mbs) not in instance.tables:
        fix = f"give a multiple of {dp * micro_batches}: {dp} pipelines of {micro_batches} micro-batches"
        raise InputError("command line", "--batch", f"is {batch}", fix)
    placed = instance.placed(Degrees(pp, dp, tmp, mbs), range(devices))
    table, shard = instance.tables[tmp, mbs], instance.shards[tmp]
    memory = {
        "limit_bytes": placed.limits_bytes.min(axis=1).tolist(),
        "state_bytes": shard.state_bytes.tolist(),
        "kept_bytes": table.kept_bytes.tolist(),
        "workspace_bytes": table.workspace_bytes.tolist(),
    }
    given = {
        "problem": stage_assignment.NAME,
        "version": 1,
        "name": f"{instance.name}, {pp} stages",
        "provenance": instance.provenance | {"dp": dp, "tmp": tmp, "mbs": mbs},
        "stages": pp,
        "micro_batches": micro_batches,
        "layer_ns": _alike(placed.layer_ns.max(axis=1)),
        "transfer_ns": _alike(placed.transfer_ns.max(axis=1)) if pp > 1 else [0] * (instance.layers - 1),
        "parameters": shard.gradient_bytes.tolist(),
    }
    return stage_assignment.load(given | ({"memory": memory} if instance.within_memory else {}))


def _alike(rows: Any) -> list[Any]:
    """One row where all are equal."""
    return rows[0].tolist() if (rows == rows[0]).all() else rows.tolist()


def place(model: Model, instance: Instance, profile: Profile, result: Result) -> PlacedPlan:
    """The plan of a method's result, its programs checked."""
    if result.solution is None:
        return PlacedPlan(None, result, model, instance, profile, ())
    made = plan_of(model, instance, load_solution(result.solution), profile, result)
    return PlacedPlan(made, result, model, instance, profile, checked_walk(made) if runs(model) else ())


def plan_of(
    model: Model, instance: Instance, solution: Solution, profile: Profile, result: Result, time_ns: int | None = None
) -> Plan:
    """The plan of a strategy. result: who found it, and its bound; time_ns: the strategy's own, where it is not the best one.
    Of an instance that wants degrees that are powers of two."""
    assert instance.powers_of_two
    given, shares = solution.degrees, shares_of(instance, solution)
    objective = result.objective if time_ns is None else time_ns
    assert objective is not None
    levels: tuple[tuple[Paradigm, int], ...] = (("dp", given.dp), ("tp", given.tmp))
    chosen = Strategy(tuple(level for level in levels if level[1] > 1), bool(instance.provenance.get("recompute")))
    by_layer = instance.layers == model.units[-1].layer + 1
    layer_of = [unit.layer if by_layer else place for place, unit in enumerate(model.units)]
    size = given.dp * given.tmp
    stages = []
    for number, (first, last) in enumerate(solution.spans(instance.layers)):
        units = [place for place, layer in enumerate(layer_of) if first <= layer <= last]
        ranks = list(range(number * size, (number + 1) * size))
        stages.append(Stage(ranks=ranks, first_unit=units[0], last_unit=units[-1]))
    even = len(set(shares)) == 1
    kinds = [instance.kinds[kind].name for kind in instance.device_kinds]
    gap = None if result.bound is None or not objective else (objective - result.bound) / objective
    made = Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=instance.devices,
        memory_bytes=instance.memory_bytes,
        placement=None if list(solution.placement) == list(range(instance.devices)) else list(solution.placement),
        batch=Batch(global_samples=instance.batch, micro_batches=max(shares), shares=None if even else list(shares)),
        stages=stages,
        units=[PlannedUnit(name=unit.name, strategy=str(chosen)) for unit in model.units],
        predicted=Predicted(
            step_ns=objective,
            peak_bytes=peak_bytes(instance, solution),
            lower_bound_ns=result.bound,
            gap=gap,
            method=result.method,
            status=result.status if time_ns is None else "feasible",
            profile_origin=profile.origin,
            versions=versions(),
        ),
    )
    return timed(made, profile, kinds)


def peak_bytes(instance: Instance, solution: Solution) -> int:
    """The most that any device holds."""
    placed = instance.placed(solution.degrees, solution.placement)
    return int(placed.peak_bytes(solution.cuts, shares_of(instance, solution)).max())


def candidates(instance: Instance, results: Sequence[Result], top: int) -> list[tuple[Solution, int]]:
    """The best strategies of these results that fit, with their times: all that they list, and their solutions."""
    found: dict[Solution, int] = {}
    for result in results:
        for one in result.statistics.get("candidates", []):
            if one["fits"] or not instance.within_memory:
                found[load_solution({name: one[name] for name in SolutionRecord.model_fields})] = one["time_ns"]
        if result.solution is not None and result.objective is not None:
            found[load_solution(result.solution)] = result.objective
    return sorted(found.items(), key=lambda one: one[1])[:top]
