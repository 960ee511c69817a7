"""A step, simulated: of any plan, by the walks over its programs, or of a partition of a pipeline-partition instance.

A plan's step is what the time walk says. Beside it stands the pipeline's timeline, pass by pass, from the times of its stages:
what pictures, traces and the critical path are drawn from. Plans with memory switches are drawn on their lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainplan.execution.launch.memory_check import check_peaks
from trainplan.execution.prediction.evaluate_plan import PlanPrediction, judge, predict_from_saved_costs
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.plan.plan import Plan, Predicted, StageTimes
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import InstanceLike, problem_of
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.formulations.schedule.critical_path import Critical, critical_path
from trainplan.formulations.schedule.orders import Pass, in_flight, interleaved, most_sliced, orders
from trainplan.formulations.schedule.simulate import Timeline, Work
from trainplan.formulations.schedule.simulate import simulate as simulate_passes
from trainplan.inputs import cluster_of, compiles, profile_of
from trainplan.prediction.chrome_trace import chrome_trace, operations_trace
from trainplan.prediction.metrics import Performance, first_places, performance
from trainplan.prediction.predict import plan_profile, stage_times
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import FilePath, Source, name_of_source
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import span
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve
from trainplan.solvers.partition.slicer import algorithm_2, least_sliced
from trainplan.validation.plans import as_run, run_by
from trainplan.verification import plan_or_instance, solution_source

SLICERS = {"least": least_sliced, "algorithm-2": algorithm_2}
COST_MODELS = ("executed", "streams")
MOST_PASSES = 2**17  # of a plan, that a timeline has
SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b")


@in_one_line
@dataclass(frozen=True)
class Simulation:
    """A simulated step.

    stages: names of what every stage holds. timeline: of the pipeline's passes; None for a plan with memory switches, or with
    more than MOST_PASSES.
    syncs_ns: what each stage adds to the end of the step (the reduction of gradients, the optimizer), which the timeline leaves
    out; nothing is known of it for an instance. plan, judged: of a plan, itself and what the walks say of its programs.
    cluster: the one that its times are for, where one is named.
    """

    name: str
    schedule: str
    micro_batches: int
    sliced: int
    chunks: int
    stages: tuple[str, ...]
    timeline: Timeline | None
    syncs_ns: tuple[int, ...] = ()
    plan: Plan | None = None
    judged: PlanPrediction | None = None
    cluster: Cluster | None = None

    @cached_property
    def critical(self) -> Critical | None:
        """The critical path nearest the last stage, and the master stage; None without a pipeline's timeline."""
        return None if self.timeline is None else critical_path(self.timeline)

    @cached_property
    def performance(self) -> Performance | None:
        """A plan's step in an engineer's units; None for an instance."""
        return None if self.plan is None or self.judged is None else performance(self.plan, self.judged, self.cluster)

    @property
    def software(self) -> str:
        """Whose step it is, where the plan is for another runtime; empty of the walks'."""
        return "" if self.plan is None or self.plan.predicted is None else self.plan.predicted.software

    def walked(self) -> Simulation:
        """The same as trainplan's own runtime would run it, by the walks."""
        return self if not self.software or self.plan is None else replace(self, plan=self.plan.changed(predicted=None))

    def as_run(self, cluster: Cluster) -> Simulation:
        """The same as the runtime runs it that the plan is for, on a cluster, where that is known."""
        if self.plan is None or self.judged is None:
            return self
        judged, origin = self.judged, f"estimated on {cluster.name}"
        walks = Predicted(
            step_ns=judged.step_ns,
            peak_bytes=list(judged.peak_bytes),
            cost_model="executed",
            backend=judged.time.backend,
            profile_origin=origin,
        )
        return replace(self, plan=as_run(self.plan.changed(predicted=walks), cluster)[0])

    @property
    def peak_bytes(self) -> Sequence[int]:
        """The peak of every rank of a plan."""
        assert self.judged is not None
        if self.software and self.plan is not None and self.plan.predicted is not None:
            return self.plan.predicted.peak_bytes
        return self.judged.peak_bytes

    @property
    def step_ns(self) -> int:
        """The whole step: a plan's by its runtime's prediction or the time walk, an instance's the simulated iteration."""
        if self.software and self.plan is not None and self.plan.predicted is not None:
            return self.plan.predicted.step_ns
        if self.judged is not None:
            return self.judged.step_ns
        assert self.timeline is not None
        return self.timeline.step_ns(self.syncs_ns)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The most micro-batches that each device has in flight, on one stage each."""
        assert self.timeline is not None
        return tuple(in_flight([event.task for event in events]) for events in self.timeline.devices)

    def trace(self) -> dict[str, Any]:
        """The step in the Trace Event Format: the passes of its pipeline's timeline; of a step without one, the operations of
        one rank of each stage. Raises InputError for a step of more micro-batches than are walked one by one."""
        if self.timeline is not None:
            return chrome_trace(self.timeline, name=self.name, stages=self.stages)
        assert self.plan is not None and self.judged is not None
        indices = first_places(self.plan, self.judged)
        return operations_trace(self.judged.time, indices, name=self.name, units=[unit.name for unit in self.plan.units])

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        fields = ("name", "schedule", "micro_batches", "sliced", "chunks", "step_ns")
        about: dict[str, Any] = {field: getattr(self, field) for field in fields}
        if self.judged is not None:
            about |= {"peak_bytes": list(self.peak_bytes), "software": self.software}
        if self.performance is not None:
            about["performance"] = self.performance.to_dict()
        if self.timeline is None or self.critical is None:
            return about
        timeline, work = self.timeline, self.timeline.work
        count = len(timeline.devices)
        return about | {
            "iteration_ns": timeline.time_ns,
            "startup_ns": timeline.startup_ns,
            "bubble": timeline.bubble,
            "master_stage": self.critical.master,
            "devices": [
                {"busy_ns": busy, "idle_ns": timeline.time_ns - busy, "sync_ns": sync, "in_flight": many}
                for busy, sync, many in zip(timeline.busy_ns, self.syncs_ns, self.in_flight, strict=True)
            ],
            "stages": [
                {"name": name, "device": x % count, "forward_ns": f, "backward_ns": b, "transfer_ns": c}
                for x, (name, f, b, c) in enumerate(
                    zip(self.stages, work.forward_ns, work.backward_ns, (*work.transfer_ns, 0), strict=True)
                )
            ],
            "critical_path": [
                {**event.task._asdict(), "device": event.device, "start_ns": event.start_ns, "end_ns": event.end_ns}
                for event in self.critical.path
            ],
        }


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

    A plan's step is that of the runtime that it is for, or that of its programs, simulated.

    Args:
        source: a plan or an instance: a file, a dict or the object.
        schedule: 1f1b, gpipe or interleaved-1f1b (default: the plan's; 1f1b).
        sliced: Micro-batches cut in two: a number, least, or algorithm-2 (default: the plan's; none).

            Their first passes come in halves. 'least' is the fewest with all of the gain, 'algorithm-2' is AutoPipe's count.
        cluster: Of a plan: times estimated anew on this cluster (default: the plan's own).
        profile: Of a plan: a profile with its times.
        measure: Of a plan: measure the model on this machine.
        measuring: called with the reports of measuring.
        solution: cuts of an instance (default: those that `method` finds).
        chunks: interleaved-1f1b: stages on each device of an instance.
        method: Without `solution` (default: exact; algorithm-1 for `chunks`).

            It finds the cuts of an instance.
        cost_model: Of a plan on a `cluster`: executed, or streams (with overlap) (default: executed).

            By streams, links and kernels are as fast as in measured runs; the plan has one layout, and the cluster one kind of
            device.
        for_: Of a plan on a `cluster`: the runtime that runs it (default: the plan's).
        **options: of the method, as of `solve`.

    Returns:
        The step, with `timeline`, `critical`, `performance` and `judged`.

    Raises:
        InputError: for what cannot be simulated so.
    """
    _check_schedule(schedule or "1f1b", chunks)
    subject = plan_or_instance(source)
    if cost_model not in (None, *COST_MODELS):
        raise InputError("command line", "--cost-model", f"is {cost_model!r}", one_of(cost_model, COST_MODELS))
    if for_ is not None:
        subject = _for_runtime(subject, for_, cluster)
    if cost_model == "streams":
        asked = {"--profile": profile, "--measure": measure or None, "--schedule": schedule, "--sliced": sliced}
        _leave_out(asked, "the cost model streams has times of its own")
        return _simulated_streams(subject, cluster)
    plain = not measure and all(each is None for each in (schedule, sliced, profile, cost_model))
    if isinstance(subject, Plan) and cluster is not None and plain and _without_profile(subject):
        return _simulated_streams(subject, cluster).as_run(cluster_of(cluster))
    if isinstance(subject, Plan):
        _leave_out({"--solution": solution, "--chunks": None if chunks == 1 else chunks, "--method": method}, "a plan says it")
        request = Request(
            subject.planned_model(),
            None if cluster is None else cluster_of(cluster),
            subject.batch.global_samples,
            profile=profile_of(profile),
            measured=measure,
            report=measuring,
        )
        simulation = simulated_plan(subject, request, schedule=schedule, sliced=sliced)
        if measure or any(each is not None for each in (schedule, sliced, cost_model, profile)):
            simulation = simulation.walked()
        elif request.cluster is not None:
            simulation = simulation.as_run(request.cluster)
        if simulation.judged is not None:
            check_peaks(name_of_source(source, "plan"), subject, simulation.peak_bytes)
        return simulation
    if not isinstance(subject, Instance):
        raise InputError("instance", "problem", f"is {subject.problem!r}", "give a plan, or an instance of pipeline-partition")
    _leave_out({"--cluster": cluster, "--profile": profile, "--measure": measure or None}, "an instance has its times")
    instance = _in_chunks(subject, chunks)
    where = name_of_source(solution, "solution")
    cuts = _cuts(instance, solution, method, chunks, options)
    return _simulated_instance(instance, cuts, where, schedule=schedule or "1f1b", sliced=sliced or 0, chunks=chunks)


def _simulated_streams(subject: Any, cluster: FilePath | Cluster | None) -> Simulation:
    """A plan whose programs are walked with the costs of `streams`. Raises InputError."""
    if not isinstance(subject, Plan):
        raise InputError("command line", "--cost-model", "is 'streams', of an instance", "give a plan, or leave it out")
    if cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give the devices that --cost-model streams is for")
    machine, model = cluster_of(cluster), subject.planned_model()
    if not compiles(model):
        fix = "give a plan of a model that becomes programs"
        raise InputError("plan", "model.config.model_type", f"is {model.family!r}", fix)
    judged = predict_overlapped(subject, machine)
    names = tuple(span(model.units[stage.first_unit].name, model.units[stage.last_unit].name) for stage in subject.stages)
    about = f"{model.name} on {machine.name}, with overlap"
    batch = subject.batch.micro_batches
    return Simulation(about, subject.schedule, batch, 0, subject.chunks, names, None, (), subject, judged, machine).walked()


def _without_profile(plan: Plan) -> bool:
    """Whether a plan is another runtime's of which profiles say nothing: of pieces of samples, or of products in few bits."""
    return plan.runs_by is not None and (plan.pieces > 1 or recipe_of(plan) is not None)


def _for_runtime(subject: Any, name: str, cluster: FilePath | Cluster | None) -> Any:
    """A plan for another runtime. Raises InputError."""
    if not isinstance(subject, Plan):
        raise InputError("command line", "--for", f"is {name!r}, of an instance", "give a plan, or leave it out")
    if name not in RUNTIMES:
        raise InputError("command line", "--for", f"is {name!r}", one_of(name, RUNTIMES))
    if cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give the devices on which the runtime is predicted")
    return subject.changed(runs_by=run_by(name, subject))


def simulated_plan(plan: Plan, request: Request, *, schedule: str | None = None, sliced: int | str | None = None) -> Simulation:
    """A plan by the costs that it carries, or by those of the request's cluster or profile; its own schedule unless another
    one is asked for. Raises InputError."""
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
    changed = _changed(plan, work, schedule, sliced)
    judged = predict_from_saved_costs(changed, durations or {}) if costs is None else judge(changed, costs, kinds)
    name = f"{model.name}, as planned" if costs is None else f"{model.name} on {costs.cluster}"
    names = tuple(span(model.units[stage.first_unit].name, model.units[stage.last_unit].name) for stage in plan.stages)
    count = changed.batch.micro_batches
    timeline = None
    if work is not None and 2 * work.stages * count <= MOST_PASSES:
        timeline = simulate_passes(work, _orders(work.stages, count, changed.schedule, changed.sliced, 1))
    syncs = () if times is None else tuple(stage.sync_ns for stage in times)
    return Simulation(
        name, changed.schedule, count, changed.sliced, 1, names, timeline, syncs, changed, judged, request.cluster
    )


def _changed(plan: Plan, work: Work | None, schedule: str | None, sliced: int | str | None) -> Plan:
    """The plan under another schedule or slicing, where one is asked for; slices of another schedule are left out."""
    if schedule is None and sliced is None:
        return plan
    if work is None:
        option = "--schedule" if schedule is not None else "--sliced"
        fix = "leave it out: it is for plans of equal stages, with nothing on the host or kept whole"
        raise InputError("command line", option, "is given", fix)
    chosen = schedule or plan.schedule
    count: int | str = sliced if sliced is not None else plan.sliced if chosen == plan.schedule else 0
    number = _slices(work, plan.batch.micro_batches, count)
    _orders(work.stages, plan.batch.micro_batches, chosen, number, 1)  # its errors name the option
    return plan.changed(schedule=chosen, sliced=number)


def _work(times: Sequence[StageTimes]) -> Work:
    forward, backward, moves = (
        tuple(getattr(time, f"{name}_ns") for time in times) for name in ("forward", "backward", "transfer")
    )
    return Work(forward, backward, moves[:-1])


def _slices(work: Work, micro_batches: int, sliced: int | str) -> int:
    """How many micro-batches are cut in two: a number, or the name of one of SLICERS. Raises InputError."""
    if not isinstance(sliced, str):
        return sliced
    if sliced in SLICERS:
        return SLICERS[sliced](work, micro_batches)
    if not sliced.isdecimal():
        names = " or ".join(map(repr, SLICERS))
        raise InputError("command line", "--sliced", f"is {sliced!r}", f"give a number, {names}")
    return int(sliced)


def _orders(devices: int, micro_batches: int, schedule: str, sliced: int, chunks: int) -> list[list[Pass]]:
    if sliced and schedule != "1f1b":
        raise InputError("command line", "--sliced", f"is {sliced}", f"leave it out: {schedule} has no halves")
    most = most_sliced(devices, micro_batches)
    if sliced and not 0 <= sliced <= most:
        raise InputError("command line", "--sliced", f"is {sliced}", f"give 0 to {most}, those that run before a backward pass")
    if schedule != "interleaved-1f1b":
        return orders("gpipe" if schedule == "gpipe" else "1f1b", devices, micro_batches, sliced)
    if micro_batches % devices:
        fix = f"give a multiple of the {devices} devices: micro-batches come in groups of as many"
        raise InputError("command line", "--schedule", f"is interleaved-1f1b, with {micro_batches} micro-batches", fix)
    return interleaved(devices, chunks, micro_batches)


def _check_schedule(schedule: str, chunks: int) -> None:
    if schedule not in SCHEDULES:
        raise InputError("command line", "--schedule", f"is {schedule!r}", one_of(schedule, SCHEDULES))
    if chunks < 1:
        raise InputError("command line", "--chunks", f"is {chunks}", "give at least 1")
    if chunks > 1 and schedule != "interleaved-1f1b":
        raise InputError("command line", "--chunks", f"is {chunks}", "give --schedule interleaved-1f1b, too")


def _leave_out(options: Mapping[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise InputError("command line", option, "is given", f"leave it out: {why}")


def _in_chunks(instance: Instance, chunks: int) -> Instance:
    """The instance with `chunks` stages on each device; of several, memory is left out: a limit is that of a device."""
    stages = instance.stages * chunks
    if stages > instance.sublayers:
        fix = f"give at most {instance.sublayers // instance.stages}: every stage needs a sub-layer"
        raise InputError("command line", "--chunks", f"is {chunks}", fix)
    return instance if chunks == 1 else replace(instance, stages=stages, memory=None)


def _cuts(
    instance: Instance,
    solution: Result | Source | Sequence[int] | None,
    method: str | None,
    chunks: int,
    arguments: Mapping[str, Any],
) -> Solution:
    """The cuts of a solution, or those that a method finds. Raises InputError."""
    problem = problem_of(instance)
    if solution is None:
        method = method or ("exact" if chunks == 1 else "algorithm-1")
        result = solve(instance, method, **{"time_limit": TIME_LIMIT_S, **arguments})
        if result.solution is None:
            why = result.reason.command_text if result.reason else result.message or result.status
            raise InputError("instance", "memory", why, "give a --solution")
        solution = result
    elif method is not None:
        raise InputError("command line", "--method", f"is {method!r}", "leave it out: the solution is given")
    cuts: Solution = problem.load_solution(solution_source(problem, solution))
    return cuts


def _simulated_instance(
    instance: Instance, solution: Solution, where: str, *, schedule: str, sliced: int | str, chunks: int
) -> Simulation:
    """A partition of an instance under a schedule. Raises InputError, which names `where`."""
    broken = [text for text in problem_of(instance).violations(instance, solution) if text.startswith("cuts")]
    if broken:
        problem, fix = broken[0].removeprefix("cuts ").split("; ", 1)
        raise InputError(where, "cuts", problem, fix)
    ends = (*solution.cuts, instance.sublayers)
    names = tuple(
        span(instance.name_of(first), instance.name_of(end - 1)) for first, end in zip((0, *solution.cuts), ends, strict=True)
    )
    work, count = instance.work(solution.cuts), instance.micro_batches
    number = _slices(work, count, sliced or solution.sliced)
    timeline = simulate_passes(work, _orders(work.stages // chunks, count, schedule, number, chunks))
    syncs = (0,) * len(timeline.devices)
    return Simulation(instance.name, schedule, count, number, chunks, names, timeline, syncs)
