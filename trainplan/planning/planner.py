"""The one way from a request to a plan: instances, solver, plan, programs that are checked and walked, prediction and claim.

    request -> instances -> solve -> plan -> compile, check -> memory walk, time walk -> planned

The first search counts what programs surely hold, where a problem can tell that from what they hold at most: so its bound holds
for every plan that the memory walk lets fit. Where its plan's programs need more memory than the limit, the request is solved
again with what programs hold at most, roughly, and from there with what walks have beyond the tables (`beyond_tables`). Where
a problem does not tell the two apart, and where none fits, it is solved with as much less memory as the plan before was short
of, at most ROUNDS times, and at last with the least memory that the problem knows a solution for. The bound stays that of the
first search. If no plan fits even so, the answer names a memory with which there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from trainplan.execution.analysis.memory.peak import BACKENDS
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.execution.prediction.overlap import judge_streams
from trainplan.execution.runtimes.torch.export import held_alongside
from trainplan.formulations.joint.options import MEMORY_TABLES, with_tables
from trainplan.formulations.joint.runtime_capabilities import FOR
from trainplan.formulations.plan.plan import Claim, Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import counts_overlap, problem_of
from trainplan.inputs import compiles
from trainplan.planning.memory_beyond_tables import BeyondTables, Count
from trainplan.planning.presets import Preset
from trainplan.planning.result import Planned, Spent
from trainplan.planning.walk_search import OtherWalks
from trainplan.prediction.predict import predicted_on_lanes, predicted_plan
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import enough_bytes, format_bytes, plural
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.solvers.core.answer import Answer, best_answer, with_solution
from trainplan.solvers.core.clock import Clock, Overrun, ended_after, grace_seconds
from trainplan.solvers.core.heuristic import at_least_memory
from trainplan.solvers.core.heuristic import fits as known_to_fit
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.solvers.core.registry import method as method_named
from trainplan.solvers.core.result import Point
from trainplan.solvers.core.search import CUTOFF
from trainplan.solvers.core.solve import check_arguments, versions
from trainplan.validation.plans import as_run, run_by
from trainplan.validation.predict import Prediction

ROUNDS = 8
ROUGH_GAP, ROUGH_SECONDS = 0.02, 1.0  # of a search after which better plans are looked for; as long as it took before
SURELY = "searches with what programs hold beyond the tables"
ONE_STRATEGY = "the search of plans with one strategy"
LEAST_SECONDS = 0.01  # that a search gets when the time is up
MOST_NODES = 16  # times as many as a cluster has, up to which more of them are tried
DEVICE_SECONDS = 20.0  # for these; as many as passed before, where these are more
WALKS = 3  # of the longest so far: the time that has to be left to look for a plan with one strategy, which is walked, too


def planned(
    request: Request,
    preset: Preset,
    method: str = "exact",
    *,
    backend: str | None = None,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    seed: int = 0,
    progress: Callable[[Point | str], None] | None = None,
    beside: bool = True,
    incumbents: Sequence[Plan] = (),
    alone: bool = False,
    **options: Any,
) -> Planned:
    """The best plan for a request, as a preset plans.

    backend: of `run`, on which the plan must fit, too (default: the one that the programs are made for). time_limit: seconds of
    all searches; the last plan is compiled and walked even after it. progress: called with a text that names what is begun, and
    with a Point of each better plan or bound. beside: look for the best plan with one strategy, too. incumbents: plans that the
    search begins from. alone: leave out what changes neither the plan nor its prediction: the last check of its programs and,
    where nothing fits, the search for the fewest devices. gap, seed, options: of the method. Raises InputError, where no
    incumbent is a plan of the problem, too.
    """
    check_arguments(time_limit, gap, seed)
    if backend is not None and backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {shown(backend)}", one_of(backend, BACKENDS))
    preset.check(request)
    arguments = {"gap": gap, "seed": seed, "progress": progress, **options}
    way = Way(request, preset, method, backend, arguments, time_limit, tuple(incumbents), alone=alone)
    best = _planned(way, beside)
    until = way.elapsed()
    if best.judged is not None and not alone:
        way.begin("checking the plan's programs")
        best = _checked(best)
    best = _as_run(best)
    walking = sum(way.walk_seconds) + way.elapsed() - until
    searched = {"method": method, "backend": backend, "gap": gap, "seed": seed, **options}
    return replace(best, spent=Spent(way.elapsed(), walking, len(way.walk_seconds)), searched=searched)


def _planned(way: Way, beside: bool) -> Planned:
    """The best plan, with the best one of one strategy beside it."""
    best = way.walked_again(_best(way))
    if not beside or best.plan is None or best.plan.one_strategy is not None or best.interrupted:
        return best
    try:
        uniform = way.uniform(best)
        return way.bettered(best, uniform) or replace(best, uniform=uniform)
    except KeyboardInterrupt:
        return best


def _best(way: Way) -> Planned:
    """The plan of the least claimed objective whose programs fit, or why there is none."""
    rounds, took = [first := way.walk(0, least=True)], way.elapsed()
    apart = way.excess_bytes(first) > 0 and way.told_apart and not way.late and not first.interrupted
    if apart:
        rounds.append(way.walk(0, rough=True))
    while way.excess_bytes(rounds[-1]) > 0 and len(rounds) < ROUNDS and not way.late and not rounds[-1].interrupted:
        rounds.append(way.walk(rounds[-1].margin_bytes + way.excess_bytes(rounds[-1]), first.answer.bound_ns))
    last = rounds[-1]
    fits = last.plan is not None and way.excess_bytes(last) <= 0
    if apart:
        best = way.restated(first, last) if fits else None
        assert way.beyond is not None, "of a problem that tells apart what programs surely hold"
        best = best if last.interrupted else way.beyond.fitting(way, first, best, took)
        return best or way.tightest(rounds)
    if fits:
        return last
    return way.explained(first) if first.plan is None else way.tightest(rounds)


@dataclass(frozen=True)
class Way:
    """What stays the same in every round of one request."""

    request: Request
    preset: Preset
    method: str
    backend: str | None
    arguments: dict[str, Any]
    time_limit: float | None = None
    incumbents: tuple[Plan, ...] = ()
    alone: bool = False
    clock: Clock = field(default_factory=Clock)
    started: float = field(init=False)
    walk_seconds: list[float] = field(default_factory=list)  # of each plan that has been compiled and walked
    beyond: BeyondTables | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.clock())
        refinement = self.preset.problem.refinement
        object.__setattr__(self, "beyond", None if refinement is None else BeyondTables(refinement))

    def begin(self, what: str) -> None:
        """Tell the caller what is begun."""
        if (progress := self.arguments.get("progress")) is not None:
            progress(what)

    @property
    def late(self) -> bool:
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
        """The seconds that are left; None without a limit."""
        return None if self.time_limit is None else max(LEAST_SECONDS, self.remaining())

    @property
    def options_of_method(self) -> set[str]:
        """The names of the options that the method has."""
        return {option.name for option in method_named(self.preset.problem_name, self.method).options}

    @property
    def settings(self) -> dict[str, Any]:
        """Of the arguments, those for every search beside the one that was asked for."""
        return {name: self.arguments[name] for name in ("seed", "jobs") if name in self.arguments}

    @property
    def told_apart(self) -> bool:
        """Whether the problem can count what programs surely hold, apart from what they hold at most."""
        return MEMORY_TABLES.name in self.request.options

    def walk(self, margin: int, bound_ns: int | None = None, least: bool = False, rough: bool = False) -> Planned:
        """One round: with that much less memory for the solver. bound_ns: that of the first round, which the claim keeps.
        least: with what programs surely hold; rough: where better plans are looked for anyway."""
        self.begin("measuring" if self.request.measured and not self.request.obtained else "estimating")
        request = with_tables(self.request, "least") if least else self.request
        instances = self.preset.problem.instances(request.with_margin(margin))
        self.begin(f"solving ({self.method})")
        arguments, seconds = {**self.arguments, **self.starts(instances)}, None
        if rough:
            arguments["gap"], seconds = max(ROUGH_GAP, arguments.get("gap", 0.0)), max(ROUGH_SECONDS, self.elapsed())
        answer = self.eased(self.search(instances, self.method, seconds, **arguments))
        return self.plan(answer if margin == 0 else _bounded(answer, bound_ns), margin)

    def below(self, instances: Sequence[Any], below_ns: int | None, seconds: float | None) -> Answer:
        """The best solution of some instances, where it is claimed below a step."""
        arguments = {**self.arguments, "explained": False}
        if below_ns is not None and CUTOFF in self.options_of_method:
            arguments[CUTOFF] = below_ns
        return self.eased(self.search(instances, self.method, seconds=seconds, **arguments))

    def plan_of(self, first: Planned, answer: Answer) -> Planned:
        """The plan of an answer to the same instances with other memory, as one of the first search's, walked."""
        return self.plan(self._of_first(first, answer), 0)

    def restated(self, first: Planned, made: Planned) -> Planned:
        """The same of an answer whose plan has been walked."""
        answer = self._of_first(first, made.answer)
        return replace(made, answer=answer, plan=made.plan and made.plan.changed(claim=self.claim(answer)), margin_bytes=0)

    def _of_first(self, first: Planned, answer: Answer) -> Answer:
        """A solution as one of the first search's instances, which differ in what memory is counted and in nothing else, with
        their bound."""
        instance, result = next((each, result) for each, result in first.answer.tried if each.name == answer.instance.name)
        result = replace(result, status="feasible", stopped=answer.result.stopped)
        return with_solution(replace(first.answer, instance=instance, result=result), answer.solution, SURELY)

    def eased(self, answer: Answer) -> Answer:
        """An answer as good that recomputes no more than it needs, where lanes hide it; none within one strategy for all, or
        within what a runtime carries."""
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

    def starts(self, instances: Sequence[Any]) -> dict[str, Any]:
        """The incumbents as an argument of a search, where there are some. Raises InputError."""
        refinement, plans = self.preset.problem.refinement, self.incumbents
        if not plans:
            return {}
        pairs = [] if refinement is None else [(refinement, instance, plan) for instance in instances for plan in plans]
        if all(each.solution_of_plan(instance, plan) is None for each, instance, plan in pairs):
            problem_text = f"are {plural(len(plans), 'plan')}, none of {self.preset.name} for what is asked for"
            raise InputError("command line", "--incumbents", problem_text, "leave them out")
        return {"incumbents": plans}

    def search(self, instances: Sequence[Any], method: str, seconds: float | None = None, **arguments: Any) -> Answer:
        """The preset's search of these instances, in the time that is left. seconds: at most so many of it."""
        options = {name: self.request.options[name] for name in self.preset.search_options}
        limit = self.seconds if seconds is None else max(LEAST_SECONDS, min(seconds, self.remaining()))
        limits = {"time_limit": limit, "clock": self.clock}
        answer: Answer = attribute(self.preset.searcher)(instances, method, **limits, **options, **arguments)
        return answer

    def plan(self, answer: Answer, margin: int) -> Planned:
        """The plan of an answer, judged; checks of its programs are put off, since few plans that are walked are kept."""
        if answer.solution is None:
            return Planned(self.request, self.preset, answer, None, margin_bytes=margin)
        problem, began = self.preset.problem, self.clock()
        self.begin("compiling and simulating the plan's programs")
        plan = problem.plan(answer.instance, answer.solution, self.request)
        plan = plan if self.backend is None else plan.changed(backend=self.backend)
        plan, judged = _judged(plan, self.request, streams=counts_overlap(answer.instance))
        if judged is not None:
            self.walk_seconds.append(self.clock() - began)
        return Planned(self.request, self.preset, answer, plan.changed(claim=self.claim(answer)), judged, margin)

    def claim(self, answer: Answer) -> Claim:
        """What an answer says of its solution."""
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

    def excess_bytes(self, tried: Planned) -> int:
        """By how much the plan's programs exceed the memory, and what the runtime holds that the plan is for, at the rank where
        it is most; at most 0 where both fit."""
        return max(self.over_bytes(tried))

    def over_bytes(self, tried: Planned) -> list[int]:
        """The same, by rank."""
        if tried.plan is None or tried.judged is None or self.request.options.get("ignore_memory"):
            return [0]
        most = map(max, zip(*self.held_bytes(tried), strict=True))
        return [peak - limit for peak, limit in zip(most, limits_bytes(tried.plan, self.request), strict=True)]

    def held_bytes(self, tried: Planned) -> list[list[int]]:
        """What every rank holds of a plan: its programs, and what the runtime does that the plan is for."""
        assert tried.plan is not None
        held = [list(tried.walk_bytes)]
        run = _run_by_runtime(tried.plan, self.request)
        if run is not None and run[0].predicted is not None:
            held.append(run[0].predicted.peak_bytes)
        if self.request.options.get(FOR.name) == "torch":
            more = sum(held_alongside(tried.plan).values())
            held.append([peak + more for peak in tried.walk_bytes])
        return held

    def uniform(self, best: Planned) -> Planned | None:
        """The best plan with one strategy for all units, whose programs fit, too; None where the problem does not say how to
        look for it, or the time is up."""
        problem, limit, margin = self.preset.problem, self.request.with_margin(0).limit_bytes, 0
        count = Count.OWN
        single, beyond = problem.single_strategy, self.beyond if self.told_apart else None
        if single is None or best.instance.common_memory_bytes is None:
            return None
        for _ in range(ROUNDS):
            if self.remaining() < WALKS * max(self.walk_seconds, default=0.0):
                return None
            instances = single.instances(best.instance.with_memory(limit - margin))
            if not instances:
                return None
            tighter = instances if beyond is None else [beyond.corrected(instance, count) for instance in instances]
            self.begin("looking for the best plan with one strategy")
            answer = best_answer(tighter, single.method, time_limit=self.seconds, clock=self.clock, **self.settings)
            made = self.plan(_bounded(answer, best.answer.bound_ns), margin)
            less = margin > 0 or (beyond is not None and bool(beyond.found))
            if made.plan is None and less and count < Count.REFUSED:
                count = Count.REFUSED
                continue
            if (over := self.excess_bytes(made)) <= 0:
                return made if made.plan is not None or not less else _unknown(made)
            if beyond is not None:
                beyond.note(instances[0], made, self.over_bytes(made))
            else:
                margin += over
        return _unknown(made)

    def walked_again(self, best: Planned) -> Planned:
        """The plan of the least walk among some, where the problem's step is relaxed, see `other_walks`."""
        refinement = self.preset.problem.refinement
        if refinement is None or best.plan is None or best.judged is None or not counts_overlap(best.instance):
            return best
        return OtherWalks(self, best, refinement).run()

    def bettered(self, best: Planned, uniform: Planned | None) -> Planned | None:
        """The best plan with one strategy as the answer, where the search of all plans ended with nothing as good, by the walks
        where answers are chosen by these; None where it did not."""
        if uniform is None or uniform.plan is None or uniform.margin_bytes > best.margin_bytes:
            return None
        problem, instance, result = self.preset.problem, best.instance, best.result
        single = problem.single_strategy
        solution = None if single is None else single.widened(instance, uniform.answer.solution)
        if solution is None or problem.violations(instance, solution):
            return None
        if counts_overlap(instance) and best.judged is not None and uniform.judged is not None:
            better = uniform.judged.step_ns < best.judged.step_ns
        else:
            better = result.objective is not None and problem.evaluate(instance, solution).objective < result.objective
        if not better:
            return None
        return self.plan(with_solution(best.answer, solution, ONE_STRATEGY), best.margin_bytes)

    def least(self, bound_ns: int | None = None) -> Planned | None:
        """The exact method's plan with no more memory than some solution needs; None where no such memory is known in time.

        It does not depend on the memory asked for: with as much as it and its programs need, there is a plan.
        """
        with suppress(Overrun), ended_after(lambda: self.remaining() + grace_seconds(self.time_limit)):
            return self._least(bound_ns)
        return None

    def _least(self, bound_ns: int | None) -> Planned | None:
        problem, whole = self.preset.problem, self.request.with_margin(0)
        tight = [instance for each in problem.instances(whole) if (instance := at_least_memory(each)) is not None]
        limits = [instance.common_memory_bytes for instance in tight]
        possible = [(limit, place) for place, limit in enumerate(limits) if limit is not None]
        if not possible:
            return None
        limit, place = min(possible)
        answer = self.search([tight[place]], "exact", **self.settings)
        return self.plan(_bounded(answer, bound_ns), whole.limit_bytes - limit)

    def needed(self, least: Planned) -> tuple[int, list[str]]:
        """The memory that such a plan needs, its programs, too, and the advice to give it."""
        limit = self.request.with_margin(least.margin_bytes).limit_bytes
        programs = max(limit, *least.walk_bytes, 0)
        needed = max([programs, *(max(each, default=0) for each in self.held_bytes(least))])
        advice = [f"give --memory of at least {enough_bytes(needed)}"]
        serial = needed if least.judged is None else max(limit, least.judged.serial_bytes)
        return needed, advice + [f"--backend serial, whose programs need {enough_bytes(serial)}"] * (
            serial < programs == needed
        )

    def explained(self, first: Planned, least: Planned | None = None) -> Planned:
        """Where no solution fits: why, and the memory that does, of its programs, too. least: a plan of little memory; it is
        looked for if left out."""
        reason = first.result.reason
        least = self.least() if least is None and reason is not None else least
        if reason is None or least is None or least.plan is None:
            return first
        needed, advice = self.needed(least)
        bound = reason.least_memory_bytes if reason.bound_bytes is None else reason.bound_bytes
        reason = replace(
            reason,
            bound_bytes=bound if bound < needed else None,
            least_memory_bytes=needed,
            activation_bytes=needed - reason.state_bytes,
            advice=(*advice, *reason.advice[1:]),
        )
        answer = replace(first.answer, result=replace(first.result, reason=reason))
        devices, unknown = (None, None) if self.alone else self.devices()
        return replace(first, answer=answer, needed_bytes=needed, needed_devices=devices, needed_devices_unknown=unknown)

    def devices(self) -> tuple[int | None, str | None]:
        """Where nothing fits: the fewest devices, in whole nodes more than there are, with which something does, each smaller
        number proven too small; and where that is not known, why."""
        cluster = self.request.cluster
        if cluster is None or self.fits(self.request) is not False:
            return None, None
        count = cluster.nodes[0].count
        self.begin("looking for the fewest devices")
        larger = (cluster.with_nodes(more) for more in range(count + 1, MOST_NODES * count + 1))
        found, unknown = self.fewest(larger, cluster.devices, max(DEVICE_SECONDS, self.elapsed()))
        if found is None and unknown is None:
            unknown = f"more than {MOST_NODES} times as many"
        return None if found is None else found.devices, unknown

    def fewest(self, clusters: Iterator[Cluster], too_few: int, seconds: float) -> tuple[Cluster | None, str | None]:
        """The first of some clusters, smaller ones first, on which something fits, each before it proven too small, or of a
        size that the request does not suit; and where that is not known, why.

        too_few: devices that are; seconds: until it is given up.
        """
        until = self.elapsed() + min(self.remaining(), seconds)
        with suppress(Overrun), ended_after(lambda: until - self.elapsed()):
            while self.elapsed() < until:
                try:
                    if (larger := next(clusters, None)) is None:
                        return None, None
                    fits = self.fits(replace(self.request, cluster=larger, obtained=[]))
                except InputError as error:
                    if error.where == "cluster":
                        return None, f"not known: the cluster {error.problem}"
                    continue  # numbers of devices that the batch, the depth or the islands do not suit
                if fits is not False:
                    return (larger, None) if fits else (None, "not known")
                too_few = larger.devices
        return None, f"more than {too_few}; the time was up"

    def fits(self, request: Request) -> bool | None:
        """Whether something fits into the memory of a request; None where that is not known. Raises InputError."""
        problem, told = self.preset.problem, MEMORY_TABLES.name in request.options
        answers = [known_to_fit(instance) for instance in problem.instances(request)]
        if True in answers or not told:
            return True if True in answers else None if None in answers else False
        least = problem.instances(with_tables(request, "least"))
        return None if any(known_to_fit(instance) is not False for instance in least) else False

    def tightest(self, rounds: Sequence[Planned]) -> Planned:
        """Where solutions fit, but no programs of the rounds do: the least plan; or, by how much all of them are short."""
        first = rounds[0]
        least = None if rounds[-1].interrupted else self.least(first.answer.bound_ns)
        plans = [tried for tried in (*rounds, least) if tried is not None and tried.plan is not None]
        best = min(plans, key=self.excess_bytes)
        if (over := self.excess_bytes(best)) <= 0:
            return self.restated(first, best) if self.told_apart and first.plan is not None else best
        whose = "what the runtime holds is" if self.request.options.get(FOR.name) else "the compiled programs are"
        message, needed = f"{whose} {format_bytes(over)} short", None
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


def _unknown(made: Planned) -> Planned:
    """The same without its plan, whose programs do not fit, or without the proof that there is none: with less memory."""
    return replace(made, plan=None, judged=None, answer=replace(made.answer, result=replace(made.result, status="unknown")))


def _judged(plan: Plan, request: Request, streams: bool = False) -> tuple[Plan, PlanPrediction | None]:
    """The plan with its prediction, and what the walks say; where its model has no programs, as it is. streams: with the costs
    of `streams`, on the lanes of frameworks."""
    if not compiles(plan.planned_model()):
        return plan, None
    if streams:
        assert request.cluster is not None
        judged = judge_streams(plan, request.cluster, checked=False)
        return plan.changed(predicted=predicted_on_lanes(judged, request.cluster)), judged
    return predicted_plan(plan, request)


def _checked(made: Planned) -> Planned:
    """The same, once its programs and those of the plan with one strategy beside it are checked."""
    judged = None if made.judged is None else made.judged.checked()
    return replace(made, judged=judged, uniform=None if made.uniform is None else _checked(made.uniform))


def plan_answer(first: Planned, answer: Answer, checked: bool = True) -> Planned:
    """Another answer to a request that has been planned, as a plan with its own prediction and claim. checked: its programs,
    which a plan that is kept needs."""
    made = Way(first.request, first.preset, answer.result.method, None, {}).plan(answer, first.margin_bytes)
    return _as_run(_checked(made) if checked else made)


def _as_run(made: Planned) -> Planned:
    """The same, predicted as the runtime runs it that the request names."""
    run = None if made.plan is None else _run_by_runtime(made.plan, made.request)
    if run is None:
        return made
    plan, prediction = run
    uniform = None if made.uniform is None else _as_run(made.uniform)
    return replace(made, plan=plan, uniform=uniform, run=prediction if isinstance(prediction, Prediction) else None)


def _run_by_runtime(plan: Plan, request: Request) -> tuple[Plan, Prediction | str] | None:
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
