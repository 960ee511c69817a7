"""The answer where nothing fits: why, how much memory or how many devices would do, and the plan that comes closest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from trainplan.formulations.joint.options import MEMORY_TABLES, with_tables
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.plan.request import Request
from trainplan.planning.planning_run import PlanningRun, with_bound
from trainplan.planning.result import PlanningResult, predicted_by_runtime
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import enough_bytes, format_bytes
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.solvers.core.clock import Overrun, ended_after, grace_seconds
from trainplan.solvers.core.heuristic import at_least_memory
from trainplan.solvers.core.heuristic import fits as instance_fits

MOST_NODES = 16  # how many times the cluster's nodes are tried at most
DEVICE_SECONDS = 20.0  # for trying them; as long as the planning took before, where that is longer


def least_memory_plan(run: PlanningRun, bound_ns: int | None = None) -> PlanningResult | None:
    """The result with a plan under the smallest memory limit for which a solution is known, by the exact method; None if none
    is known in time. With as much memory as this plan and its programs need, the request has a plan.

    run: the planning run of the request. bound_ns: a lower bound on the step, in ns, for the plan's claim; None if there is
    none.
    """
    with suppress(Overrun), ended_after(lambda: run.remaining() + grace_seconds(run.time_limit)):
        whole = run.request.with_margin(0)
        tight = [least for instance in run.preset.problem.instances(whole) if (least := at_least_memory(instance)) is not None]
        limits = [instance.common_memory_bytes for instance in tight]
        possible = [(limit, index) for index, limit in enumerate(limits) if limit is not None]
        if possible:
            limit, index = min(possible)
            answer = run.search([tight[index]], "exact", **run.common_arguments)
            return run.plan(with_bound(answer, bound_ns), whole.limit_bytes - limit)
    return None


def needed_memory(run: PlanningRun, least: PlanningResult) -> tuple[int, list[str]]:
    """The bytes of one device with which the request has a plan, and texts that advise the user how to provide them.

    run: the planning run of the request. least: the result with a plan of little memory; the memory that its programs, or the
    runtime that it is predicted for, hold is counted.
    """
    limit = run.request.with_margin(least.margin_bytes).limit_bytes
    of_runtime = predicted_by_runtime(least.instance)
    programs = max(limit, *([] if of_runtime else least.walk_bytes), 0)
    needed = max([programs, *(max(peaks, default=0) for peaks in run.held_bytes(least))])
    advice = [f"give --memory of at least {enough_bytes(needed)}"]
    serial = needed if least.judged is None or of_runtime else max(limit, least.judged.serial_bytes)
    if serial < programs == needed:
        advice.append(f"--backend serial, whose programs need {enough_bytes(serial)}")
    return needed, advice


def with_reason(run: PlanningRun, first: PlanningResult, least: PlanningResult | None = None) -> PlanningResult:
    """Add to the planning result `first`, which says that nothing fits, how much would be enough: a copy of it with the amount
    of memory per device of a plan that is known (`needed_bytes`), advice on which options to give, and the fewest devices on
    which a plan fits (`needed_devices`; None if not known). Returns `first` itself if it has no reason why nothing fits, or no
    plan is known with more memory either.

    run: the planning run of the request. least: the result with a plan of little memory; searched for if None.
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
    """The fewest devices, in whole nodes, on which the request fits, if it does not fit on its own devices.

    run: the planning run of the request.

    Returns:
        The number, with every smaller one proven too small, None if it is not known; and why it is not known, None if it is
        known or the request fits.
    """
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
    """The first of some clusters on which the request fits; every one before it is proven too small, or has a number of devices
    that the request cannot use.

    Args:
        run: the planning run of the request.
        clusters: the clusters to try, smallest first.
        too_few: a number of devices that is proven too small.
        seconds: time after which the search is given up.

    Returns:
        The cluster, None if none is known; and why none is known, None if all clusters were tried.
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
                continue  # the batch, the depth or the islands cannot use this number of devices
            if fits is not False:
                return (larger, None) if fits else (None, "not known")
            too_few = larger.devices
    return None, f"more than {too_few}; the time was up"


def something_fits(run: PlanningRun, request: Request) -> bool | None:
    """Whether some solution of a request fits into its memory: True, False if that is proven impossible, None if it is not
    known.

    run: the planning run, which has the problem. Raises InputError for a request that has no instances.
    """
    problem, has_least_tables = run.preset.problem, MEMORY_TABLES.name in request.options
    answers = [instance_fits(instance) for instance in problem.instances(request)]
    if True in answers or not has_least_tables:
        return True if True in answers else None if None in answers else False
    least = problem.instances(with_tables(request, "least"))
    return None if any(instance_fits(instance) is not False for instance in least) else False


def closest_plan(run: PlanningRun, rounds: Sequence[PlanningResult]) -> PlanningResult:
    """The result for a request whose plans fit by the solver's memory tables, but not once they are compiled to programs: the
    plan with the least memory, if its programs fit; otherwise a result without a plan that says by how many bytes the
    closest plan exceeds the memory.

    run: the planning run of the request. rounds: the results of all rounds (each solves and simulates one plan), in their
    order.
    """
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
