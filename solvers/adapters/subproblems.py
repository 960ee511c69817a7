"""Solve an instance part by part: the best solution over all parts, and the least of their bounds.

Parts are the problem's own (`Problem.models`): the configurations of a pipeline instance, say, or the degrees of a
cluster-strategy one. They are tried in the order of their bounds. Each is given the best solution so far, so that it only has
to prove that it holds nothing better, and half of the time that is left; the last one all of it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from trainplan.formulations.problem import Subproblem, problem_of
from trainplan.profiling.base.errors import TooLarge
from trainplan.solvers.core.result import Point
from trainplan.solvers.core.search import Method, Outcome, Search


def by_configuration(method: Method, instance: Any, search: Search) -> Outcome:
    """Run a method on each part of an instance, such as each configuration of a pipeline; on the whole instance if its problem
    does not divide it into parts. Returns one outcome for all parts.

    instance: the data of one optimisation problem. method: solves one part. search: the search of the whole instance. If a
    part's model would be too large, nothing is solved, and the outcome's message says so."""
    try:
        parts = problem_of(instance).models.subproblems(instance, search.out_of_time)
    except TooLarge as error:
        return Outcome(stopped="model size", message=f"no model was built: the instance {error.problem}; {error.fix}")
    return by_parts(method, [Subproblem(instance, -math.inf, lowered=_same)] if parts is None else parts, search)


def _same(solution: Any) -> Any:
    """Return the solution unchanged: the mapping of solutions between an instance and its only part."""
    return solution


def by_parts(method: Method, parts: list[Subproblem], search: Search) -> Outcome:
    """Run a method on the parts of an instance, by rising lower bound, as long as a part may hold a better solution than the
    best known one.

    method: solves one part. parts: their `bound` is raised here as bounds are proven. search: the search of the whole instance.
    Returns one outcome about all parts together: its bound is the least of their bounds.
    """
    whole = Outcome()
    waiting = sorted(parts, key=lambda part: part.bound, reverse=True)
    while waiting and not search.out_of_time():
        part = waiting.pop()
        waiting = [other for other in waiting if not _closed(other, search)]
        if _closed(part, search):
            continue
        outcome = _solve(method, part, parts, search, 0.5 if waiting else 1.0)
        build_seconds, stopped = whole.build_seconds + outcome.build_seconds, whole.stopped or outcome.stopped
        whole = replace(outcome, build_seconds=build_seconds, stopped=stopped)
        if outcome.failed:
            return whole
    bound = _least(parts, search)
    if bound == math.inf:
        return replace(whole, infeasible=True, message=None)
    if bound == -math.inf:
        return replace(whole, choice=None, bound=None)
    source = whole.bound_source or "bounds of the parts, before any is solved"
    search.report(bound=int(bound), source=source)
    message = None if search.closed() else whole.message
    return replace(whole, choice=None, bound=int(bound), bound_source=source, infeasible=False, message=message)


def _closed(part: Subproblem, search: Search) -> bool:
    """Whether a part needs no further search: it is infeasible (bound infinite), or its lower bound is within the relative gap
    of the best known solution."""
    return part.bound == math.inf or search.closed(part.bound)


def _least(parts: list[Subproblem], search: Search) -> float:
    """The lower bound in ns on the whole instance: the smallest of the bounds of all parts and the best known objective;
    infinite if all parts are infeasible and no solution is known.

    parts: the subproblems into which the instance is divided, each with its bound. search: the run's limits and options, and
    its best solution so far; only read here."""
    return min([part.bound for part in parts] + ([] if search.objective is None else [search.objective]), default=math.inf)


def _solve(method: Method, part: Subproblem, parts: list[Subproblem], search: Search, share: float) -> Outcome:
    """Solve one part, and report the solutions and bounds found there to the search of the whole instance.

    search: the run's limits and options, and its best solution so far, to which better ones are reported. method: solves the
    part. part: its `bound` is raised to what is proven, infinite if the part is infeasible and no solution is known. parts: all
    parts, whose least bound holds for the whole instance. share: the fraction of the time left that the part may use. Returns
    the method's outcome on the part."""

    def passed_on(point: Point) -> None:
        """Report the part's best solution and the bound of all parts to the search of the whole."""
        if inner.best is not None:
            search.report(part.lifted(inner.best))
        if inner.bound is not None and inner.bound > part.bound:
            part.bound = inner.bound
        if abs(bound := _least(parts, search)) < math.inf:
            search.report(bound=int(bound), source=point.source)

    def evaluate(solution: Any) -> int | None:
        """The objective in ns of the whole instance's solution for a solution of the part; None where it breaks a
        constraint."""
        return search.evaluate(part.lifted(solution))

    fields = {"seed": search.seed, "gap": search.gap, "options": search.options, "progress": passed_on}
    inner = search.inner(evaluate, search.seconds(share), **fields)
    inner.objective = search.objective
    inner.start = None if search.best is None else part.lowered(search.best)
    outcome = method(part.instance, inner)
    if outcome.choice is not None:
        inner.report(outcome.choice)
    if outcome.infeasible:
        part.bound = math.inf if search.objective is None else search.objective
    elif outcome.bound is not None:
        part.bound = max(part.bound, outcome.bound)
    return outcome
