"""What each constraint of a request costs: between what the least step without it lies, beside the step with it.

All numbers are the problem's own, under its costs and the memory asked for: plans without a constraint are neither compiled nor
walked, but for the one in any runtime, which is predicted, since runtimes run the same plan in other steps.
A plan with the constraint is one without it, too, so the search without it looks for nothing but what is better; where
the constraint leaves out whole parts of the instance, only these are searched, and what is proven of the others holds. All
searches have a share of the time that the plan took: what they prove until then makes the prices, intervals where an optimum is
not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainplan.formulations.joint.options import with_tables
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Problem
from trainplan.planning.planner import planned
from trainplan.planning.result import PlanningResult
from trainplan.planning.result_price import Price
from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.answer import Answer
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.solvers.core.search import CUTOFF

SHARE = 0.5  # of the seconds that the plan took, for all prices together
LEAST_SECONDS = 1.0
RUNTIME_SECONDS = 4.0  # at least, for the plan in any runtime
LEAST_SEARCH_SECONDS = 0.01  # once a request is made


def priced(
    best: PlanningResult,
    without: Mapping[str, tuple[str, Callable[[], Request]]],
    method: str,
    took: float,
    left: float | None,
    *,
    progress: Callable[[str], None] | None = None,
    **arguments: Any,
) -> PlanningResult:
    """The answer with what each constraint costs.

    without: by the parameter of each constraint, its name for people, and what makes the request without it. took: the seconds
    in which the answer was made, of which prices get a share; left: those that are left, None without a limit. progress: called
    with a text that names what is begun. arguments: of the search.
    """
    seconds = max(LEAST_SECONDS, SHARE * took)
    seconds = seconds if left is None else min(left, seconds)
    clock, prices, stopped = Clock(), list[Price](), best.interrupted
    began = clock()
    for index, (parameter, (name, relaxed)) in enumerate(without.items()):
        remaining = seconds - (clock() - began)
        if stopped or remaining <= 0:
            prices.append(Price(name, None))
            continue
        if progress is not None:
            progress(f"looking for the price of {name}")
        ends = clock() + remaining / (len(without) - index)
        request = relaxed()
        if parameter == FOR.name:
            limit = max(ends - clock(), RUNTIME_SECONDS if left is None else min(left, RUNTIME_SECONDS))
            prices.append(_in_any_runtime(name, best, request, method, limit, **arguments))
            stopped = prices[-1].without is None
            continue
        instances, sure = (best.problem.instances(with_tables(request, tables)) for tables in ("least", "most"))
        answer = _answer(
            best, parameter, instances, sure, method, time_limit=max(LEAST_SEARCH_SECONDS, ends - clock()), **arguments
        )
        stopped = answer.result.stopped == "interrupt"
        prices.append(Price(name, answer))
    return replace(best, prices=tuple(prices))


def _in_any_runtime(name: str, best: PlanningResult, request: Request, method: str, seconds: float, **arguments: Any) -> Price:
    """The price of a runtime: the plan that `plan` gives without it, with its prediction; the best one until the time is up.
    name: of the constraint."""
    known = best.answer
    try:
        made = planned(request, best.preset, method, time_limit=max(LEAST_SEARCH_SECONDS, seconds), alone=True, **arguments)
    except KeyboardInterrupt:
        return Price(name, None)
    answer = made.answer
    if known.objective_ns is not None and (answer.objective_ns is None or answer.objective_ns > known.objective_ns):
        bound = answer.bound_ns if answer.result.status != "infeasible" else known.bound_ns
        answer = replace(known, bound_ns=None if bound is None else min(bound, known.objective_ns))
    return Price(name, answer, made.step_ns)


def _answer(
    best: PlanningResult, parameter: str, instances: Sequence[Any], sure: Sequence[Any], method: str, **arguments: Any
) -> Answer:
    """The answer without the constraint of a parameter. instances: without it, by what programs surely hold, so that the bound
    is one of all that fits; sure: the same by what they hold at most, which a solution has to fit. arguments: of the search."""
    problem, known = best.problem, best.answer
    parts = [(instance, _outside(problem, instance, best.instance, parameter)) for instance in instances]
    rest = [part for _, part in parts if part is not None]
    if not rest:
        return known
    options = {option.name for option in method_named(best.preset.problem_name, method).options}
    if known.objective_ns is not None and CUTOFF in options:
        arguments[CUTOFF] = known.objective_ns
    searched: Answer = attribute(best.preset.searcher)(rest, method, explained=False, **arguments)
    if searched.solution is not None:
        place = next(place for place, part in enumerate(rest) if part is searched.instance)
        fitting = [part for each in sure if (part := _outside(problem, each, best.instance, parameter)) is not None][place]
        if problem.violations(fitting, searched.solution):
            searched = replace(searched, solution=None, objective_ns=None)
    answers = [searched, known] if any(part is not each for each, part in parts) else [searched]
    better = searched if known.objective_ns is None or searched.objective_ns is not None else known
    if None not in (known.objective_ns, searched.objective_ns):
        better = min(searched, known, key=lambda answer: answer.objective_ns or 0)
    bounds = [answer.bound_ns for answer in answers if answer.result.status != "infeasible"]
    bound = None if None in bounds else min((ns for ns in (*bounds, better.objective_ns) if ns is not None), default=None)
    return replace(better, bound_ns=bound)


def _outside(problem: Problem, instance: Any, narrower: Any, parameter: str) -> Any | None:
    """The solutions of an instance that one with the constraint of a parameter lacks, see `RequestScope.outside`; all of the
    instance where the problem does not tell them apart."""
    return instance if problem.scope is None else problem.scope.outside(instance, narrower, parameter)
