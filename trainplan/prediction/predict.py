"""Predictions of plans from a request's numbers: a plan's programs are simulated with the costs of a profile or a cluster."""

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
    """Obtain a profile with costs for exactly the sizes (samples on a device, tensor-parallel degrees) that a plan uses.

    request: states where costs come from: a profile file, a measurement, or an estimate on its cluster. Raises InputError if
    they cannot be obtained.
    """
    degrees = sorted({strategy.degree("tp") for strategy in plan.strategies()})
    return request.profile_for([samples_of(plan)], sorted(set(plan.stage_sizes)), degrees=None if plan.regular else degrees)


def _record(plan: Plan, prediction: PlanPrediction, profile: Profile, kinds: Sequence[str] | None) -> Predicted:
    """Convert a prediction to the record that is stored in a plan and in its file.

    plan: the plan. profile: the costs that the prediction was made with. kinds: the name of the kind of every device, by
    device number; None if no cluster is named.
    """
    return Predicted(
        step_ns=prediction.step_ns,
        peak_bytes=list(prediction.peak_bytes),
        cost_model=COST_MODEL,
        backend=prediction.time.backend,
        profile_origin=profile.origin,
        durations=dict(prediction.carried()),
        stages=stage_times(plan, profile, kinds),
    )


def predicted_plan(plan: Plan, request: Request) -> tuple[Plan, PlanPrediction]:
    """Predict a plan with the costs that a request names. Returns the plan with its prediction filled in, and the full
    prediction with the simulated programs (instruction lists of ranks). Raises InputError if the costs cannot be obtained.
    """
    profile = plan_profile(plan, request)
    kinds = None if request.cluster is None else request.cluster.device_kinds
    prediction = judge(plan, profile, kinds)
    return plan.changed(predicted=_record(plan, prediction, profile, kinds)), prediction


def predicted_as_known(plan: Plan, request: Request) -> tuple[Plan, PlanPrediction]:
    """Predict a plan with the cost model that supports it. Returns the plan with its prediction filled in, and the full
    prediction with the simulated programs.

    Profiles have no times of low-precision matrix multiplications (such as FP8) or of samples split into pieces; plans with
    these are predicted by the overlapped cost model (`streams`) on the request's cluster, all others with the request's
    profile. Raises InputError if the plan cannot be predicted.
    """
    if (recipe_of(plan) is None and plan.pieces == 1) or request.cluster is None:
        return predicted_plan(plan, request)
    prediction = predict_overlapped(plan, request.cluster)
    return plan.changed(predicted=predicted_with_overlap(prediction, request.cluster)), prediction


def predicted_with_overlap(prediction: PlanPrediction, cluster: Cluster) -> Predicted:
    """Convert a prediction that the overlapped cost model (`streams`) made on a cluster to the record that is stored in a
    plan.
    """
    return Predicted(
        step_ns=prediction.step_ns,
        peak_bytes=list(prediction.peak_bytes),
        cost_model="streams",
        backend=prediction.time.backend,
        profile_origin=f"estimated on {cluster.name}",
        durations=dict(prediction.carried()),
    )


def stage_times(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None) -> list[StageTimes] | None:
    """Times of the passes of each pipeline stage, in order, as a plan stores them so that it can be drawn as a pipeline; None
    if it is not a plain pipeline.

    A plain pipeline has one stage on each device, stages of equal size and equal micro-batches. Plans with interleaved
    stages, with copies to the host, or with gathered parameters that stay whole for all micro-batches are not plain. kinds:
    the name of the kind of every device, by device number; None if no cluster is named. Raises InputError if the profile
    lacks costs.
    """
    not_plain = plan.uses_host or any(unit.states.kept_whole for unit in plan.units)
    if not_plain or not plan.regular or plan.chunks > 1:
        return None
    planned = _planned_work(plan, profile, kinds)
    rows = zip(planned.work.forward_ns, planned.work.backward_ns, (*planned.work.transfer_ns, 0), planned.syncs_ns, strict=True)
    return [StageTimes(forward_ns=f, backward_ns=b, transfer_ns=c, sync_ns=d) for f, b, c, d in rows]


def _planned_work(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None) -> PlannedWork:
    """Times of the passes and messages of a plan's pipeline stages; each stage has the costs of the kinds of device that it
    runs on.

    kinds: the name of the kind of every device, by device number; None if no cluster is named. Raises InputError if the
    profile lacks costs.
    """
    return planned_work(plan, [_profile_of_stage(profile, plan, stage, kinds) for stage in plan.stages])


def _profile_of_stage(profile: Profile, plan: Plan, stage: Stage, kinds: Sequence[str] | None) -> Profile:
    """A copy of the profile with only the costs of the kinds of device that one stage runs on.

    plan: a training plan, with its stages and strategies. kinds: the name of the kind of every device, by device number; None
    if no cluster is named.
    """
    if kinds is None or len(set(kinds)) == 1:
        return profile
    devices = plan.placement or range(plan.world)
    present = {kinds[devices[rank]] for rank in stage.ranks}
    return profile.changed(costs=[entry for entry in profile.costs if entry.device in present])
