"""Predictions of plans: what the walks over a plan's programs say, with the costs of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.prediction.evaluate_plan import PlanPrediction, judge
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.costs.sequential.stage_work import PlannedWork, planned_work, samples_of
from trainplan.formulations.plan.plan import Plan, Predicted, Stage, StageTimes
from trainplan.formulations.plan.request import Request
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile

COST_MODEL = "executed"


def plan_profile(plan: Plan, request: Request) -> Profile:
    """The profile with the costs of the plan's own shapes, from where the request's numbers come. Raises InputError."""
    degrees = sorted({strategy.degree("tp") for strategy in plan.strategies()})
    return request.profile_for([samples_of(plan)], sorted(set(plan.stage_sizes)), degrees=None if plan.regular else degrees)


def predicted(plan: Plan, judged: PlanPrediction, profile: Profile, kinds: Sequence[str] | None) -> Predicted:
    """What the walks say, in the plan's form. kinds: of every device, by number; None where no cluster is named."""
    return Predicted(
        step_ns=judged.step_ns,
        peak_bytes=list(judged.peak_bytes),
        cost_model=COST_MODEL,
        backend=judged.time.backend,
        profile_origin=profile.origin,
        durations=dict(judged.carried()),
        stages=stage_times(plan, profile, kinds),
    )


def predicted_plan(plan: Plan, request: Request) -> tuple[Plan, PlanPrediction]:
    """The plan with its prediction by the request's numbers, and what the walks say. Raises InputError."""
    profile = plan_profile(plan, request)
    kinds = None if request.cluster is None else request.cluster.device_kinds
    judged = judge(plan, profile, kinds)
    return plan.changed(predicted=predicted(plan, judged, profile, kinds)), judged


def predicted_as_known(plan: Plan, request: Request) -> tuple[Plan, PlanPrediction]:
    """As `predicted_plan`, but under `streams` where profiles say nothing of a plan: products in fewer bits, and pieces of
    samples. Raises InputError."""
    if (recipe_of(plan) is None and plan.pieces == 1) or request.cluster is None:
        return predicted_plan(plan, request)
    judged = predict_overlapped(plan, request.cluster)
    return plan.changed(predicted=predicted_on_lanes(judged, request.cluster)), judged


def predicted_on_lanes(judged: PlanPrediction, cluster: Cluster) -> Predicted:
    """What the walks say on the lanes of frameworks, under the cost model `streams`, in the plan's form."""
    return Predicted(
        step_ns=judged.step_ns,
        peak_bytes=list(judged.peak_bytes),
        cost_model="streams",
        backend=judged.time.backend,
        profile_origin=f"estimated on {cluster.name}",
        durations=dict(judged.carried()),
    )


def stage_times(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None) -> list[StageTimes] | None:
    """What the passes of each stage take, in the plan's form; None of plans that copy to the host or keep parameters whole,
    whose micro-batches are not alike, and of interleaved stages or such of unlike sizes, which are no pipeline of equal
    messages with a stage on each device."""
    apart = plan.uses_host or any(unit.states.kept_whole for unit in plan.units)
    if apart or not plan.regular or plan.chunks > 1:
        return None
    planned = work_of(plan, profile, kinds)
    rows = zip(planned.work.forward_ns, planned.work.backward_ns, (*planned.work.transfer_ns, 0), planned.syncs_ns, strict=True)
    return [StageTimes(forward_ns=f, backward_ns=b, transfer_ns=c, sync_ns=d) for f, b, c, d in rows]


def work_of(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None) -> PlannedWork:
    """What the stages of a plan take, each by the numbers of the kinds of device that it is on. Raises InputError."""
    return planned_work(plan, [_of_stage(profile, plan, stage, kinds) for stage in plan.stages])


def _of_stage(profile: Profile, plan: Plan, stage: Stage, kinds: Sequence[str] | None) -> Profile:
    """What the profile knows of the kinds of device that a stage is on."""
    if kinds is None or len(set(kinds)) == 1:
        return profile
    devices = plan.placement or range(plan.world)
    present = {kinds[devices[rank]] for rank in stage.ranks}
    return profile.changed(costs=[entry for entry in profile.costs if entry.device in present])
