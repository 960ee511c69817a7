"""The best plan with one strategy for all units: to compare the best plan of all with, or to replace it."""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.problem import counts_overlap
from trainplan.planning.memory_beyond_tables import Count
from trainplan.planning.planning_run import PlanningRun, with_bound
from trainplan.planning.result import PlanningResult
from trainplan.solvers.core.answer import best_answer, with_solution

ROUNDS = 8
SOURCE = "the search of plans with one strategy"
WALKS = 3  # of the longest so far: the time that has to be left to look for a plan with one strategy, which is simulated, too


def best_single_strategy(run: PlanningRun, best: PlanningResult) -> PlanningResult | None:
    """Search the best plan with one strategy for all units (sub-layers) whose programs fit into memory.

    run: the planning run of the request. best: the result with the best plan without that restriction. Returns None if the
    problem cannot be narrowed to one strategy, or if too little time remains; a result without a plan if none fits.
    """
    limit, margin = run.request.with_margin(0).limit_bytes, 0
    single, beyond = run.preset.problem.single_strategy, run.beyond if run.has_least_tables else None
    count = Count.OWN
    if single is None or best.instance.common_memory_bytes is None:
        return None
    for _ in range(ROUNDS):
        if run.remaining() < WALKS * max(run.walk_seconds, default=0.0):
            return None
        instances = single.instances(best.instance.with_memory(limit - margin))
        if not instances:
            return None
        tighter = instances if beyond is None else [beyond.corrected(instance, count) for instance in instances]
        run.begin("looking for the best plan with one strategy")
        answer = best_answer(tighter, single.method, time_limit=run.seconds, clock=run.clock, **run.common_arguments)
        tried = run.plan(with_bound(answer, best.answer.bound_ns), margin)
        reduced = margin > 0 or bool(run.beyond is not None and run.beyond.found)
        if tried.plan is None and reduced and count < Count.REFUSED:
            count = Count.REFUSED
            continue
        if (excess := run.excess_bytes(tried)) <= 0:
            return tried if tried.plan is not None or not reduced else _unknown(tried)
        if beyond is not None:
            beyond.note(instances[0], tried, run.over_bytes(tried))
        else:
            margin += excess
    return _unknown(tried)


def prefer_single_strategy(run: PlanningRun, best: PlanningResult, uniform: PlanningResult | None) -> PlanningResult | None:
    """Decide whether the best plan with one strategy for all units (sub-layers) should be the answer to the request, since it
    is better than the best plan that the wider search found. Returns its result as the request's if so, otherwise None.

    "Better" is a shorter predicted step if costs count overlap, and a smaller objective otherwise. run: the planning run of
    the request. best: the wider search's result. uniform: the result with the best plan with one strategy; None if there is
    none.
    """
    if uniform is None or uniform.plan is None or uniform.margin_bytes > best.margin_bytes:
        return None
    problem, instance, result = run.preset.problem, best.instance, best.result
    single = problem.single_strategy
    solution = None if single is None else single.widened(instance, uniform.answer.solution)
    if solution is None or problem.violations(instance, solution):
        return None
    if counts_overlap(instance) and best.judged is not None and uniform.judged is not None:
        better = uniform.judged.step_ns < best.judged.step_ns
    else:
        better = result.objective is not None and problem.evaluate(instance, solution).objective < result.objective
    return run.plan(with_solution(best.answer, solution, SOURCE), best.margin_bytes) if better else None


def _unknown(result: PlanningResult) -> PlanningResult:
    """A copy of a result without its plan and with the status "unknown": if a search with less memory than the request has
    finds nothing, that proves nothing about the request.
    """
    return replace(
        result, plan=None, judged=None, answer=replace(result.answer, result=replace(result.result, status="unknown"))
    )
