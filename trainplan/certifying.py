"""Certificates: the evidence by which `check` follows a plan's claim without any solver."""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.plan import PlanEvidence
from trainplan.planned import Planned
from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.search import Search, judge
from trainplan.solvers.core.solve import check_arguments


def certify(answer: Planned, time_limit: float | None = None) -> Planned:
    """The answer with evidence in its plan's claim, which `check` follows; as it is where there is no plan, or where bounds of
    its problem have no evidence.

    time_limit: seconds for gathering it; what it does not come to is shown by bounds that need no evidence, which are weaker.
    """
    check_arguments(time_limit, 0.0, 0)
    plan, problem, objective_ns = answer.plan, answer.problem, answer.answer.objective_ns
    if plan is None or plan.claim is None or objective_ns is None or (evidence := problem.solvers().evidence) is None:
        return answer
    request, memory_bytes = answer.request, answer.request.with_margin(0).limit_bytes
    instance = problem.with_memory(answer.instance, memory_bytes)
    gathered = attribute(evidence)(instance, objective_ns, Search(judge(instance), time_limit)).to_dict()
    weak, bound = problem.checked_bound_ns(instance, None), problem.checked_bound_ns(instance, gathered)
    evidence = PlanEvidence(
        cluster=None if request.profile or request.cluster is None or request.measured else request.cluster.model_dump(),
        options=dict(request.options),
        memory_bytes=memory_bytes,
        solution=problem.solution_dict(answer.answer.solution),
        proof=gathered if bound > weak else None,
        bound_ns=bound,
    )
    return replace(answer, plan=plan.changed(claim=plan.claim.changed(evidence=evidence)))
