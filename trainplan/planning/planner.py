"""Planning a request: the one function that leads from a request to a plan with its prediction and claim.

    request -> instances -> solve -> plan -> compile, check -> simulated memory and time -> result

`planning_run` has the steps of one round, `search` the rounds until a plan's programs fit, `walk_search` the search for a plan
with a shorter simulated step, `single_strategy` the best plan with one strategy, and `shortage` the answer where nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trainplan.execution.analysis.memory.peak import BACKENDS
from trainplan.formulations.joint.options import LAYOUTS
from trainplan.formulations.joint.overlap_units_request import asks_for_unlike_layouts, of_one_layout
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.planning.planning_run import PlanningRun, run_by_runtime
from trainplan.planning.presets import Preset
from trainplan.planning.result import PlanningResult, PlanningTime, predicted_by_runtime
from trainplan.planning.search import search_in_rounds
from trainplan.planning.single_strategy import best_single_strategy, prefer_single_strategy
from trainplan.planning.unlike_layouts import improve_by_unlike_layouts, of_one_layout_alone
from trainplan.planning.walk_search import improve_by_walks
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.solvers.core.answer import Answer
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.solvers.core.result import Point
from trainplan.solvers.core.solve import check_arguments
from trainplan.validation.predict import Prediction


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
    compare_single_strategy: bool = True,
    incumbents: Sequence[Plan] = (),
    alone: bool = False,
    **options: Any,
) -> PlanningResult:
    """The best plan for a request, found as a preset plans.

    Args:
        request: the model, the devices, the batch, the memory and the options of the preset's problem.
        preset: the problem, and the function that searches its instances.
        method: the name of the method that solves the instances.
        backend: another back-end of `run` whose memory the plan must fit, too (default: the one that programs are compiled
            for).
        time_limit: seconds for all searches; the last plan is compiled and simulated even after it.
        gap: relative gap at which the method stops.
        seed: the seed of the method's random numbers.
        progress: called with a text that names the step that begins, and with a Point for each better plan or bound.
        compare_single_strategy: also find the best plan with one strategy for all units.
        incumbents: plans that the search begins from.
        alone: leave out what changes neither the plan nor its prediction: the last check of its programs and, if nothing fits,
            the search for the fewest devices.
        **options: of the method.

    Returns:
        The plan with its prediction and claim, or why there is none.

    Raises:
        InputError: for what cannot be planned, and if no incumbent is a plan of the problem.
    """
    check_arguments(time_limit, gap, seed)
    if backend is not None and backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {shown(backend)}", one_of(backend, BACKENDS))
    preset.check(request)
    arguments = {"gap": gap, "seed": seed, "progress": progress, **options}
    unlike = LAYOUTS.name in request.options and asks_for_unlike_layouts(request)
    first = of_one_layout(request) if unlike else request
    begun = tuple(plan for plan in incumbents if not unlike or of_one_layout_alone(plan))
    run = PlanningRun(first, preset, method, backend, arguments, time_limit, begun, alone=alone)
    best = improve_by_walks(run, search_in_rounds(run))
    if compare_single_strategy:
        best = _with_single_strategy(run, best)
    if unlike:
        run = run.of_request(request, incumbents)
        best = improve_by_unlike_layouts(run, best)
    until = run.elapsed()
    if best.judged is not None and not alone:
        run.begin("checking the plan's programs")
        best = _checked(best)
    best = _predicted_by_runtime(best)
    walk_seconds = sum(run.walk_seconds) + run.elapsed() - until
    searched = {"method": method, "backend": backend, "gap": gap, "seed": seed, **options}
    return replace(best, spent=PlanningTime(run.elapsed(), walk_seconds, len(run.walk_seconds)), searched=searched)


def _with_single_strategy(run: PlanningRun, best: PlanningResult) -> PlanningResult:
    """Search the best plan with one strategy for all units (sub-layers). Returns `best` with that plan's result as its
    `uniform`; or that plan's result in place of `best`, if it turns out to be better. run: the planning run of the request.
    """
    if best.plan is None or best.plan.one_strategy is not None or best.interrupted or predicted_by_runtime(best.instance):
        return best
    try:
        uniform = best_single_strategy(run, best)
        return prefer_single_strategy(run, best, uniform) or replace(best, uniform=uniform)
    except KeyboardInterrupt:
        return best


def plan_answer(first: PlanningResult, answer: Answer, checked: bool = True) -> PlanningResult:
    """Turn a solver's answer to a request that has been planned before into a result with a plan, its prediction and its
    claim.

    first: the earlier result of the request. answer: the answer, with a solution. checked: whether to check that the plan's
    programs run correctly; False for plans that are only compared.
    """
    tried = PlanningRun(first.request, first.preset, answer.result.method).plan(answer, first.margin_bytes)
    return _predicted_by_runtime(_checked(tried) if checked else tried)


def _checked(result: PlanningResult) -> PlanningResult:
    """Check that the compiled programs of a result's plan, and of its best plan with one strategy for all units, run
    correctly; raises if they do not. Returns the result unchanged.
    """
    judged = None if result.judged is None else result.judged.checked()
    return replace(result, judged=judged, uniform=None if result.uniform is None else _checked(result.uniform))


def _predicted_by_runtime(result: PlanningResult) -> PlanningResult:
    """The result with its plan predicted as the requested runtime runs it; unchanged if the request names no runtime, or one
    without a prediction."""
    run = None if result.plan is None else run_by_runtime(result.plan, result.request)
    if run is None:
        return result
    plan, prediction = run
    uniform = None if result.uniform is None else _predicted_by_runtime(result.uniform)
    return replace(result, plan=plan, uniform=uniform, run=prediction if isinstance(prediction, Prediction) else None)
