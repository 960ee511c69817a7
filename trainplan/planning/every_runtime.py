"""The best plan of every runtime for one request, next to the plan for none: each is the plan that `plan --for RUNTIME` gives.

The plan for no runtime is the row "trainplan". All other rows are searched one after the other with the request's settings,
each in a share of the remaining time; a row whose search had too little time says how far its plan may be from the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainplan.formulations.joint.options import LAYOUTS
from trainplan.formulations.joint.overlap_units_request import UNIT
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.runtimes import FOLDERS, RUNTIMES, short_title
from trainplan.planning.planner import planned
from trainplan.planning.presets import DEFAULT
from trainplan.planning.result import PlanningResult
from trainplan.planning.single_strategy import WALKS
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.validation.plans import unpredicted

SECONDS = 30.0
ROUNDS = 2  # of searches; the second shares the time that searches which ended early did not use
NOT_SEARCHED = "not searched"
OWN = "trainplan"
ONE_LAYOUT = f"one layout for all sub-layers only; leave {LAYOUTS.flag} {UNIT} out to compare"


@dataclass(frozen=True)
class RuntimePlan:
    """The best plan that one runtime (training framework) can run for a request.

    Attributes:
        runtime: the runtime's name, as the option `--for` takes it.
        answer: the result of planning; None if the runtime lacks something that the request needs, or if its search has not
            begun.
        why: why there is no plan; empty if there is one.
        stopped: what ended the search early; None if it ran to its end.
        seconds: the time that the search had.
    """

    runtime: str
    answer: PlanningResult | None = None
    why: str = ""
    stopped: str | None = None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The runtime's name as people write it, such as DeepSpeed."""
        return short_title(self.runtime)

    @property
    def found(self) -> bool:
        """Whether there is a plan with a predicted step."""
        return self.answer is not None and self.answer.step_ns is not None

    @property
    def step_ns(self) -> int | None:
        """The step as the runtime is predicted to run it, in ns; None without a plan."""
        return None if self.answer is None else self.answer.step_ns

    @property
    def peak_bytes(self) -> int | None:
        """The predicted peak memory of the fullest device under this runtime; None without a prediction."""
        plan = None if self.answer is None else self.answer.plan
        return None if plan is None or plan.predicted is None else plan.predicted.most_bytes

    @property
    def gap(self) -> float | None:
        """How much shorter the best possible step may be than the plan's, as a share of the plan's, both in the solver's cost
        model; None without a lower bound."""
        plan = None if self.answer is None else self.answer.plan
        return None if plan is None or plan.claim is None or not plan.claim.bound_ns else plan.claim.gap

    def to_dict(self) -> dict[str, Any]:
        """The row as a JSON-ready dict. Keys: `runtime` (its name), `step_ns` (as predicted for the runtime),
        `tokens_per_s_per_device`, `mfu` (model FLOPs over peak FLOPs, a fraction), `peak_bytes` (of the fullest device), `gap`
        (the fraction by which the best possible step may be shorter, in the solver's cost model), `stopped` (what ended the
        search early), `why` (why there is no plan), and `plan` (the plan's file as a dict); None for what is unknown."""
        answer = self.answer
        done = None if answer is None else answer.performance
        return {
            "runtime": self.runtime,
            "step_ns": self.step_ns,
            "tokens_per_s_per_device": None if done is None else done.tokens_per_s_per_device,
            "mfu": None if done is None else done.mfu,
            "peak_bytes": self.peak_bytes,
            "gap": self.gap,
            "stopped": self.stopped,
            "why": self.why or None,
            "plan": None if answer is None or answer.plan is None else answer.plan.model_dump(),
        }


def compared() -> tuple[str, ...]:
    """The names of all runtimes that have rows next to trainplan's own: those that no other runtime stands for."""
    return tuple(name for name in FOLDERS if name != OWN and not RUNTIMES[name].runs_as)


def compares(answer: PlanningResult) -> bool:
    """Whether the best plans of all runtimes (training frameworks) can be compared for the request of a planning result: the
    request must have been planned by the default preset, without naming a runtime, from data sheets, and on devices for
    which every runtime can be predicted. answer: the planning result.
    """
    request = answer.request
    if answer.preset.name != DEFAULT or answer.instead is not None or answer.interrupted or answer.judged is None:
        return False
    if request.options.get(FOR.name) is not None or request.cluster is None or request.profile is not None or request.measured:
        return False
    return unpredicted(request.cluster) is None


def by_runtime(
    answer: PlanningResult,
    time_limit: float = TIME_LIMIT_S,
    progress: Callable[[Any], None] | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[RuntimePlan, ...]:
    """The best plan of every runtime for a request, sorted by predicted step, those without a plan last.

    Args:
        answer: a result of `plan` for no runtime.
        time_limit: seconds for all runtimes together; a row whose search it ended says so in `stopped`.
        progress: called with a text that names the step that begins, and with a Point for each better plan or bound.
        clock: gives seconds from a fixed moment on (default: the processor's and the wall's, see `solvers.core.clock`).

    Returns:
        A row for each runtime; none if the request names a runtime, a preset or a profile, if its devices are of several kinds
        or of a kind without a data sheet, or if nothing was planned.

    Raises:
        InputError: for a request that cannot be planned.
    """
    if not compares(answer):
        return ()
    clock = clock or Clock()
    until, rows = clock() + time_limit, {OWN: RuntimePlan(OWN, answer, stopped=answer.result.stopped)}
    others = compared()
    for name in others:
        lacks = _lacks(name, answer)
        rows[name] = (
            RuntimePlan(name, why=NOT_SEARCHED, stopped="time limit") if lacks is None else RuntimePlan(name, why=lacks)
        )
    for _ in range(ROUNDS):
        waiting = [name for name in others if rows[name].stopped == "time limit"]
        for index, name in enumerate(waiting):
            share = (until - clock()) / (len(waiting) - index)
            if share <= rows[name].seconds:
                continue
            row = _row(name, answer, share, _progress_after(rows.values(), name, progress))
            if row.stopped == "interrupt":
                rows |= {other: replace(rows[other], stopped="interrupt") for other in waiting[index:]}
                return _in_order(rows.values())
            rows[name] = min(row, rows[name], key=_rank)
    return _in_order(rows.values())


def _in_order(rows: Iterable[RuntimePlan]) -> tuple[RuntimePlan, ...]:
    """The rows (each the best plan of one runtime) sorted by predicted step, shortest first; rows without a plan come last."""
    return tuple(sorted(rows, key=lambda row: (not row.found, row.step_ns or 0)))


def _rank(row: RuntimePlan) -> tuple[bool, bool, float]:
    """A sorting key by which the better of two rows for one runtime (each the best plan of one search) comes first: a search
    that ran to its end before an unfinished one, then the shorter step.
    """
    return row.stopped is not None, not row.found, row.step_ns or 0


def _lacks(name: str, answer: PlanningResult) -> str | None:
    """A text that names the first thing that a runtime does not support and the request needs: a feature of the model, or an
    option; None if it supports all. name: the runtime's name. answer: the planning result that has the request.
    """
    request, problem = answer.request, answer.problem
    missing = None if request.model is None else RUNTIMES[name].lacks(request.model)
    if missing is not None:
        return f"no {missing}"
    if request.options.get(LAYOUTS.name) == UNIT and RUNTIMES[name].one_strategy:
        return ONE_LAYOUT
    if problem.scope is None:
        return None
    try:
        problem.scope.clipped_request(_request(name, answer))
    except InputError as error:
        value = error.problem.removeprefix("is ").split(", ")[0]  # what follows is about --for, which the user did not give
        return f"no plans with {error.command_field}" + f" {value}" * (value != "True")
    return None


def _request(name: str, answer: PlanningResult) -> Any:
    """The request of a planning result, changed so that its plan must run on one runtime (training framework). name: the
    runtime's name. answer: the planning result.
    """
    request = answer.request
    return replace(request, options={**request.options, FOR.name: name}, obtained=[])


def _row(name: str, answer: PlanningResult, seconds: float, progress: Callable[[Any], None] | None) -> RuntimePlan:
    """Search the best plan that one runtime can run, and return it as a row; without a plan, the row has the reason.

    name: the runtime's name. answer: the planning result that has the request. seconds: the time limit of the search.
    progress: called with a text that names the step that begins, and with a Point for each better plan.
    """
    try:
        found = planned(
            _request(name, answer), answer.preset, **answer.searched, time_limit=seconds, progress=progress, alone=True
        )
    except InputError as error:
        return RuntimePlan(name, why=f"{error.command_field} {error.problem}: {error.fix}")
    except KeyboardInterrupt:
        return RuntimePlan(name, why=NOT_SEARCHED, stopped="interrupt")
    stopped = found.result.stopped or ("time limit" if _cut(found, seconds) else None)
    if found.plan is not None:
        return RuntimePlan(name, found, stopped=stopped, seconds=seconds)
    if stopped is not None:
        return RuntimePlan(name, found, why="no plan found yet", stopped=stopped, seconds=seconds)
    limit = found.request.with_margin(0).limit_bytes
    proven = "no plan fits (proven)" if found.result.status == "infeasible" else "no plan found that fits"
    needed = found.needed_bytes or 0
    needs = f", needs {needed / 2**30:.4g} GiB a GPU" if needed > limit else ""
    return RuntimePlan(name, found, why=proven + needs)


def _cut(result: PlanningResult, seconds: float) -> bool:
    """Whether planning ended so close to its time limit that it may have left out compiling and simulating further plans.
    result: the planning result. seconds: the time limit.
    """
    spent = result.spent
    return spent is not None and spent.seconds + WALKS * spent.walk_seconds / max(1, spent.walks) >= seconds


def _progress_after(
    rows: Iterable[RuntimePlan], name: str, progress: Callable[[Any], None] | None
) -> Callable[[Any], None] | None:
    """The progress callback for one runtime's search. It passes each text on to `progress` with the steps of the runtimes
    searched before in front of it: "torchtitan 1.2 s; DeepSpeed: solving". None if `progress` is None.

    rows: the best plans of the runtimes searched before. name: the name of the runtime that is searched now.
    """
    if progress is None:
        return None
    known = ", ".join(f"{row.name} {format_time(row.step_ns)}" for row in rows if row.found and row.step_ns)

    def report(event: Any) -> None:
        progress(f"{known}; {short_title(name)}: {event}" if isinstance(event, str) else event)

    return report
