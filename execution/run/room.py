"""Whether there is memory for a run: what the plan was made for, and what the machine has."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.walk.memory import Walk
from trainplan.formulations.plan import Plan
from trainplan.profiling.base.errors import InputError, caution
from trainplan.profiling.base.quantities import format_bytes, plural
from trainplan.profiling.clusters.detect.cpu import available_bytes
from trainplan.profiling.clusters.detect.system import read_text


def check_memory(where: str, plan: Plan, walks: Sequence[Walk], gpus: Sequence[int] | None) -> None:
    """Warns where the programs of a plan need more than its `memory_bytes`, by their memory walks, one for each rank.

    where: what texts call the plan. gpus: of every rank; None where the ranks run on this machine's CPU. Raises InputError
    where a GPU has less than its rank needs, or this machine less than all ranks.
    """
    if gpus is None:
        _check_machine(where, sum(walk.peak_bytes + walk.host_bytes for walk in walks), plan.world)
    else:
        _check_gpus(where, walks, gpus)
    fullest = max(walks, key=lambda walk: walk.peak_bytes)
    if (needed := fullest.peak_bytes) > plan.memory_bytes:
        rank = f"rank {walks.index(fullest)} needs {needed} bytes ({format_bytes(needed)})"
        fix = f"run it where every device has that, or plan again with --memory of {plan.memory_bytes} bytes"
        caution(where, "memory_bytes", f"is {plan.memory_bytes} ({format_bytes(plan.memory_bytes)}), but {rank}", fix)


def _check_machine(where: str, needed: int, processes: int) -> None:
    if needed > (there := available_bytes(read_text)):
        problem = f"needs {needed} bytes ({format_bytes(needed)}) for {plural(processes, 'rank')}"
        fix = f"this machine has {format_bytes(there)}: run it on a larger one, or with a larger --scale-down"
        raise InputError(where, "", problem, fix)


def _check_gpus(where: str, walks: Sequence[Walk], gpus: Sequence[int]) -> None:
    import torch

    for rank, (walk, gpu) in enumerate(zip(walks, gpus, strict=True)):
        there = torch.cuda.get_device_properties(gpu).total_memory
        if walk.peak_bytes > there:
            problem = f"needs {walk.peak_bytes} bytes ({format_bytes(walk.peak_bytes)}) on rank {rank}"
            fix = f"GPU {gpu} has {format_bytes(there)}: plan again with --memory of that, or give a larger --scale-down"
            raise InputError(where, "", problem, fix)
