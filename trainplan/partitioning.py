"""Pipelines cut at sub-layers (AutoPipe): from a model and a cluster to the cuts, the sliced micro-batches and a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainplan.execution.run.processes import EXECUTED_DTYPES, EXECUTED_FAMILIES
from trainplan.formulations.pipeline_partition.costs import Degrees, added_ns, build, syncs_ns
from trainplan.formulations.pipeline_partition.problem import LARGEST_STEP, Instance, Solution, evaluate, load_solution
from trainplan.formulations.pipeline_partition.step_bound import least_step_ns
from trainplan.formulations.plan import Batch, Plan, PlannedUnit, Predicted, Stage
from trainplan.formulations.step.schedules import most_sliced
from trainplan.formulations.step.timeline import Timeline
from trainplan.planning import checked_walk, runs, stage_times
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import divisors, plural
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Progress, Unsuited
from trainplan.solvers.core.solve import check_arguments, solve, versions
from trainplan.solvers.partition.slicer import least_sliced, sliced_timeline
from trainplan.solvers.partition.whole_step import shortest_step

OBJECTIVES = ("step", "iteration")


@dataclass(frozen=True)
class Candidate:
    """A depth and a number of micro-batches. result: of the method, whose objective is the iteration before slicing; cuts: with
    the exact method, those of a shorter step where there is one. step_ns: of the whole step, gradients and optimizer included;
    bound_ns: no cuts at this depth, sliced or not where slicing was allowed, take a shorter step. Not sliced where that cannot
    make it the best."""

    degrees: Degrees
    instance: Instance
    profile: Profile
    result: Result
    cuts: tuple[int, ...] | None
    sliced: int
    timeline: Timeline | None
    step_ns: int | None
    bound_ns: int | None

    def to_dict(self) -> dict[str, Any]:
        found = self.degrees
        return {
            "pipeline": found.pp,
            "dp": found.dp,
            "tp": found.tp,
            "micro_batches": found.micro_batches,
            "status": self.result.status,
            "cuts": None if self.cuts is None else list(self.cuts),
            "sliced": self.sliced,
            "iteration_ns": None if self.timeline is None else self.timeline.time_ns,
            "step_ns": self.step_ns,
            "bound_ns": self.bound_ns,
        }


@dataclass(frozen=True)
class PartitionPlan:
    """A pipeline cut at sub-layers, with its certificate. plan is None where nothing fits, or no cuts were found.

    candidates: all depths and numbers of micro-batches that were tried, shortest step first. walk_bytes: the peak of every rank
    by the memory walk over its program.
    """

    plan: Plan | None
    best: Candidate
    candidates: tuple[Candidate, ...]
    walk_bytes: tuple[int, ...]

    @property
    def result(self) -> Result:
        """Of the method, at the best depth: the iteration before slicing."""
        return self.best.result

    @property
    def timeline(self) -> Timeline | None:
        """The simulated step, sliced as the plan is."""
        return self.best.timeline

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "best": self.best.to_dict(),
            "candidates": [one.to_dict() for one in self.candidates],
            "walk_bytes": list(self.walk_bytes),
        }


def degrees_of(
    devices: int, pipeline: int | None = None, micro_batches: int | None = None, dp: int | None = None, tp: int | None = None
) -> Degrees:
    """One depth (default: one stage, one micro-batch). dp: default all devices. Raises InputError."""
    pp, tp = 1 if pipeline is None else pipeline, 1 if tp is None else tp
    for option, value in (("--pipeline", pp), ("--micro-batches", micro_batches), ("--dp", dp), ("--tp", tp)):
        if value is not None and value < 1:
            raise InputError("command line", option, f"is {value}", "give at least 1")
    whole = pp * tp * (dp or 1)
    if pp * tp > devices:
        fix = f"give at most {devices // tp}: a stage has {plural(tp, 'device')} of {devices}"
        raise InputError("command line", "--pipeline", f"is {pp}", fix)
    if whole > devices:
        fix = f"give at most {devices // (pp * tp)}: {pp} stages of {plural(tp, 'device')} each, of {devices}"
        raise InputError("command line", "--dp", f"is {dp}", fix)
    if dp is None and devices % tp:
        raise InputError("command line", "--tp", f"is {tp}", f"give a divisor of the {devices} devices")
    if dp is None and devices % whole:
        counts = ", ".join(map(str, divisors(devices // tp)))
        raise InputError("command line", "--pipeline", f"is {pp}", f"give one of: {counts}; or --dp, the number of pipelines")
    return Degrees(pp, dp or devices // whole, tp, micro_batches or 1)


def partition_instance(
    model: Model | None,
    cluster: Cluster | None,
    batch: int,
    degrees: Sequence[Degrees],
    *,
    memory_bytes: int | None = None,
    within_memory: bool = True,
    recompute: bool = False,
    profile: Profile | None = None,
    measured: bool = False,
    measuring: Report | None = None,
) -> list[tuple[Instance, Profile]]:
    """The pipeline-partition problem of each of these degrees, of equal tp, and the profile that all are made from.

    memory_bytes: of one device (default: the cluster's, or the profile's). Raises InputError.
    """
    origin = cluster or profile
    assert origin is not None
    tp, rows = degrees[0].tp, sorted({one.rows(batch) for one in degrees})
    known = (model or profile.described_model or profile).tp_degrees(tp) if profile else model.tp_degrees(tp)  # type: ignore[union-attr]
    if tp not in known:
        raise InputError("command line", "--tp", f"is {tp}", f"give one of: {', '.join(map(str, known))}")
    found = obtain_profile(
        model, cluster, rows, [tp], devices=origin.devices, earlier=profile, measured=measured, progress=measuring
    )
    where = cluster.name if cluster else found.cluster
    limit = (memory_bytes or origin.memory_bytes) if within_memory else None
    made = []
    for one in degrees:
        name = f"{found.name} on {where}, {one.pp} stages"
        options: dict[str, Any] = {"memory_bytes": limit, "recompute": recompute, "name": name}
        made.append((build(found, batch, one, provenance={"cluster": where}, **options), found))
    return made


def possible_degrees(
    devices: int, units: int, batch: int, pipeline: int | None, micro_batches: int | None, dp: int | None, tp: int | None
) -> list[Degrees]:
    """All depths that divide the devices, dp a power of two as plans have it, and all numbers of micro-batches that divide the
    samples of a pipeline; or those asked for. Raises InputError."""
    tp = 1 if tp is None else tp
    if pipeline is not None:
        depths = [degrees_of(devices, pipeline, None, dp, tp)]
    else:
        degrees_of(devices, 1, None, dp, tp)
        counts = divisors(devices // tp) if dp is None else range(1, devices // (tp * dp) + 1)
        depths = [Degrees(pp, dp or devices // (tp * pp), tp) for pp in counts if pp <= units]
    powers = [one for one in depths if one.dp & (one.dp - 1) == 0]
    if not powers:
        fix = f"give a power of two, such as {1 << depths[0].dp.bit_length() - 1}: plans have no others"
        raise InputError("command line", "--dp", f"is {depths[0].dp}", fix)
    fitting = [one for one in powers if batch % one.dp == 0]
    if not fitting:
        fix = f"give a multiple of {min(one.dp for one in powers)}, the pipelines side by side"
        raise InputError("command line", "--batch", f"is {batch}", fix)
    found = []
    for one in fitting:
        numbers = divisors(batch // one.dp) if micro_batches is None else [micro_batches]
        found += [
            Degrees(one.pp, one.dp, tp, m)
            for m in numbers
            if m >= 1 and batch // one.dp % m == 0 and m * one.pp <= LARGEST_STEP
        ]
    if not found:
        samples = sorted({batch // one.dp for one in fitting})
        fix = f"give a divisor of the samples of a pipeline: {' or '.join(map(str, samples))}"
        raise InputError("command line", "--micro-batches", f"is {micro_batches}", fix)
    return found


def partition(
    model: Model,
    cluster: Cluster,
    batch: int,
    *,
    pipeline: int | None = None,
    micro_batches: int | None = None,
    dp: int | None = None,
    tp: int | None = None,
    memory_bytes: int | None = None,
    recompute: bool = False,
    ignore_memory: bool = False,
    sliced: bool | int = True,
    by_unit: bool = True,
    objective: str = OBJECTIVES[0],
    method: str = "exact",
    profile: Profile | None = None,
    measured: bool = False,
    measuring: Report | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> PartitionPlan:
    """Cut the model for every depth and number of micro-batches that is possible (or asked for), and take the shortest step.

    dp: pipelines side by side (default: as many as there are devices for). by_unit: cut within layers, too. objective: of the
    exact method, `step` (gradients and optimizer included; by moves, with a bound) or `iteration` (proven). sliced: whether the
    first micro-batches are cut in two (as few as do, see `solvers.slicer`), or how many. time_limit: seconds in all. Raises
    InputError.
    """
    if not runs(model):
        fix = (
            f"give a model of {', '.join(EXECUTED_FAMILIES)} in {' or '.join(EXECUTED_DTYPES)}; "
            "`build pipeline-partition` and `solve` take any"
        )
        raise InputError(
            "command line", "--model", f"is {model.name!r} ({model.family}, {model.dtype}), which does not run", fix
        )
    check_arguments(time_limit, gap, seed)
    if objective not in OBJECTIVES:
        raise InputError("command line", "--objective", f"is {objective!r}", f"give {' or '.join(OBJECTIVES)}")
    if batch < 1:
        raise InputError("command line", "--batch", f"is {batch}", "give at least 1 sample")
    model = model.fused()  # as it will run
    started = time.perf_counter()
    tried = possible_degrees(cluster.devices, len(model.units), batch, pipeline, micro_batches, dp, tp)
    if not isinstance(sliced, bool):
        tried = _that_slice(tried, batch, sliced)
    made = partition_instance(
        model,
        cluster,
        batch,
        tried,
        memory_bytes=memory_bytes,
        within_memory=not ignore_memory,
        recompute=recompute,
        profile=profile,
        measured=measured,
        measuring=measuring,
    )
    choices = {"gap": gap, "seed": seed, "progress": progress, **options}
    search, found = _Search(method, choices, by_unit, objective, sliced), list[Candidate]()
    for place, (degrees, (instance, used)) in enumerate(zip(tried, made, strict=True)):
        left = None
        if time_limit is not None:
            left = max(0.01, (time_limit - (time.perf_counter() - started)) / (len(tried) - place))
        known = min((one.step_ns for one in found if one.step_ns is not None), default=None)
        try:
            found.append(search.candidate(degrees, instance, used, left, known))
        except Unsuited:
            if len(tried) == 1:
                raise
    if not found:
        raise InputError("command line", "--method", f"is {method!r}, which suits no depth", "give another method")
    found.sort(key=_rank)
    best = found[0]
    if best.cuts is None:
        return PartitionPlan(None, best, tuple(found), ())
    limit = memory_bytes or cluster.memory_bytes
    plan = plan_of(model, best, found, limit, batch, recompute)
    return PartitionPlan(plan, best, tuple(found), checked_walk(plan))


def _that_slice(tried: Sequence[Degrees], batch: int, sliced: int) -> list[Degrees]:
    """Those that can slice so many micro-batches. Raises InputError where none can."""
    most = max(_most_sliced(one, one.rows(batch)) for one in tried)
    if not 0 <= sliced <= most:
        fix = f"give at most {most}" if most else "give more than one stage, and an even number of samples a micro-batch"
        raise InputError("command line", "--sliced", f"is {sliced}", fix)
    return [one for one in tried if _most_sliced(one, one.rows(batch)) >= sliced]


def _rank(one: Candidate) -> tuple[bool, int]:
    """By the step; where nothing fits, by how much memory would do."""
    if one.step_ns is not None:
        return False, one.step_ns
    return True, one.result.reason.least_memory_bytes if one.result.reason else 2**62


@dataclass(frozen=True)
class _Search:
    """How depths are cut. objective: of the exact method's cuts; other planners' are taken as they are."""

    method: str
    options: dict[str, Any]
    by_unit: bool
    objective: str
    sliced: bool | int

    def candidate(
        self, degrees: Degrees, instance: Instance, profile: Profile, seconds: float | None, known_ns: int | None
    ) -> Candidate:
        """seconds: to search in. known_ns: a step that is already known; what cannot be shorter is not worked on any more."""
        started = time.perf_counter()
        given, starts = (instance, np.arange(instance.sublayers)) if self.by_unit else instance.between_layers()
        if given.stages > given.sublayers:
            fix = f"give at most {given.sublayers}, one layer a stage, or --granularity unit"
            raise InputError("command line", "--pipeline", f"is {given.stages}", fix)
        result = solve(given, self.method, time_limit=seconds, **self.options)
        if result.solution is None:
            return Candidate(degrees, instance, profile, result, None, 0, None, None, None)
        own, shared = added_ns(profile, instance)
        slices = bool(self.sliced) and _most_sliced(degrees, instance.provenance["mbs"]) > 0
        bound = least_step_ns(instance, np.cumsum([shared, *own]), slices)
        if not slices and result.bound is not None:
            bound = max(bound, result.bound + shared + int(own[: 1 if degrees.pp > 1 else None].sum()))
        hopeless = known_ns is not None and bound >= known_ns
        chosen = load_solution(result.solution).cuts
        if self.method == "exact" and self.objective == "step" and not hopeless:
            left = None if seconds is None else started + seconds
            added = np.add.reduceat(own, starts)
            chosen = shortest_step(given, added, shared, chosen, lambda: left is not None and time.perf_counter() > left)
        cuts = tuple(int(starts[cut]) for cut in chosen)
        work, syncs, count = instance.work(cuts), syncs_ns(profile, instance, cuts), 0
        if slices:
            most = 0 if hopeless else least_sliced(work, degrees.micro_batches, syncs)
            count = most if self.sliced is True else int(self.sliced)
        timeline = sliced_timeline(work, degrees.micro_batches, count)
        return Candidate(degrees, instance, profile, result, cuts, count, timeline, timeline.step_ns(syncs), bound)


def _most_sliced(degrees: Degrees, rows: int) -> int:
    """Halves are of whole samples."""
    return most_sliced(degrees.pp, degrees.micro_batches) if rows % 2 == 0 else 0


def plan_of(model: Model, best: Candidate, tried: Sequence[Candidate], memory_bytes: int, batch: int, recompute: bool) -> Plan:
    """The plan of the best candidate; its bound is the least of all that were tried."""
    degrees, result = best.degrees, best.result
    assert best.cuts is not None and best.step_ns is not None
    solution = Solution(best.cuts)
    size, strategy = degrees.stage_size, str(degrees.strategy(recompute))
    stages = [
        Stage(ranks=list(range(x * size, (x + 1) * size)), first_unit=first, last_unit=last)
        for x, (first, last) in enumerate(solution.spans(len(model.units)))
    ]
    bounds = [one.bound_ns for one in tried if one.result.status != "infeasible"]
    least = None if None in bounds else min(bound for bound in bounds if bound is not None)
    gap = None if least is None or not best.step_ns else (best.step_ns - least) / best.step_ns
    peaks = [stage.peak_bytes or 0 for stage in evaluate(best.instance, solution).stages]
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=degrees.devices,
        memory_bytes=memory_bytes,
        batch=Batch(global_samples=batch, micro_batches=degrees.micro_batches),
        sliced=best.sliced,
        stages=stages,
        units=[PlannedUnit(name=unit.name, strategy=strategy) for unit in model.units],
        predicted=Predicted(
            step_ns=best.step_ns,
            peak_bytes=max(peaks),
            lower_bound_ns=least,
            gap=gap,
            method=result.method,
            status="optimal" if gap == 0 else "feasible",
            profile_origin=best.profile.origin,
            versions=versions(),
            stages=stage_times(best.instance.work(solution.cuts), syncs_ns(best.profile, best.instance, solution.cuts)),
        ),
    )
