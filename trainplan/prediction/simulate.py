"""A training step, simulated: of any plan, by its programs, or of a solution of a pipeline-partition instance.

The time of a plan's step comes from the simulation of its programs, instruction by instruction. In addition, a plain pipeline
has a timeline, pass by pass, from the times of its stages: pictures, traces and the critical path are drawn from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainplan.execution.launch.memory_check import check_peaks
from trainplan.execution.prediction.evaluate_plan import judge, predict_from_saved_costs
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.formulations.plan.plan import Plan, StageTimes
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import InstanceLike
from trainplan.formulations.runtimes import BY_PROGRAMS, ONLY_PREDICTED, RUNTIMES, described, run_by
from trainplan.formulations.schedule.orders import SCHEDULES
from trainplan.formulations.schedule.simulate import Work
from trainplan.formulations.schedule.simulate import simulate as simulate_passes
from trainplan.inputs import cluster_of, compiles, profile_of
from trainplan.prediction.predict import plan_profile, stage_times
from trainplan.prediction.schedule_options import check_schedule, checked_orders, number_sliced, refuse_given
from trainplan.prediction.simulate_partition import chosen_cuts, simulated_partition, with_chunks
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.base.errors import InputError, caution, one_of
from trainplan.profiling.base.files import FilePath, Source, name_of_source
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import span
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile
from trainplan.verification import plan_or_instance

COST_MODELS = ("executed", "streams")
MOST_PASSES = 2**17  # passes in a step of a plan, beyond which it gets no timeline


def simulate(
    source: Plan | InstanceLike | Source,
    *,
    schedule: str | None = None,
    sliced: int | str | None = None,
    cluster: FilePath | Cluster | None = None,
    profile: FilePath | Profile | None = None,
    measure: bool = False,
    measuring: Report | None = None,
    solution: Any = None,
    chunks: int = 1,
    method: str | None = None,
    cost_model: str | None = None,
    for_: str | None = None,
    **options: Any,
) -> Simulation:
    """A step of any plan, or of a partition of a pipeline-partition instance, with its timeline and critical path.

    The step of a plan is predicted as the runtime that the plan is for has it; without one, its programs are simulated.

    Args:
        source: a plan or an instance: a file, a dict or the object.
        schedule: 1f1b, gpipe or interleaved-1f1b (default: the plan's; 1f1b).
        sliced: Micro-batches cut in two: a number, least, or algorithm-2 (default: the plan's; none).

            Their first passes come in halves. 'least' is the fewest with all of the gain, 'algorithm-2' is AutoPipe's count.
        cluster: For a plan: times estimated anew on this cluster (default: the plan's own).
        profile: For a plan: a profile with its times.
        measure: For a plan: measure the model on this machine.
        measuring: A function that is called with each report of progress while measuring.
        solution: Where an instance is cut into stages (default: the cuts that `method` finds).
        chunks: interleaved-1f1b: stages on each device of an instance.
        method: Finds the cuts without `solution` (default: exact; algorithm-1 for `chunks`).
        cost_model: For a plan on a `cluster`: executed, or streams (with overlap) (default: executed).

            By streams, links and kernels are as fast as in measured runs; the plan has one layout, and the cluster one kind of
            device.
        for_: For a plan on a `cluster`: the runtime that runs it (default: the plan's).
        **options: Options of the method, as for `solve`.

    Returns:
        The step, with its `timeline`, its `critical` path, its `performance` and, as `judged`, the prediction of its programs.

    Raises:
        InputError: for options that do not go together, and for plans and instances that cannot be simulated.
    """
    check_schedule(schedule or "1f1b", chunks)
    subject = plan_or_instance(source)
    if cost_model not in (None, *COST_MODELS):
        raise InputError("command line", "--cost-model", f"is {cost_model!r}", one_of(cost_model, COST_MODELS))
    if for_ is not None:
        subject = _for_runtime(subject, for_, cluster)
    if cost_model == "streams":
        given = {"--profile": profile, "--measure": measure or None, "--schedule": schedule, "--sliced": sliced}
        refuse_given(given, "the cost model streams has times of its own")
        return _simulated_with_overlap(subject, cluster)
    if isinstance(subject, Plan):
        of_own_programs = measure or any(option is not None for option in (schedule, sliced, profile, cost_model))
        if cluster is not None and not of_own_programs and _without_profile(subject):
            return _simulated_with_overlap(subject, cluster).as_run(cluster_of(cluster))
        given = {"--solution": solution, "--chunks": None if chunks == 1 else chunks, "--method": method}
        refuse_given(given, "a plan says it")
        request = Request(
            subject.planned_model(),
            None if cluster is None else cluster_of(cluster),
            subject.batch.global_samples,
            profile=profile_of(profile),
            measured=measure,
            report=measuring,
        )
        simulation = _simulated_plan(subject, request, schedule=schedule, sliced=sliced)
        if of_own_programs:
            simulation = simulation.by_own_programs()
        elif request.cluster is not None:
            simulation = simulation.as_run(request.cluster)
        if simulation.judged is not None:
            check_peaks(name_of_source(source, "plan"), subject, simulation.peak_bytes)
        return simulation
    if not isinstance(subject, Instance):
        raise InputError("instance", "problem", f"is {subject.problem!r}", "give a plan, or an instance of pipeline-partition")
    refuse_given({"--cluster": cluster, "--profile": profile, "--measure": measure or None}, "an instance has its times")
    instance = with_chunks(subject, chunks)
    where = name_of_source(solution, "solution")
    cuts = chosen_cuts(instance, solution, method, chunks, options)
    return simulated_partition(instance, cuts, where, schedule=schedule or "1f1b", sliced=sliced or 0, chunks=chunks)


def _simulated_with_overlap(subject: Any, cluster: FilePath | Cluster | None) -> Simulation:
    """Simulate a plan on a cluster by the overlapped cost model (`streams`).

    subject: the user's argument, which has to be a plan. Raises InputError if it is none, if the cluster is missing, or if
    the model cannot be turned into programs.
    """
    if not isinstance(subject, Plan):
        raise InputError("command line", "--cost-model", "is 'streams', of an instance", "give a plan, or leave it out")
    if cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give the devices that --cost-model streams is for")
    machine, model = cluster_of(cluster), subject.planned_model()
    if not compiles(model):
        fix = "give a plan of a model that becomes programs"
        raise InputError("plan", "model.config.model_type", f"is {model.family!r}", fix)
    prediction = predict_overlapped(subject, machine)
    names = tuple(span(model.units[stage.first_unit].name, model.units[stage.last_unit].name) for stage in subject.stages)
    about = f"{model.name} on {machine.name}, with overlap"
    batch = subject.batch.micro_batches
    simulation = Simulation(about, subject.schedule, batch, 0, subject.chunks, names, None, (), subject, prediction, machine)
    return simulation.by_own_programs()


def _without_profile(plan: Plan) -> bool:
    """Whether a plan is for a runtime other than trainplan's own and needs costs that profiles lack: those of samples in
    pieces, or of low-precision matrix multiplications.
    """
    return plan.runs_by is not None and (plan.pieces > 1 or recipe_of(plan) is not None)


def _for_runtime(subject: Any, name: str, cluster: FilePath | Cluster | None) -> Any:
    """A copy of the plan whose field `runs_by` has the settings of the runtime `name` (None for trainplan's own runtime and for
    torch scripts). subject: a plan; raises InputError for anything else, for an unknown runtime, if the cluster is missing, or
    if the runtime's time under the plan's schedule is not known.
    """
    if not isinstance(subject, Plan):
        raise InputError("command line", "--for", f"is {name!r}, of an instance", "give a plan, or leave it out")
    runtime = described(name)
    if runtime is None:
        raise InputError("command line", "--for", f"is {name!r}", one_of(name, [*RUNTIMES, *ONLY_PREDICTED]))
    if cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give the devices on which the runtime is predicted")
    if runtime.unpredicted:
        caution("command line", "--for", f"is {name!r}, {BY_PROGRAMS}", "compare it with a step that the runtime has measured")
    settings = run_by(name, subject)
    if settings is not None and not SCHEDULES[subject.schedule].predicted_as:
        fix = "leave --for out: what other runtimes take under this schedule is not known"
        raise InputError("plan", "schedule", f"is {subject.schedule!r}, with --for {name}", fix)
    return subject.changed(runs_by=settings)


def _simulated_plan(
    plan: Plan, request: Request, *, schedule: str | None = None, sliced: int | str | None = None
) -> Simulation:
    """Simulate a plan's step with the costs that the request names, or else with the costs that the plan has stored. Raises
    InputError if the plan cannot be simulated.

    request: has a cluster, profile or measurement if these replace the plan's costs. schedule, sliced: replace the plan's
    schedule and its number of micro-batches that are cut in two; None keeps them.
    """
    if schedule == "interleaved-1f1b":
        fix = "give 1f1b or gpipe: a plan has one stage on each device; instances have chunks"
        raise InputError("command line", "--schedule", "is 'interleaved-1f1b'", fix)
    model = plan.planned_model()
    if not compiles(model):
        raise InputError(
            "plan", "model.config.model_type", f"is {model.family!r}", "give a plan of a model that becomes programs"
        )
    carried = request.cluster is None and request.profile is None and not request.measured
    durations = None if plan.predicted is None else plan.predicted.durations
    if carried and durations is None:
        fix = "give it, or a --profile: the plan carries no costs"
        raise InputError("command line", "--cluster", "is missing", fix)
    if not carried and plan.world > request.origin.devices:
        problem = f"has {request.origin.devices} devices"
        raise InputError("command line", "--cluster", problem, f"give one of at least {plan.world}")
    if request.profile is not None and request.profile.model is None:
        raise InputError("profile", "name", f"is {request.profile.name!r}, imported", f"give a profile of {model.name!r}")
    costs = None if carried else plan_profile(plan, request)
    kinds = None if request.cluster is None else request.cluster.device_kinds
    times = plan.stage_times if costs is None else stage_times(plan, costs, kinds)
    work = None if times is None or plan.uses_host else _work(times)
    changed = _with_schedule(plan, work, schedule, sliced)
    prediction = predict_from_saved_costs(changed, durations or {}) if costs is None else judge(changed, costs, kinds)
    name = f"{model.name}, as planned" if costs is None else f"{model.name} on {costs.cluster}"
    names = tuple(span(model.units[stage.first_unit].name, model.units[stage.last_unit].name) for stage in plan.stages)
    count = changed.batch.micro_batches
    timeline = None
    if work is not None and 2 * work.stages * count <= MOST_PASSES:
        timeline = simulate_passes(work, checked_orders(work.stages, count, changed.schedule, changed.sliced, 1))
    syncs = () if times is None else tuple(stage.sync_ns for stage in times)
    return Simulation(
        name, changed.schedule, count, changed.sliced, 1, names, timeline, syncs, changed, prediction, request.cluster
    )


def _with_schedule(plan: Plan, work: Work | None, schedule: str | None, sliced: int | str | None) -> Plan:
    """A copy of the plan with another schedule, or another number of micro-batches that are cut in two, as far as they are
    given. Raises InputError if they do not apply.

    work: times of the stages' passes; None for plans that are not a plain pipeline (one stage on each device, stages of equal
    size). schedule, sliced: None keeps the plan's own; its own number of cut micro-batches is kept only if its schedule is.
    """
    if schedule is None and sliced is None:
        return plan
    if work is None:
        option = "--schedule" if schedule is not None else "--sliced"
        fix = "leave it out: it is for plans of equal stages, with nothing on the host or kept whole"
        raise InputError("command line", option, "is given", fix)
    chosen = schedule or plan.schedule
    count: int | str = sliced if sliced is not None else plan.sliced if chosen == plan.schedule else 0
    number = number_sliced(work, plan.batch.micro_batches, count)
    checked_orders(work.stages, plan.batch.micro_batches, chosen, number, 1)  # called for its errors, which name the option
    return plan.changed(schedule=chosen, sliced=number)


def _work(times: Sequence[StageTimes]) -> Work:
    """Convert the times of a plan's stages to the form that the simulation of schedules takes: the passes and messages of all
    stages in one object.
    """
    forward, backward, moves = (
        tuple(getattr(time, f"{name}_ns") for time in times) for name in ("forward", "backward", "transfer")
    )
    return Work(forward, backward, moves[:-1])
