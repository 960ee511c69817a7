"""The work of a cell's own process: it builds an instance, solves it or plans, and gives the answer as columns of the row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.formulations.plan.plan import plan_text
from trainplan.formulations.problem import problem_of
from trainplan.inputs import cluster_of
from trainplan.planning.certify import with_evidence
from trainplan.profiling.base.plugins import attribute
from trainplan.solvers.core.result import Point, Result
from trainplan.studies.cells import LIBRARY
from trainplan.studies.changes import keywords_of


def built(cell: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The instance of a cell, None for task plan, and the columns of the row that it gives.

    cell: as `Cell.to_dict` gives it. Raises InputError for a request that the problem refuses, or a file that is no instance.
    """
    request, _ = keywords_of(cell["request"])
    about: dict[str, Any] = {"devices": None, "nodes": None}
    if "cluster" in request:
        cluster = cluster_of(request["cluster"])
        about = {"devices": cluster.devices, "nodes": sum(nodes.count for nodes in cluster.nodes)}
    if cell["task"] == "plan":
        return None, about
    if (source := request.get("instance")) is None:
        instance = attribute("trainplan.api:build")(cell["problem"], **request)
    elif source.startswith(LIBRARY):
        about["library"] = source.removeprefix(LIBRARY)
        instance = attribute("trainplan.libraries.catalogue:library")()[about["library"]].instance()
    else:
        instance = attribute("trainplan.api:load")(source)
    sizes = problem_of(instance).size(instance)
    about |= {
        "devices": about["devices"] or sizes.get("devices"),
        "instance_hash": instance.digest,
        "instance_name": instance.name,
        "instance_size": json.dumps(sizes),
        "memory_bytes": instance.common_memory_bytes,
    }
    return instance, about


def solved(cell: Mapping[str, Any], instance: Any) -> dict[str, Any]:
    """The columns of a cell's row that solving its instance gives; "files" has the contents of files by column.

    Raises InputError for an instance or an option that the method refuses.
    """
    limits = cell["limits"]
    result: Result = attribute("trainplan.api:solve")(
        instance,
        cell["method"],
        time_limit=limits["time_limit"],
        gap=limits["gap"],
        seed=cell["seed"],
        cold=cell["cold"],
        solver_memory=limits["memory"],
        **cell["options"],
    )
    files = {"solution_path": json.dumps(result.solution)} if result.solution is not None else {}
    return {**_columns(result), "value_ns": result.objective, "files": {**files, **_history(result.history)}}


def planned(cell: Mapping[str, Any], _: Any = None) -> dict[str, Any]:
    """The columns of a cell's row that planning its request gives; "files" has the contents of files by column.

    Raises InputError for a request that cannot be planned.
    """
    limits, (request, rates) = cell["limits"], keywords_of(cell["request"])
    found = attribute("trainplan.api:plan")(
        like=cell["problem"],
        for_=cell["runtime"],
        method=cell["method"],
        time_limit=limits["time_limit"],
        gap=limits["gap"],
        seed=cell["seed"],
        cold=cell["cold"],
        solver_memory=limits["memory"],
        comparisons=False,
        **request,
        **cell["options"],
    )
    found = with_evidence(found)
    plan, answer, result, done = found.plan, found.answer, found.result, found.performance
    files = _history(result.history)
    columns = {
        **_columns(result),
        "status": answer.status,
        "value_ns": answer.objective_ns,
        "bound_ns": answer.bound_ns,
        "gap": answer.gap,
        "problem": cell["problem"] or found.preset.name,
        "instance_hash": result.instance_hash,
        "instance_name": found.instance.name,
        "instance_size": json.dumps(found.problem.size(found.instance)),
        "memory_bytes": found.request.with_margin(0).limit_bytes,
    }
    if found.spent is not None:
        columns["seconds"] = found.spent.seconds
    if plan is not None:
        files["plan_path"] = plan_text(plan)
        columns["certificate"] = plan.claim is not None and plan.claim.evidence is not None
        if plan.predicted is not None:
            columns |= {"predicted_step_ns": plan.predicted.step_ns, "predicted_peak_bytes": plan.predicted.most_bytes}
    if done is not None:
        columns |= {"samples_per_second": done.samples_per_s, "tokens_per_second": done.tokens_per_s, "mfu": done.mfu}
    if rates.given and (costs := found.training_costs(rates)) is not None:
        columns |= costs.columns
    if found.result.solution is not None:
        files["solution_path"] = json.dumps(found.result.solution)
    return {**columns, "files": files}


def _columns(result: Result) -> dict[str, Any]:
    """The columns of a row that every solver's result gives."""
    out_of_memory = result.stopped == "memory limit" and result.objective is None
    return {
        "status": "out of memory" if out_of_memory else result.status,
        "reason": _one_line(result) if result.objective is None or result.status == "failed" else None,
        "stopped": result.stopped,
        "bound_ns": result.bound,
        "gap": result.gap,
        "tolerance": result.tolerance,
        "bound_source": result.bound_source,
        "solution_source": result.solution_source,
        "peak_bytes": (result.evaluation or {}).get("peak_bytes"),
        "seconds": result.build_seconds + result.solve_seconds,
        "build_seconds": result.build_seconds,
        "solve_seconds": result.solve_seconds,
        "import_seconds": result.import_seconds,
    }


def _one_line(result: Result) -> str | None:
    """Why a result has no solution, in one line; None if it does not say."""
    texts = [str(result.reason) if result.reason else None, result.message]
    return " ".join("; ".join(text for text in texts if text).split()) or result.stopped


def _history(points: Sequence[Point]) -> dict[str, str]:
    """The content of the file of a search's history, by its column; empty if there is no history."""
    rows = [
        {"seconds": point.seconds, "value_ns": point.objective, "bound_ns": point.bound, "source": point.source}
        for point in points
    ]
    return {"history_path": json.dumps(rows)} if rows else {}
