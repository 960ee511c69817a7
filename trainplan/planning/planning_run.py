"""One run of the planner: a request with its limits, and the steps that all rounds of the search share.

A round makes instances of the request, solves them, and makes of the best solution a plan whose programs are compiled and
simulated: `search` and `plan`. What a plan's programs, and the runtime that it is for, hold on each device is compared with
the memory asked for: `over_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.execution.prediction.overlap import predict_overlapped
from trainplan.execution.runtimes.torch.export import held_alongside
from trainplan.formulations.joint.options import MEMORY_TABLES, with_tables
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.plan import Claim, Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import counts_overlap, problem_of
from trainplan.inputs import compiles
from trainplan.planning.memory_beyond_tables import BeyondTables
from trainplan.planning.presets import Preset
from trainplan.planning.result import PlanningResult
from trainplan.prediction.predict import predicted_on_lanes, predicted_plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import plural
from trainplan.solvers.core.answer import Answer, with_solution
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.solvers.core.search import CUTOFF
from trainplan.solvers.core.solve import versions
from trainplan.validation.plans import as_run, run_by
from trainplan.validation.predict import Prediction

ROUGH_GAP, ROUGH_SECONDS = 0.02, 1.0  # of a search after which better plans are looked for; as long as it took before
SURELY = "searches with what programs hold beyond the tables"
LEAST_SECONDS = 0.01  # that a search gets when the time is up


@dataclass(frozen=True)
class PlanningRun:
    """The planning of one request: what stays the same in all of its rounds.

    Attributes:
        request: what is asked for, with the whole memory.
        preset: the problem, and how its instances are searched.
        method: the name of the method that searches them.
        backend: of `run`, on which plans must fit, too; None for the one that programs are made for.
        arguments: of every search of that method: gap, seed, progress and its own options.
        time_limit: seconds for all searches; None without a limit.
        incumbents: plans that searches begin from.
        alone: whether what changes neither the plan nor its prediction is left out.
        clock: gives seconds from a fixed moment on.
        started: the clock's seconds when the run began.
        walk_seconds: the seconds in which each plan was compiled and simulated, in their order.
        beyond: the bytes that programs held beyond the tables; None of a problem without a refinement.
    """

    request: Request
    preset: Preset
    method: str = "exact"
    backend: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    time_limit: float | None = None
    incumbents: tuple[Plan, ...] = ()
    alone: bool = False
    clock: Clock = field(default_factory=Clock)
    started: float = field(init=False)
    walk_seconds: list[float] = field(default_factory=list)
    beyond: BeyondTables | None = field(init=False)

    def __post_init__(self) -> None:
        refinement = self.preset.problem.refinement
        object.__setattr__(self, "started", self.clock())
        object.__setattr__(self, "beyond", None if refinement is None else BeyondTables(refinement))

    # Time

    def begin(self, step: str) -> None:
        """Tell the caller which step is begun, in words."""
        if (progress := self.arguments.get("progress")) is not None:
            progress(step)

    @property
    def deadline_passed(self) -> bool:
        """Whether the time is up."""
        return self.remaining() <= 0

    def remaining(self) -> float:
        """Seconds left; infinite without a limit."""
        return inf if self.time_limit is None else self.time_limit - self.elapsed()

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.started

    @property
    def seconds(self) -> float | None:
        """The seconds that are left for a search; None without a limit."""
        return None if self.time_limit is None else max(LEAST_SECONDS, self.remaining())

    # Searches

    @property
    def method_options(self) -> set[str]:
        """The names of the options that the method has."""
        return {option.name for option in method_named(self.preset.problem_name, self.method).options}

    @property
    def common_arguments(self) -> dict[str, Any]:
        """Those of the arguments that hold for searches by another method, too."""
        return {name: self.arguments[name] for name in ("seed", "jobs") if name in self.arguments}

    @property
    def has_least_tables(self) -> bool:
        """Whether the problem can count what programs surely hold, apart from what they hold at most."""
        return MEMORY_TABLES.name in self.request.options

    def search(self, instances: Sequence[Any], method: str, seconds: float | None = None, **arguments: Any) -> Answer:
        """The best solution of some instances by the preset's search, in the time that is left; at most so many seconds."""
        options = {name: self.request.options[name] for name in self.preset.search_options}
        limit = self.seconds if seconds is None else max(LEAST_SECONDS, min(seconds, self.remaining()))
        limits = {"time_limit": limit, "clock": self.clock}
        answer: Answer = attribute(self.preset.searcher)(instances, method, **limits, **options, **arguments)
        return answer

    def search_below(self, instances: Sequence[Any], below_ns: int | None, seconds: float | None) -> Answer:
        """The best solution of some instances whose objective is below `below_ns`, where that is given."""
        arguments = {**self.arguments, "explained": False}
        if below_ns is not None and CUTOFF in self.method_options:
            arguments[CUTOFF] = below_ns
        return self.without_needless_recomputation(self.search(instances, self.method, seconds=seconds, **arguments))

    def plan_round(
        self, margin_bytes: int, bound_ns: int | None = None, *, least: bool = False, rough: bool = False
    ) -> PlanningResult:
        """One round: the plan of the request with so much less memory for the solver.

        bound_ns: the bound of the first round, which the claims of later ones keep. least: count what programs surely hold.
        rough: stop early, since better plans are looked for anyway.
        """
        self.begin("measuring" if self.request.measured and not self.request.obtained else "estimating")
        request = with_tables(self.request, "least") if least else self.request
        instances = self.preset.problem.instances(request.with_margin(margin_bytes))
        self.begin(f"solving ({self.method})")
        arguments, seconds = {**self.arguments, **self.incumbent_arguments(instances)}, None
        if rough:
            arguments["gap"], seconds = max(ROUGH_GAP, arguments.get("gap", 0.0)), max(ROUGH_SECONDS, self.elapsed())
        answer = self.without_needless_recomputation(self.search(instances, self.method, seconds, **arguments))
        return self.plan(answer if margin_bytes == 0 else with_bound(answer, bound_ns), margin_bytes)

    def incumbent_arguments(self, instances: Sequence[Any]) -> dict[str, Any]:
        """The incumbents as an argument of a search, where there are some. Raises InputError where none of them is a plan of
        the instances."""
        refinement, plans = self.preset.problem.refinement, self.incumbents
        if not plans:
            return {}
        pairs = [] if refinement is None else [(refinement, instance, plan) for instance in instances for plan in plans]
        if all(each.solution_of_plan(instance, plan) is None for each, instance, plan in pairs):
            problem_text = f"are {plural(len(plans), 'plan')}, none of {self.preset.name} for what is asked for"
            raise InputError("command line", "--incumbents", problem_text, "leave them out")
        return {"incumbents": plans}

    def without_needless_recomputation(self, answer: Answer) -> Answer:
        """An answer with no larger objective that recomputes no more than it needs, where overlap hides recomputation; the
        answer itself within one strategy for all, or within what a runtime carries."""
        refinement, options = self.preset.problem.refinement, self.request.options
        if (
            refinement is None
            or answer.solution is None
            or not counts_overlap(answer.instance)
            or options.get("for_")
            or options.get("one_strategy")
        ):
            return answer
        solution = refinement.without_needless_recomputation(answer.instance, answer.solution)
        if solution == answer.solution:
            return answer
        return with_solution(answer, solution, answer.result.solution_source or self.method)

    # Plans

    def plan(self, answer: Answer, margin_bytes: int) -> PlanningResult:
        """The plan of an answer with its prediction and claim. Checks of its programs are put off, since few plans that are
        simulated are kept."""
        if answer.solution is None:
            return PlanningResult(self.request, self.preset, answer, None, margin_bytes=margin_bytes)
        problem, began = self.preset.problem, self.clock()
        self.begin("compiling and simulating the plan's programs")
        plan = problem.plan(answer.instance, answer.solution, self.request)
        plan = plan if self.backend is None else plan.changed(backend=self.backend)
        plan, judged = _predicted(plan, self.request, overlap=counts_overlap(answer.instance))
        if judged is not None:
            self.walk_seconds.append(self.clock() - began)
        claimed = plan.changed(claim=self.claim(answer))
        return PlanningResult(self.request, self.preset, answer, claimed, judged, margin_bytes)

    def plan_as_of_first(self, first: PlanningResult, answer: Answer) -> PlanningResult:
        """The plan of an answer to the first search's instances with other memory, as an answer to the first search."""
        return self.plan(self._of_first(first, answer), 0)

    def restated(self, first: PlanningResult, made: PlanningResult) -> PlanningResult:
        """A result for the first search's instances with other memory, as one of the first search."""
        answer = self._of_first(first, made.answer)
        return replace(made, answer=answer, plan=made.plan and made.plan.changed(claim=self.claim(answer)), margin_bytes=0)

    def _of_first(self, first: PlanningResult, answer: Answer) -> Answer:
        """A solution as one of the first search's instances, which differ in the memory that is counted and in nothing else,
        with their bound."""
        instance, result = next((each, result) for each, result in first.answer.tried if each.name == answer.instance.name)
        result = replace(result, status="feasible", stopped=answer.result.stopped)
        return with_solution(replace(first.answer, instance=instance, result=result), answer.solution, SURELY)

    def claim(self, answer: Answer) -> Claim:
        """The claim of an answer's solution: its objective, the bound, and where both are from."""
        problem = problem_of(answer.instance)
        return Claim(
            problem=problem.name,
            cost_model=problem.cost_model(answer.instance),
            objective_ns=answer.objective_ns or 0,
            bound_ns=answer.bound_ns,
            gap=answer.gap,
            status=answer.status,
            method=answer.result.method,
            bound_source=answer.result.bound_source,
            versions=versions(),
            stopped=answer.result.stopped,
        )

    # Memory

    def excess_bytes(self, tried: PlanningResult) -> int:
        """The bytes by which a plan exceeds the memory at the rank where they are most; at most 0 where it fits."""
        return max(self.over_bytes(tried))

    def over_bytes(self, tried: PlanningResult) -> list[int]:
        """The bytes by which a plan's programs, or the runtime that it is for, exceed the memory, by rank; negative where they
        fit."""
        if tried.plan is None or tried.judged is None or self.request.options.get("ignore_memory"):
            return [0]
        most = map(max, zip(*self.held_bytes(tried), strict=True))
        return [peak - limit for peak, limit in zip(most, limits_bytes(tried.plan, self.request), strict=True)]

    def held_bytes(self, tried: PlanningResult) -> list[list[int]]:
        """The peak bytes of every rank of a plan: a row for its programs, and one for the runtime that it is for."""
        assert tried.plan is not None
        held = [list(tried.walk_bytes)]
        run = run_by_runtime(tried.plan, self.request)
        if run is not None and run[0].predicted is not None:
            held.append(run[0].predicted.peak_bytes)
        if self.request.options.get(FOR.name) == "torch":
            more = sum(held_alongside(tried.plan).values())
            held.append([peak + more for peak in tried.walk_bytes])
        return held


def _predicted(plan: Plan, request: Request, overlap: bool) -> tuple[Plan, PlanPrediction | None]:
    """The plan with its prediction, and the simulation of its programs; as it is where its model has no programs. overlap: with
    the costs of `streams`, which count what frameworks overlap."""
    if not compiles(plan.planned_model()):
        return plan, None
    if overlap:
        assert request.cluster is not None
        judged = predict_overlapped(plan, request.cluster, checked=False)
        return plan.changed(predicted=predicted_on_lanes(judged, request.cluster)), judged
    return predicted_plan(plan, request)


def with_bound(answer: Answer, bound_ns: int | None) -> Answer:
    """An answer for less memory than was asked for, with the bound of the memory asked for."""
    return answer if answer.objective_ns is None else replace(answer, bound_ns=bound_ns)


def run_by_runtime(plan: Plan, request: Request) -> tuple[Plan, Prediction | str] | None:
    """A plan with the prediction of the runtime that the request names; None where it names none that predicts."""
    by = run_by(request.options.get(FOR.name), plan)
    return None if by is None or request.cluster is None else as_run(plan.changed(runs_by=by), request.cluster)


def limits_bytes(plan: Plan, request: Request) -> list[int]:
    """The memory of every rank's device: the one asked for, else what is usable of its kind."""
    if request.memory_bytes is not None or request.cluster is None:
        return [request.with_margin(0).limit_bytes] * plan.world
    kinds = {kind.name: kind.usable_bytes for kind in request.cluster.used_kinds}
    of_device = request.cluster.device_kinds
    return [kinds[of_device[device]] for device in plan.placement or range(plan.world)]
