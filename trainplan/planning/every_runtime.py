"""The best plan of every runtime for one request, beside a plan that was made for none: each is what `plan --for` it gives.

The request's own plan is trainplan's row. All other rows are searched one after the other, as the request was, each in a share
of the time that is left; a row whose search had too little says how far its plan may be from the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.runtimes import RUNTIMES
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
ROUNDS = 2  # in which searches share the time; the second has what runtimes that were done early have left
NOT_SEARCHED = "not searched"
OWN = "trainplan"
NAMES = {"megatron": "Megatron", "megatron-bridge": "Megatron", "deepspeed": "DeepSpeed", "accelerate": "Accelerate"}
COMPARED = ("megatron", "torchtitan", "deepspeed", "accelerate", "torch")  # Megatron-Bridge runs what Megatron does


@dataclass(frozen=True)
class RuntimePlan:
    """The best plan of a runtime. runtime: as `--for` has it. answer: None where the runtime has something less than is asked
    for, or its search has not begun. why: why there is no plan. stopped: what ended its search early; None where it is done.
    seconds: that the search had."""

    runtime: str
    answer: PlanningResult | None = None
    why: str = ""
    stopped: str | None = None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The runtime as people write it."""
        return NAMES.get(self.runtime, self.runtime)

    @property
    def found(self) -> bool:
        """Whether there is a plan."""
        return self.answer is not None and self.answer.step_ns is not None

    @property
    def step_ns(self) -> int | None:
        """The predicted step: the runtime's."""
        return None if self.answer is None else self.answer.step_ns

    @property
    def peak_bytes(self) -> int | None:
        """What the fullest device holds, as is predicted of the runtime."""
        plan = None if self.answer is None else self.answer.plan
        return None if plan is None or plan.predicted is None else plan.predicted.most_bytes

    @property
    def gap(self) -> float | None:
        """By what share of its step, as the solver counts it, the plan may be slower than the best; None without a bound."""
        plan = None if self.answer is None else self.answer.plan
        return None if plan is None or plan.claim is None or not plan.claim.bound_ns else plan.claim.gap

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
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


def compares(answer: PlanningResult) -> bool:
    """Whether there is more than one runtime to plan for: a plan of the default preset for none, on devices of which the
    prediction of every runtime is known."""
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
    """The best plan of every runtime for a request, the shortest predicted step first, those without a plan last.

    Args:
        answer: of `plan`, without a runtime.
        time_limit: seconds for all of them together; rows that it leaves open say so in `stopped`.
        progress: as of `plan`.
        clock: gives seconds from a fixed moment on (default: the processor's and the wall's, see `solvers.core.clock`).

    Returns:
        A row for each runtime; none where the request names a runtime, a preset or a profile, where its devices are of several
            kinds or of one without a data sheet, and where nothing was planned.

    Raises:
        InputError: as of `plan`.
    """
    if not compares(answer):
        return ()
    clock = clock or Clock()
    until, rows = clock() + time_limit, {OWN: RuntimePlan(OWN, answer, stopped=answer.result.stopped)}
    for name in COMPARED:
        lacks = _lacks(name, answer)
        rows[name] = (
            RuntimePlan(name, why=NOT_SEARCHED, stopped="time limit") if lacks is None else RuntimePlan(name, why=lacks)
        )
    for _ in range(ROUNDS):
        waiting = [name for name in COMPARED if rows[name].stopped == "time limit"]
        for index, name in enumerate(waiting):
            share = (until - clock()) / (len(waiting) - index)
            if share <= rows[name].seconds:
                continue
            made = _row(name, answer, share, _telling(rows.values(), name, progress))
            if made.stopped == "interrupt":
                rows |= {each: replace(rows[each], stopped="interrupt") for each in waiting[index:]}
                return _in_order(rows.values())
            rows[name] = min(made, rows[name], key=_rank)
    return _in_order(rows.values())


def _in_order(rows: Iterable[RuntimePlan]) -> tuple[RuntimePlan, ...]:
    return tuple(sorted(rows, key=lambda row: (not row.found, row.step_ns or 0)))


def _rank(row: RuntimePlan) -> tuple[bool, bool, float]:
    """Of rows of one runtime, a search that is done first, then the shorter step."""
    return row.stopped is not None, not row.found, row.step_ns or 0


def _lacks(name: str, answer: PlanningResult) -> str | None:
    """What a runtime does not have of the model, or of what is asked for; None where it has all."""
    request, problem = answer.request, answer.problem
    missing = None if request.model is None else RUNTIMES[name].lacks(request.model)
    if missing is not None:
        return f"no {missing}"
    if problem.scope is None:
        return None
    try:
        problem.scope.clipped_request(_request(name, answer))
    except InputError as error:
        return f"{error.command_field} {error.problem}: {error.fix}"
    return None


def _request(name: str, answer: PlanningResult) -> Any:
    """The same request for a runtime."""
    request = answer.request
    return replace(request, options={**request.options, FOR.name: name}, obtained=[])


def _row(name: str, answer: PlanningResult, seconds: float, progress: Callable[[Any], None] | None) -> RuntimePlan:
    """The best plan of a runtime, or why there is none."""
    try:
        made = planned(
            _request(name, answer), answer.preset, **answer.searched, time_limit=seconds, progress=progress, alone=True
        )
    except InputError as error:
        return RuntimePlan(name, why=f"{error.command_field} {error.problem}: {error.fix}")
    except KeyboardInterrupt:
        return RuntimePlan(name, why=NOT_SEARCHED, stopped="interrupt")
    stopped = made.result.stopped or ("time limit" if _cut(made, seconds) else None)
    if made.plan is not None:
        return RuntimePlan(name, made, stopped=stopped, seconds=seconds)
    if stopped is not None:
        return RuntimePlan(name, made, why="no plan found yet", stopped=stopped, seconds=seconds)
    limit = made.request.with_margin(0).limit_bytes
    proven = "no plan fits (proven)" if made.result.status == "infeasible" else "no plan found that fits"
    needed = made.needed_bytes or 0
    needs = f", needs {needed / 2**30:.4g} GiB a GPU" if needed > limit else ""
    return RuntimePlan(name, made, why=proven + needs)


def _cut(made: PlanningResult, seconds: float) -> bool:
    """Whether planning came so near to its limit that it may have left out a plan, which takes a walk to try."""
    spent = made.spent
    return spent is not None and spent.seconds + WALKS * spent.walk_seconds / max(1, spent.walks) >= seconds


def _telling(rows: Iterable[RuntimePlan], name: str, progress: Callable[[Any], None] | None) -> Callable[[Any], None] | None:
    """The progress of one runtime's search, behind the steps that are known."""
    if progress is None:
        return None
    known = ", ".join(f"{row.name} {format_time(row.step_ns)}" for row in rows if row.found and row.step_ns)

    def told(event: Any) -> None:
        progress(f"{known}; {NAMES.get(name, name)}: {event}" if isinstance(event, str) else event)

    return told
