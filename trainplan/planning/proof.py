"""How good a plan is proven to be, in one line: by the solver's lower bound, and by the part of it that is checked without a
solver."""

from __future__ import annotations

from trainplan.formulations.plan.plan import Claim
from trainplan.formulations.problem import problem
from trainplan.profiling.base.quantities import format_gap
from trainplan.solvers.core.method_registry import solvers_of

HOW = "give -o plan.json, then trainplan check plan.json"


def proof(objective_ns: int, bound_ns: int | None, checked_ns: int | None, of: str = "") -> str:
    """How far a plan is at most from the best one, such as "within 0.1 % (solver) / 1.4 % (independent check), of any plan".

    Args:
        objective_ns: the plan's step in the solver's cost model, in ns.
        bound_ns: the solver's lower bound on every plan's step in that model; None if it has none.
        checked_ns: the lower bound that can be verified without the solver; None if there is none.
        of: the set of plans that the bounds hold for, such as "any plan"; left out of the text where empty.

    Returns:
        The text.
    """
    if bound_ns is None or not objective_ns:
        return "no lower bound is known"
    within = None if bound_ns >= objective_ns else format_gap(1 - bound_ns / objective_ns)
    text = "optimal (solver)" if within is None else f"within {within} (solver)"
    if checked_ns is not None:
        check = "optimal" if checked_ns >= objective_ns else format_gap(1 - checked_ns / objective_ns)
        text += f" / {'within ' * (within is None and check != 'optimal')}{check} (independent check)"
    return text + f", of {of}" * bool(of)


def proof_of(claim: Claim | None, of: str = "", *, whole: bool = True) -> str:
    """By how much at most the plan of a claim is worse than the best one, as a text in the form of `proof`. claim: what the
    solver claims about the plan; None gives the text for no claim. of: the set of plans that bounds hold for, such as "any
    plan".

    whole: whether the claim's evidence covers every plan that the claim is about; if not, the evidence is left out of the
    text.
    """
    if claim is None:
        return "no lower bound is known"
    checked_ns = None if claim.evidence is None or not whole else claim.evidence.bound_ns
    return proof(claim.objective_ns, claim.bound_ns, checked_ns, of)


def how_to_check(claim: Claim | None) -> str:
    """A text that advises users how to get evidence for a claim's lower bound, so that it can be verified without the solver,
    or says that the problem's bounds have no evidence; empty if the claim has evidence already, or no bound. claim: what
    the solver claims about a plan.
    """
    if claim is None or claim.bound_ns is None or claim.evidence is not None:
        return ""
    if solvers_of(problem(claim.problem)).evidence is None:
        return f"independent check: bounds of the problem {claim.problem} have none"
    return f"independent check: {HOW}"


def status_text(status: str, gap: float | None) -> str:
    """The status of a search as a text for people. status: such as "optimal" or "feasible". gap: the relative gap that was
    reached: "optimal" becomes "within 0.1 % of the optimum" if it is above 0.
    """
    return f"within {format_gap(gap)} of the optimum" if status == "optimal" and gap else status
