"""The body of a process that runs plans by their programs: one rank's steps, their losses and times, and what it allocates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.analysis.timing.measured_costs import Span
from trainplan.execution.program import Program
from trainplan.execution.run.settings import TransportName
from trainplan.profiling.base.processes import Reporter
from trainplan.profiling.base.watchdog import Position

IMPORTED_BEFORE_FORKS = (  # what ranks import when they run, of which torch's compiler alone takes 2 s
    "trainplan.execution.run.compare_with_single_process",
    "trainplan.execution.run.executor",
    "trainplan.execution.training.single_process",
)
AFTER = 2**31  # number of the step that a rank reports after its last one
RELEASE_S = 0.004  # gloo's thread releases a collective's tensors well within it


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """Body of the process of rank `rank` of `world`: runs all plans of the job by their programs, one after the other. job:
    the settings that the starting process gives. report: sends progress to it. Returns one dict per plan: losses and seconds
    per step, peak bytes, times of instructions, and differences from training on one process."""
    from trainplan.execution.run.compare_with_single_process import Differences, Outcome, compare

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
    """Prepare this process for a job. Returns (torch device on which it works from now on, process groups of all programs of
    the job by ranks, process group of all ranks). A program is one rank's instructions for a training step."""
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
    """An executor of a rank's program that is ready for its first step, with synthetic samples. groups: process groups by
    ranks. device: the torch device. transport: how tensors travel between ranks. A program is one rank's instructions for a
    training step."""
    from trainplan.execution.run.executor import Executor
    from trainplan.execution.run.transport import TRANSPORTS
    from trainplan.execution.training.single_process import batch_tokens

    executor = Executor(program, groups, seed, device, transport=TRANSPORTS[transport]())
    executor.tokens = batch_tokens(program.model.in_pieces(1), program.samples // program.model.pieces, seed).to(device)
    return executor


def steps(
    executor: Any, job: dict[str, Any], number: int, everyone: Any, report: Reporter, recorded: list[list[Span]] | None = None
) -> Iterator[tuple[float, float]]:
    """Run the steps of one plan of the job, which all ranks begin together; yields (loss, seconds) of each step. executor: runs
    the rank's part of the plan. number: the plan's index in the job. everyone: the process group of all ranks. report: sends
    each step to the starting process. recorded: a list to which, for each step, the (begin, end) in ns of every instruction are
    appended; None: not recorded.

    While it runs, `report.position` is (index of the plan, step from 1, latest instruction from 1).
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


def _begins(position: Position, number: int, step: int, index: int) -> None:
    """Report that this rank begins an instruction, by writing to `position`, which the watching process reads. number: the
    plan's index. step: counted from 1. index: the instruction's, from 0."""
    position.set(number, step, index + 1)


def _allocated(executor: Any, backend: Backend) -> int:
    """Measure the most bytes that a training step allocates at one time, in addition to those that live from step to step. The
    step is run for it. executor: runs the rank's program. backend: how it runs the program's lanes (queues of instructions)."""
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
