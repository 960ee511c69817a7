"""How plans are run, as users request it: devices, back-ends, transport and limits; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from trainplan.execution.analysis.memory.peak import BACKENDS, Backend
from trainplan.execution.executable_models import MOST_PROCESSES
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import FilePath
from trainplan.profiling.base.torchrun_worker import launched
from trainplan.profiling.base.watchdog import STALL_S
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile

Device = Literal["cpu", "cuda"]
TransportName = Literal["direct", "staged"]  # see `transport`
COMMUNICATION: dict[Device, str] = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # torch's names, for tensors there
BACKENDS_ON: dict[Device, tuple[Backend, ...]] = {"cpu": ("serial", "fused", "threads"), "cuda": ("serial", "streams")}
MEASURED_BACKENDS: tuple[Backend, ...] = ("serial", "streams")  # torch counts what one thread allocates on the CPU


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a plan is run.

    Attributes:
        model: A config.json that the plan must be for.
        steps: Training steps.

            With `resume`, those before it included.
        scale_down: Run a model of the same kind about this many times smaller.

            It has the same units.
        dtype: float32, float64 or bfloat16 (default: the plan's).
        by: torch, for FSDP2, DTensor and pipelining of torch itself, or program (default: torch where it carries the plan and
            nothing is measured).

            A program is the plan's own instructions. `backend` and `transport` other than by default are of programs, too.
        checkpoint: Write checkpoints to this folder, by torch.

            They are written while the steps that follow run. With it, a SIGTERM ends the run after its step with one (`ended`
            in the report).
        checkpoint_every: With `checkpoint`: a checkpoint at each multiple of this many steps (default: after the last).

            There is one after the last step, too.
        resume: Begin with the last checkpoint of this folder, under any plan; `steps` are all.

            The number of devices may be another one, too.
        backend: serial; on CPUs also fused (all but compute in one queue alongside it) or threads (one for each stream, pausing
            at random); on GPUs also streams (compute, communication and copies at once).
        compare: Also run on one process and compare gradients (default: compare, without `data`).
        measure_memory: Measure what each rank allocates in a step.
        measure: Measure how long instructions take, next to the predictions.
        cluster: With `measure`: predict by an estimate on this cluster (default: as planned).

            The estimate is in the report with the measured times in it, for the next `plan` or `simulate`.
        profile: With `measure`: predict by this profile.

            It, too, is in the report with the measured times in it.
        device: cpu (gloo) or cuda (NCCL), a GPU for each process.
        transport: direct; or staged: copied to the host's memory, sent there with gloo and copied back, so that ranks may share
            a GPU.
        stall_timeout: End the run after a rank has been stopped (SIGSTOP) for this many seconds, or after all ranks have
            made no progress and used no processor for as long; a slow step does not count.

            Waiting for a disk does not count, either.
        force: Start even where this machine has less memory than is predicted of all ranks.
        seed: Seed of parameters and samples.
    """

    model: FilePath | None = None
    steps: int = 3
    scale_down: int = 1
    dtype: str | None = None
    by: str | None = None
    checkpoint: FilePath | None = None
    checkpoint_every: int | None = None
    resume: FilePath | None = None
    backend: str = "serial"
    compare: bool | None = None
    measure_memory: bool = False
    measure: bool = False
    cluster: FilePath | Cluster | None = None
    profile: FilePath | Profile | None = None
    device: str = "cpu"
    transport: str = "direct"
    stall_timeout: float = STALL_S
    force: bool = False
    seed: int = 0


def check_seconds(flag: str, seconds: float, usual: float) -> None:
    """Raises InputError if a time limit is below a second, or not a number. flag: its name on the command line. usual: a value
    that would do."""
    if not seconds >= 1:
        raise InputError("command line", flag, f"is {seconds:g}", f"give 1 second or more, such as {usual:g}")


def check_settings(
    plans: Sequence[Plan],
    steps: int,
    backend: str,
    device: str,
    seed: int,
    stall_timeout: float,
    transport: str = "direct",
) -> None:
    """Raises InputError if plans cannot be run with these settings: number of steps, back-end, device, seed, time limit in
    seconds, transport, and the number of processes and GPUs that the plans need here."""
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
    launch = launched()
    if launch is not None and launch.world != world:
        fix = f"start {world} in all, such as by torchrun --nproc-per-node {world} on one node"
        raise InputError("plan", "world", f"is {world}, and torchrun has started {launch.world} processes", fix)
    if launch is None and world > MOST_PROCESSES:
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
        here = world if launch is None else launch.local_world
        _check_gpus(1 if transport == "staged" else here, here)


def _check_norms(plan: Plan) -> None:
    """Raises InputError for tensor parallelism of units (sub-layers) that apply a norm after the tensor-parallel sum of their
    output, which programs cannot."""
    for unit, strategy, planned in zip(plan.planned_model().units, plan.strategies(), plan.units, strict=True):
        if unit.sublayer.sandwich and strategy.degree("tp") > 1:
            problem = f"is {str(strategy)!r}, and {unit.name} has a norm after its matrices, which is planned, but does not run"
            raise InputError("plan", f"units.{planned.name}.strategy", problem, "plan it with --space dp+pp, or without tp")


def _check_gpus(needed: int, world: int) -> None:
    """Raises InputError if torch finds fewer than `needed` GPUs. world: number of processes, for the message."""
    import torch

    if (count := torch.cuda.device_count()) < needed:
        problem = f"is 'cuda', but torch finds {count} GPUs for {world} processes"
        fix = "give cpu, or run on a machine with a GPU for each" + (", or with --transport staged" if count else "")
        raise InputError("command line", "--device", problem, fix)


def gpus(plan: Plan, device: str, transport: str = "direct") -> tuple[int, ...] | None:
    """The index of each rank's GPU, in rank order; None if device is 'cpu'. In a process that torchrun has started, every
    entry is this process's index on its machine, and the plan's placement is left to whoever orders the machines. With the
    transport 'staged', ranks share GPUs."""
    if device == "cpu":
        return None
    if (launch := launched()) is not None:
        return (launch.local_rank,) * plan.world
    ranks = tuple(plan.placement or range(plan.world))
    if transport == "direct":
        return ranks
    import torch

    return tuple(rank % torch.cuda.device_count() for rank in ranks)


def communication(device: Device, transport: TransportName) -> str:
    """The name of torch.distributed's back-end, 'gloo' or 'nccl', for tensors on a device under a transport."""
    return COMMUNICATION["cpu" if transport == "staged" else device]
