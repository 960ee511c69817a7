"""Whether a model fits on a cluster, and the least memory that a plan of it needs, without a search for the fastest plan.

The least memory of all plans is a question of its own, and a quicker one: stages are filled to a limit of memory, and no
step is simulated. What is proven is that no plan's programs need less than a bound, by what tables surely count; the plan of
that memory is then compiled and walked as any other, so its peak is the one that `plan` would print of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainplan.formulations.joint.options import with_tables
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import problem_of
from trainplan.planning.planner import plan_answer, planned
from trainplan.planning.planning_run import PlanningRun
from trainplan.planning.presets import Preset
from trainplan.planning.result import PlanningResult
from trainplan.planning.shortage import least_memory_plan, something_fits, with_reason
from trainplan.profiling.base.display import html_table, rich_table
from trainplan.profiling.base.quantities import format_bytes
from trainplan.solvers.core.answer import Answer
from trainplan.solvers.core.heuristic import explain, leanest
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import versions

METHOD = "least memory"
CLOSE_SECONDS = 10.0  # of a whole search, where the plan of the least memory is over the limit by less than tables can tell


@dataclass(frozen=True)
class Fit:
    """Whether some plan fits.

    answer: as of `plan`: the plan that fits, or, without a plan, why there is none and what would do. leanest: the plan of the
    least memory that is known, predicted as `plan` predicts it; None where none is. bound_bytes: no plan's programs need less
    of a GPU; None where nothing is proven.
    """

    answer: PlanningResult
    leanest: PlanningResult | None
    bound_bytes: int | None

    @property
    def fits(self) -> bool | None:
        """True where a plan is known that fits, False where it is proven that none does, None where neither is known."""
        if self.answer.plan is not None:
            return True
        return False if self.answer.result.status == "infeasible" else None

    @property
    def limit_bytes(self) -> int:
        """The memory of one GPU that plans may use."""
        return self.answer.request.with_margin(0).limit_bytes

    @cached_property
    def peak_bytes(self) -> int | None:
        """The peak of the leanest plan on its fullest GPU, as it is predicted; of a plan without programs, as it is counted."""
        made = self.leanest
        if made is None or made.plan is None:
            return None
        if made.plan.predicted is not None:
            return made.plan.predicted.most_bytes
        counted: int | None = (made.result.evaluation or {}).get("peak_bytes")
        return counted

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        answer, made = self.answer, self.leanest
        return {
            "fits": self.fits,
            "limit_bytes": self.limit_bytes,
            "peak_bytes": self.peak_bytes,
            "bound_bytes": self.bound_bytes,
            "runtime": answer.request.options.get(FOR.name),
            "leanest": None if made is None or made.plan is None else made.plan.model_dump(),
            "reason": None if answer.result.reason is None else str(answer.result.reason),
            "message": answer.result.message,
            "needed_bytes": answer.needed_bytes,
            "needed_devices": answer.needed_devices,
            "needed_devices_unknown": answer.needed_devices_unknown,
        }

    def summary(self) -> list[tuple[str, str]]:
        """Label and text of each line that people want to see."""
        rows = [
            ("fits", {True: "yes", False: "no, proven", None: "not known"}[self.fits]),
            ("limit", format_bytes(self.limit_bytes)),
        ]
        rows += [] if self.peak_bytes is None else [("least peak known", format_bytes(self.peak_bytes))]
        rows += [] if self.bound_bytes is None else [("proven lower bound", format_bytes(self.bound_bytes))]
        return rows + ([] if self.answer.plan is not None else self.answer.summary())

    def __repr__(self) -> str:
        return f"<Fit {self.answer.subject}: {'; '.join(f'{label} {text}' for label, text in self.summary()[:4])}>"

    def __rich__(self) -> Any:
        return rich_table(self.summary())

    def _repr_html_(self) -> str:
        return html_table(self.summary())


def fitted(request: Request, preset: Preset, progress: Callable[[Any], None] | None = None) -> Fit:
    """Whether a request fits, as a preset plans. progress: called with a text that names what is begun. Raises InputError."""
    preset.check(request)
    run = PlanningRun(request, preset, arguments={"gap": 0.0, "seed": 0, "progress": progress})
    run.begin("looking for the least memory")
    instances = preset.problem.instances(with_tables(request, "least"))
    leanest, bound = _leanest(run, instances)
    if leanest is None:
        leanest = least_memory_plan(run)
    elif bound is not None and bound <= run.request.limit_bytes < bound + run.excess_bytes(leanest) and run.has_least_tables:
        counted_most, _ = _leanest(run, preset.problem.instances(with_tables(request, "most")))
        leanest = min(filter(None, (leanest, counted_most)), key=run.excess_bytes)
    if leanest is not None and leanest.plan is not None and run.excess_bytes(leanest) <= 0:
        return Fit(leanest, leanest, bound)
    if something_fits(run, request) is False:
        return Fit(with_reason(run, _refused(run, instances), leanest), leanest, bound)
    found = planned(request, preset, beside=False, time_limit=CLOSE_SECONDS, progress=progress)
    return Fit(found, leanest if found.plan is None else found, bound)


def _leanest(run: PlanningRun, instances: Sequence[Any]) -> tuple[PlanningResult | None, int | None]:
    """The plan of the least memory that is known of some instances, and bytes of a GPU that no solution of all is below."""
    found = [(*least[::-1], each) for each in instances if (least := leanest(each)) is not None]
    if not found:
        return None, None
    bound, solution, instance = min(found, key=lambda each: int(each[0]))
    answer = _answer(instance, solution)
    made = plan_answer(PlanningResult(run.request, run.preset, answer, None), answer, checked=False)
    return made, bound if len(found) == len(instances) else None


def _answer(instance: Any, solution: Any) -> Answer:
    """A solution as an answer of which nothing is claimed but what it costs."""
    problem = problem_of(instance)
    objective = problem.evaluate(instance, solution).objective
    made = replace(_result(instance), status="feasible", objective=objective, solution=problem.solution_dict(solution))
    return Answer(instance, replace(made, evaluation=problem.describe(instance, solution)), solution, objective, None)


def _refused(run: PlanningRun, instances: Sequence[Any]) -> PlanningResult:
    """The answer that nothing fits, with the reason of the instance that needs the least."""
    reasons = [(reason, each) for each in instances if (reason := explain(each)) is not None]
    reason, instance = min(reasons, key=lambda pair: int(pair[0].least_memory_bytes), default=(None, instances[0]))
    result = replace(_result(instance), status="infeasible", reason=reason)
    return PlanningResult(run.request, run.preset, Answer(instance, result, None, None, None), None)


def _result(instance: Any) -> Result:
    """A result of no search yet."""
    numbers: dict[str, Any] = {"objective": None, "bound": None, "gap": None, "solution": None, "seed": 0, "history": ()}
    numbers |= {"build_seconds": 0.0, "solve_seconds": 0.0, "versions": versions(), "instance_hash": instance.digest}
    return Result(instance.problem, METHOD, "unknown", **numbers)
