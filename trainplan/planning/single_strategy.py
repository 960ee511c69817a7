"""The best plan with one strategy for all units, to compare the best plan of all with, or to take in its place."""

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
    """The best plan with one strategy for all units whose programs fit; None where the problem does not say how to look for it,
    or the time is up. best: the best plan of all."""
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
        made = run.plan(with_bound(answer, best.answer.bound_ns), margin)
        less = margin > 0 or bool(run.beyond is not None and run.beyond.found)
        if made.plan is None and less and count < Count.REFUSED:
            count = Count.REFUSED
            continue
        if (over := run.excess_bytes(made)) <= 0:
            return made if made.plan is not None or not less else _unknown(made)
        if beyond is not None:
            beyond.note(instances[0], made, run.over_bytes(made))
        else:
            margin += over
    return _unknown(made)


def prefer_single_strategy(run: PlanningRun, best: PlanningResult, uniform: PlanningResult | None) -> PlanningResult | None:
    """The best plan with one strategy as the answer, where the search of all plans ended with nothing as good, by predictions
    where answers are chosen by these; None where it did not."""
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


def _unknown(made: PlanningResult) -> PlanningResult:
    """A result without its plan, whose programs do not fit, or without the proof that there is none: it is of less memory than
    was asked for."""
    return replace(made, plan=None, judged=None, answer=replace(made.answer, result=replace(made.result, status="unknown")))
