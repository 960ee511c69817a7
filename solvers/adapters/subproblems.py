"""Solves an instance part by part: the best solution over all parts, and the least of their bounds.

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
    """Run a method on each part of an instance (the instance itself, where its problem has no parts).

    Nothing is solved where a model would be too large; the outcome then says so.
    """
    try:
        parts = problem_of(instance).models.subproblems(instance, search.out_of_time)
    except TooLarge as error:
        return Outcome(stopped="model size", message=f"no model was built: the instance {error.problem}; {error.fix}")
    return by_parts(method, [Subproblem(instance, -math.inf, lowered=_same)] if parts is None else parts, search)


def _same(solution: Any) -> Any:
    """The solution itself: the mapping between an instance and its only part."""
    return solution


def by_parts(method: Method, parts: list[Subproblem], search: Search) -> Outcome:
    """Run a method on each part that may hold a better solution than the best known; the outcome is about all parts
    together."""
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
    """Whether a part holds no solution that is better than the best known by more than the gap."""
    return part.bound == math.inf or search.closed(part.bound)


def _least(parts: list[Subproblem], search: Search) -> float:
    """The lower bound in ns over all parts and the best known solution; infinite where there is neither."""
    return min([part.bound for part in parts] + ([] if search.objective is None else [search.objective]), default=math.inf)


def _solve(method: Method, part: Subproblem, parts: list[Subproblem], search: Search, share: float) -> Outcome:
    """Solve one part in a share of the time left, and report to the search of the whole the solutions and bounds found
    there."""

    def passed_on(point: Point) -> None:
        """Report the part's best solution and the bound of all parts to the search of the whole."""
        if inner.best is not None:
            search.report(part.lifted(inner.best))
        if inner.bound is not None and inner.bound > part.bound:
            part.bound = inner.bound
        if abs(bound := _least(parts, search)) < math.inf:
            search.report(bound=int(bound), source=point.source)

    def evaluate(solution: Any) -> int | None:
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
