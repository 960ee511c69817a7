"""Certificates: the evidence with which `trainplan check` verifies a plan's claim without a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainplan.formulations.plan.plan import PlanEvidence
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.solvers.core.method_registry import solvers_of
from trainplan.solvers.core.result import Point
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.core.solve import check_arguments

LEAST_SECONDS = 2.0  # for evidence of a claim, which is looked for no longer than the plan was
EVIDENCE = "evidence of the bound, checked without any solver"


def with_evidence(answer: PlanningResult, progress: Callable[[Point | str], None] | None = None) -> PlanningResult:
    """Add evidence to a result of planning: numbers that prove the lower bound of its claim and that can be checked without a
    solver.

    It is gathered for at most as long as the search took, and at least LEAST_SECONDS; the result of an interrupted search
    is returned unchanged. answer: the result of planning. progress: called with a text for each step that begins, and with
    a Point for each better bound.
    """
    seconds = max(LEAST_SECONDS, answer.result.build_seconds + answer.result.solve_seconds)
    return answer if answer.interrupted else certify(answer, seconds, progress)


def certify(
    answer: PlanningResult, time_limit: float | None = TIME_LIMIT_S, progress: Callable[[Point | str], None] | None = None
) -> PlanningResult:
    """The result with evidence of its bound, which `trainplan check` verifies. Where the evidence proves more than the search
    did, its bound becomes the plan's.

    Args:
        answer: a result of `plan`.
        time_limit: seconds for gathering the evidence. When they are over, weaker bounds that need no evidence complete it.
        progress: called with a text that names the step that begins, and with a Point for each better bound.

    Returns:
        The result; unchanged where there is no plan, or where bounds of its problem have no evidence.

    Raises:
        InputError: for a time limit that is not a positive number.
    """
    check_arguments(time_limit, 0.0, 0)
    plan, problem, objective_ns = answer.plan, answer.problem, answer.answer.objective_ns
    certificate, evidence = problem.certificate, solvers_of(problem).evidence
    if plan is None or plan.claim is None or objective_ns is None or certificate is None or evidence is None:
        return answer
    request = answer.request
    whole = request.with_margin(0)
    clipped = whole if problem.scope is None else problem.scope.clipped_request(whole)
    instance = answer.instance.with_memory(clipped.limit_bytes)
    begin = progress or (lambda _: None)
    begin("gathering evidence of the proven lower bound")
    search = Search(judge(instance), time_limit, progress=progress, objective=objective_ns)
    gathered = attribute(evidence)(instance, objective_ns, search).to_dict()
    begin("checking the evidence")
    weak = bound = certificate.checked_bound_ns(instance, None)
    if not predicted_by_runtime(instance):
        bound = certificate.checked_bound_ns(instance, gathered)
    stated = PlanEvidence(
        cluster=None if request.profile or request.cluster is None or request.measured else request.cluster.model_dump(),
        options=certificate.settled_options(instance, request),
        memory_bytes=whole.limit_bytes,
        solution=problem.solution_dict(answer.answer.solution),
        proof=gathered if bound > weak else None,
        bound_ns=bound,
    )
    claim, solved = plan.claim.changed(evidence=stated), answer.answer
    if not solved.alternatives and (solved.bound_ns is None or bound > solved.bound_ns):
        solved = replace(solved, bound_ns=bound)
        claim = claim.changed(bound_ns=bound, gap=solved.gap, status=solved.status, bound_source=EVIDENCE)
    return replace(answer, answer=solved, plan=plan.changed(claim=claim))
