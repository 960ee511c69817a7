"""Run plans on local processes: training steps, their losses and times, and the comparison with one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.timing.measured_costs import MeasuredCosts, Span, times_by_kind
from trainplan.execution.analysis.timing.measured_profile import with_measured_times
from trainplan.execution.analysis.timing.profiled_costs import CarriedCosts, ProfiledCosts
from trainplan.execution.analysis.timing.simulate import Durations, time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.launch.choose_executor import Runtime
from trainplan.execution.launch.memory_check import check_memory, check_peaks
from trainplan.execution.launch.report import RunReport
from trainplan.execution.lowering.checkpoints import Checkpoints
from trainplan.execution.prediction.compiled_plan import programs_of
from trainplan.execution.program import Program
from trainplan.execution.run.ranks import AFTER
from trainplan.execution.run.settings import MEASURED_BACKENDS, Device, TransportName, check_settings, communication, gpus
from trainplan.execution.runtimes.trainplan.capabilities import CAPABILITIES
from trainplan.execution.support import refuse_others
from trainplan.execution.training.settings import Training
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report, run_workers
from trainplan.profiling.base.torchrun_worker import launched, run_launched
from trainplan.profiling.base.watchdog import STALL_S
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile

TARGETS: dict[Runtime, str] = {
    "program": "trainplan.execution.run.ranks:run_rank",
    "torch": "trainplan.execution.lowering.ranks:run_rank",
}


def run_plans(
    plans: list[Plan],
    *,
    model: Model | None = None,
    steps: int = 3,
    backend: Backend = "serial",
    device: Device = "cpu",
    transport: TransportName = "direct",
    seed: int = 0,
    compare: bool = True,
    measure_memory: bool = False,
    measure: bool = False,
    profile: Profile | None = None,
    progress: Report | None = None,
    timeout: float = float("inf"),
    stall_timeout: float = STALL_S,
    where: str = "plan",
    runtime: Runtime = "program",
    checkpoints: Checkpoints | None = None,
    training: Training | None = None,
    step_timeout: float | None = None,
    force: bool = False,
) -> list[RunReport]:
    """Run plans of one world size one after the other, all in one start of its processes.

    runtime: the plans' programs, or torch's own pieces, which carry plans without `execution.runtimes.torch.refusals`.
    checkpoints: those that a run of one plan by torch writes and begins with; steps are then counted from the first run's
    first. training: the settings and data of a run by torch; step_timeout: seconds after which a rank of it ends that is still
    in one step.

    model: the model to run instead of the plans' own (see `Model.scaled`). device: `cuda` for a GPU a process: rank r on the
    one that the plan's placement names, and so the same one in all plans. transport: how tensors travel (see there); with
    `staged`, ranks share the available GPUs. Every set of programs passes the static checks first. measure: compare the times
    of instructions with those that the plan predicts, or the profile, which has the shapes of the one plan, and gets these
    times. where: the plans' name in errors and warnings, such as that they need more memory than they were planned for, or than
    there is. timeout: seconds for the whole run. stall_timeout: seconds after which a rank that is stopped, or all that stand
    still, are ended (see `profiling.base.watchdog`). Raises InputError for bad arguments and, unless `force`, where a device
    has less memory than a rank needs; WorkerError when a process fails.
    """
    check_settings(plans, steps, backend, device, seed, stall_timeout, transport)
    for plan in plans:
        refuse_others(plan, CAPABILITIES.features, "the executor", where)
    if measure and backend != "serial":
        raise InputError(
            "command line", "--measure", f"goes with {backend!r}", "give --backend serial: overlap hides who waits"
        )
    if measure_memory and backend not in MEASURED_BACKENDS:
        raise InputError(
            "command line", "--measure-memory", f"goes with {backend!r}", "give --backend serial: one thread is seen"
        )
    assert checkpoints is training is step_timeout is None or runtime == "torch"
    assert checkpoints is None or len(plans) == 1
    world, place = plans[0].world, launched()
    if len({gpus(plan, device, transport) for plan in plans}) > 1:
        raise InputError(
            "plan", "placement", "differs from another plan's", "run plans of another placement on GPUs by themselves"
        )
    jobs: list[dict[str, Any]] = [{"programs": sound_programs(plan, model, backend), "plan": plan} for plan in plans]
    walks = [[memory_walk(program, backend) for program in job["programs"]] for job in jobs]
    peaks = [[walk.peak_bytes for walk in walked] for walked in walks]
    for plan, walked, peak_bytes in zip(plans, walks, peaks, strict=True):
        if place is None and not force:
            check_memory(where, plan, walked, gpus(plan, device, transport))
        else:
            check_peaks(where, plan, peak_bytes)
    if dry := runtime == "torch" and measure_memory and place is None:
        from trainplan.execution.lowering.dry_run import dry_peaks

        peaks = dry_peaks(plans, model, by_gloo=device == "cpu")
    job = {
        "jobs": jobs,
        "steps": steps,
        "backend": backend,
        "gpus": gpus(plans[0], device, transport),
        "transport": transport,
        "seed": seed,
        "compare": compare,
        "memory": measure_memory,
        "record": measure,
        "checkpoints": checkpoints,
        "training": training,
        "step_timeout": step_timeout,
    }
    shared: dict[str, Any] = {"progress": progress, "backend": communication(device, transport)}
    if place is not None:
        ranks = run_launched(TARGETS[runtime], place, job, **shared)
    else:
        shared |= {"timeout": timeout, "stall_timeout": stall_timeout}
        endable = checkpoints is not None and checkpoints.folder is not None
        ranks = run_workers(
            TARGETS[runtime], world, job, describe_position=partial(position_in_step, jobs), passes_on=endable, **shared
        )
    reports = []
    for number, plan_job in enumerate(jobs):
        programs, first = plan_job["programs"], ranks[0][number]
        reports.append(
            RunReport(
                model=programs[0].model.name,
                dtype=programs[0].model.dtype,
                world=world,
                backend=backend,
                device=device,
                losses=first["losses"],
                step_seconds=[max(times) for times in zip(*(rank[number]["seconds"] for rank in ranks), strict=True)],
                predicted_peak_bytes=peaks[number],
                peak_bytes=[rank[number]["peak_bytes"] for rank in ranks] if measure_memory else None,
                gradient_difference=first["gradient_difference"],
                parameter_difference=first["parameter_difference"],
                loss_difference=first["loss_difference"],
                limit_bytes=plans[number].memory_bytes,
                runtime=runtime,
                predicted_by="dry run" if dry else "memory walk",
                **{name: first[name] for name in ("first_step", "evaluations", "ended") if name in first},
                **(_measured(plans[number], programs, [rank[number]["spans"] for rank in ranks], profile) if measure else {}),
            )
        )
    return reports


def _measured(
    plan: Plan, programs: Sequence[Program], spans: Sequence[Sequence[Sequence[Span]]], profile: Profile | None
) -> dict[str, Any]:
    """Fields of a report about the times of instructions. spans: (begin, end) in ns, by rank, step and instruction."""
    measured = MeasuredCosts(programs, list(zip(*spans, strict=True)))
    predicted: Durations | None = None
    if profile is not None:
        predicted = ProfiledCosts(plan, profile)
    elif plan.predicted and plan.predicted.durations and programs[0].model.shape() == plan.planned_model().shape():
        predicted = CarriedCosts(plan.predicted.durations)
    return {
        "instructions": times_by_kind(programs, measured, predicted),
        "predicted_seconds": None if predicted is None else time_walk(programs, predicted).step_ns / 1e9,
        "walked_seconds": time_walk(programs, measured).step_ns / 1e9,
        "profile": None if profile is None else with_measured_times(profile, plan, programs, measured),
    }


def position_in_step(jobs: Sequence[Mapping[str, Sequence[Program]]], rank: int, position: Sequence[int]) -> str:
    """A rank's position in words: in which step of which plan of the jobs, and at which instruction. position: as `steps`
    counts it."""
    plan, step, number = position
    of_plan = f" of plan {plan + 1}" if len(jobs) > 1 else ""
    if step == 0:
        return f"before the first step{of_plan}"
    if number == 0:
        return f"at the beginning of step {step}{of_plan}"
    if step == AFTER:
        return f"after the last step{of_plan}"
    return f"in step {step}{of_plan}, at {jobs[plan]['programs'][rank].instructions[number - 1]}"


def sound_programs(plan: Plan, model: Model | None, backend: Backend) -> list[Program]:
    """A plan's programs on a back-end, of `model` if it is given, after they have passed their checks."""
    programs = programs_of(plan, backend, model)
    if faults := check(programs):
        raise AssertionError(f"the compiler made an unsound program: {faults[0]}")
    return programs
