"""The report of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.analysis.timing.measured_costs import KindTimes
from trainplan.execution.launch.choose_executor import Runtime
from trainplan.execution.run.settings import Device
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.profiles import Profile


@in_one_line
@dataclass(frozen=True)
class RunReport:
    """The results of running a plan for some training steps.

    losses: the whole batch's loss in each step. step_seconds: duration of each step, on the slowest rank. predicted_peak_bytes:
    predicted peak memory by rank: from the plan's programs or, if torch runs the plan and its memory is measured, from a dry
    run of torch's modules (`predicted_by` says which). peak_bytes: the most that torch allocated, by rank; None if not
    measured. gradient_difference, parameter_difference, loss_difference: largest differences from training the whole model on
    one process, None if that was not requested: of any gradient in the first step, relative to the largest gradient of its unit
    (sub-layer); of any parameter after the last step, absolute; of any step's loss, absolute. limit_bytes: the memory per
    device that the plan was made for.

    If instructions were measured (else None): instructions: measured and predicted times by kind of instruction.
    predicted_seconds: the step as simulated on one lane with the times of the profile or the plan; None if neither is for the
    model that ran. walked_seconds: the step as simulated with the median measured times. profile: the given profile with the
    measured times in it; None if none was given.

    runtime: 'program' for the executor of the plan's program, 'torch' for torch's own parallel modules. why_program: why torch
    did not run the plan; None if it did, or if the user requested the program.

    first_step: the number of the first step in `losses`, counted from 1; larger if the run resumed from a checkpoint.
    evaluations: loss on the evaluation file, by step. ended: whether SIGTERM ended the run before its last step, with a
    checkpoint.
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
