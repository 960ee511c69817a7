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
    """Run plans of one world size for some training steps, one plan after the other, in one start of local processes, one
    process per rank. Returns one report per plan.

    model: the model to run instead of the plans' own, for example a scaled-down one; None for the plans' own. steps: number of
    steps. backend: how the executor of programs runs its lanes (queues of instructions). device: 'cpu', or 'cuda' for one GPU
    per process: rank r runs on the GPU that the plan's placement names, which must be equal in all plans. transport: how
    tensors travel; with 'staged', ranks share the available GPUs. seed: the seed of parameters and samples. compare: also train
    on one process, and report the differences. measure_memory: report what each rank allocates. measure: measure the times of
    instructions, and compare them with predicted ones. profile: with `measure`, predicts these times; it has the shapes of the
    one plan that runs, and the report has a copy of it with the measured times; None for the times that the plan itself
    carries. progress: called with a dict for each step; None for no reports.

    timeout: seconds for the whole run. stall_timeout: seconds after which the processes are ended if a rank is stopped, or if
    none makes progress. where: the plans' name in errors and warnings. runtime: 'program' for the plans' programs, which are
    checked first, or 'torch' for torch's own parallel modules, which run only plans for which
    `execution.runtimes.torch.refusals` is empty. checkpoints: where a run of one plan by torch writes checkpoints and from
    which it resumes; step numbers then include the steps before the checkpoint; None for no checkpoints. training: settings and
    data of a run by torch; None for synthetic samples. step_timeout: seconds after which a rank of a run by torch ends if it is
    still in one step; None for no limit. force: run even if memory does not suffice.

    Raises InputError for bad arguments and, unless `force`, if a device has less memory than a rank needs; WorkerError if a
    process fails.
    """
    check_settings(plans, steps, backend, device, seed, stall_timeout, transport)
    for plan in plans:
        refuse_others(plan, CAPABILITIES.features, "the executor", where)
    _check_measuring(backend, measure, measure_memory)
    assert checkpoints is training is step_timeout is None or runtime == "torch"
    assert checkpoints is None or len(plans) == 1
    process = launched()
    if len({gpus(plan, device, transport) for plan in plans}) > 1:
        raise InputError(
            "plan", "placement", "differs from another plan's", "run plans of another placement on GPUs by themselves"
        )
    jobs: list[dict[str, Any]] = [{"programs": sound_programs(plan, model, backend), "plan": plan} for plan in plans]
    walks = [[memory_walk(program, backend) for program in job["programs"]] for job in jobs]
    peaks = [[walk.peak_bytes for walk in walked] for walked in walks]
    for plan, walked, peak_bytes in zip(plans, walks, peaks, strict=True):
        if process is None and not force:
            check_memory(where, plan, walked, gpus(plan, device, transport))
        else:
            check_peaks(where, plan, peak_bytes)
    if dry := runtime == "torch" and measure_memory and process is None:
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
    if process is not None:
        ranks = run_launched(TARGETS[runtime], process, job, **shared)
    else:
        shared |= {"timeout": timeout, "stall_timeout": stall_timeout}
        endable = checkpoints is not None and checkpoints.folder is not None
        describe = partial(position_in_step, jobs)
        ranks = run_workers(TARGETS[runtime], plans[0].world, job, describe_position=describe, passes_on=endable, **shared)
    common = {"backend": backend, "device": device, "runtime": runtime, "predicted_by": "dry run" if dry else "memory walk"}
    reports = []
    for number, (plan, plan_job) in enumerate(zip(plans, jobs, strict=True)):
        programs, results = plan_job["programs"], [rank[number] for rank in ranks]
        measured = _measured(plan, programs, [result["spans"] for result in results], profile) if measure else {}
        allocated = [result["peak_bytes"] for result in results] if measure_memory else None
        memory = {"predicted_peak_bytes": peaks[number], "peak_bytes": allocated}
        reports.append(_report(plan, programs, results, **memory, **common, **measured))
    return reports


def _check_measuring(backend: Backend, measure: bool, measure_memory: bool) -> None:
    """Raises InputError if the times (measure) or the memory (measure_memory) of instructions are requested on a back-end on
    which they cannot be measured."""
    if measure and backend != "serial":
        fix = "give --backend serial: overlap hides who waits"
        raise InputError("command line", "--measure", f"goes with {backend!r}", fix)
    if measure_memory and backend not in MEASURED_BACKENDS:
        fix = "give --backend serial: one thread is seen"
        raise InputError("command line", "--measure-memory", f"goes with {backend!r}", fix)


def _report(plan: Plan, programs: Sequence[Program], results: Sequence[Mapping[str, Any]], **fields: Any) -> RunReport:
    """The report of a plan's run. results: one dict per rank, as its process returned it. fields: further fields of the
    report."""
    first = results[0]
    names = ("losses", "gradient_difference", "parameter_difference", "loss_difference")
    return RunReport(
        model=programs[0].model.name,
        dtype=programs[0].model.dtype,
        world=plan.world,
        step_seconds=[max(times) for times in zip(*(result["seconds"] for result in results), strict=True)],
        limit_bytes=plan.memory_bytes,
        **{name: first[name] for name in names},
        **{name: first[name] for name in ("first_step", "evaluations", "ended") if name in first},
        **fields,
    )


def _measured(
    plan: Plan, programs: Sequence[Program], spans: Sequence[Sequence[Sequence[Span]]], profile: Profile | None
) -> dict[str, Any]:
    """The fields of a run's report about the times of its instructions: `instructions` (measured and predicted times by kind),
    `predicted_seconds` and `walked_seconds` (the step simulated with predicted and with measured times) and `profile` (the
    given profile with measured times in it, or None). spans: [rank][step][instruction] -> (begin, end) in ns. profile: predicts
    the times; None for the durations that the plan carries."""
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
    """Describe how far a rank has come, for messages: "in step 2 of plan 1, at forward unit 3". jobs: one dict per plan with
    the programs of its ranks. position: (index of the plan, step from 1, latest instruction from 1), with 0 for a step or an
    instruction not yet begun."""
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
    """Compile the programs (instructions for a training step) of all ranks of a plan for a back-end of the executor, and check
    them. model: to run instead of the plan's own; None for the plan's. Raises AssertionError for a fault."""
    programs = programs_of(plan, backend, model)
    if faults := check(programs):
        raise AssertionError(f"the compiler made an unsound program: {faults[0]}")
    return programs
