"""Whether a model fits on a cluster, and the least memory that a plan of it needs, without a search for the fastest plan.

Finding the plan with the least memory is quicker than finding the fastest: stages are filled up to a memory limit, and no step
is simulated. The lower bound on the memory of every plan counts only what programs surely hold. The plan that is found is
compiled and simulated like any other, so its peak is the one that `plan` would print.
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
    """Whether some plan of a request fits into memory.

    Attributes:
        answer: the plan that fits, as `plan` returns it, or, without a plan, why there is none and what would help.
        leanest: the plan with the least memory that is known, predicted as `plan` predicts it; None if none is known.
        bound_bytes: a proven lower bound on the peak bytes of a GPU, for every plan; None if nothing is proven.
    """

    answer: PlanningResult
    leanest: PlanningResult | None
    bound_bytes: int | None

    @property
    def fits(self) -> bool | None:
        """True if a plan that fits is known, False if it is proven that none does, None if neither is known."""
        if self.answer.plan is not None:
            return True
        return False if self.answer.result.status == "infeasible" else None

    @property
    def limit_bytes(self) -> int:
        """The memory of one GPU in bytes that plans may use."""
        return self.answer.request.with_margin(0).limit_bytes

    @cached_property
    def peak_bytes(self) -> int | None:
        """Peak memory in bytes of the fullest GPU under the plan with the least memory: predicted from its compiled programs,
        or counted by the problem for a plan without programs; None without a plan."""
        leanest = self.leanest
        if leanest is None or leanest.plan is None:
            return None
        if leanest.plan.predicted is not None:
            return leanest.plan.predicted.most_bytes
        counted: int | None = (leanest.result.evaluation or {}).get("peak_bytes")
        return counted

    def to_dict(self) -> dict[str, Any]:
        """Whether the request fits, as a JSON-ready dict. Keys: `fits` (True, False, None if neither is known), `limit_bytes`
        (memory of a GPU that plans may use), `leanest` (the plan with the least memory, as a dict) and its `peak_bytes`,
        `bound_bytes` (proven least peak of every plan), `runtime` (the requested one), `reason` and `message` (texts: why there
        is no plan), `needed_bytes` (a memory of each device with which there is a plan), `needed_devices` (the fewest devices
        with which there is one) and `needed_devices_unknown` (why that number is not known); None for what is unknown."""
        answer, leanest = self.answer, self.leanest
        return {
            "fits": self.fits,
            "limit_bytes": self.limit_bytes,
            "peak_bytes": self.peak_bytes,
            "bound_bytes": self.bound_bytes,
            "runtime": answer.request.options.get(FOR.name),
            "leanest": None if leanest is None or leanest.plan is None else leanest.plan.model_dump(),
            "reason": None if answer.result.reason is None else str(answer.result.reason),
            "message": answer.result.message,
            "needed_bytes": answer.needed_bytes,
            "needed_devices": answer.needed_devices,
            "needed_devices_unknown": answer.needed_devices_unknown,
        }

    def summary(self) -> list[tuple[str, str]]:
        """Pairs of label and text for people: whether the request fits, the memory limit, the least peak memory known, and a
        lower bound on it."""
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
        """The rows of `summary` as an HTML table, which notebooks show for the answer."""
        return html_table(self.summary())


def fitted(request: Request, preset: Preset, progress: Callable[[Any], None] | None = None) -> Fit:
    """Find out whether some plan of a request fits into memory, of the plans that a preset can choose. Returns a plan that fits
    or else why there is none, with the plan of least memory that is known and a lower bound on the memory.

    progress: called with a text that names the step that begins. Raises InputError for a model that the preset does not plan.
    """
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
    found = planned(request, preset, compare_single_strategy=False, time_limit=CLOSE_SECONDS, progress=progress)
    return Fit(found, leanest if found.plan is None else found, bound)


def _leanest(run: PlanningRun, instances: Sequence[Any]) -> tuple[PlanningResult | None, int | None]:
    """The plan with the least memory among the solutions of some instances, and a lower bound in bytes on the memory of one
    GPU under any of their solutions.

    run: the planning run of the request. instances: the instances of the request. The plan is None if no solution is known;
    the bound is None if no bound is known for one of the instances.
    """
    found = [(*least[::-1], instance) for instance in instances if (least := leanest(instance)) is not None]
    if not found:
        return None, None
    bound, solution, instance = min(found, key=lambda entry: int(entry[0]))
    answer = _answer(instance, solution)
    plan = plan_answer(PlanningResult(run.request, run.preset, answer, None), answer, checked=False)
    return plan, bound if len(found) == len(instances) else None


def _answer(instance: Any, solution: Any) -> Answer:
    """A solution in the form of a solver's answer, with its costs but without a lower bound, since no method has searched for
    better ones. instance: the instance that the solution belongs to.
    """
    problem = problem_of(instance)
    objective = problem.evaluate(instance, solution).objective
    feasible = replace(_result(instance), status="feasible", objective=objective, solution=problem.solution_dict(solution))
    return Answer(instance, replace(feasible, evaluation=problem.describe(instance, solution)), solution, objective, None)


def _refused(run: PlanningRun, instances: Sequence[Any]) -> PlanningResult:
    """The result that says that no plan fits, with the reason from the instance that needs the least memory. run: the planning
    run of the request. instances: the instances of the request.
    """
    reasons = [(reason, instance) for instance in instances if (reason := explain(instance)) is not None]
    reason, instance = min(reasons, key=lambda pair: int(pair[0].least_memory_bytes), default=(None, instances[0]))
    result = replace(_result(instance), status="infeasible", reason=reason)
    return PlanningResult(run.request, run.preset, Answer(instance, result, None, None, None), None)


def _result(instance: Any) -> Result:
    """The result of an instance for which no search has run: without a solution, with the status "unknown". instance: the
    numbers (costs, memory limits) that a solver searches.
    """
    numbers: dict[str, Any] = {"objective": None, "bound": None, "gap": None, "solution": None, "seed": 0, "history": ()}
    numbers |= {"build_seconds": 0.0, "solve_seconds": 0.0, "versions": versions(), "instance_hash": instance.digest}
    return Result(instance.problem, METHOD, "unknown", **numbers)
