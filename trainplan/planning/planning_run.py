"""One run of the planner: a request with its limits, and the steps that all rounds of the search share.

A round makes instances of the request, solves them, and makes of the best solution a plan whose programs are compiled and
simulated: `search` and `plan`. `over_bytes` compares the memory that the plan's programs hold on each device, and the memory
that the runtime of the request holds, with the limit.
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
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.prediction.predict import predicted_plan, predicted_with_overlap
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
    """The planning of one request: its settings, and the functions that each round of planning uses.

    A round solves the request's instances with some memory limit, and compiles and simulates the plan of the best solution.
    The solver counts memory by an instance's tables. The plan's programs, the instructions of every rank that it is
    compiled to, may hold more bytes; if they exceed the limit, another round follows. An answer is what a solver returns
    for instances: the best solution, its objective and a lower bound. A result is a plan made from an answer, with
    prediction and claim.

    Attributes:
        request: what to plan for, with its whole memory.
        preset: the problem, and the function that searches its instances.
        method: the name of the method that solves the instances.
        backend: another back-end of `run` whose memory plans must fit, too; None for the one that programs are compiled
            for.
        arguments: keyword arguments of every search by that method: gap, seed, progress and the method's own options.
        time_limit: seconds for all searches; None without a limit.
        incumbents: plans that searches begin from.
        alone: whether everything is left out that changes neither the plan nor its prediction.
        clock: returns seconds from a fixed moment on.
        started: the clock's seconds when the run began.
        walk_seconds: for each plan in order, the seconds in which it was compiled and simulated.
        beyond: notes of the bytes that simulated programs held in addition to the memory tables; None if the problem has no
            refinement.
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

    def of_request(self, request: Request, incumbents: Sequence[Plan]) -> PlanningRun:
        """A run of another request, with other incumbents, that goes on where this one is: with its clock and limits."""
        other = replace(self, request=request, incumbents=tuple(incumbents))
        object.__setattr__(other, "started", self.started)
        return other

    # Time

    def begin(self, step: str) -> None:
        """Report to the caller's `progress`, if there is one, the name of the step that begins."""
        if (progress := self.arguments.get("progress")) is not None:
            progress(step)

    @property
    def deadline_passed(self) -> bool:
        """Whether the time limit for all searches is over."""
        return self.remaining() <= 0

    def remaining(self) -> float:
        """Seconds of planning until the time limit; infinite without a limit."""
        return inf if self.time_limit is None else self.time_limit - self.elapsed()

    def elapsed(self) -> float:
        """Seconds since the planning of the request began."""
        return self.clock() - self.started

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds for the next search: what remains, but at least LEAST_SECONDS; None without a limit."""
        return None if self.time_limit is None else max(LEAST_SECONDS, self.remaining())

    # Searches

    @property
    def method_options(self) -> set[str]:
        """The names of the options that the solving method takes."""
        return {option.name for option in method_named(self.preset.problem_name, self.method).options}

    @property
    def common_arguments(self) -> dict[str, Any]:
        """The keyword arguments that searches by every method take: the seed and the number of jobs, if given, by name."""
        return {name: self.arguments[name] for name in ("seed", "jobs") if name in self.arguments}

    @property
    def has_least_tables(self) -> bool:
        """Whether the problem can build its memory tables in two forms: with the least that programs surely hold, and with the
        most that they may hold.
        """
        return MEMORY_TABLES.name in self.request.options

    def search(self, instances: Sequence[Any], method: str, seconds: float | None = None, **arguments: Any) -> Answer:
        """Search the best solution of some instances within the remaining time. method: the name of the method that solves.
        seconds: a shorter time limit, if given. arguments: further keyword arguments of the search.
        """
        options = {name: self.request.options[name] for name in self.preset.search_options}
        limit = self.seconds if seconds is None else max(LEAST_SECONDS, min(seconds, self.remaining()))
        limits = {"time_limit": limit, "clock": self.clock}
        answer: Answer = attribute(self.preset.searcher)(instances, method, **limits, **options, **arguments)
        return answer

    def search_below(self, instances: Sequence[Any], below_ns: int | None, seconds: float | None) -> Answer:
        """Search the best solution of some instances with an objective below `below_ns` nanoseconds, if given. seconds: limit
        of the search; None for the remaining time. Needless recomputation is taken out of the solution."""
        arguments = {**self.arguments, "explained": False}
        if below_ns is not None and CUTOFF in self.method_options:
            arguments[CUTOFF] = below_ns
        return self.without_needless_recomputation(self.search(instances, self.method, seconds=seconds, **arguments))

    def plan_round(
        self, margin_bytes: int, bound_ns: int | None = None, *, least: bool = False, rough: bool = False
    ) -> PlanningResult:
        """One round of planning: solve the request with its memory reduced by `margin_bytes`, and simulate the plan of the
        best solution. Returns the plan's result.

        Args:
            margin_bytes: bytes of each device that the solver may not use.
            bound_ns: a lower bound in ns for the whole request, from the first round, which replaces the one of this round;
                None to keep this round's.
            least: count only the memory that programs surely hold.
            rough: stop early, since a search for better plans follows.
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
        """The plans to begin from as a keyword argument for searches of some instances; empty if there are none. Raises
        InputError if none of them is a plan of the instances."""
        refinement, plans = self.preset.problem.refinement, self.incumbents
        if not plans:
            return {}
        pairs = [] if refinement is None else [(refinement, instance, plan) for instance in instances for plan in plans]
        if all(refined.solution_of_plan(instance, plan) is None for refined, instance, plan in pairs):
            problem_text = f"are {plural(len(plans), 'plan')}, none of {self.preset.name} for what is asked for"
            raise InputError("command line", "--incumbents", problem_text, "leave them out")
        return {"incumbents": plans}

    def without_needless_recomputation(self, answer: Answer) -> Answer:
        """The answer with recomputation taken out of its solution that saves no needed memory, at no larger objective.

        Unchanged if costs do not count overlap, or if the request has one strategy for all units or a runtime, whose plans
        cannot be changed unit by unit.
        """
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
        """Turn a solver's answer into a result with a plan, its prediction and its claim. Whether the plan's programs run
        correctly is not checked yet, since few of the plans that are simulated are kept.

        margin_bytes: bytes of each device that the solver could not use.
        """
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
        """Turn the answer of a later search, whose memory tables counted more bytes, into a result whose claim is about the
        first search: with that search's instance and lower bound. first: the first search's result.
        """
        return self.plan(self._of_first(first, answer), 0)

    def restated(self, first: PlanningResult, result: PlanningResult) -> PlanningResult:
        """The result of a later search, whose memory tables counted more bytes, with a claim about the first search: with that
        search's instance and lower bound. first: the first search's result.
        """
        answer = self._of_first(first, result.answer)
        return replace(
            result, answer=answer, plan=result.plan and result.plan.changed(claim=self.claim(answer)), margin_bytes=0
        )

    def _of_first(self, first: PlanningResult, answer: Answer) -> Answer:
        """The answer of a later search, whose memory tables counted more bytes, turned into an answer of the first search:
        with that search's lower bound, and with its instance of the same name, which differs in its memory tables alone.
        first: the first search's result.
        """
        instance, result = next(pair for pair in first.answer.tried if pair[0].name == answer.instance.name)
        result = replace(result, status="feasible", stopped=answer.result.stopped)
        return with_solution(replace(first.answer, instance=instance, result=result), answer.solution, SURELY)

    def claim(self, answer: Answer) -> Claim:
        """The claim that a plan made from an answer carries: the solution's objective in ns, a lower bound in ns, and how both
        were found.
        """
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
        """The largest number of bytes by which a plan exceeds the memory of some rank's device; 0 or less if the plan fits.
        tried: the result that has the plan.
        """
        return max(self.over_bytes(tried))

    def over_bytes(self, tried: PlanningResult) -> list[int]:
        """For each rank, the bytes by which the peak memory of a plan exceeds the memory of the rank's device; negative if it
        fits. The peak is the larger one of the plan's programs and of the requested runtime's prediction. [0] for a plan
        without programs, and if the request ignores memory. tried: the result that has the plan.
        """
        if tried.plan is None or tried.judged is None or self.request.options.get("ignore_memory"):
            return [0]
        most = map(max, zip(*self.held_bytes(tried), strict=True))
        return [peak - limit for peak, limit in zip(most, limits_bytes(tried.plan, self.request), strict=True)]

    def held_bytes(self, tried: PlanningResult) -> list[list[int]]:
        """Predicted peak bytes of every rank, as one list for each prediction: of the plan's programs, and of the runtime that
        the request names, if it names one. Where the search was by the prediction of that runtime, which has programs of its
        own, it is the only one. tried: the result that has the plan.
        """
        assert tried.plan is not None
        held = [list(tried.walk_bytes)]
        run = run_by_runtime(tried.plan, self.request)
        if run is not None and run[0].predicted is not None:
            if predicted_by_runtime(tried.instance):
                return [run[0].predicted.peak_bytes]
            held.append(run[0].predicted.peak_bytes)
        if self.request.options.get(FOR.name) == "torch":
            alongside_bytes = sum(held_alongside(tried.plan).values())
            held.append([peak + alongside_bytes for peak in tried.walk_bytes])
        return held


def _predicted(plan: Plan, request: Request, overlap: bool) -> tuple[Plan, PlanPrediction | None]:
    """The plan with its prediction, and the simulation of its compiled programs; the plan unchanged and None if programs of its
    model cannot be compiled.

    overlap: whether its costs are those of the back-end `streams`, which overlaps communication with computation as frameworks
    do.
    """
    if not compiles(plan.planned_model()):
        return plan, None
    if overlap:
        assert request.cluster is not None
        judged = predict_overlapped(plan, request.cluster, checked=False)
        return plan.changed(predicted=predicted_with_overlap(judged, request.cluster)), judged
    return predicted_plan(plan, request)


def with_bound(answer: Answer, bound_ns: int | None) -> Answer:
    """A solver's answer with its lower bound replaced by `bound_ns`: for an answer of a search with reduced memory, whose own
    bound does not hold for the whole request. Unchanged if the answer has no solution. bound_ns: a lower bound in ns for
    the whole request; None if none is known.
    """
    return answer if answer.objective_ns is None else replace(answer, bound_ns=bound_ns)


def run_by_runtime(plan: Plan, request: Request) -> tuple[Plan, Prediction | str] | None:
    """The prediction of a plan by the runtime (training framework) that the request names: a pair of the plan marked for that
    runtime, and the prediction, or a text that says why there is none. None if the request names no runtime, or one without
    a prediction.
    """
    settings = run_by(request.options.get(FOR.name), plan)
    if settings is None or request.cluster is None:
        return None
    settings = settings.changed(cluster=request.cluster.model_dump())
    return as_run(plan.changed(runs_by=settings), request.cluster)


def limits_bytes(plan: Plan, request: Request) -> list[int]:
    """The memory limit of every rank's device in bytes, in rank order: the request's or, if it has none, the usable memory of
    that kind of device."""
    if request.memory_bytes is not None or request.cluster is None:
        return [request.with_margin(0).limit_bytes] * plan.world
    kinds = {kind.name: kind.usable_bytes for kind in request.cluster.used_kinds}
    of_device = request.cluster.device_kinds
    return [kinds[of_device[device]] for device in plan.placement or range(plan.world)]
