"""The one way from a request to a plan: instances, solver, plan, programs that are checked and simulated, prediction and claim.

    request -> instances -> solve -> plan -> compile, check -> simulated memory and time -> result

`planning_run` has the steps of one round, `search` the rounds until a plan's programs fit, `walk_search` plans of other
solutions that are faster by the prediction of their programs, `single_strategy` the best plan with one strategy, and `shortage`
the answer where nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trainplan.execution.analysis.memory.peak import BACKENDS
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.planning.planning_run import PlanningRun, run_by_runtime
from trainplan.planning.presets import Preset
from trainplan.planning.result import PlanningResult, PlanningTime
from trainplan.planning.search import search_in_rounds
from trainplan.planning.single_strategy import best_single_strategy, prefer_single_strategy
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
    beside: bool = True,
    incumbents: Sequence[Plan] = (),
    alone: bool = False,
    **options: Any,
) -> PlanningResult:
    """The best plan for a request, as a preset plans.

    Args:
        request: the model, the devices, the batch, the memory and the options of the preset's problem.
        preset: the problem, and how its instances are searched.
        method: the name of the method that searches them.
        backend: of `run`, on which the plan must fit, too (default: the one that the programs are made for).
        time_limit: seconds of all searches; the last plan is compiled and simulated even after it.
        gap: of the method, the relative gap at which to stop.
        seed: of the method.
        progress: called with a text that names what is begun, and with a Point of each better plan or bound.
        beside: look for the best plan with one strategy, too.
        incumbents: plans that the search begins from.
        alone: leave out what changes neither the plan nor its prediction: the last check of its programs and, where nothing
            fits, the search for the fewest devices.
        **options: of the method.

    Returns:
        The plan with its prediction and claim, or why there is none.

    Raises:
        InputError: for what cannot be planned; where no incumbent is a plan of the problem, too.
    """
    check_arguments(time_limit, gap, seed)
    if backend is not None and backend not in BACKENDS:
        raise InputError("command line", "--backend", f"is {shown(backend)}", one_of(backend, BACKENDS))
    preset.check(request)
    arguments = {"gap": gap, "seed": seed, "progress": progress, **options}
    run = PlanningRun(request, preset, method, backend, arguments, time_limit, tuple(incumbents), alone=alone)
    best = improve_by_walks(run, search_in_rounds(run))
    if beside:
        best = _with_single_strategy(run, best)
    until = run.elapsed()
    if best.judged is not None and not alone:
        run.begin("checking the plan's programs")
        best = _checked(best)
    best = _predicted_by_runtime(best)
    walking = sum(run.walk_seconds) + run.elapsed() - until
    searched = {"method": method, "backend": backend, "gap": gap, "seed": seed, **options}
    return replace(best, spent=PlanningTime(run.elapsed(), walking, len(run.walk_seconds)), searched=searched)


def _with_single_strategy(run: PlanningRun, best: PlanningResult) -> PlanningResult:
    """The best plan with the best one of one strategy for all units as its `uniform`, or that one in its place, where it is
    better."""
    if best.plan is None or best.plan.one_strategy is not None or best.interrupted:
        return best
    try:
        uniform = best_single_strategy(run, best)
        return prefer_single_strategy(run, best, uniform) or replace(best, uniform=uniform)
    except KeyboardInterrupt:
        return best


def plan_answer(first: PlanningResult, answer: Answer, checked: bool = True) -> PlanningResult:
    """Another answer to a request that has been planned, as a plan with its own prediction and claim. checked: whether its
    programs are, which a plan that is kept needs."""
    made = PlanningRun(first.request, first.preset, answer.result.method).plan(answer, first.margin_bytes)
    return _predicted_by_runtime(_checked(made) if checked else made)


def _checked(made: PlanningResult) -> PlanningResult:
    """The result once its programs, and those of its plan with one strategy, are checked."""
    judged = None if made.judged is None else made.judged.checked()
    return replace(made, judged=judged, uniform=None if made.uniform is None else _checked(made.uniform))


def _predicted_by_runtime(made: PlanningResult) -> PlanningResult:
    """The result with its plan predicted as the runtime that the request names runs it, where it names one that predicts."""
    run = None if made.plan is None else run_by_runtime(made.plan, made.request)
    if run is None:
        return made
    plan, prediction = run
    uniform = None if made.uniform is None else _predicted_by_runtime(made.uniform)
    return replace(made, plan=plan, uniform=uniform, run=prediction if isinstance(prediction, Prediction) else None)
