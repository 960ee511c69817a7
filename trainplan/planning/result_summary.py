"""The lines in which people read the result of planning: the prediction, the claim, and what is proven of it."""

from __future__ import annotations

from trainplan.formulations.joint.options import cost_words
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.plan import Claim
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.problem import counts_overlap
from trainplan.plan_words import whose_numbers
from trainplan.planning.proof import proof_of, status_text
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.profiling.base.errors import as_arguments
from trainplan.profiling.base.quantities import format_bytes, format_gap, format_time, plural
from trainplan.profiling.models.optimizers import OPTIMIZERS


def summary(outcome: PlanningResult, *, flags: bool = False) -> list[tuple[str, str]]:
    """The result of planning, `outcome`, as pairs of label and text for people; the tables of the command's screen are not
    included. flags: whether to write options as command flags, such as --memory, or as Python arguments.
    """
    result = outcome.result
    if outcome.plan is None:
        needed = [] if outcome.needed_bytes is None else [("memory needed", format_bytes(outcome.needed_bytes))]
        if (devices := outcome.needed_devices) is not None:
            needed.append(("devices needed", f"{devices}, in whole nodes: with fewer nothing fits, proven"))
        elif outcome.needed_devices_unknown is not None:
            needed.append(("devices needed", outcome.needed_devices_unknown))
        rows = [row for row in result.summary(flags=flags) if row[0] != "problem"]
        return rows + needed + _prices(outcome, flags) + _planning(outcome)
    rows = [*_prediction(outcome), *_uniform(outcome), *_prices(outcome, flags), *_claim(outcome, flags)]
    rows += [*result.run_rows(), *_planning(outcome)]
    return rows + ([("message", result.message)] if result.message else [])


def _prediction(outcome: PlanningResult) -> list[tuple[str, str]]:
    """Pairs of label and text, for people, about the plan's predicted step and memory. outcome: the result of planning."""
    plan = outcome.plan
    assert plan is not None
    if plan.predicted is None or outcome.performance is None:
        return [("predicted time", f"none: plans of {plan.planned_model().family} models are no programs yet")]
    limit, software, most = format_bytes(plan.memory_bytes), plan.predicted.software, plan.predicted.most_bytes
    by_software = f", as {software} holds it" if software else ""
    excess = "; its programs fit, this does not" if software and most > plan.memory_bytes else ""
    rows = [("optimizer", OPTIMIZERS[plan.optimizer].summary)] * bool(OPTIMIZERS[plan.optimizer].summary)
    rows += [
        (
            "predicted time",
            f"{format_time(plan.predicted.step_ns)} a step, {whose_numbers(plan)}",
        ),
        *outcome.performance.summary(),
        ("predicted memory", f"peak {format_bytes(most)} of {limit}{by_software}{excess}"),
    ]
    if outcome.margin_bytes:
        margin = f"{format_bytes(outcome.margin_bytes)} that the solver did not get, so that the programs fit"
        rows.append(("margin", margin))
    return rows


def _planning(outcome: PlanningResult) -> list[tuple[str, str]]:
    """A list with one pair of label and text, for people, about the time that planning took; empty if it was not measured.
    outcome: the result of planning.
    """
    return [] if outcome.spent is None else [("planning", str(outcome.spent))]


def _uniform(outcome: PlanningResult) -> list[tuple[str, str]]:
    """A list with one pair of label and text, for people, about the best plan with one strategy for all units (sub-layers) and
    how much longer its step is; empty if there is none. outcome: the result of planning.
    """
    label, plan = "one strategy", outcome.plan
    assert plan is not None
    if plan.one_strategy is not None:
        return [(label, f"this plan has {in_words(plan.one_strategy)} for all sub-layers")]
    if outcome.uniform is None:
        return [(label, "none was looked for: the time was up, the problem does not say how, or none may be")]
    if (other := outcome.uniform.plan) is None:
        return [(label, f"no plan with one strategy for all sub-layers: {outcome.uniform.result.status}")]
    shape = f"{plural(len(other.stages), 'stage')}, {plural(other.batch.micro_batches, 'micro-batch')}"
    text = f"{in_words(other.one_strategy or '')} for all sub-layers; {shape}"
    if outcome.uniform_excess is not None and other.predicted is not None:
        text += f": {format_time(other.predicted.step_ns)} a step, {outcome.uniform_excess:+.2%}"
        text += ", faster as predicted than the optimum of the solver's objective" * (outcome.uniform_excess < 0)
    elif plan.claim is not None and other.claim is not None and plan.claim.objective_ns:
        ratio = other.claim.objective_ns / plan.claim.objective_ns - 1
        text += f": solver's objective {format_time(other.claim.objective_ns)}, {ratio:+.2%}"
    return [(label, text)]


def _prices(outcome: PlanningResult, flags: bool) -> list[tuple[str, str]]:
    """A pair of label and text, for people, for the price of each constraint: how much shorter the step could be without it.
    Where the steps of a price are of simulated programs, and the plan's own prediction is that of a runtime, its text says so;
    the price of a runtime is of predicted steps, as on the short screen.

    outcome: the result of planning. flags: whether to write options as command flags.
    """
    runtime, rows = f"{FOR.flag} {outcome.request.options.get(FOR.name)}", list[tuple[str, str]]()
    for price in outcome.prices:
        name = price.constraint if flags else as_arguments(price.constraint)
        if price.constraint == runtime:
            rows.append((f"price of {name}", price.predicted_text(outcome.step_ns)))
            continue
        by_programs = bool(_as_walked(outcome)) and price.without is not None
        rows.append((f"price of {name}", price.text(outcome.answer) + ", simulated by their own programs" * by_programs))
    return rows


def _claim(outcome: PlanningResult, flags: bool) -> list[tuple[str, str]]:
    """Pairs of label and text, for people, about the solver's claim on the plan: objective, status, lower bound and proof.
    outcome: the result of planning. flags: whether to write options as command flags.
    """
    claim = None if outcome.plan is None else outcome.plan.claim
    assert claim is not None
    bound, source, under = "none", outcome.result.bound_source, ", ".join(outcome.restrictions)
    if claim.bound_ns is not None:
        bound = format_time(claim.bound_ns) + (f", by {source}" if source else "")
    costs, scope = cost_words(claim.cost_model), outcome.problem.scope
    rows = [
        (
            "solver's objective",
            f"{format_time(claim.objective_ns)} ({claim.problem}, {costs}){_as_walked(outcome)}",
        ),
        *([] if scope is None or (why := scope.unusual_costs_reason(outcome.request)) is None else [("cost model", why)]),
        ("status", status_text(claim.status, claim.gap)),
        ("proven lower bound", bound),
        ("proof", proof_of(claim, whole=not outcome.evidence_of)),
        *_evidence(outcome, claim),
        *_any_schedule(outcome, claim.objective_ns),
        *([("search space", under if flags else as_arguments(under))] if under and claim.bound_ns is not None else []),
        ("method", claim.method),
    ]
    if outcome.excess is not None and outcome.excess != 0:
        which = "simulated step" if _as_walked(outcome) else "predicted step"
        rows.append(
            (
                "prediction against objective",
                f"the {which} is {outcome.excess:+.3%} from the objective{_walk_gap(outcome, claim)}",
            )
        )
    return rows


def _walk_gap(outcome: PlanningResult, claim: Claim) -> str:
    """A text, for people, that says by how much at most any plan that fits could have a shorter simulated step; empty if
    objectives are no lower bounds on simulated steps. outcome: the result of planning. claim: its plan's claim.
    """
    if outcome.judged is None or claim.bound_ns is None or not counts_overlap(outcome.instance):
        return ""
    return f"; no plan that fits is predicted more than {format_gap(1 - claim.bound_ns / outcome.judged.step_ns)} faster"


def _as_walked(outcome: PlanningResult) -> str:
    """A text, for people, that says that the claim is about trainplan's own programs; empty unless the plan is predicted as
    another runtime runs it, and was not searched by that prediction. outcome: the result of planning.
    """
    if predicted_by_runtime(outcome.instance):
        return ""
    software = "" if outcome.plan is None or outcome.plan.predicted is None else outcome.plan.predicted.software
    return f": of the plan's programs, by which it is chosen; {software} overlaps otherwise" if software else ""


def _evidence(outcome: PlanningResult, claim: Claim) -> list[tuple[str, str]]:
    """A list with one pair of label and text, for people, about the part of the lower bound that can be checked without a
    solver; empty without evidence. outcome: the result of planning. claim: its plan's claim.
    """
    if (evidence := claim.evidence) is None or not claim.objective_ns:
        return []
    how = "by evidence that is checked" if evidence.proof is not None else "in closed form,"
    part = "".join(f", of {option} alone" for option in outcome.evidence_of)
    return [("certificate", f"{format_time(evidence.bound_ns)}, {how} without any solver{part}")]


def _any_schedule(outcome: PlanningResult, objective_ns: int) -> list[tuple[str, str]]:
    """A list with one pair of label and text, for people, about how much another order of passes could shorten the step; empty
    if no bound on that is known. outcome: the result of planning. objective_ns: the claim's objective.
    """
    predicted = None if outcome.plan is None else outcome.plan.predicted
    serial = predicted is not None and predicted.backend == "serial"  # steps with overlapping passes have no such bound
    if outcome.plan is not None and outcome.plan.depth > 1 and counts_overlap(outcome.instance):
        why = "what overlaps depends on the order of passes; --cost-model executed has a bound"
        return [("any schedule", f"not bounded with overlap: {why}")]
    if (bound := outcome.any_schedule_ns) is None or not objective_ns or not serial:
        return []
    gain = f"reordering passes gains at most {format_gap(1 - bound / objective_ns)}"
    return [("any schedule", f"{gain}: with these stages no order takes less than {format_time(bound)}")]
