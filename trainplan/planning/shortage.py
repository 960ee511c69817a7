"""Where nothing fits: why, with how much memory or how many devices something does, and the plan that comes closest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from trainplan.formulations.joint.options import MEMORY_TABLES, with_tables
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.request import Request
from trainplan.planning.planning_run import PlanningRun, with_bound
from trainplan.planning.result import PlanningResult
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import enough_bytes, format_bytes
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.solvers.core.clock import Overrun, ended_after, grace_seconds
from trainplan.solvers.core.heuristic import at_least_memory
from trainplan.solvers.core.heuristic import fits as instance_fits

MOST_NODES = 16  # times as many as a cluster has, up to which more of them are tried
DEVICE_SECONDS = 20.0  # for these; as many as passed before, where these are more


def least_memory_plan(run: PlanningRun, bound_ns: int | None = None) -> PlanningResult | None:
    """The exact method's plan with no more memory than some solution needs; None where no such memory is known in time.

    It does not depend on the memory asked for: with as much as it and its programs need, there is a plan. bound_ns: of the
    claim.
    """
    with suppress(Overrun), ended_after(lambda: run.remaining() + grace_seconds(run.time_limit)):
        whole = run.request.with_margin(0)
        tight = [instance for each in run.preset.problem.instances(whole) if (instance := at_least_memory(each)) is not None]
        limits = [instance.common_memory_bytes for instance in tight]
        possible = [(limit, index) for index, limit in enumerate(limits) if limit is not None]
        if possible:
            limit, index = min(possible)
            answer = run.search([tight[index]], "exact", **run.common_arguments)
            return run.plan(with_bound(answer, bound_ns), whole.limit_bytes - limit)
    return None


def needed_memory(run: PlanningRun, least: PlanningResult) -> tuple[int, list[str]]:
    """The bytes that the plan of the least memory needs, its programs included, and the advice to give them."""
    limit = run.request.with_margin(least.margin_bytes).limit_bytes
    programs = max(limit, *least.walk_bytes, 0)
    needed = max([programs, *(max(each, default=0) for each in run.held_bytes(least))])
    advice = [f"give --memory of at least {enough_bytes(needed)}"]
    serial = needed if least.judged is None else max(limit, least.judged.serial_bytes)
    if serial < programs == needed:
        advice.append(f"--backend serial, whose programs need {enough_bytes(serial)}")
    return needed, advice


def with_reason(run: PlanningRun, first: PlanningResult, least: PlanningResult | None = None) -> PlanningResult:
    """The answer that no solution fits, with the reason, the memory with which a plan's programs fit, and the fewest devices.

    first: the answer without these. least: a plan of little memory; it is looked for if left out.
    """
    reason = first.result.reason
    least = least_memory_plan(run) if least is None and reason is not None else least
    if reason is None or least is None or least.plan is None:
        return first
    needed, advice = needed_memory(run, least)
    bound = reason.least_memory_bytes if reason.bound_bytes is None else reason.bound_bytes
    reason = replace(
        reason,
        bound_bytes=bound if bound < needed else None,
        least_memory_bytes=needed,
        activation_bytes=needed - reason.state_bytes,
        advice=(*advice, *reason.advice[1:]),
    )
    answer = replace(first.answer, result=replace(first.result, reason=reason))
    devices, unknown = (None, None) if run.alone else fewest_devices(run)
    return replace(first, answer=answer, needed_bytes=needed, needed_devices=devices, needed_devices_unknown=unknown)


def fewest_devices(run: PlanningRun) -> tuple[int | None, str | None]:
    """Where nothing fits: the fewest devices, in whole nodes more than there are, with which something does, each smaller
    number proven too small; and where that is not known, why."""
    cluster = run.request.cluster
    if cluster is None or something_fits(run, run.request) is not False:
        return None, None
    count = cluster.nodes[0].count
    run.begin("looking for the fewest devices")
    larger = (cluster.with_nodes(more) for more in range(count + 1, MOST_NODES * count + 1))
    found, unknown = _first_that_fits(run, larger, cluster.devices, max(DEVICE_SECONDS, run.elapsed()))
    if found is None and unknown is None:
        unknown = f"more than {MOST_NODES} times as many"
    return None if found is None else found.devices, unknown


def _first_that_fits(
    run: PlanningRun, clusters: Iterator[Cluster], too_few: int, seconds: float
) -> tuple[Cluster | None, str | None]:
    """The first of some clusters, smaller ones first, on which something fits, each before it proven too small, or of a size
    that the request does not suit; and where that is not known, why.

    too_few: devices that are; seconds: until it is given up.
    """
    until = run.elapsed() + min(run.remaining(), seconds)
    with suppress(Overrun), ended_after(lambda: until - run.elapsed()):
        while run.elapsed() < until:
            try:
                if (larger := next(clusters, None)) is None:
                    return None, None
                fits = something_fits(run, replace(run.request, cluster=larger, obtained=[]))
            except InputError as error:
                if error.where == "cluster":
                    return None, f"not known: the cluster {error.problem}"
                continue  # numbers of devices that the batch, the depth or the islands do not suit
            if fits is not False:
                return (larger, None) if fits else (None, "not known")
            too_few = larger.devices
    return None, f"more than {too_few}; the time was up"


def something_fits(run: PlanningRun, request: Request) -> bool | None:
    """Whether some solution fits into the memory of a request; None where that is not known. Raises InputError."""
    problem, has_least_tables = run.preset.problem, MEMORY_TABLES.name in request.options
    answers = [instance_fits(instance) for instance in problem.instances(request)]
    if True in answers or not has_least_tables:
        return True if True in answers else None if None in answers else False
    least = problem.instances(with_tables(request, "least"))
    return None if any(instance_fits(instance) is not False for instance in least) else False


def closest_plan(run: PlanningRun, rounds: Sequence[PlanningResult]) -> PlanningResult:
    """Where solutions fit, but no programs of the rounds do: the plan of the least memory, or an answer without a plan that
    says by how much all of them are short."""
    first = rounds[0]
    least = None if rounds[-1].interrupted else least_memory_plan(run, first.answer.bound_ns)
    plans = [tried for tried in (*rounds, least) if tried is not None and tried.plan is not None]
    best = min(plans, key=run.excess_bytes)
    if (over := run.excess_bytes(best)) <= 0:
        return run.restated(first, best) if run.has_least_tables and first.plan is not None else best
    whose = "what the runtime holds is" if run.request.options.get(FOR.name) else "the compiled programs are"
    message, needed = f"{whose} {format_bytes(over)} short", None
    if least is not None and least.plan is not None:
        needed, advice = needed_memory(run, least)
        message = f"{message}; {' or '.join(advice)}"
    else:
        message += f", and {first.result.method} found nothing that needs less"
        message += " before time ran out" * run.deadline_passed
    result = replace(first.result, status="unknown", message=message, objective=None, gap=None, solution=None, evaluation=None)
    answer = replace(first.answer, result=result, solution=None, objective_ns=None)
    return PlanningResult(run.request, run.preset, answer, None, needed_bytes=needed)
