"""Plans handed on: as files of other runtimes, the nearest plan that a runtime runs, and a page that reports on a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from trainplan.api.compare_verbs import compare_planners
from trainplan.api.plan_verbs import plan
from trainplan.execution.prediction.surrogate import recipe_of
from trainplan.execution.runtimes.export_common import UNSAID, Export, Training
from trainplan.execution.runtimes.registry import exporter
from trainplan.formulations.parameters import flag_of
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.inputs import made_for, profile_of
from trainplan.planning.compare_planners import ALIKE, Rival
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import FilePath, Source, name_of_source
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.profiling.profiles import Profile
from trainplan.reports.page import page
from trainplan.solvers.core.limits import TIME_LIMIT_S

__all__ = ["export", "nearest_plan", "report"]
STATED = ("torchtitan",)  # exports whose files state settings that others take at their start
SECONDS, GAP = 10.0, 0.01  # for the search of the nearest plan
ONE_STRATEGY = "one strategy"


def export(
    source: Plan | Source,
    to: str,
    *,
    nearest: bool = False,
    tokenizer: FilePath | None = None,
    data: FilePath | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> Export:
    """A plan in the words of another runtime.

    What the runtime cannot say is refused where it would change what is computed, or where work lies; where it costs time or
    memory alone it is named in `left_out`. The modules of `execution.exports` tell which is which for each runtime.

    Args:
        source: a plan, its file, or a dict.
        to: the runtime: megatron, megatron-bridge, torchtitan, deepspeed, accelerate or torch.
        nearest: Where the runtime refuses the plan, export the fastest one that it runs.

            It is that of `nearest_plan`; without it the refusal says what that one takes.
        tokenizer: Of torchtitan: a folder with tokenizer.json (default: a line to be filled in).

            This and what follows is in torchtitan's files; other runtimes take it at their start. Paths are made absolute.
        data: Of torchtitan: a folder of a data set (default: c4).
        steps: Of torchtitan: steps of training (default: 100).
        learning_rate: Of torchtitan: the largest of AdamW (default: 0.0003).

    Returns:
        The files' texts by name, settings as data, and what is left out.

    Raises:
        InputError: for a plan that the runtime does not run.
    """
    given, written, where = load_plan(source), exporter(to), name_of_source(source, "plan")
    training = _training(tokenizer, data, steps, learning_rate)
    if training != UNSAID:
        if to not in STATED:
            name = next(name for name, value in vars(training).items() if value is not None)
            fix = f"leave it out: exports to {to} take it at their start, as their files say"
            raise InputError(COMMAND_LINE, flag_of(name), f"is given with --to {to}", fix)
        written = partial(written, training=training)  # type: ignore[call-arg]
    try:
        return written(given, where)
    except InputError as refused:
        found = nearest_plan(given, to, SECONDS)
        if found is None or found.plan is None:
            raise
        if nearest:
            return written(found.plan, where)
        fix = f"{refused.fix}; {_described(given, found)}"
        raise InputError(refused.where, refused.command_field, refused.problem, fix) from None


def _training(tokenizer: FilePath | None, data: FilePath | None, steps: int | None, learning_rate: float | None) -> Training:
    """The settings of a training that an export states. Raises InputError."""
    if steps is not None and steps < 1:
        raise InputError(COMMAND_LINE, "--steps", f"is {steps}", "give at least 1")
    if learning_rate is not None and not 0 < learning_rate < inf:
        raise InputError(COMMAND_LINE, "--learning-rate", f"is {learning_rate}", "give more than 0, such as 3e-4")
    where, source = (None if path is None else str(Path(path).expanduser().absolute()) for path in (tokenizer, data))
    return Training(where, source, steps, learning_rate)


def nearest_plan(source: Plan | Source, to: str, time_limit: float | None = TIME_LIMIT_S) -> PlanningResult | None:
    """The fastest plan that a runtime runs for the model, devices, batch and memory that a plan was made for, with gradients
    of its dtype and, where the runtime has its recipe, with its matrix multiplications.

    Args:
        source: a plan, its file, or a dict.
        to: the runtime.
        time_limit: seconds of the search, which ends at a gap of one percent before.

    Returns:
        The answer; None where nothing says for which devices the plan was made, for runtimes that `plan(for_=)` does not know,
            and for models and optimizers that the runtime does not have.

    Raises:
        InputError: for a file that is no plan.
    """
    given = load_plan(source)
    request = made_for(given)
    if request is None or to not in RUNTIMES or RUNTIMES[to].lacks(given.planned_model()) is not None:
        return None
    if given.optimizer != "adamw" and not RUNTIMES[to].muon:
        return None
    recipe = recipe_of(given)
    products = recipe.name if recipe is not None and recipe.name in RUNTIMES[to].recipes else "model"
    alike: dict[str, Any] = {"precision": products, "gradients": given.precision.gradients, "optimizer": given.optimizer}
    return plan(**request, **alike, for_=to, beside=False, time_limit=time_limit, gap=GAP)


def _described(given: Plan, found: PlanningResult) -> str:
    """The nearest plan in words, and what it costs."""
    nearest, step_ns = found.plan, found.step_ns
    assert nearest is not None and nearest.predicted is not None and step_ns is not None
    layout = f"{in_words(nearest.one_strategy or 'several strategies')}; {plural(len(nearest.stages), 'stage')}"
    text = f"the nearest plan that it runs has {layout}, {plural(nearest.batch.micro_batches, 'micro-batch')}"
    if recipe_of(given) is not None and recipe_of(nearest) is None:
        text += f", matrix multiplications in {nearest.planned_model().dtype}"
    text += f" and takes {format_time(step_ns)} a step"
    alike = given.predicted is not None and given.predicted.cost_model == nearest.predicted.cost_model
    if given.predicted is not None and alike and found.judged is not None and not given.predicted.software:
        text += f", {found.judged.step_ns / given.predicted.step_ns - 1:+.1%} by simulating both"
    return f"{text}: add --nearest to export that one"


def report(
    source: Plan | PlanningResult | Source,
    *,
    profile: FilePath | Profile | None = None,
    compare: bool = False,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> str:
    """A plan's report, one HTML page that needs no other file: the plan by stage and unit, a timeline of the step, memory by
    time and by kind, where time and memory go, bound and gap.

    Args:
        source: a plan, an answer of `plan`, a file, or a dict.
        profile: that the plan was made from, where it was.
        compare: also plan with one strategy, and with each paper's planner, and show what they lose.
        time_limit: seconds to try other strategies of sub-layers, and for each planner.
        progress: called with the name of each planner.

    Returns:
        The page.

    Raises:
        InputError: for plans whose models do not become programs.
    """
    made = source.plan if isinstance(source, PlanningResult) else load_plan(source)
    if made is None:
        raise InputError("plan", "", "is missing: nothing was planned", "give a request with a plan")
    used = profile_of(profile)
    name = str(source) if isinstance(source, str | PathLike) else "plan.json"
    return page(made, used, time_limit, _compared(made, time_limit, progress) if compare else (), name)


def _compared(made: Plan, time_limit: float | None, progress: Callable[[str], None] | None) -> list[Rival]:
    """The joint optimum, the best plan with one strategy, and the papers' planners, for the request of a plan's claim."""
    request = made_for(made)
    if request is None:
        fix = "give a plan that `trainplan plan -o` has written for a --cluster"
        raise InputError("plan", "claim.evidence.cluster", "is missing, so nothing can be compared", fix)
    rows = compare_planners(**request, time_limit=time_limit, progress=progress)
    if progress is not None:
        progress(ONE_STRATEGY)
    keywords: dict[str, Any] = {**request, **ALIKE, "one_strategy": True, "beside": False, "time_limit": time_limit}
    answer = plan(**keywords)
    uniform = answer.plan
    if uniform is None or uniform.predicted is None:
        nothing: dict[str, Any] = dict.fromkeys(("step_ns", "peak_bytes", "stages", "micro_batches", "above", "gap"))
        return [rows[0], replace(rows[0], planner=ONE_STRATEGY, **nothing, why="none was found in the time"), *rows[1:]]
    step_ns = uniform.predicted.step_ns
    found = Rival(
        ONE_STRATEGY,
        step_ns,
        uniform.predicted.most_bytes,
        len(uniform.stages),
        uniform.batch.micro_batches,
        None if not rows[0].step_ns else step_ns / rows[0].step_ns - 1,
        None,
        0.0,
        outside=f"{in_words(uniform.one_strategy or '')} for all sub-layers"
        + ", when the time was up" * (answer.answer.status != "optimal"),
    )
    return [rows[0], found, *rows[1:]]
