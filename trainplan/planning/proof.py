"""How good a plan is proven to be, in one line: by the solver, and as it is followed without one."""

from __future__ import annotations

from trainplan.formulations.plan.plan import Claim
from trainplan.formulations.problem import problem
from trainplan.profiling.base.quantities import format_gap
from trainplan.solvers.core.method_registry import solvers_of

HOW = "give -o plan.json, then trainplan check plan.json"


def proof(objective_ns: int, bound_ns: int | None, checked_ns: int | None, of: str = "") -> str:
    """How far a plan is at most from the best one, such as "within 0.1 % (solver) / 1.4 % (independent check), of any plan".

    objective_ns: its step by the solver's step model; bound_ns: what the solver proves that no plan takes less than, by the
    same model; checked_ns: what is proven of that without a solver. None of either where nothing is known. of: what the plans
    are that it is compared with.
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
    """The same of what a plan claims. whole: whether its evidence is of all plans that it is compared with, not of some."""
    if claim is None:
        return "no lower bound is known"
    checked_ns = None if claim.evidence is None or not whole else claim.evidence.bound_ns
    return proof(claim.objective_ns, claim.bound_ns, checked_ns, of)


def how_to_check(claim: Claim | None) -> str:
    """What to give for the independent check of a claim that has none; empty where it has one, or nothing to check."""
    if claim is None or claim.bound_ns is None or claim.evidence is not None:
        return ""
    if solvers_of(problem(claim.problem)).evidence is None:
        return f"independent check: bounds of the problem {claim.problem} have none"
    return f"independent check: {HOW}"


def status_text(status: str, gap: float | None) -> str:
    """A search's status, which says `optimal` for what is within the gap that was asked for, too: as what is proven."""
    return f"within {format_gap(gap)} of the optimum" if status == "optimal" and gap else status
