"""The papers' planners on one request beside the joint optimum, all judged by the walks on one back-end."""

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


ALIKE: dict[str, Any] = {"cost_model": "executed"}  # as all other planners are priced


@dataclass(frozen=True)
class Rival:
    """What one planner comes to. step_ns, peak_bytes: of its plan, by the walks; None where it has none, and `why` says why.

    above: how much longer its step takes than the joint optimum's, as a share of that; bound_ns, gap: what the joint problem
    proves of any plan, and how far this one is from it (None for plans that the joint problem does not contain: `outside` says
    what). seconds: from the request to the plan; of the optimum that begins from the planners' plans, whole_seconds are these
    and those of the planners whose plans it began from. stopped: what ended its search before it was done.
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
        """All of it as plain values."""
        return asdict(self)


class Rivals(Tabular, list[Rival]):
    """What planners come to, the joint optimum first."""

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
        """A dict for each planner: the fields of `Rival`."""
        return [rival.to_dict() for rival in self]

    def notes(self) -> list[str]:
        """Why a planner has no plan, and what others planned without."""
        return [f"{rival.planner}: {text}" for rival in self if (text := rival.why or rival.outside)]


def rivals(
    plan: Callable[..., PlanningResult],
    request: dict[str, Any],
    published: Sequence[Published] = PAPERS,
    *,
    gap: float = GAP,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> tuple[Rivals, PlanningResult | None]:
    """The joint optimum, every planner's plan for one request, and the joint optimum begun from these plans; and the answer of
    the joint problem.

    plan: `plan` of the public verbs, given the request and a preset. request: with choices of the joint problem, of which the
    planners get what is SHARED. gap: of the joint problem; the planners run to their end. time_limit: seconds for each. Raises
    InputError where the request does not suit the first of them.
    """
    rows = Rivals()
    answers: list[PlanningResult] = []
    incumbents: list[Plan] = []  # those of the planners' plans that the joint problem contains
    choices = {parameter.name for parameter in preset(published[0].preset).parameters}
    limits: dict[str, Any] = {"backend": JUDGED_ON, "time_limit": time_limit, "beside": False}
    for each in published:
        if progress is not None:
            progress(each.label)
        began = time.perf_counter()
        without: list[str] = []
        options: dict[str, Any] = {"gap": gap, **request}
        if answers:
            asked, without = _asked_of(each, request, choices)
            options = {"method": each.method, **asked}
        try:
            options = {**ALIKE, **options} if each.preset == DEFAULT else options
            answer = plan(**options, **limits, like=each.preset)
        except InputError as error:
            if not answers:
                raise
            rows.append(_none(each.label, str(error), time.perf_counter() - began))
            continue
        answers.append(answer)
        rows.append(_row(each.label, answer, answers[0], time.perf_counter() - began, without))
        if len(answers) > 1 and answer.plan is not None and rows[-1].step_ns is not None and rows[-1].outside is None:
            incumbents.append(answer.plan)
        if answer.interrupted:
            left = published[published.index(each) + 1 :]
            return Rivals([*rows, *(_none(other.label, "not planned: interrupted", 0.0) for other in left)]), answers[0]
    label = f"{published[0].label}, {BEGUN}"
    if not incumbents:
        return Rivals([*rows, _none(label, "none of their plans is one of this problem", 0.0)]), answers[0]
    if progress is not None:
        progress(label)
    began = time.perf_counter()
    try:
        answer = plan(**{**ALIKE, **request}, **limits, gap=gap, like=published[0].preset, incumbents=incumbents)
    except InputError as error:
        return Rivals([*rows, _none(label, str(error), time.perf_counter() - began)]), answers[0]
    last = _row(label, answer, answers[0], time.perf_counter() - began)
    planners = sum(row.seconds for row in rows[1:] if row.step_ns is not None)
    return Rivals([*rows, replace(last, whole_seconds=last.seconds + planners)]), answers[0]


def _asked_of(planner: Published, request: dict[str, Any], choices: set[str]) -> tuple[dict[str, Any], list[str]]:
    """What of a request is asked of a planner; and the flags of choices that narrow the joint problem, and not its own."""
    parameters, asked, without = preset(planner.preset).parameters, dict(request), list[str]()
    names = {parameter.name for parameter in parameters}
    for name in choices & set(request):
        parameter = next(each for each in preset(DEFAULT).parameters if each.name == name)
        if request[name] in (None, parameter.default) or not (name in SHARED and name in names):
            del asked[name]
            if request[name] not in (None, parameter.default) and name not in WIDER and request[name] != "all":
                without.append(parameter.flag)
    return asked, sorted(without)


def _none(planner: str, why: str, seconds: float) -> Rival:
    return Rival(planner, None, None, None, None, None, None, seconds, why=why)


def _row(planner: str, answer: PlanningResult, optimum: PlanningResult, seconds: float, without: Sequence[str] = ()) -> Rival:
    """What an answer comes to. without: choices that narrow the joint problem, and that the planner does not know."""
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
    return Rival(
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
