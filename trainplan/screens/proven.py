"""Texts on how close to the best possible a plan is proven to be, and on what the constraints of a request cost, for the
screens of commands."""

from __future__ import annotations

from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.problem import constraints_of
from trainplan.formulations.runtimes import short_title
from trainplan.imported_runs.assess import LEAST_GAIN
from trainplan.planning.presets import DEFAULT
from trainplan.planning.proof import how_to_check, proof_of
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.planning.result_price import Price
from trainplan.profiling.base.quantities import format_gap, format_share, format_time


def proof_lines(answer: PlanningResult) -> list[list[str]]:
    """Lines for the screen on how close to the best possible the plan is proven to be, how to check that without a solver, and
    how much time each constraint of the request costs. A line is a list of texts that are printed with dots between them.
    answer: the request, with the plan found for it, if any.
    """
    claim = None if answer.plan is None else answer.plan.claim
    if claim is None:
        return []
    words = [proof_of(claim, compared_with(answer), whole=not answer.evidence_of)]
    return [words, [how_to_check(claim)] * bool(how_to_check(claim)), *_prices(answer)]


def compared_with(answer: PlanningResult) -> str:
    """A phrase for the set of plans that the answer's plan is proven against, such as "any plan for Megatron-LM with --tp 8".

    If a runtime other than trainplan's own predicts the step, and the search was not by that prediction, the phrase adds that
    the proof is about the solver's step model.
    """
    runtime, words = answer.request.options.get(FOR.name), ["any plan"]
    if answer.preset.name != DEFAULT:
        words.append(f"like {answer.preset.name}")
    words += [] if runtime is None else [f"for {short_title(runtime)}"]
    constraints = [text for name, text in constraints_of(answer.problem, answer.request.options).items() if name != FOR.name]
    words += [f"with {' '.join(constraints)}"] * bool(constraints)
    return " ".join(words) + ", by the solver's step model" * _of_own_programs(answer)


def _of_own_programs(answer: PlanningResult) -> bool:
    """Whether a plan was searched by the steps of trainplan's own programs although another runtime is predicted to run it.
    answer: the request, with the plan found for it, if any.
    """
    predicted = None if answer.plan is None else answer.plan.predicted
    return predicted is not None and bool(predicted.software) and not predicted_by_runtime(answer.instance)


def _prices(answer: PlanningResult) -> list[list[str]]:
    """One line per constraint of the request (such as --tp 8) for which trainplan knows, or tried to find out, how much time
    it costs. A line is a list of texts that are printed with dots between them. answer: the request, with the plan found for
    it, if any.
    """
    return [line for price in answer.prices if (line := _priced(price, answer))]


def _priced(price: Price, answer: PlanningResult) -> list[str]:
    """The line on how much time one constraint of the request costs: how much faster the best plan without the constraint is
    or may be. answer: the request, with the plan found for it, if any. price: the result of planning without it. Empty if
    nothing can be stated. A line is a list of texts that are printed with dots between them.
    """
    bound, best = price.steps_ns
    own = answer.answer.objective_ns
    runtime = f"{FOR.flag} {answer.request.options.get(FOR.name)}"
    if price.constraint == runtime:
        return _in_any_runtime(price, answer)
    without = f"without {price.constraint}"
    if best is None or not own:
        return [f"{without}: not known in the time"] if price.without is None else []
    known, most = 1 - best / own, None if bound is None else 1 - bound / own
    if most is not None and most < LEAST_GAIN:
        return [f"{without}: at most 0.1 % faster, proven"]
    limit = "" if most is None else f"at most {format_gap(most)}"
    if known < LEAST_GAIN:
        return [f"{without}: nothing faster is known" + f" ({limit} is possible)" * bool(limit)]
    within = f" ({limit})" * (bool(limit) and best != bound)
    step = "" if _of_own_programs(answer) else f" {format_time(best)} a step:"  # by another prediction: only shares compare
    return [f"{without}{step} {format_share(known)} faster{within}"]


def _in_any_runtime(price: Price, answer: PlanningResult) -> list[str]:
    """The line on how much time the choice of the runtime costs: how much faster the best known plan of any runtime is,
    compared by predicted steps. answer: the request, with the plan found for it, if any. price: the result of planning for any
    runtime. A line is a list of texts that are printed with dots between them.
    """
    assert answer.step_ns is not None
    wide = answer.plan is not None and answer.plan.precision.gradients == "float32"  # as in the search over all runtimes
    words, best = "in any runtime" + " (float32 gradients)" * wide, price.predicted_ns
    if best is None:
        return [f"{words}: not known in the time"]
    gain = 1 - best / answer.step_ns
    if gain < LEAST_GAIN:
        return [f"{words}: nothing faster is known"]
    return [f"{words} {format_time(best)} or less, {format_share(gain)} faster"]
