"""Run plans on local processes: training steps, their losses and times, and the comparison with one process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from trainplan.execution.ahead import programs_of
from trainplan.execution.lowering.checkpoints import Checkpoints
from trainplan.execution.lowering.choice import Runtime
from trainplan.execution.program import Program
from trainplan.execution.run.room import check_memory, check_peaks
from trainplan.execution.training.settings import Training
from trainplan.execution.walk.checks import check
from trainplan.execution.walk.costs import CarriedCosts, ProfiledCosts
from trainplan.execution.walk.measured import KindTimes, MeasuredCosts, Span, times_by_kind
from trainplan.execution.walk.measured_profile import with_measured_times
from trainplan.execution.walk.memory import BACKENDS, Backend, memory_walk
from trainplan.execution.walk.time import Durations, time_walk
from trainplan.formulations.plan import Plan
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.launched import launched, run_launched
from trainplan.profiling.base.processes import Report, Reporter, run_workers
from trainplan.profiling.base.watchdog import STALL_S, Position
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile

MOST_PROCESSES = 64
TARGETS: dict[Runtime, str] = {
    "program": "trainplan.execution.run.processes:run_rank",
    "torch": "trainplan.execution.lowering.ranks:run_rank",
}
Device = Literal["cpu", "cuda"]
TransportName = Literal["direct", "staged"]  # see `transport`
COMMUNICATION: dict[Device, str] = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # torch's names, for tensors there
BACKENDS_ON: dict[Device, tuple[Backend, ...]] = {"cpu": ("serial", "fused", "threads"), "cuda": ("serial", "streams")}
MEASURED_BACKENDS: tuple[Backend, ...] = ("serial", "streams")  # what torch allocates on the CPU is seen of one thread
EXECUTED_DTYPES = ("float32", "float64", "bfloat16")  # in float16 gradients would vanish without a scaled loss
# Fields of a configuration that change results, and that torch_units does not follow.
UNEXECUTED = (
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "rope_interleaved",
    "alibi",
    "hidden_dropout",
)
AFTER = 2**31  # the number of a step that is behind all others
RELEASE_S = 0.004  # gloo's thread lets go of a collective's tensors well within it
EXECUTED_FAMILIES = (  # one stream of tokens, and a language head
    *("gpt2", "bert", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"),
    *("glm", "glm4", "nemotron", "gpt_neox", "falcon", "opt", "mpt"),
)


@dataclass(frozen=True)
class RunReport:
    """What running a plan gave.

    losses: of every step. step_seconds: of every step, the slowest rank's. predicted_peak_bytes: by rank, from the memory
    walk, or, where torch runs the plan and its memory is measured, from a dry run of that (predicted_by); peak_bytes: by
    rank, what torch allocated (None where not asked for). gradient_difference: largest difference of any gradient of the first
    step against one process, relative to the largest gradient of its unit; parameter_difference: largest absolute difference
    of any parameter after the last step; loss_difference: of any step's loss. limit_bytes: what a device may use, as the plan
    was made.

    Where instructions were measured: instructions: their times by kind, measured and predicted; predicted_seconds: of a step
    on one lane, by the time walk, as the profile or the plan has it (None where neither is of the model that ran);
    walked_seconds: the same by the median times that its instructions took here; profile: the one that was given, with these.

    runtime: who ran it, the plan's program on the back-end, or torch (see `execution.lowering`); why_program: what kept it from
    being torch, where nobody asked for the program.

    first_step: the number of the first of the losses' steps, 1 unless the run went on from a checkpoint. evaluations: losses of
    the file that the model is evaluated on, by step. ended: whether the run was asked to end (SIGTERM) before its last step,
    with a checkpoint.
    """

    model: str
    dtype: str
    world: int
    backend: Backend
    device: Device
    losses: list[float]
    step_seconds: list[float]
    predicted_peak_bytes: list[int]
    peak_bytes: list[int] | None
    gradient_difference: float | None
    parameter_difference: float | None
    loss_difference: float | None
    limit_bytes: int | None = None
    instructions: list[KindTimes] | None = None
    predicted_seconds: float | None = None
    walked_seconds: float | None = None
    profile: Profile | None = None
    runtime: Runtime = "program"
    predicted_by: Literal["memory walk", "dry run"] = "memory walk"
    why_program: str | None = None
    first_step: int = 1
    evaluations: dict[int, float] = field(default_factory=dict)
    ended: bool = False


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
) -> list[RunReport]:
    """Run plans of one world size one after the other, all in one start of its processes.

    runtime: the plans' programs, or torch's own pieces, which carry plans without `execution.lowering.refusals`. checkpoints:
    what a run of one plan by torch keeps and begins with; steps are then counted from the first run's first. training: what
    a run by torch trains with, and on; step_timeout: seconds after which a rank of it ends that is in one step still.

    model: the model to run in place of the plans' own (see `Model.scaled`). device: `cuda` for a GPU a process: rank r on the
    one that the plan's placement names, and so the same one in all plans. transport: how tensors travel (see there); with
    `staged`, ranks share the GPUs that there are. Every set of programs passes the static checks
    first. measure: what instructions take, against what the plan predicts, or the profile, which has the shapes of the one
    plan, and gets these times. where: what errors and warnings call the plans,
    which need more memory than they were made for, or than there is. timeout: seconds for all of it; stall_timeout: seconds
    after which a rank that is stopped, or all that stand still, are ended (see `profiling.base.watchdog`). Raises InputError
    for bad arguments and where a device has less memory than a rank needs, WorkerError when a process fails.
    """
    check_settings(plans, steps, backend, device, seed, stall_timeout, transport)
    if measure and backend != "serial":
        raise InputError("command line", "--measure", f"goes with {backend!r}", "give --backend serial: lanes hide who waits")
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
    peaks, dry = (
        [[walk.peak_bytes for walk in walked] for walked in walks],
        runtime == "torch" and measure_memory and place is None,
    )
    if dry:
        from trainplan.execution.lowering.dry_run import dry_peaks

        peaks = dry_peaks(plans, model)
    for plan, walked in zip(plans, walks, strict=True):
        if place is None:
            check_memory(where, plan, walked, gpus(plan, device, transport))
        else:
            check_peaks(where, plan, [walk.peak_bytes for walk in walked])
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
        ranks = run_workers(TARGETS[runtime], world, job, place=partial(place_in_step, jobs), passes_on=endable, **shared)
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
    """Fields of a report that are about what instructions took. spans: when they began and ended, by rank and step."""
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


def place_in_step(jobs: Sequence[Mapping[str, Sequence[Program]]], rank: int, position: Sequence[int]) -> str:
    """Where a rank is, in words: in which step of which plan of the jobs, and at which instruction, as `steps` counts them."""
    plan, step, number = position
    of_plan = f" of plan {plan + 1}" if len(jobs) > 1 else ""
    if step == 0:
        return f"before the first step{of_plan}"
    if number == 0:
        return f"at the beginning of step {step}{of_plan}"
    if step == AFTER:
        return f"after the last step{of_plan}"
    return f"in step {step}{of_plan}, at {jobs[plan]['programs'][rank].instructions[number - 1]}"


def check_seconds(flag: str, seconds: float, usual: float) -> None:
    """Raises InputError where a time limit is below a second, with one that would do."""
    if not seconds >= 1:
        raise InputError("command line", flag, f"is {seconds:g}", f"give 1 second or more, such as {usual:g}")


def check_settings(
    plans: Sequence[Plan],
    steps: int,
    backend: Backend,
    device: Device,
    seed: int,
    stall_timeout: float,
    transport: TransportName = "direct",
) -> None:
    """What every run of plans needs. Raises InputError."""
    world = plans[0].world
    assert all(plan.world == world for plan in plans)
    for plan in plans:
        _check_norms(plan)
    if steps < 1:
        raise InputError("command line", "--steps", f"is {steps}", "give 1 or more")
    if backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {backend!r}", one_of(backend, BACKENDS))
    if not 0 <= seed < 2**31:
        raise InputError("command line", "--seed", f"is {seed}", "give 0 to 2147483647")
    check_seconds("--stall-timeout", stall_timeout, STALL_S)
    place = launched()
    if place is not None and place.world != world:
        fix = f"start {world} in all, such as by torchrun --nproc-per-node {world} on one node"
        raise InputError("plan", "world", f"is {world}, and torchrun has started {place.world} processes", fix)
    if place is None and world > MOST_PROCESSES:
        fix = f"run plans of up to {MOST_PROCESSES} devices on one machine, or start them by torchrun on several"
        raise InputError("plan", "world", f"is {world}", fix)
    if device not in COMMUNICATION:
        raise InputError("command line", "--device", f"is {device!r}", f"give one of: {', '.join(get_args(Device))}")
    if backend not in BACKENDS_ON[device]:
        where, other = ("GPUs", "cpu") if device == "cuda" else ("the CPU", "cuda")
        fix = f"give --backend {' or '.join(BACKENDS_ON[device])}, or --device {other}"
        raise InputError("command line", "--backend", f"is {backend!r} on {where}", fix)
    if transport not in get_args(TransportName):
        raise InputError("command line", "--transport", f"is {transport!r}", one_of(transport, get_args(TransportName)))
    if device == "cuda":
        here = world if place is None else place.local_world
        _check_gpus(1 if transport == "staged" else here, here)


def _check_norms(plan: Plan) -> None:
    """Refuse tensor parallelism of units whose sum over the ranks is normed: programs have no such step yet."""
    for unit, strategy, planned in zip(plan.planned_model().units, plan.strategies(), plan.units, strict=True):
        if unit.sublayer.sandwich and strategy.degree("tp") > 1:
            problem = (
                f"is {str(strategy)!r}, and {unit.name} has a norm behind its matrices, which is planned, but does not run"
            )
            raise InputError("plan", f"units.{planned.name}.strategy", problem, "plan it with --space dp+pp, or without tp")


def _check_gpus(needed: int, world: int) -> None:
    import torch

    if (count := torch.cuda.device_count()) < needed:
        problem = f"is 'cuda', but torch finds {count} GPUs for {world} processes"
        fix = "give cpu, or run on a machine with a GPU for each" + (", or with --transport staged" if count else "")
        raise InputError("command line", "--device", problem, fix)


def gpus(plan: Plan, device: Device, transport: TransportName = "direct") -> tuple[int, ...] | None:
    """The GPU of each rank, where plans run on these. (Of a rank that torchrun has started, its own place on its machine; a
    placement is then for whoever orders the machines.)"""
    if device == "cpu":
        return None
    if (place := launched()) is not None:
        return (place.local_rank,) * plan.world
    ranks = tuple(plan.placement or range(plan.world))
    if transport == "direct":
        return ranks
    import torch

    return tuple(rank % torch.cuda.device_count() for rank in ranks)


def communication(device: Device, transport: TransportName) -> str:
    """The back-end of torch.distributed for tensors on a device."""
    return COMMUNICATION["cpu" if transport == "staged" else device]


def sound_programs(plan: Plan, model: Model | None, backend: Backend) -> list[Program]:
    """A plan's programs on a back-end, of `model` if it is given, once they have passed their checks."""
    programs = programs_of(plan, backend, model)
    if faults := check(programs):
        raise AssertionError(f"the compiler made an unsound program: {faults[0]}")
    return programs


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """Body of one rank: all plans of the job, one after the other."""
    from trainplan.execution.run.comparison import Differences, Outcome, compare

    device, groups, everyone = start_rank(rank, world, job)
    results = []
    for number, plan in enumerate(job["jobs"]):
        program = plan["programs"][rank]
        executor = make_executor(program, groups, job["seed"], device, job.get("transport", "direct"))
        losses, seconds, recorded = [], [], list[list[Span]]()
        gradients: dict[int, Any] = {}
        for loss, took in steps(executor, job, number, everyone, report, recorded if job["record"] else None):
            losses.append(loss)
            seconds.append(took)
            if len(losses) == 1 and job["compare"]:
                gradients = {unit: state.gradient.clone().cpu() for unit, state in executor.units.items()}
        differences: dict[str, float | None] = dict.fromkeys(Differences._fields)
        if job["compare"]:
            report({"plan": number, "comparing": True})
            parameters = {unit: state.kept.detach().cpu() for unit, state in executor.units.items()}
            if apart := compare(plan["programs"], Outcome(gradients, parameters, losses), job["seed"], everyone):
                differences = {**apart._asdict()}
        peak = None
        if job["memory"]:
            peak = program.persistent_bytes + _allocated(executor, job["backend"])
        results.append({"losses": losses, "seconds": seconds, "peak_bytes": peak, "spans": recorded, **differences})
    return results


def start_rank(rank: int, world: int, job: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The torch device that this process works on from now on, the groups of all programs of the job, and that of all ranks."""
    import torch
    import torch.distributed as dist
    from trainplan.execution.run.executor import make_groups

    staged, device = job.get("transport") == "staged", torch.device("cpu")
    if job["gpus"] is not None:
        device = torch.device("cuda", job["gpus"][rank])
        torch.cuda.set_device(device)
    groups = make_groups(
        [program for plan in job["jobs"] for program in plan["programs"]], torch.device("cpu") if staged else device
    )
    return device, groups, dist.new_group(list(range(world)))


def make_executor(program: Program, groups: Any, seed: int, device: Any, transport: TransportName = "direct") -> Any:
    """An executor that is ready for its first step."""
    from trainplan.execution.run.executor import Executor
    from trainplan.execution.run.reference import batch_tokens
    from trainplan.execution.run.transport import TRANSPORTS

    executor = Executor(program, groups, seed, device, transport=TRANSPORTS[transport]())
    executor.tokens = batch_tokens(program.model, program.samples, seed).to(device)
    return executor


def steps(
    executor: Any, job: dict[str, Any], number: int, everyone: Any, report: Reporter, recorded: list[list[Span]] | None = None
) -> Iterator[tuple[float, float]]:
    """Loss and seconds of each step of a plan of the job, which all ranks begin together. (The loss comes off a GPU last, once
    all is done.) number: the plan's. recorded: gets, for each step, when each instruction began and ended.

    The rank's position is the plan's number, the step, from 1, and its latest instruction, from 1: see `place_in_step`.
    """
    import torch
    import torch.distributed as dist

    for step in range(1, job["steps"] + 1):
        spans = None if recorded is None else list[Span]()
        report.position.set(number, step, 0)
        executor.begins = partial(_begins, report.position, number, step)
        dist.barrier(everyone)
        if executor.device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        loss = executor.step(job["backend"], spans)
        took = time.perf_counter() - started
        if recorded is not None and spans is not None:
            recorded.append(spans)
        report({"plan": number, "step": step, "steps": job["steps"], "loss": loss, "seconds": took})
        yield loss, took
    report.position.set(number, AFTER, 1)


def _begins(position: Position, number: int, step: int, place: int) -> None:
    position.set(number, step, place + 1)


def _allocated(executor: Any, backend: Backend) -> int:
    """Bytes that a step allocates beyond those that stay, at most at once."""
    import torch
    from trainplan.profiling.measure.allocations import PeakMemory

    if executor.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        executor.step(backend)
        return torch.cuda.max_memory_allocated() - before
    executor.release_s = RELEASE_S
    with PeakMemory() as memory:
        executor.step(backend)
    return memory.peak_bytes
