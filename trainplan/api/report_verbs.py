"""Reports of plans, as pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any

from trainplan.api.compare_verbs import compare_planners
from trainplan.api.plan_verbs import plan
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.inputs import made_for, profile_of
from trainplan.planning.compare_planners import ALIKE, Rival
from trainplan.planning.result import Planned
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath, Source
from trainplan.profiling.profiles import Profile
from trainplan.reports.page import page
from trainplan.solvers.core.limits import TIME_LIMIT_S

__all__ = ["report"]
ONE_STRATEGY = "one strategy"


def report(
    source: Plan | Planned | Source,
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
    made = source.plan if isinstance(source, Planned) else load_plan(source)
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
    asked: dict[str, Any] = {**request, **ALIKE, "one_strategy": True, "beside": False, "time_limit": time_limit}
    answer = plan(**asked)
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
