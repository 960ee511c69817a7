"""The comparison of the papers' planners with the joint optimum on one request: all plans are predicted on one back-end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from trainplan.formulations.plan.plan import Plan
from trainplan.planning.presets import DEFAULT, PAPERS, Published, preset
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import InputError
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.tabular import Tabular

BEGUN = "begun from their plans"
JUDGED_ON = "serial"  # the back-end whose steps the joint problem minimises
SHARED = ("pipeline", "micro_batches", "dp", "tp")  # parameters that mean the same to every planner that has them
WIDER = ("host", "hybrid", "modules", "sliced", "chunks")  # parameters that give the joint problem more to choose from
ALIKE: dict[str, Any] = {"cost_model": "executed"}  # the cost model of all other planners


@dataclass(frozen=True)
class PlannerResult:
    """The plan that one planner found, compared with the joint optimum: the best plan of the joint problem, trainplan's own,
    which decides micro-batches, stages and every sub-layer's strategy together.

    Attributes:
        planner: the planner's name for people.
        step_ns: the plan's predicted step; None without a plan.
        peak_bytes: the predicted peak memory of the fullest device.
        stages: the number of pipeline stages.
        micro_batches: the number of micro-batches of a step.
        above: how much longer the step is than the joint optimum's, as a share of that.
        gap: how far the step is from the joint problem's lower bound; None if the joint problem does not contain the plan.
        seconds: the time from the request to the plan.
        outside: why the joint problem does not contain the plan; None if it does.
        why: why there is no plan, or that it is not final.
        whole_seconds: for the joint optimum searched from the planners' plans, `seconds` and the time of these planners.
        stopped: what ended the search early; None if it ran to its end.
    """

    planner: str
    step_ns: int | None
    peak_bytes: int | None
    stages: int | None
    micro_batches: int | None
    above: float | None
    gap: float | None
    seconds: float
    outside: str | None = None
    why: str | None = None
    whole_seconds: float | None = None
    stopped: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row as a JSON-ready dict. Keys: `planner`, `step_ns`, `peak_bytes`, `stages`, `micro_batches`, `above` and `gap`
        (fractions: 0.1 is 10%), `seconds`, `outside`, `why`, `whole_seconds` and `stopped`, as the class describes them."""
        return asdict(self)


class PlannerComparison(Tabular, list[PlannerResult]):
    """A row for each planner of a comparison, the joint optimum (the best plan of trainplan's own problem) first."""

    headings: ClassVar = {
        "planner": "planner",
        "step_ns": "step",
        "peak_bytes": "memory",
        "stages": "stages",
        "micro_batches": "micro-batches",
        "above": "above",
        "gap": "gap to bound",
        "seconds": "seconds",
    }
    drawn_by = "trainplan.pictures.comparisons:draw_rivals"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each planner in JSON-ready values, with the attributes of `PlannerResult` as keys, such as `planner`,
        `step_ns` and `above`.
        """
        return [planner.to_dict() for planner in self]

    def notes(self) -> list[str]:
        """Lines for people below the table: why a planner has no plan, and why a plan is outside of the joint problem."""
        return [f"{row.planner}: {text}" for row in self if (text := row.why or row.outside)]


def planner_comparison(
    plan: Callable[..., PlanningResult],
    request: dict[str, Any],
    published: Sequence[Published] = PAPERS,
    *,
    gap: float = GAP,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> tuple[PlannerComparison, PlanningResult]:
    """Compare the joint optimum, the best plan of trainplan's own problem, with every paper's planner on the same request, and
    with the joint optimum searched from these planners' plans.

    Args:
        plan: the public verb `plan`, called with the request's keywords and a preset.
        request: keywords of `plan`, including choices of the joint problem; other planners get only the choices in SHARED.
        published: the planners, the joint one first.
        gap: relative gap at which the search of the joint problem may stop; the other planners run to their end.
        time_limit: seconds for each planner.
        progress: called with the label of each planner when it begins.

    Returns:
        A row for each planner, and the result of the joint problem.

    Raises:
        InputError: if the joint problem does not support the request.
    """
    begin = progress or (lambda _: None)
    first, *others = published
    choices = {parameter.name for parameter in preset(first.preset).parameters}
    limits: dict[str, Any] = {"backend": JUDGED_ON, "time_limit": time_limit, "comparisons": False}
    begin(first.label)
    began = time.perf_counter()
    optimum = plan(**_priced_alike(first, {"gap": gap, **request}), **limits, like=first.preset)
    rows = [_row(first.label, optimum, optimum, time.perf_counter() - began)]
    incumbents: list[Plan] = []  # the planners' plans that the joint problem contains
    interrupted = optimum.interrupted
    for planner in others:
        if interrupted:
            rows.append(_none(planner.label, "not planned: interrupted", 0.0))
            continue
        begin(planner.label)
        began = time.perf_counter()
        options, without = _options_of(planner, request, choices)
        try:
            answer = plan(**_priced_alike(planner, {"method": planner.method, **options}), **limits, like=planner.preset)
        except InputError as error:
            rows.append(_none(planner.label, str(error), time.perf_counter() - began))
            continue
        rows.append(_row(planner.label, answer, optimum, time.perf_counter() - began, without))
        if answer.plan is not None and rows[-1].step_ns is not None and rows[-1].outside is None:
            incumbents.append(answer.plan)
        interrupted = answer.interrupted
    if interrupted:
        return PlannerComparison(rows), optimum
    label = f"{first.label}, {BEGUN}"
    if not incumbents:
        return PlannerComparison([*rows, _none(label, "none of their plans is one of this problem", 0.0)]), optimum
    begin(label)
    began = time.perf_counter()
    try:
        answer = plan(**{**ALIKE, **request}, **limits, gap=gap, like=first.preset, incumbents=incumbents)
    except InputError as error:
        return PlannerComparison([*rows, _none(label, str(error), time.perf_counter() - began)]), optimum
    last = _row(label, answer, optimum, time.perf_counter() - began)
    planners = sum(row.seconds for row in rows[1:] if row.step_ns is not None)
    return PlannerComparison([*rows, replace(last, whole_seconds=last.seconds + planners)]), optimum


def _priced_alike(planner: Published, options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `plan` for a planner. If the planner solves the joint problem (trainplan's own), a cost model is added
    that counts as the other planners' does, so that steps compare.

    planner: the paper's planner. options: the keywords without a cost model.
    """
    return {**ALIKE, **options} if planner.preset == DEFAULT else options


def _options_of(planner: Published, request: dict[str, Any], choices: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Two results for a paper's planner: the keywords of a request that it supports; and the flags of those choices that it
    does not know, although they narrow the joint problem (trainplan's own).

    request: keywords of `plan`. choices: the names of the joint problem's parameters.
    """
    parameters, options, without = preset(planner.preset).parameters, dict(request), list[str]()
    names = {parameter.name for parameter in parameters}
    for name in choices & set(request):
        parameter = next(known for known in preset(DEFAULT).parameters if known.name == name)
        if request[name] in (None, parameter.default) or not (name in SHARED and name in names):
            del options[name]
            if request[name] not in (None, parameter.default) and name not in WIDER and request[name] != "all":
                without.append(parameter.flag)
    return options, sorted(without)


def _none(planner: str, why: str, seconds: float) -> PlannerResult:
    """The row of a planner that has no plan. why: the reason, for people. seconds: how long it took."""
    return PlannerResult(planner, None, None, None, None, None, None, seconds, why=why)


def _row(
    planner: str, answer: PlanningResult, optimum: PlanningResult, seconds: float, without: Sequence[str] = ()
) -> PlannerResult:
    """The row of a planner in a comparison with the joint optimum (the best plan of trainplan's own problem).

    planner: its name for people. answer: the result of planning with it. optimum: the result of the joint problem. seconds:
    how long planning took. without: flags of choices that the planner does not know; if there are any, its plan is not
    compared with the joint problem's lower bound.
    """
    plan, best_ns, bound_ns = answer.plan, optimum.step_ns, optimum.answer.bound_ns
    if plan is None or plan.predicted is None:
        reason = answer.result.reason or answer.result.message or answer.result.status
        why = f"plans of {plan.planned_model().family} are no programs yet" if plan is not None else str(reason)
        return replace(_none(planner, why, seconds), stopped=answer.result.stopped)
    outside = f"planned without {', '.join(without)}" if without else None
    if answer.preset.name != optimum.preset.name:
        outside = "states or hidden states on the host" if plan.uses_host else outside
        outside = "micro-batches in halves" if plan.sliced else outside
    step_ns = plan.predicted.step_ns
    return PlannerResult(
        planner=planner,
        step_ns=step_ns,
        peak_bytes=plan.predicted.most_bytes,
        stages=len(plan.stages),
        micro_batches=plan.batch.micro_batches,
        above=None if not best_ns else step_ns / best_ns - 1,
        gap=None if bound_ns is None or outside else 1 - bound_ns / step_ns,
        seconds=seconds,
        outside=outside,
        stopped=answer.result.stopped,
        why="interrupted: this is the best known until then" if answer.interrupted else None,
    )
