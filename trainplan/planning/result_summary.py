"""The lines in which people read the result of planning: the prediction, the claim, and what is proven of it."""

from __future__ import annotations

from trainplan.formulations.joint.options import cost_words
from trainplan.formulations.plan.plan import Claim
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.problem import counts_overlap
from trainplan.planning.proof import proof_of, status_text
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import as_arguments
from trainplan.profiling.base.quantities import format_bytes, format_gap, format_time, plural


def summary(made: PlanningResult, *, flags: bool = False) -> list[tuple[str, str]]:
    """Label and text of each line that people want to see, in addition to tables. flags: name the command's options."""
    result = made.result
    if made.plan is None:
        needed = [] if made.needed_bytes is None else [("memory needed", format_bytes(made.needed_bytes))]
        if (devices := made.needed_devices) is not None:
            needed.append(("devices needed", f"{devices}, in whole nodes: with fewer nothing fits, proven"))
        elif made.needed_devices_unknown is not None:
            needed.append(("devices needed", made.needed_devices_unknown))
        rows = [row for row in result.summary(flags=flags) if row[0] != "problem"]
        return rows + needed + _prices(made, flags) + _planning(made)
    rows = [*_prediction(made), *_uniform(made), *_prices(made, flags), *_claim(made, flags)]
    rows += [*result.run_rows(), *_planning(made)]
    return rows + ([("message", result.message)] if result.message else [])


def _prediction(made: PlanningResult) -> list[tuple[str, str]]:
    """The predicted step and memory of the plan."""
    plan = made.plan
    assert plan is not None
    if plan.predicted is None or made.performance is None:
        return [("predicted time", f"none: plans of {plan.planned_model().family} models are no programs yet")]
    whole, software, most = format_bytes(plan.memory_bytes), plan.predicted.software, plan.predicted.most_bytes
    how = f", as {software} holds it" if software else ""
    over = "; its programs fit, this does not" if software and most > plan.memory_bytes else ""
    rows = [("optimizer", "Muon for matrices of layers, AdamW for all else")] * (plan.optimizer == "muon")
    rows += [
        (
            "predicted time",
            f"{format_time(plan.predicted.step_ns)} a step" + (f", as {software} overlaps" if software else ""),
        ),
        *made.performance.summary(),
        ("predicted memory", f"peak {format_bytes(most)} of {whole}{how}{over}"),
    ]
    if made.margin_bytes:
        margin = f"{format_bytes(made.margin_bytes)} that the solver did not get, so that the programs fit"
        rows.append(("margin", margin))
    return rows


def _planning(made: PlanningResult) -> list[tuple[str, str]]:
    """The time that planning took, where it is known."""
    return [] if made.spent is None else [("planning", str(made.spent))]


def _uniform(made: PlanningResult) -> list[tuple[str, str]]:
    """The best plan with one strategy for all units, and what it costs."""
    label, plan = "one strategy", made.plan
    assert plan is not None
    if plan.one_strategy is not None:
        return [(label, f"this plan has {in_words(plan.one_strategy)} for all sub-layers")]
    if made.uniform is None:
        return [(label, "none was looked for: the time was up, the problem does not say how, or none may be")]
    if (other := made.uniform.plan) is None:
        return [(label, f"no plan with one strategy for all sub-layers: {made.uniform.result.status}")]
    shape = f"{plural(len(other.stages), 'stage')}, {plural(other.batch.micro_batches, 'micro-batch')}"
    text = f"{in_words(other.one_strategy or '')} for all sub-layers; {shape}"
    if made.uniform_excess is not None and other.predicted is not None:
        text += f": {format_time(other.predicted.step_ns)} a step, {made.uniform_excess:+.2%}"
        text += ", faster as predicted than the optimum of the solver's objective" * (made.uniform_excess < 0)
    elif plan.claim is not None and other.claim is not None and plan.claim.objective_ns:
        ratio = other.claim.objective_ns / plan.claim.objective_ns - 1
        text += f": solver's objective {format_time(other.claim.objective_ns)}, {ratio:+.2%}"
    return [(label, text)]


def _prices(made: PlanningResult, flags: bool) -> list[tuple[str, str]]:
    """The price of each constraint; said to be of simulated programs where the prediction is of another runtime."""
    whose = ", simulated by their own programs" * bool(_as_walked(made))
    names = [price.constraint if flags else as_arguments(price.constraint) for price in made.prices]
    return [(f"price of {name}", price.text(made.answer) + whose) for name, price in zip(names, made.prices, strict=True)]


def _claim(made: PlanningResult, flags: bool) -> list[tuple[str, str]]:
    """The claim of the plan: objective, status, bound and proof."""
    claim = None if made.plan is None else made.plan.claim
    assert claim is not None
    bound, source, under = "none", made.result.bound_source, ", ".join(made.restrictions)
    if claim.bound_ns is not None:
        bound = format_time(claim.bound_ns) + (f", by {source}" if source else "")
    costs, scope = cost_words(claim.cost_model), made.problem.scope
    rows = [
        (
            "solver's objective",
            f"{format_time(claim.objective_ns)} ({claim.problem}, {costs}){_as_walked(made)}",
        ),
        *([] if scope is None or (why := scope.unusual_costs_reason(made.request)) is None else [("cost model", why)]),
        ("status", status_text(claim.status, claim.gap)),
        ("proven lower bound", bound),
        ("proof", proof_of(claim, whole=not made.evidence_of)),
        *_evidence(made, claim),
        *_any_schedule(made, claim.objective_ns),
        *([("search space", under if flags else as_arguments(under))] if under and claim.bound_ns is not None else []),
        ("method", claim.method),
    ]
    if made.excess is not None and made.excess != 0:
        which = "simulated step" if _as_walked(made) else "predicted step"
        rows.append(
            ("prediction against objective", f"the {which} is {made.excess:+.3%} from the objective{_walk_gap(made, claim)}")
        )
    return rows


def _walk_gap(made: PlanningResult, claim: Claim) -> str:
    """By how much shorter the simulated step of any plan that fits could be, where objectives are at most simulated steps."""
    if made.judged is None or claim.bound_ns is None or not counts_overlap(made.instance):
        return ""
    return f"; no plan that fits is predicted more than {format_gap(1 - claim.bound_ns / made.judged.step_ns)} faster"


def _as_walked(made: PlanningResult) -> str:
    """Words that say what the claim and its bound are of, where the prediction is of another runtime."""
    software = "" if made.plan is None or made.plan.predicted is None else made.plan.predicted.software
    return f": of the plan's programs, by which it is chosen; {software} overlaps otherwise" if software else ""


def _evidence(made: PlanningResult, claim: Claim) -> list[tuple[str, str]]:
    """The bound that can be checked without any solver."""
    if (evidence := claim.evidence) is None or not claim.objective_ns:
        return []
    how = "by evidence that is checked" if evidence.proof is not None else "in closed form,"
    part = "".join(f", of {each} alone" for each in made.evidence_of)
    return [("certificate", f"{format_time(evidence.bound_ns)}, {how} without any solver{part}")]


def _any_schedule(made: PlanningResult, objective_ns: int) -> list[tuple[str, str]]:
    """By how much another order of passes could shorten the step."""
    predicted = None if made.plan is None else made.plan.predicted
    serial = predicted is not None and predicted.backend == "serial"  # what runs beside something else is not bounded
    if made.plan is not None and made.plan.depth > 1 and counts_overlap(made.instance):
        why = "what overlaps depends on the order of passes; --cost-model executed has a bound"
        return [("any schedule", f"not bounded with overlap: {why}")]
    if (bound := made.any_schedule_ns) is None or not objective_ns or not serial:
        return []
    gain = f"reordering passes gains at most {format_gap(1 - bound / objective_ns)}"
    return [("any schedule", f"{gain}: with these stages no order takes less than {format_time(bound)}")]
