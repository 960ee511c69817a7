"""Comparisons: plans side by side, each paper's planner against the joint optimum, and throughputs over batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from trainplan.api.plan_verbs import plan
from trainplan.api.requests import PlanRequest, keywords_of
from trainplan.explanation import differences, explain
from trainplan.formulations.pipeline.batches import LARGEST_BATCH, MOST_MICRO_BATCHES, BatchInstances
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.schedule.orders import PassOrder
from trainplan.inputs import cluster_of, memory_of, model_of
from trainplan.planning.compare_planners import PlannerComparison, planner_comparison
from trainplan.planning.presets import OPTIMUM, PLANNERS, planner
from trainplan.planning.result_rows import plan_row, sorted_rows
from trainplan.planning.throughput import Throughput, search_throughput
from trainplan.prediction.chrome_trace import chrome_trace
from trainplan.prediction.simulate import simulate
from trainplan.profiling.base.arguments import check_arguments
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import FilePath, Source, name_of_source
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.screens.equal import equal_note
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S
from trainplan.tabular import Tabular

__all__ = [
    "chrome_trace",
    "compare_planners",
    "compare_plans",
    "differences",
    "explain",
    "simulate",
    "throughput",
]


JOB = ("model", "devices", "batch", "sequence", "software")  # of plans whose steps compare


class ComparedPlans(Tabular, list[dict[str, Any]]):
    """A table of plans: a list of dicts, one for each plan, the best first."""

    headings: ClassVar = {
        "name": "plan",
        "step_ns": "step",
        "tokens_per_s_per_device": "tokens/s a device",
        "peak_bytes": "peak memory",
        "stages": "stages",
        "micro_batches": "micro-batches",
        "bound_ns": "proven lower bound",
        "gap": "gap",
    }

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows, which are the list itself: for each plan a dict with the fields of `planning.result_rows.plan_row`,
        such as name, step_ns and peak_bytes."""
        return list(self)

    def notes(self) -> list[str]:
        """A sentence that names the plans that are equal to the fastest one within what is known, if there are any. Plans
        compare if they are of one model, batch and number of devices, and predicted for one runtime.
        """
        jobs = {tuple(row[name] for name in JOB) for row in self}
        if len(jobs) != 1 or any(row["step_ns"] is None or row["software"] is None for row in self):
            return []
        note = equal_note([(row["name"], row["step_ns"]) for row in self])
        return [note] if note else []


def compare_plans(sources: Iterable[Plan | Source]) -> ComparedPlans:
    """Plans side by side, as they are predicted, the shortest step first; if numbers of devices or batches differ, the largest
    throughput of a device.

    Args:
        sources: plans, their files, or dicts.

    Returns:
        A list of dicts, with `frame()`: a row for each plan, with its name, step, memory, layout, bound and gap. Models of
            equal layers and dtype are one model, under the name that the first of its plans has.

    Raises:
        InputError: for a file that is no plan.
    """
    rows, models = [], list[Model]()
    for number, source in enumerate(sources):
        plan = load_plan(source)
        row, model = plan_row(name_of_source(source, f"plan {number}"), plan), plan.planned_model()
        same = next((known for known in models if known.units == model.units and known.dtype == model.dtype), model)
        models.append(same)
        rows.append(row | {"model": same.name})  # a run read from a file is named after that file, whatever model it trains
    return ComparedPlans(sorted_rows(rows))


def compare_planners(
    request: PlanRequest | None = None,
    *,
    gap: float = GAP,
    time_limit: float | None = TIME_LIMIT_S,
    progress: Callable[[str], None] | None = None,
    **keywords: Any,
) -> PlannerComparison:
    """How much slower each paper's planner is than the joint optimum, on a model and a cluster.

    All plans are predicted alike, without overlap, which is the step that the joint problem minimises. A planner gets only
    the choices that it knows among pipeline, micro_batches, dp and tp; its row states the choices that it was planned without.

    Args:
        request: what to plan for, as one object, with the choices of the joint problem, such as host or schedule; without
            `like`, since each planner has its own preset. None for the keywords alone.
        gap: relative gap at which the joint problem may stop.
        time_limit: seconds for each planner.
        progress: called with the name of each planner.
        **keywords: fields of the request, as `plan` takes them, which replace those of the object; not like, method, backend,
            comparisons or incumbents.

    Returns:
        A list of planners, with `frame()` and `picture()`: first the joint optimum, then the papers' planners, and last the
            joint optimum again, whose search begins from the planners' plans.

    Raises:
        InputError: for a request that the joint problem does not support.
    """
    keywords = keywords_of(request, None) | keywords
    check_arguments(plan, keywords)
    for name in ("like", "method", "backend", "comparisons", "incumbents"):
        if keywords.get(name) is not None:
            fix = "leave it out: each planner has its own"
            raise InputError("command line", "--" + name, f"is {keywords[name]!r}", fix)
    return planner_comparison(plan, keywords, gap=gap, time_limit=time_limit, progress=progress)[0]


class Throughputs(Tabular, list[Throughput]):
    """A table of planners: for each the batch sizes that were tried, with their throughputs."""

    headings: ClassVar = {"planner": "planner", "batch": "batch", "samples_per_s": "samples/s", "seconds": "seconds"}
    drawn_by = "trainplan.pictures.charts:draw_throughput"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each batch size that a planner tried, planner by planner.

        Its fields are planner; batch, in samples; samples_per_s, 0 if nothing fits; best, whether it is the planner's largest
        throughput; and seconds, the time of all searches of that planner.
        """
        return [
            {
                "planner": search.planner.label,
                "batch": point.batch,
                "samples_per_s": point.throughput,
                "best": point is search.best,
                "seconds": search.seconds,
            }
            for search in self
            for point in search.points
        ]


def throughput(
    *,
    model: FilePath | Model,
    cluster: FilePath | Cluster,
    memory: str | int | None = None,
    reserve: str | int | None = None,
    planners: Sequence[str] | None = None,
    space: str = "full",
    schedule: PassOrder = "1f1b",
    sequence: int | None = None,
    dtype: str | None = None,
    step: int = 8,
    largest_batch: int = LARGEST_BATCH,
    most_micro_batches: int = MOST_MICRO_BATCHES,
    time_limit: float | None = TIME_LIMIT_S,
    gap: float = GAP,
    progress: Callable[[Any, Any], None] | None = None,
) -> Throughputs:
    """The throughput of planners over batch sizes, under the cost model of the paper (Galvatron), from estimated profiles.

    Args:
        model: a name, a config.json or a Model.
        cluster: a name, a file or a Cluster.
        memory: the memory of one device to plan with, such as "8GiB", or bytes (default: the device's, less its reserve).
        reserve: the part of the memory that stays free, in place of the cluster's own reserve.
        planners: the names of planners, such as galvatron-bmw and optimum (default: all).
        space: Of the planner optimum: its search space, as for `plan`.
        schedule: Of the planner optimum: '1f1b' (1F1B-Flush) or 'gpipe'.
        sequence: tokens of a sample (default: the longest that the model allows).
        dtype: the model's, such as "bf16".
        step: Samples between two batch sizes.
        largest_batch: Stop here if all still fits.
        most_micro_batches: Of one step.
        time_limit: seconds of each search, which is of one planner and batch size.
        gap: relative gap at which each search may stop.
        progress: called with (planner, point) for each batch size that was tried; a point has the batch size and its
            throughput.

    Returns:
        A list of planners, each with the throughput in samples/s of every batch size that it tried; it has `frame()` and
            `picture()`.

    Raises:
        InputError: for a bad argument, naming it.
    """
    the_cluster = cluster_of(cluster, reserve)
    the_model = model_of(model, sequence, dtype, cluster=the_cluster)
    memory_bytes = memory_of(memory, reserve) or the_cluster.usable_bytes
    for option, value in (("--step", step), ("--largest-batch", largest_batch), ("--most-micro-batches", most_micro_batches)):
        if not 1 <= value <= 2**20:
            raise InputError("command line", option, f"is {value}", "give 1 to 1048576")
    batches = BatchInstances(the_model, the_cluster, step=step, most_micro_batches=most_micro_batches)
    searches = Throughputs()
    for chosen in [planner(name, space, schedule) for name in planners or [*PLANNERS, OPTIMUM]]:
        notify = (lambda point, chosen=chosen: progress(chosen, point)) if progress else None
        limits: dict[str, Any] = {"largest_batch": largest_batch, "time_limit": time_limit, "gap": gap}
        searches.append(search_throughput(batches, chosen, memory_bytes, **limits, progress=notify))
        if searches[-1].interrupted:
            break
    return searches
