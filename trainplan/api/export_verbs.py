"""Plans exported as files of other runtimes; the nearest plan that a runtime can run; and pages that report on a
plan or a study."""

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
from trainplan.planning.compare_planners import ALIKE, PlannerResult
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.base.files import FilePath, Source, name_of_source
from trainplan.profiling.base.quantities import format_time, plural
from trainplan.profiling.profiles import Profile
from trainplan.reports.page import page
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.studies.results import Study, read

__all__ = ["export", "nearest_plan", "report"]
SECONDS, GAP = 10.0, 0.01  # time limit and relative gap of the search for the nearest plan
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

    A property of the plan that the runtime cannot express is refused if without it other results would be computed, or work
    would lie on other devices; if it costs only time or memory, it is named in `left_out`. The modules of `execution.runtimes`
    state for each runtime which properties are refused and which are left out.

    Args:
        source: a plan, its file, or a dict.
        to: the runtime: megatron, megatron-bridge, torchtitan, deepspeed, accelerate or torch.
        nearest: Where the runtime refuses the plan, export the fastest one that it runs.

            `nearest_plan` finds that plan; without this option the error states its step time.
        tokenizer: Of torchtitan: a folder with tokenizer.json (default: a line to be filled in).

            This argument and those after it are written into torchtitan's files; other runtimes take such values when they are
            started. Paths are made absolute.
        data: Of torchtitan: a folder of a data set (default: c4).
        steps: Of torchtitan: steps of training (default: 100).
        learning_rate: Of torchtitan: the largest of AdamW (default: 0.0003).

    Returns:
        The texts of the files by name, the settings as data, and the properties of the plan that are left out.

    Raises:
        InputError: for a plan that the runtime cannot run.
    """
    given, write, where = load_plan(source), exporter(to), name_of_source(source, "plan")
    training = _training(tokenizer, data, steps, learning_rate)
    if training != UNSAID:
        if to not in RUNTIMES or not RUNTIMES[to].states_training:  # others take them at their start
            name = next(name for name, value in vars(training).items() if value is not None)
            fix = f"leave it out: exports to {to} take it at their start, as their files say"
            raise InputError(COMMAND_LINE, flag_of(name), f"is given with --to {to}", fix)
        write = partial(write, training=training)  # type: ignore[call-arg]
    try:
        return write(given, where)
    except InputError as refused:
        found = nearest_plan(given, to, SECONDS)
        if found is None or found.plan is None:
            raise
        if nearest:
            return write(found.plan, where)
        fix = f"{refused.fix}; {_described(given, found)}"
        raise InputError(refused.where, refused.command_field, refused.problem, fix) from None


def _training(tokenizer: FilePath | None, data: FilePath | None, steps: int | None, learning_rate: float | None) -> Training:
    """The settings of training that the files of an export state, with absolute paths.

    tokenizer, data: folders. steps: the number of training steps. learning_rate: the largest of AdamW. None for the default of
    the exported files. Raises InputError unless steps is at least 1 and the learning rate is positive and finite.
    """
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
        to: the runtime, as `export` names it, such as megatron.
        time_limit: seconds of the search, which ends at a gap of one percent before.

    Returns:
        The answer; None if the plan does not state its devices, for runtimes that `plan(for_=)` does not know,
            and for models and optimizers that the runtime does not have.

    Raises:
        InputError: for a file that is no plan.
    """
    given = load_plan(source)
    request = made_for(given)
    if request is None or to not in RUNTIMES or RUNTIMES[to].lacks(given.planned_model()) is not None:
        return None
    if given.optimizer != "adamw" and given.optimizer not in RUNTIMES[to].optimizers:
        return None
    recipe = recipe_of(given)
    products = recipe.name if recipe is not None and recipe.name in RUNTIMES[to].recipes else "model"
    alike: dict[str, Any] = {"precision": products, "gradients": given.precision.gradients, "optimizer": given.optimizer}
    return plan(**request, **alike, for_=to, comparisons=False, time_limit=time_limit, gap=GAP)


def _described(given: Plan, found: PlanningResult) -> str:
    """A text on the nearest plan that a runtime runs, for the advice in an error: its layout and its step, compared with the
    step of the plan that the runtime refuses.

    given: the refused plan. found: the answer of the search for the nearest plan.
    """
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
    source: Plan | PlanningResult | Study | Source,
    *,
    profile: FilePath | Profile | None = None,
    compare: bool = False,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> str:
    """A plan's report, one HTML page that needs no other file: the plan by stage and unit, a timeline of the step, memory by
    time and by kind, where time and memory go, bound and gap. Or the page of a study: its summary by problem and method,
    pictures, failures, contradictions and cells.

    Args:
        source: a plan, an answer of `plan`, a file, or a dict; or a study, or the folder of one.
        profile: the profile that the plan was made from, if it was.
        compare: of a plan, also plan with one strategy for all sub-layers, and with each paper's planner, and show how much
            slower these plans are.
        time_limit: seconds to try other strategies of sub-layers, and for each planner.
        progress: called with the name of each planner.

    Returns:
        The page.

    Raises:
        InputError: for plans whose models do not become programs.
    """
    if isinstance(source, str | PathLike) and Path(source).is_dir():
        source = read(source)
    if isinstance(source, Study):
        if profile is not None or compare:
            given = "--compare" if compare else "--profile"
            raise InputError(COMMAND_LINE, given, "is of a plan's report", "leave it out for a study")
        return source.report()
    reported = source.plan if isinstance(source, PlanningResult) else load_plan(source)
    if reported is None:
        raise InputError("plan", "", "is missing: nothing was planned", "give a request with a plan")
    used = profile_of(profile)
    name = str(source) if isinstance(source, str | PathLike) else "plan.json"
    return page(reported, used, time_limit, _compared(reported, time_limit, progress) if compare else (), name)


def _compared(reported: Plan, time_limit: float | None, progress: Callable[[str], None] | None) -> list[PlannerResult]:
    """The rows of a report's table of planners, for the request that a plan was made for: first the joint optimum, then the
    best plan with one strategy for all sub-layers, then each paper's planner.

    reported: the plan. time_limit: seconds for each planner. progress: called with the name of each planner that begins; None
    for no reports. Raises InputError for a plan that does not state the devices that it was made for.
    """
    request = made_for(reported)
    if request is None:
        fix = "give a plan that `trainplan plan -o` has written for a --cluster"
        raise InputError("plan", "claim.evidence.cluster", "is missing, so nothing can be compared", fix)
    rows = compare_planners(**request, time_limit=time_limit, progress=progress)
    if progress is not None:
        progress(ONE_STRATEGY)
    keywords: dict[str, Any] = {**request, **ALIKE, "one_strategy": True, "comparisons": False, "time_limit": time_limit}
    answer = plan(**keywords)
    uniform = answer.plan
    if uniform is None or uniform.predicted is None:
        nothing: dict[str, Any] = dict.fromkeys(("step_ns", "peak_bytes", "stages", "micro_batches", "above", "gap"))
        return [rows[0], replace(rows[0], planner=ONE_STRATEGY, **nothing, why="none was found in the time"), *rows[1:]]
    step_ns = uniform.predicted.step_ns
    found = PlannerResult(
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
