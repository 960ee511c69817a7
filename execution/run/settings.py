"""What a run of plans is asked for: devices, back-ends, transport and limits, and what of it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from trainplan.execution.analysis.memory.peak import BACKENDS, Backend
from trainplan.execution.executable_models import MOST_PROCESSES
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.torchrun_worker import launched
from trainplan.profiling.base.watchdog import STALL_S

Device = Literal["cpu", "cuda"]
TransportName = Literal["direct", "staged"]  # see `transport`
COMMUNICATION: dict[Device, str] = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # torch's names, for tensors there
BACKENDS_ON: dict[Device, tuple[Backend, ...]] = {"cpu": ("serial", "fused", "threads"), "cuda": ("serial", "streams")}
MEASURED_BACKENDS: tuple[Backend, ...] = ("serial", "streams")  # what torch allocates on the CPU is seen of one thread


def check_seconds(flag: str, seconds: float, usual: float) -> None:
    """Raises InputError where a time limit is below a second, with one that would do."""
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
            problem = f"is {str(strategy)!r}, and {unit.name} has a norm after its matrices, which is planned, but does not run"
            raise InputError("plan", f"units.{planned.name}.strategy", problem, "plan it with --space dp+pp, or without tp")


def _check_gpus(needed: int, world: int) -> None:
    import torch

    if (count := torch.cuda.device_count()) < needed:
        problem = f"is 'cuda', but torch finds {count} GPUs for {world} processes"
        fix = "give cpu, or run on a machine with a GPU for each" + (", or with --transport staged" if count else "")
        raise InputError("command line", "--device", problem, fix)


def gpus(plan: Plan, device: str, transport: str = "direct") -> tuple[int, ...] | None:
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
