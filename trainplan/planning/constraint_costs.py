"""The price of each constraint of a request: by how much the least step would be shorter without it.

All steps are the problem's objectives under the request's costs and memory. Plans without a constraint are neither compiled nor
simulated, except for the plan in any runtime, which is predicted, since runtimes run the same plan in different steps.
A plan that satisfies the constraint is a solution without it, too. So the search without it looks only for better plans; where
the constraint excludes whole parts of the instance, only these are searched, and what is proven of the others still holds. All
searches share a part of the time that planning took: the prices are what they prove until then, intervals where an optimum is
not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainplan.formulations.joint.options import LAYOUTS, with_tables
from trainplan.formulations.joint.overlap_units_request import UNIT
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

SHARE = 0.5  # of the seconds that planning took, for all prices together
LEAST_SECONDS = 1.0  # for all prices together
RUNTIME_SECONDS = 4.0  # at least, for the plan in any runtime
LEAST_SEARCH_SECONDS = 0.01


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
    """Add to a result of planning the price of each constraint of the user: how much shorter the step could be without it.
    Each price takes one more search, without that constraint alone.

    Args:
        best: the result of the request with all constraints.
        without: for each constraint, by its parameter name: a pair of its name for people, and a function that makes the
            request without it.
        method: the name of the method that searches.
        took: seconds that planning took; all prices together may take a share of them.
        left: seconds that remain of the time limit; None without a limit.
        progress: called with a text that names the step that begins.
        **arguments: keyword arguments of every search, such as gap and seed.
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
    """The price of the constraint that one runtime (training framework) must be able to run the plan: found by planning
    without it within a time limit.

    name: the constraint's name for people. best: the result with the constraint. request: the request without it. method:
    the name of the method that searches. seconds: the time limit. arguments: keyword arguments of the search, such as gap
    and seed.
    """
    known = best.answer
    try:
        result = planned(request, best.preset, method, time_limit=max(LEAST_SEARCH_SECONDS, seconds), alone=True, **arguments)
    except KeyboardInterrupt:
        return Price(name, None)
    answer = result.answer
    if known.objective_ns is not None and (answer.objective_ns is None or answer.objective_ns > known.objective_ns):
        bound = answer.bound_ns if answer.result.status != "infeasible" else known.bound_ns
        answer = replace(known, bound_ns=None if bound is None else min(bound, known.objective_ns))
    return Price(name, answer, result.step_ns)


def _answer(
    best: PlanningResult, parameter: str, instances: Sequence[Any], sure: Sequence[Any], method: str, **arguments: Any
) -> Answer:
    """The solver's answer to a request without one constraint, with a lower bound that holds for all plans of that request.

    Args:
        best: the result with the constraint.
        parameter: the constraint's parameter name.
        instances: the instances without the constraint, in which tables count the memory that programs surely hold, so that
            the bound holds for every plan that fits.
        sure: the same instances with tables that count the most memory that programs may hold; a solution has to fit these.
        method: the name of the method that searches.
        **arguments: keyword arguments of the search, such as gap and seed.
    """
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
        index = next(index for index, part in enumerate(rest) if part is searched.instance)
        outside = (_outside(problem, instance, best.instance, parameter) for instance in sure)
        fitting = [part for part in outside if part is not None][index]
        if problem.violations(fitting, searched.solution):
            searched = replace(searched, solution=None, objective_ns=None)
    answers = [searched, known] if any(part is not instance for instance, part in parts) else [searched]
    better = searched if known.objective_ns is None or searched.objective_ns is not None else known
    if None not in (known.objective_ns, searched.objective_ns):
        unlike = best.request.options.get(LAYOUTS.name) == UNIT  # its objectives are far from steps: no plan is known by them
        better = known if unlike else min(searched, known, key=lambda answer: answer.objective_ns or 0)
    bounds = [answer.bound_ns for answer in answers if answer.result.status != "infeasible"]
    bound = None if None in bounds else min((ns for ns in (*bounds, better.objective_ns) if ns is not None), default=None)
    return replace(better, bound_ns=bound)


def _outside(problem: Problem, instance: Any, narrower: Any, parameter: str) -> Any | None:
    """The solutions of an instance that a user's constraint excludes, as an instance of their own; the whole instance if the
    problem cannot separate them (see `RequestScope.outside`), None if there are none.

    instance: the instance without the constraint. narrower: the instance with it. parameter: the constraint's parameter
    name.
    """
    return instance if problem.scope is None else problem.scope.outside(instance, narrower, parameter)
