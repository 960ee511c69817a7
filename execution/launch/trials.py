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
from trainplan.execution.run.ranks import IMPORTED_BEFORE_FORKS as IMPORTED_BEFORE_FORKS
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
    """The result of trying a plan by running it for a few steps. index: the plan's index among those tried. status: 'ran', or
    how it failed.

    step_ns: the median time of the timed steps, for each step the slowest rank's; None if it did not run. spread: half-width of
    the middle half of these times, relative to the median. losses: the losses of all steps, including the steps before the
    timed ones. message: the error, if it did not run. predicted_step_ns: the plan's own prediction; None if it has none."""

    index: int
    status: Status
    step_ns: int | None
    spread: float | None
    losses: list[float]
    message: str | None
    predicted_step_ns: int | None


@dataclass(frozen=True)
class _Failure:
    """The reason why a trial failed: its status, and the message for its report."""

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
    """Try plans of one world size by running each for a few steps on this machine; returns one Trial per plan, in their order.

    model: the model to run instead of the plans' own; None for theirs. steps: number of timed steps, after `warmup` steps that
    are not timed. timeout: seconds for each plan, without the start of processes. stall_timeout: seconds after which the
    processes are ended if a rank is stopped, or none makes progress. progress: called with a dict for each step of rank 0 and
    each plan's end; None for no reports. Raises InputError for bad arguments.
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
    """The trial with the shortest step, the earlier of equal ones; None if no plan ran."""
    return min((trial for trial in trials if trial.status == "ran"), key=lambda trial: trial.step_ns or 0, default=None)


def _predicted(plan: Plan) -> int | None:
    """The plan's own prediction of its step in ns; None if it has none."""
    return plan.predicted.step_ns if plan.predicted else None


def _ran(index: int, plan: Plan, result: dict[str, Any], warmup: int) -> Trial:
    """The trial of a plan that ran. index: the plan's index among those tried. result: what its first rank reported: `losses`
    and `seconds`, one number per step. warmup: number of first steps that are not timed."""
    from trainplan.profiling.measure.timing import spread

    timed = result["seconds"][warmup:]
    return Trial(
        index=index,
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
    """Start the processes once, and run plans in them. Returns (results of the plans up to the first that failed, the reason of
    that failure or None). job: the settings that the processes get, such as the programs and the number of steps. progress:
    called with a dict for each step; None for no reports. stall_timeout: seconds without progress after which the processes are
    ended. communication: the back-end of torch.distributed. indices: the plans' indices among those tried."""
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
    """The reason why the processes ended with `error`: a time limit, a signal to one of them, or the first of the notes that
    failing ranks have written to `folder`."""
    if error.code is None:
        return _Failure("timed-out", str(error))
    if error.code == -signal.SIGKILL:
        return _Failure("out-of-memory", str(error))
    notes = sorted(Path(folder).glob("[0-9]*"), key=lambda path: int(path.stem))
    if error.code < 0 or not notes:
        return _Failure("failed", str(error))
    return _Failure(**json.loads(notes[0].read_text()))


def _tell(folder: str, rank: int, status: Status, message: str) -> None:
    """Write a note to `folder` with the reason why this rank fails, status and message as in `Trial`; the note's file is named
    by the time, so that the first failure can be found: ranks that fail only because another is gone do so later."""
    write_whole(Path(folder, f"{time.monotonic_ns()}.{rank}"), json.dumps({"status": status, "message": message}))


def try_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> None:
    """Body of the process of rank `rank` of `world`: runs the plans of the job one after the other, until one fails, which is
    noted in the job's folder and raised. report: sends results to the starting process."""
    from trainplan.profiling.measure.timing import is_out_of_memory

    try:
        _try_plans(rank, world, job, report)
    except Exception as error:
        full = is_out_of_memory(error) or "out of memory" in str(error).lower()
        message = f"process {rank} of {world}: {type(error).__name__}: {error}"
        _tell(job["folder"], rank, "out-of-memory" if full else "failed", message)
        raise


def _try_plans(rank: int, world: int, job: dict[str, Any], report: Reporter) -> None:
    """Run the plans of the job on this rank, and report each one's losses and seconds per step. Ends the process if a plan
    takes longer than the job's time limit."""
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
