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
    """The results of running a plan.

    losses: of every step. step_seconds: of every step, the slowest rank's. predicted_peak_bytes: by rank, from the plan's
    programs, or, where torch runs the plan and its memory is measured, from a dry run of that (predicted_by). peak_bytes: by
    rank, as torch allocated them (None where not requested). gradient_difference: largest difference of any gradient of the
    first step against one process, relative to the largest gradient of its unit. parameter_difference: largest absolute
    difference of any parameter after the last step. loss_difference: of any step's loss. limit_bytes: memory that a device may
    use, as the plan was made.

    Where instructions were measured: instructions: their times by kind, measured and predicted; predicted_seconds: of a
    simulated step on one lane, by the costs of the profile or the plan (None where neither is of the model that ran);
    walked_seconds: of a simulated step by the median times that its instructions took here; profile: the one that was given,
    with these times.

    runtime: the plan's program on the back-end, or torch (see `execution.lowering`). why_program: why it was not torch, where
    the user did not request the program.

    first_step: the number of the first of the losses' steps, 1 unless the run went on from a checkpoint. evaluations: losses of
    the file that the model is evaluated on, by step. ended: whether SIGTERM ended the run before its last step, with a
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
