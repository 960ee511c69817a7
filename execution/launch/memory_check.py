"""Whether there is memory for a run: in what the plan was made for, and in what the machine has."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from trainplan.execution.analysis.memory.peak import Walk
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError, caution
from trainplan.profiling.base.quantities import format_bytes, plural
from trainplan.profiling.base.torchrun_worker import Launched
from trainplan.profiling.clusters.detect.cpu import available_bytes
from trainplan.profiling.clusters.detect.system import read_text


def check_memory(where: str, plan: Plan, walks: Sequence[Walk], gpus: Sequence[int] | None) -> None:
    """Check that there is memory to run a plan. Raises InputError if a GPU has less than its rank needs, or this machine less
    than all ranks; warns if the plan needs more than the memory per device that it was made for. where: the plan's name in
    messages. walks: the memory analysis of every rank's program. gpus: the index of every rank's GPU; None if the ranks run on
    this machine's CPU."""
    if gpus is None:
        _check_machine(where, sum(walk.peak_bytes + walk.host_bytes for walk in walks), plan.world)
    else:
        _check_gpus(where, [walk.peak_bytes for walk in walks], gpus)
    check_peaks(where, plan, [walk.peak_bytes for walk in walks])


def check_predicted(where: str, plan: Plan, gpus: Sequence[int] | None, process: Launched | None = None) -> None:
    """Raises InputError if this machine has less memory than the plan's own prediction for its ranks, which is known before any
    program is compiled; nothing if the plan has no prediction. where: the plan's name in messages. gpus: the index of every
    rank's GPU; None if the ranks run on this machine's CPU. process: this process's position among the processes of torchrun;
    None if torchrun did not start it."""
    if plan.predicted is None:
        return
    peaks = plan.predicted.peak_bytes
    peaks = peaks if len(peaks) == plan.world else [max(peaks)] * plan.world
    if gpus is None:
        first, count = (0, plan.world) if process is None else (process.rank - process.local_rank, process.local_world)
        _check_machine(where, sum(peaks[first : first + count]), count)
    elif process is None:
        _check_gpus(where, peaks, gpus)


def check_peaks(where: str, plan: Plan, peak_bytes: Sequence[int]) -> None:
    """Warn if a plan needs more memory per device than it was made for (its `memory_bytes`). where: the plan's name in
    messages. peak_bytes: peak bytes of every rank, by its program, for the model that is to run. If these fit, the plan's own
    predicted peaks are checked as well, since the model that runs may be a smaller one."""
    predicted = [] if plan.predicted is None else plan.predicted.peak_bytes
    peaks = peak_bytes if max(peak_bytes) > plan.memory_bytes else predicted
    if (needed := max(peaks, default=0)) > plan.memory_bytes:
        texts = [format_bytes(plan.memory_bytes), format_bytes(needed)]
        texts = texts if texts[0] != texts[1] else [f"{plan.memory_bytes} bytes", f"{needed} bytes"]
        rank = f"rank {list(peaks).index(needed)} needs {texts[1]}"
        as_planned = " as it is planned" if peaks is predicted else ""
        limit = f"{plan.memory_bytes >> 20}MiB" if plan.memory_bytes >> 20 else f"{plan.memory_bytes}B"
        fix = f"run it where every device has that, or plan again with --memory {limit}"
        problem = f"is {texts[0]}, but {rank}{as_planned}"
        caution(where, "memory_bytes", problem, fix)


def _check_machine(where: str, needed: int, processes: int) -> None:
    """Raises InputError if this machine has less than `needed` bytes of memory available. where: the plan's name in messages.
    processes: number of processes, for the message."""
    if needed > (there := available_bytes(read_text)):
        problem = f"needs {format_bytes(needed)} for {plural(processes, 'rank')}"
        fix = f"this machine has {format_bytes(there)}: run it on a larger one, {_smaller(needed, there)}"
        raise InputError(where, "", problem, fix)


def _smaller(needed: int, there: int) -> str:
    """The advice, as text, for a run that does not fit: a `--scale-down` with which the model takes about half of the available
    memory, or --force. needed: bytes that the run needs. there: bytes that are available."""
    return f"or give a larger --scale-down, such as {2 ** ceil(log2(2 * needed / max(there, 1)))}, or --force"


def _check_gpus(where: str, peaks: Sequence[int], gpus: Sequence[int]) -> None:
    """Raises InputError if a GPU has less memory than its ranks need together. where: the plan's name in messages. peaks:
    bytes that each rank needs. gpus: the index of each rank's GPU."""
    import torch

    for gpu in dict.fromkeys(gpus):
        there = torch.cuda.get_device_properties(gpu).total_memory
        ranks = [rank for rank, other in enumerate(gpus) if other == gpu]
        needed = sum(peaks[rank] for rank in ranks)
        if needed > there:
            on = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} together"
            problem, most = f"needs {format_bytes(needed)} on {on}", f"{there >> 20}MiB" if there >> 20 else f"{there}B"
            fix = f"GPU {gpu} has {format_bytes(there)}: plan again with --memory {most}, {_smaller(needed, there)}"
            raise InputError(where, "", problem, fix)
