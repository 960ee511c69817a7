"""The papers' planners on one request beside the joint optimum, all judged by the walks on one back-end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainplan.planned import Planned
from trainplan.presets import PAPERS, Published
from trainplan.profiling.base.errors import InputError

JUDGED_ON = "serial"  # the back-end whose steps the joint problem minimises


@dataclass(frozen=True)
class Rival:
    """What one planner comes to. step_ns, peak_bytes: of its plan, by the walks; None where it has none, and `why` says why.

    above: how much longer its step takes than the joint optimum's, as a share of that; bound_ns, gap: what the joint problem
    proves of any plan, and how far this one is from it (None for plans that the joint problem does not contain: `outside` says
    what). seconds: from the request to the plan.
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

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def rivals(
    plan: Callable[..., Planned],
    request: dict[str, Any],
    published: Sequence[Published] = PAPERS,
    *,
    gap: float = 1e-4,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[list[Rival], Planned | None]:
    """The joint optimum and every planner's plan for one request, the optimum first; and the answer of the joint problem.

    plan: `plan` of the public verbs, given the request and a preset. gap: of the joint problem; the planners run to their end.
    time_limit: seconds for each. Raises InputError where the request does not suit the first of them.
    """
    rows: list[Rival] = []
    optimum: Planned | None = None
    for each in published:
        if progress is not None:
            progress(each.label)
        began = time.perf_counter()
        options = {"gap": gap} if each.method == "exact" else {"method": each.method}
        try:
            answer = plan(**request, **options, like=each.preset, backend=JUDGED_ON, time_limit=time_limit)
        except InputError as error:
            if optimum is None:
                raise
            rows.append(Rival(each.label, None, None, None, None, None, None, time.perf_counter() - began, why=str(error)))
            continue
        optimum = answer if optimum is None else optimum
        rows.append(_row(each, answer, optimum, time.perf_counter() - began))
        if answer.interrupted:
            break
    return rows, optimum


def _row(each: Published, answer: Planned, optimum: Planned, seconds: float) -> Rival:
    plan, best_ns, bound_ns = answer.plan, optimum.step_ns, optimum.answer.bound_ns
    if plan is None or plan.predicted is None:
        reason = answer.result.reason or answer.result.message or answer.result.status
        why = f"plans of {plan.planned_model().family} are no programs yet" if plan is not None else str(reason)
        return Rival(each.label, None, None, None, None, None, None, seconds, why=why)
    outside = "states or hidden states on the host" if plan.uses_host else None
    outside = "micro-batches in halves" if plan.sliced and answer is not optimum else outside
    step_ns = plan.predicted.step_ns
    return Rival(
        planner=each.label,
        step_ns=step_ns,
        peak_bytes=plan.predicted.most_bytes,
        stages=len(plan.stages),
        micro_batches=plan.batch.micro_batches,
        above=None if not best_ns else step_ns / best_ns - 1,
        gap=None if bound_ns is None or outside else 1 - bound_ns / step_ns,
        seconds=seconds,
        outside=outside,
    )
