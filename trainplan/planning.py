"""The one way from a request to a plan: instances, solver, plan, programs that are checked and walked, prediction and claim.

    request -> instances -> solve -> plan -> compile, check -> memory walk, time walk -> planned

Where a plan's programs need more memory than the limit, the solver gets as much less, and the request is solved again: at most
ROUNDS times, and at last with the least memory that the problem knows a solution for. The bound stays that of the limit asked
for. If no plan fits even so, the answer names a memory with which there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trainplan.asking import compiles
from trainplan.execution.judge import Judged, judge
from trainplan.execution.walk.memory import BACKENDS, Backend
from trainplan.formulations.plan import Claim, Plan
from trainplan.formulations.problem import Problem
from trainplan.formulations.request import Request
from trainplan.performance import Performance, performance
from trainplan.predicting import plan_profile, predicted
from trainplan.presets import Preset
from trainplan.profiling.base.display import html_table, rich_table
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import format_bytes, format_time, plural
from trainplan.solvers.core.answer import Answer, best_answer
from trainplan.solvers.core.result import Point, Result
from trainplan.solvers.core.solve import check_arguments, versions

ROUNDS = 8
LEAST_SECONDS = 0.01  # that a search gets when the time is up
WALKS = 3  # of the longest so far: the time that has to be left to look for a plan with one strategy, which is walked, too


@dataclass(frozen=True)
class Planned:
    """A plan with its prediction and its claim; plan is None where nothing fits, or nothing was found (`result` says why).

    answer: of the solver, whose `instance` and `result` belong to the plan. judged: what the walks say of the plan's programs;
    None where plans of the model do not become programs. reserve_bytes: how much less memory than asked for the solver got.
    needed_bytes: where the memory is too little, one with which there is a plan, if that is known. uniform: the best plan with
    one strategy for all units, likewise; None where this plan has one itself, and where none was looked for (the problem does
    not say how, or the time was up).
    """

    request: Request
    preset: Preset
    answer: Answer
    plan: Plan | None
    judged: Judged | None = None
    reserve_bytes: int = 0
    needed_bytes: int | None = None
    uniform: Planned | None = None

    def __repr__(self) -> str:
        step = (
            "no plan"
            if self.plan is None or self.plan.predicted is None
            else f"{format_time(self.plan.predicted.step_ns)} a step"
        )
        return f"<Planned {self.subject}, like {self.preset.name}: {step}, {self.answer.status}>"

    def __rich__(self) -> Any:
        return rich_table(self.summary())

    def _repr_html_(self) -> str:
        return html_table(self.summary())

    @property
    def subject(self) -> str:
        """The model and the cluster."""
        model = self.request.model.name if self.request.model else self.request.origin.name
        return f"{model} on {self.request.cluster_name}"

    @cached_property
    def performance(self) -> Performance | None:
        """The step in an engineer's units; None without a plan or a prediction."""
        if self.plan is None or self.judged is None:
            return None
        return performance(self.plan, self.judged, self.request.cluster)

    @property
    def uniform_excess(self) -> float | None:
        """How much longer the predicted step of the best plan with one strategy for all units takes, as a share of this one's;
        None where one of the two is not there."""
        if self.plan is not None and self.plan.one_strategy is not None:
            return 0.0
        steps = [each.plan.predicted for each in (self, self.uniform) if each and each.plan and each.plan.predicted]
        return steps[1].step_ns / steps[0].step_ns - 1 if len(steps) == 2 else None

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return self.preset.problem

    @property
    def instance(self) -> Any:
        """The instance whose solution is planned."""
        return self.answer.instance

    @property
    def result(self) -> Result:
        """The method's, on that instance."""
        return self.answer.result

    @property
    def walk_bytes(self) -> tuple[int, ...]:
        """The peak of every rank by the memory walk over its program; empty where there are no programs."""
        return () if self.judged is None else tuple(self.judged.peak_bytes)

    @property
    def excess(self) -> float | None:
        """How far the predicted step is from the claimed objective, as a share of the objective; None without either."""
        if self.plan is None or self.plan.predicted is None or self.plan.claim is None or not self.plan.claim.objective_ns:
            return None
        return self.plan.predicted.step_ns / self.plan.claim.objective_ns - 1

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "like": self.preset.name,
            "plan": None if self.plan is None else self.plan.model_dump(),
            "result": self.result.to_dict(),
            "alternatives": list(self.answer.alternatives),
            "walk_bytes": list(self.walk_bytes),
            "reserve_bytes": self.reserve_bytes,
            "needed_bytes": self.needed_bytes,
            "performance": None if self.performance is None else self.performance.to_dict(),
            "uniform": None if self.uniform is None or self.uniform.plan is None else self.uniform.plan.model_dump(),
            "uniform_excess": self.uniform_excess,
        }

    def summary(self, *, flags: bool = False) -> list[tuple[str, str]]:
        """Label and text of each line that people want to see, beside tables. flags: name the command's options."""
        result = self.result
        if self.plan is None:
            needed = [] if self.needed_bytes is None else [("memory needed", f"{self.needed_bytes} bytes")]
            return [row for row in result.summary(flags=flags) if row[0] != "problem"] + needed
        rows = [*self._prediction(), *self._uniform(), *self._claim()]
        rows.append(("seconds", f"{result.build_seconds:.3f} build, {result.solve_seconds:.3f} solve"))
        return rows + ([("message", result.message)] if result.message else [])

    def _prediction(self) -> list[tuple[str, str]]:
        plan = self.plan
        assert plan is not None
        if plan.predicted is None or self.performance is None:
            return [("predicted time", f"none: plans of {plan.planned_model().family} models are no programs yet")]
        whole = format_bytes(plan.memory_bytes)
        rows = [
            ("predicted time", f"{format_time(plan.predicted.step_ns)} a step"),
            *self.performance.summary(),
            ("predicted memory", f"{format_bytes(plan.predicted.most_bytes)} at most on any rank, of {whole}: the memory walk"),
        ]
        if self.reserve_bytes:
            reserve = f"{format_bytes(self.reserve_bytes)} that the solver did not get, so that the programs fit"
            rows.append(("reserve", reserve))
        return rows

    def _uniform(self) -> list[tuple[str, str]]:
        """The best plan with one strategy for all units, and what it costs."""
        label, plan = "one strategy", self.plan
        assert plan is not None
        if plan.one_strategy is not None:
            return [(label, f"this plan has {plan.one_strategy} for all units")]
        if self.uniform is None:
            return [(label, "none was looked for: the time was up, or the problem does not say how")]
        if (other := self.uniform.plan) is None:
            return [(label, f"no plan with one strategy for all units: {self.uniform.result.status}")]
        shape = f"{plural(len(other.stages), 'stage')}, {plural(other.batch.micro_batches, 'micro-batch')}"
        text = f"{other.one_strategy} for all units, {shape}"
        if self.uniform_excess is not None and other.predicted is not None:
            text += f": {format_time(other.predicted.step_ns)} a step, {self.uniform_excess:+.2%}"
        return [(label, text)]

    def _claim(self) -> list[tuple[str, str]]:
        claim = None if self.plan is None else self.plan.claim
        assert claim is not None
        bound, source = "none", self.result.bound_source
        if claim.bound_ns is not None:
            bound = format_time(claim.bound_ns) + (f", by {source}" if source else "")
        rows = [
            ("claim", f"{format_time(claim.objective_ns)} of {claim.problem}, costs {claim.cost_model}"),
            ("status", claim.status),
            ("lower bound", bound),
            ("gap", "unknown" if claim.gap is None else f"{claim.gap:.4%}"),
            ("method", claim.method),
        ]
        if self.excess is not None and self.excess != 0:
            rows.append(("walk and claim", f"the predicted step is {self.excess:+.3%} from the claimed objective"))
        return rows


def planned(
    request: Request,
    preset: Preset,
    method: str = "exact",
    *,
    backend: str | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Callable[[Point | str], None] | None = None,
    **options: Any,
) -> Planned:
    """The best plan for a request, as a preset plans.

    backend: of `run`, on which the plan must fit, too (default: the one that the programs are made for). time_limit: seconds in
    all. progress: called with a text that names what is begun, and with a Point of each better plan or bound. gap, seed,
    options: of the method. Raises InputError.
    """
    check_arguments(time_limit, gap, seed)
    if backend is not None and backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {shown(backend)}", one_of(backend, BACKENDS))
    preset.check(request)
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    way = _Way(request, preset, method, backend, {"gap": gap, "seed": seed, "progress": progress, **options}, deadline)
    best = _best(way)
    if best.plan is None or best.plan.one_strategy is not None:
        return best
    try:
        return replace(best, uniform=way.uniform(best))
    except KeyboardInterrupt:
        return best


def _best(way: _Way) -> Planned:
    """The plan of the least claimed objective whose programs fit, or why there is none."""
    rounds = [way.walk(0)]
    while way.excess_bytes(rounds[-1]) > 0 and len(rounds) < ROUNDS and not way.late:
        rounds.append(way.walk(rounds[-1].reserve_bytes + way.excess_bytes(rounds[-1]), rounds[0].answer.bound_ns))
    first, last = rounds[0], rounds[-1]
    if last.plan is not None and way.excess_bytes(last) <= 0:
        return last
    return way.explained(first) if first.plan is None else way.tightest(rounds)


@dataclass(frozen=True)
class _Way:
    """What stays the same in every round of one request."""

    request: Request
    preset: Preset
    method: str
    backend: str | None
    arguments: dict[str, Any]
    deadline: float | None = None
    walk_seconds: list[float] = field(default_factory=list)  # of each plan that has been compiled and walked

    def begin(self, what: str) -> None:
        """Tell the caller what is begun."""
        if (progress := self.arguments.get("progress")) is not None:
            progress(what)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.perf_counter() >= self.deadline

    @property
    def seconds(self) -> float | None:
        """The seconds that are left; None without a limit."""
        return None if self.deadline is None else max(LEAST_SECONDS, self.deadline - time.perf_counter())

    def walk(self, reserve: int, bound_ns: int | None = None) -> Planned:
        """One round: with that much less memory for the solver. bound_ns: that of the first round, which the claim keeps."""
        self.begin("measuring" if self.request.measured and not self.request.obtained else "estimating")
        instances = self.preset.problem.instances(self.request.with_reserve(reserve))
        self.begin(f"solving ({self.method})")
        answer = self.search(instances, self.method, **self.arguments)
        return self.plan(answer if reserve == 0 else _bounded(answer, bound_ns), reserve)

    def search(self, instances: Sequence[Any], method: str, **arguments: Any) -> Answer:
        """The preset's search of these instances, in the time that is left."""
        options = {name: self.request.options[name] for name in self.preset.search_options}
        answer: Answer = attribute(self.preset.searcher)(instances, method, time_limit=self.seconds, **options, **arguments)
        return answer

    def plan(self, answer: Answer, reserve: int) -> Planned:
        """The plan of an answer, judged."""
        if answer.solution is None:
            return Planned(self.request, self.preset, answer, None, reserve_bytes=reserve)
        problem, began = self.preset.problem, time.perf_counter()
        self.begin("compiling and walking the plan's programs")
        plan = problem.plan(answer.instance, answer.solution, self.request)
        plan, judged = _judged(plan, self.request, self.backend)
        self.walk_seconds.append(time.perf_counter() - began)
        claim = Claim(
            problem=problem.name,
            cost_model=problem.cost_model(answer.instance),
            objective_ns=answer.objective_ns or 0,
            bound_ns=answer.bound_ns,
            gap=answer.gap,
            status=answer.status,
            method=answer.result.method,
            versions=versions(),
        )
        return Planned(self.request, self.preset, answer, plan.changed(claim=claim), judged, reserve)

    def excess_bytes(self, tried: Planned) -> int:
        """By how much the plan's programs exceed the memory, at the rank where it is most; at most 0 where they fit."""
        if tried.plan is None or tried.judged is None or self.request.options.get("ignore_memory"):
            return 0
        limits = limits_bytes(tried.plan, self.request)
        return max(peak - limit for peak, limit in zip(tried.judged.peak_bytes, limits, strict=True))

    def uniform(self, best: Planned) -> Planned | None:
        """The best plan with one strategy for all units, whose programs fit, too; None where the problem does not say how to
        look for it, or the time is up."""
        problem, limit, reserve = self.preset.problem, self.request.with_reserve(0).limit_bytes, 0
        if problem.memory_bytes(best.instance) is None:
            return None
        for _ in range(ROUNDS):
            if self.seconds is not None and self.seconds < WALKS * max(self.walk_seconds):
                return None
            instances, method = problem.uniform(problem.with_memory(best.instance, limit - reserve))
            if not instances:
                return None
            self.begin("looking for the best plan with one strategy")
            answer = best_answer(instances, method, time_limit=self.seconds, seed=self.arguments["seed"])
            made = self.plan(_bounded(answer, best.answer.bound_ns), reserve)
            if (over := self.excess_bytes(made)) <= 0:
                return made
            reserve += over
        return replace(made, plan=None, judged=None)

    def least(self, bound_ns: int | None = None) -> Planned | None:
        """The exact method's plan with no more memory than some solution needs; None where no such memory is known.

        It does not depend on the memory asked for: with as much as it and its programs need, there is a plan.
        """
        problem, whole = self.preset.problem, self.request.with_reserve(0)
        tight = [instance for each in problem.instances(whole) if (instance := problem.tightest(each)) is not None]
        limits = [problem.memory_bytes(instance) for instance in tight]
        possible = [(limit, place) for place, limit in enumerate(limits) if limit is not None]
        if not possible:
            return None
        limit, place = min(possible)
        answer = self.search([tight[place]], "exact", seed=self.arguments["seed"])
        return self.plan(_bounded(answer, bound_ns), whole.limit_bytes - limit)

    def needed(self, least: Planned) -> tuple[int, list[str]]:
        """The memory that such a plan needs, its programs, too, and the advice to give it."""
        limit = self.request.with_reserve(least.reserve_bytes).limit_bytes
        needed = max(limit, *least.walk_bytes, 0)
        advice = [f"give --memory of at least {needed}B"]
        serial = needed if least.judged is None else max(limit, least.judged.serial_bytes)
        return needed, advice + [f"--backend serial, whose programs need {serial} bytes"] * (serial < needed)

    def explained(self, first: Planned) -> Planned:
        """Where no solution fits: why, and the memory that does, of its programs, too."""
        reason = first.result.reason
        least = None if reason is None else self.least()
        if reason is None or least is None or least.plan is None:
            return first
        needed, advice = self.needed(least)
        reason = replace(
            reason,
            least_memory_bytes=needed,
            activation_bytes=needed - reason.state_bytes,
            advice=(*advice, *reason.advice[1:]),
        )
        answer = replace(first.answer, result=replace(first.result, reason=reason))
        return replace(first, answer=answer, needed_bytes=needed)

    def tightest(self, rounds: Sequence[Planned]) -> Planned:
        """Where solutions fit, but no programs of the rounds do: the least plan; or, by how much all of them are short."""
        first, least = rounds[0], self.least(rounds[0].answer.bound_ns)
        plans = [tried for tried in (*rounds, least) if tried is not None and tried.plan is not None]
        over = min(map(self.excess_bytes, plans))
        if over <= 0:
            return plans[-1]
        message, needed = f"the compiled programs are {plural(over, 'byte')} short", None
        if least is not None and least.plan is not None:
            needed, advice = self.needed(least)
            message = f"{message}; {' or '.join(advice)}"
        else:
            message += f", and {first.result.method} found nothing that needs less" + " before time ran out" * self.late
        result = replace(
            first.result, status="unknown", message=message, objective=None, gap=None, solution=None, evaluation=None
        )
        answer = replace(first.answer, result=result, solution=None, objective_ns=None)
        return Planned(self.request, self.preset, answer, None, needed_bytes=needed)


def _bounded(answer: Answer, bound_ns: int | None) -> Answer:
    """An answer for less memory than was asked for, with the bound of the memory asked for."""
    return answer if answer.objective_ns is None else replace(answer, bound_ns=bound_ns)


def _judged(plan: Plan, request: Request, backend: str | None) -> tuple[Plan, Judged | None]:
    """The plan with its prediction, and what the walks say; where its model has no programs, as it is."""
    if not compiles(plan.planned_model()):
        return plan, None
    profile = plan_profile(plan, request)
    kinds = None if request.cluster is None else request.cluster.device_kinds
    chosen: Backend | None = next((each for each in BACKENDS if each == backend), None)
    judged = judge(plan, profile, kinds, chosen)
    return plan.changed(predicted=predicted(plan, judged, profile, kinds)), judged


def plan_answer(first: Planned, answer: Answer) -> Planned:
    """Another answer to a request that has been planned, as a plan with its own prediction and claim."""
    return _Way(first.request, first.preset, answer.result.method, None, {}).plan(answer, first.reserve_bytes)


def limits_bytes(plan: Plan, request: Request) -> list[int]:
    """The memory of every rank's device: the one asked for, else that of the kind of its device."""
    if request.memory_bytes is not None or request.cluster is None:
        return [request.with_reserve(0).limit_bytes] * plan.world
    kinds = {kind.name: kind.memory_bytes for kind in request.cluster.used_kinds}
    devices = plan.placement or range(plan.world)
    return [kinds[request.cluster.device_kinds[device]] for device in devices]


def plan_row(name: str, plan: Plan) -> dict[str, Any]:
    """A plan in one row: what the walks predict of it, and what is claimed."""
    predicted, claim = plan.predicted, plan.claim
    samples_per_s = 0.0 if predicted is None else plan.batch.global_samples / predicted.step_ns * 1e9
    return {
        "name": name,
        "step_ns": None if predicted is None else predicted.step_ns,
        "samples_per_s": None if predicted is None else samples_per_s,
        "tokens_per_s_per_device": None if predicted is None else samples_per_s * plan.planned_model().tokens / plan.world,
        "peak_bytes": None if predicted is None else predicted.most_bytes,
        "stages": len(plan.stages),
        "micro_batches": plan.batch.micro_batches,
        "claim_ns": None if claim is None else claim.objective_ns,
        "bound_ns": None if claim is None else claim.bound_ns,
        "gap": None if claim is None else claim.gap,
        "problem": None if claim is None else claim.problem,
        "cost_model": None if claim is None else claim.cost_model,
    }
