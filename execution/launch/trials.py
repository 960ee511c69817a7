"""Trials (the last line of AMP's Algorithm 1): run each of some plans for a few steps on this machine, and time them.

If a plan fails, that is the result of its trial, and the others go on. All plans are tried in one start of the processes, which
takes seconds, one after the other. When one fails, the processes end; it comes first in the next start, with those after it. So
that no plan is blamed for the effects of another, a failure counts only of a plan that was the first of its start; that a plan
took too long counts at once.

Out of memory is what Python or torch calls so, and the end of a process by SIGKILL, with which the system ends one that it has
no memory for. (A user's SIGKILL cannot be distinguished from that.)
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.launch.processes import position_in_step, sound_programs
from trainplan.execution.run.ranks import make_executor, start_rank, steps
from trainplan.execution.run.settings import COMMUNICATION, Device, check_settings, gpus
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import write_whole
from trainplan.profiling.base.processes import Report, Reporter, WorkerError, run_workers
from trainplan.profiling.base.watchdog import STALL_S
from trainplan.profiling.models.model import Model

TARGET = "trainplan.execution.launch.trials:try_rank"
START_S = 600.0  # that processes may take to start and to end, whatever they run

Status = Literal["ran", "failed", "out-of-memory", "timed-out"]


@dataclass(frozen=True)
class Trial:
    """The result of trying a plan. place: the plan's index among those tried.

    step_ns: the median of the timed steps, each the slowest rank's; spread: half-width of their middle half, relative to the
    median. losses: of all steps, the first ones that are not timed included. message: what went wrong, where it did not run.
    """

    place: int
    status: Status
    step_ns: int | None
    spread: float | None
    losses: list[float]
    message: str | None
    predicted_step_ns: int | None


@dataclass(frozen=True)
class _Failure:
    """How a trial failed, with the message for its report."""

    status: Status
    message: str


def run_trials(
    plans: Sequence[Plan],
    *,
    model: Model | None = None,
    steps: int = 10,
    warmup: int = 3,
    seed: int = 0,
    backend: Backend = "serial",
    device: Device = "cpu",
    timeout: float = 600.0,
    stall_timeout: float = STALL_S,
    progress: Report | None = None,
) -> list[Trial]:
    """Try plans of one world size: a Trial for each, in their order. See the module for what counts as a failure.

    model: the model to run instead of the plans' own. steps: number of timed steps, after `warmup` others. timeout: seconds for
    each plan, without the start of processes. stall_timeout: as of `run_plans`. progress: gets each step of rank 0, and each
    plan's end. Raises InputError.
    """
    if not plans:
        return []
    check_settings(plans, steps, backend, device, seed, stall_timeout)
    if warmup < 0:
        raise InputError("command line", "--warmup", f"is {warmup}", "give 0 or more")
    if not 0 < timeout < math.inf:
        raise InputError("command line", "--timeout", f"is {timeout:g}", "give seconds above 0, such as 600")
    jobs = [{"programs": sound_programs(plan, model, backend)} for plan in plans]
    settings = {"steps": warmup + steps, "seed": seed, "backend": backend, "timeout": min(timeout, threading.TIMEOUT_MAX)}
    trials: dict[int, Trial] = {}
    while waiting := [index for index in range(len(plans)) if index not in trials]:
        ready = [index for index in waiting if gpus(plans[index], device) == gpus(plans[waiting[0]], device)]
        job = {**settings, "jobs": [jobs[index] for index in ready], "gpus": gpus(plans[ready[0]], device)}
        results, failure = _start(plans[0].world, job, COMMUNICATION[device], ready, progress, stall_timeout)
        for index, result in zip(ready, results, strict=False):
            trials[index] = _ran(index, plans[index], result, warmup)
        # The plans end in their order, so the one that failed is the next.
        if failure and (not results or failure.status == "timed-out"):
            index = ready[len(results)]
            trials[index] = Trial(index, failure.status, None, None, [], failure.message, _predicted(plans[index]))
        if progress:
            for index in ready:
                if index in trials:
                    progress({"plan": index, "status": trials[index].status, "step_ns": trials[index].step_ns})
    return [trials[index] for index in range(len(plans))]


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the shortest step, the earlier of equals; None where no plan ran."""
    return min((trial for trial in trials if trial.status == "ran"), key=lambda trial: trial.step_ns or 0, default=None)


def _predicted(plan: Plan) -> int | None:
    """The plan's own prediction of its step in ns, if it has one."""
    return plan.predicted.step_ns if plan.predicted else None


def _ran(index: int, plan: Plan, result: dict[str, Any], warmup: int) -> Trial:
    """The trial of a plan that ran; `warmup` first steps are not timed."""
    from trainplan.profiling.measure.timing import spread

    timed = result["seconds"][warmup:]
    return Trial(
        place=index,
        status="ran",
        step_ns=round(statistics.median(timed) * 1e9),
        spread=spread(timed),
        losses=result["losses"],
        message=None,
        predicted_step_ns=_predicted(plan),
    )


def _start(
    world: int, job: dict[str, Any], communication: str, indices: list[int], progress: Report | None, stall_timeout: float
) -> tuple[list[dict[str, Any]], _Failure | None]:
    """One start of the processes: the results of plans, up to the first that failed, and the failure of that one, if any.
    indices: of the plans."""
    results: list[dict[str, Any]] = []

    def follow(event: dict[str, Any]) -> None:
        if "ended" in event:
            results.append(event)
        elif progress:
            progress({**event, "plan": indices[event["plan"]]})

    with tempfile.TemporaryDirectory(prefix="trainplan-") as folder:
        limits = {"timeout": START_S + job["timeout"] * len(indices), "stall_timeout": stall_timeout}
        describe = partial(position_in_step, job["jobs"])
        try:
            run_workers(
                TARGET,
                world,
                {**job, "folder": folder},
                progress=follow,
                describe_position=describe,
                backend=communication,
                **limits,
            )
        except WorkerError as error:
            if len(results) < len(indices):
                return results, _failure(error, folder)
    return results, None


def _failure(error: WorkerError, folder: str) -> _Failure:
    """The reason why the processes ended: a signal to one of them, or the note of the first of those that failed."""
    if error.code is None:
        return _Failure("timed-out", str(error))
    if error.code == -signal.SIGKILL:
        return _Failure("out-of-memory", str(error))
    notes = sorted(Path(folder).glob("[0-9]*"), key=lambda path: int(path.stem))
    if error.code < 0 or not notes:
        return _Failure("failed", str(error))
    return _Failure(**json.loads(notes[0].read_text()))


def _tell(folder: str, rank: int, status: Status, message: str) -> None:
    """Write down how this rank fails, named by the time: ranks that fail only because this one is gone do so later."""
    write_whole(Path(folder, f"{time.monotonic_ns()}.{rank}"), json.dumps({"status": status, "message": message}))


def try_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> None:
    """Body of one rank's process: the plans of the job one after the other, until one fails."""
    from trainplan.profiling.measure.timing import is_out_of_memory

    try:
        _try_plans(rank, world, job, report)
    except Exception as error:
        full = is_out_of_memory(error) or "out of memory" in str(error).lower()
        message = f"process {rank} of {world}: {type(error).__name__}: {error}"
        _tell(job["folder"], rank, "out-of-memory" if full else "failed", message)
        raise


def _try_plans(rank: int, world: int, job: dict[str, Any], report: Reporter) -> None:
    """Run the plans of the job, and report each one's losses and seconds."""
    from trainplan.profiling.measure.timing import slowest

    def give_up() -> None:
        _tell(job["folder"], rank, "timed-out", f"{job['steps']} steps took longer than {job['timeout']:g} s")
        os._exit(1)

    device, groups, everyone = start_rank(rank, world, job)
    for number, plan in enumerate(job["jobs"]):
        watch = threading.Timer(job["timeout"], give_up)
        watch.daemon = True
        watch.start()
        executor = make_executor(plan["programs"][rank], groups, job["seed"], device)
        losses, seconds = zip(*steps(executor, job, number, everyone, report), strict=True)
        del executor  # the next plan's needs the room
        watch.cancel()  # on every rank, before rank 0 can tell that the plan has run
        shared = slowest(world, seconds)
        report({"ended": number, "losses": list(losses), "seconds": shared})
