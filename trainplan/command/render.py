"""Tables and progress for people. Data goes to standard output, progress to standard error and only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from trainplan.api import Checked, Instance
from trainplan.formulations.cluster_strategy.problem import Instance as StrategyInstance
from trainplan.formulations.memory_switches.problem import Instance as SwitchInstance
from trainplan.formulations.pipeline.problem import Instance as PipelineInstance
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.plan import Plan, PlannedUnit
from trainplan.formulations.stage_assignment.problem import Instance as AssignmentInstance
from trainplan.planning import Planned
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span
from trainplan.solvers.core.registry import Entry
from trainplan.solvers.core.result import Point, Result, peak_text

_plain = Console()
out = Console(highlight=False, soft_wrap=True, width=None if _plain.is_terminal else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and texts in two columns; long texts run on, so that they can be searched and copied."""
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        out.print(f"{label:<{width}}  {text}", markup=False)


SCHEDULE_NAMES = {"1f1b": "1F1B-Flush", "gpipe": "GPipe"}


def result(found: Result) -> None:
    rows = found.summary()
    if found.evaluation and "stages" in found.evaluation:
        labels = [label for label, _ in rows]
        rows.insert(
            labels.index("peak memory" if "peak memory" in labels else "seconds"), ("stages", _stages(found.evaluation))
        )
    pairs(rows)


def _stages(seen: dict[str, Any]) -> str:
    """The stages of a solution in one line."""
    layers = ", ".join(str(stage["last"] - stage["first"] + 1) for stage in seen["stages"])
    if "pp" in seen:
        degrees = f"pp {seen['pp']}, dp {seen['dp']}, tmp {seen['tmp']}"
        return f"{layers} layers; {degrees}; {_shares(seen['shares'])} a pipeline, of {plural(seen['mbs'], 'sample')}"
    parts = "sub-layers" if "master_stage" in seen else "layers"
    told = f"{seen['pipeline']}, of {layers} {parts}; {plural(seen['micro_batches'], 'micro-batch')}"
    return told + (f", {SCHEDULE_NAMES[seen['schedule']]}" if "schedule" in seen and seen["pipeline"] > 1 else "")


def _shares(shares: Sequence[int]) -> str:
    if len(set(shares)) == 1:
        return plural(shares[0], "micro-batch")
    return f"{', '.join(map(str, shares))} micro-batches"


def candidates(found: Result) -> None:
    """The strategies that a planner proposes, best first, with a mark at those that do not fit."""
    if not (listed := found.statistics.get("candidates")):
        return
    table = Table(box=box.SIMPLE_HEAD, title="candidates", title_justify="left")
    for name in ("rank", "pp", "dp", "tmp", "mbs", "cuts", "time", "memory", "fits"):
        table.add_column(name, justify="left" if name in ("cuts", "fits") else "right")
    for rank, one in enumerate(listed, 1):
        degrees = (str(one[name]) for name in ("pp", "dp", "tmp", "mbs"))
        cuts = ", ".join(map(str, one["cuts"])) or "-"
        costs = (format_time(one["time_ns"]), format_bytes(one["peak_bytes"]), "yes" if one["fits"] else "NO")
        table.add_row(str(rank), *degrees, cuts, *costs)
    out.print(table)


def comparison(results: Sequence[Result], contradictions: Sequence[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("method", "status", "time", "lower bound", "gap", "above best", "seconds"):
        table.add_column(name, justify="left" if name in ("method", "status") else "right")
    best = min((r.objective for r in results if r.objective is not None), default=None)
    for r in results:
        table.add_row(
            r.method,
            r.status,
            "-" if r.objective is None else format_time(r.objective),
            "-" if r.bound is None else format_time(r.bound),
            "-" if r.gap is None else f"{r.gap:.3%}",
            "-" if r.objective is None or not best else f"{r.objective / best - 1:.3%}",
            f"{r.build_seconds + r.solve_seconds:.3f}",
        )
    out.print(table)
    reasons = [str(r.reason) for r in results if r.reason]
    for line in [*reasons[:1], *(f"contradiction: {text}" for text in contradictions)]:
        out.print(line, markup=False)


def methods(problem: str, entries: Sequence[Entry]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=problem, title_justify="left")
    for name in ("method", "proves", "about", "options"):
        table.add_column(name)
    for place, entry in enumerate(entries):
        name = f"{entry.name} (= exact)" if place == 0 else entry.name
        table.add_row(name, "yes" if entry.proves else "no", entry.about, ", ".join(map(str, entry.options)) or "-")
    out.print(table)


def checked(found: Checked) -> None:
    rows = [("problem", found.problem)]
    if found.objective is not None:
        rows.append(("time", f"{format_time(found.objective)} ({found.objective} ns)"))
    if found.peak_bytes is not None:
        rows.append(("peak memory", peak_text(found.peak_bytes, found.peak_layer_name, found.peak_ns)))
    if found.memory_bytes is not None:
        rows.append(("memory limit", f"{format_bytes(found.memory_bytes)} ({found.memory_bytes} bytes)"))
    rows += [("violation", text) for text in found.violations] or [("violations", "none")]
    pairs(rows)


def size_of(instance: Instance) -> dict[str, int]:
    """Layers, what there is to choose from (the most options of any layer, degrees, or stages), and memory, where it is one."""
    if isinstance(instance, PartitionInstance):
        return {"sublayers": instance.sublayers, "stages": instance.stages, "micro_batches": instance.micro_batches}
    found = {"layers": instance.layers}
    if isinstance(instance, AssignmentInstance):
        return found | {"stages": instance.stages}
    if isinstance(instance, StrategyInstance):
        found |= {"degrees": len(list(instance.degrees())), "devices": instance.devices}
    elif isinstance(instance, SwitchInstance):
        found |= {"options": len(instance.options)}
    elif isinstance(instance, PipelineInstance):
        found |= {"options": max(len(given.tables.strategies) for given in instance.configurations)}
    else:
        found |= {"options": max(instance.options)}
    return found | {"memory_bytes": instance.memory_bytes}


def strategy(instance: StrategyInstance, found: Result) -> None:
    """A cluster strategy: its degrees, and a row for every stage."""
    seen = found.evaluation
    if seen is None or found.solution is None:
        return
    pairs(
        [
            ("strategy", f"pp {seen['pp']}, dp {seen['dp']}, tmp {seen['tmp']} on {plural(instance.devices, 'device')}"),
            (
                "step",
                f"{instance.batch} samples: {_shares(seen['shares'])} a pipeline, of {plural(seen['mbs'], 'sample')} each",
            ),
        ]
    )
    size, placement = seen["dp"] * seen["tmp"], found.solution["placement"]
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("stage", "devices", "kinds", "layers", "count", "time", "transfer", "sync", "memory", "of"):
        table.add_column(name, justify="left" if name in ("devices", "kinds", "layers") else "right")
    for number, stage in enumerate(seen["stages"]):
        first, last = instance.layer_names[stage["first"]], instance.layer_names[stage["last"]]
        table.add_row(
            str(number),
            _runs(sorted(placement[number * size : (number + 1) * size])),
            ", ".join(f"{count} x {name}" for name, count in stage["kinds"]),
            span(first, last),
            str(stage["last"] - stage["first"] + 1),
            *(format_time(stage[name]) for name in ("time_ns", "transfer_ns", "sync_ns")),
            *(format_bytes(stage[name]) for name in ("peak_bytes", "limit_bytes")),
        )
    out.print(table)


def _runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, consecutive ones as a run."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(shown if len(shown) < 9 else [*shown[:8], "..."])


def plan_table(plan: Plan) -> None:
    """The strategy of every unit, and the switches that are on, stage by stage, runs of equal ones as one row."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("stage", "ranks", "units", "count", "strategy"):
        table.add_column(name, justify="right" if name in ("stage", "count") else "left")
    for number, stage in enumerate(plan.stages):
        first = True
        for strategy, group in groupby(plan.units[stage.first_unit : stage.last_unit + 1], key=_strategy):
            names = [unit.name for unit in group]
            ranks = f"{stage.ranks[0]} .. {stage.ranks[-1]}" if len(stage.ranks) > 1 else str(stage.ranks[0])
            place = (str(number), ranks) if first else ("", "")
            table.add_row(*place, span(names[0], names[-1]), str(len(names)), strategy)
            first = False
    out.print(table)
    batch, schedule = plan.batch, SCHEDULE_NAMES[plan.schedule]
    halves = f", {plan.sliced} sliced" if plan.sliced else ""
    stages = f"{len(plan.stages)} stages, {schedule}{halves}" if len(plan.stages) > 1 else "1 stage"
    rows = [("step", f"{batch.global_samples} samples in {plural(batch.micro_batches, 'micro-batch')}, {stages}")]
    if batch.shares is not None:
        each = ", ".join(map(str, batch.shares))
        rows = [("step", f"{batch.global_samples} samples in {each} micro-batches of the pipelines, {stages}")]
    if plan.placement is not None:
        rows.append(("placement", f"rank by rank on devices {', '.join(map(str, plan.placement))}"))
    pairs(rows)


def _strategy(unit: PlannedUnit) -> str:
    return ", ".join([unit.strategy, *(unit.switches or [])])


def planned(found: Planned, cluster: str) -> None:
    profile = found.profile
    lengths = [str(shape.tokens) for shape in profile.sublayers if shape.kind in ("attention", "layer") and shape.tokens]
    tokens = "/".join(dict.fromkeys(lengths))
    memory = found.instance.memory_bytes
    fits = "fits" if found.cheapest_bytes <= memory else "does not fit"
    rows = [
        ("model", f"{profile.name}, {tokens + ' tokens a sample, ' if tokens else ''}{profile.dtype}"),
        ("cluster", f"{cluster}, {profile.devices} devices of {format_bytes(memory)} each"),
        ("profile", f"{profile.origin} (links {profile.links_origin})"),
        (
            "cheapest",
            f"{format_time(found.cheapest_time_ns)} without a limit, needs {format_bytes(found.cheapest_bytes)}: {fits}",
        ),
    ]
    pairs(rows)
    if found.plan is not None:
        plan_table(found.plan)
    certificate(found.result)
    if found.plan is not None and not found.walk_bytes:
        pairs([("memory walk", f"none: {found.plan.planned_model().family} models in {profile.dtype} do not run yet")])
    if found.walk_bytes:
        every = len(found.walk_bytes) == profile.devices
        ranks = "at most on any rank" if every else "at most on the first rank of a stage, the only ones compiled"
        pairs([("memory walk", f"{format_bytes(max(found.walk_bytes))} {ranks}, by its compiled program")])


def certificate(found: Result) -> None:
    """A plan's predicted time and memory, and how good it is proven to be."""
    names = {"time": "predicted time", "peak memory": "predicted memory"}
    pairs([(names.get(label, label), text) for label, text in found.summary() if label not in ("problem",)])


def run_report(plan: Plan, report: Any, scale_down: int) -> None:
    plan_table(plan)
    rows = []
    if plan.predicted:
        p = plan.predicted
        scaled = " (of the planned model)" if scale_down > 1 else ""
        rows.append(("predicted time", f"{format_time(p.step_ns)} a step{scaled}"))
        if plan.switches() is not None and report.backend == "serial":
            rows.append(("", "with lanes beside each other, as of threads or streams; serial runs one operation at a time"))
        rows.append(("predicted memory", f"{format_bytes(p.peak_bytes)} peak{scaled}"))
        if p.lower_bound_ns is not None and p.gap is not None:
            rows.append(("lower bound", f"{format_time(p.lower_bound_ns)}, gap {p.gap:.4%} ({p.status}, {p.method})"))
    rows.append(
        ("ran", f"{report.model} in {report.dtype} on {report.world} processes, {report.backend} back-end, {report.device}")
    )
    rows.append(("memory walk", f"{format_bytes(max(report.predicted_peak_bytes))} at most on any rank of this run"))
    if report.peak_bytes:
        rows.append(("allocated", f"{format_bytes(max(report.peak_bytes))} at most on any rank, measured"))
    for number, (loss, seconds) in enumerate(zip(report.losses, report.step_seconds, strict=True), start=1):
        rows.append((f"step {number}", f"loss {loss:.9f}, {seconds:.3f} s"))
    if plan.predicted and scale_down == 1 and report.dtype == plan.planned_model().dtype:
        took, planned_ns = median(report.step_seconds), plan.predicted.step_ns
        told = f"{took:.3f} s, {took * 1e9 / planned_ns:.3g} times the predicted time (profile {plan.predicted.profile_origin})"
        rows.append(("median step", told))
    if report.gradient_difference is not None:
        rows.append(("gradients", f"largest relative difference to one process {report.gradient_difference:.2e}"))
        rows.append(("parameters", f"largest difference after step {len(report.losses)} {report.parameter_difference:.2e}"))
    pairs(rows)


@contextmanager
def searching(text: str) -> Iterator[Any]:
    """Progress of a search: a callback for points, or for (method, point)."""
    with _live() as progress:
        task = progress.add_task(text, total=None)

        def show(*event: Any) -> None:
            point: Point = event[-1]
            objective = "-" if point.objective is None else format_time(point.objective)
            bound = "-" if point.bound is None else format_time(point.bound)
            prefix = f"{text} {event[0]}" if len(event) > 1 else text
            progress.update(task, description=f"{prefix}: best {objective}, bound {bound}")

        yield show


@contextmanager
def trying() -> Iterator[Any]:
    """Progress of a search over batch sizes: a callback for (planner, point)."""
    with _live() as progress:
        task = progress.add_task("planning", total=None)

        def show(planner: Any, point: Any) -> None:
            told = f"{point.throughput:.2f} samples/s" if point.throughput else "does not fit"
            progress.update(task, description=f"{planner.label}: batch {point.batch}, {told}")

        yield show


@contextmanager
def trials(text: str) -> Iterator[Any]:
    """Progress of trials: a callback for the reports of their processes."""
    with _live() as progress:
        task = progress.add_task(text, total=None)

        def show(event: dict[str, Any]) -> None:
            rank = event["plan"] + 1
            if "step" in event:
                told = f"{text} rank {rank}: step {event['step']}"
                progress.update(task, total=event["steps"], completed=event["step"], description=told)
            else:
                progress.update(task, description=f"{text} rank {rank}: {event['status']}")

        yield show


@contextmanager
def working(text: str) -> Iterator[Any]:
    """Progress of measuring or running: a callback for reports of the processes."""
    with _live() as progress:
        task = progress.add_task(text, total=None)

        def show(event: dict[str, Any]) -> None:
            if "of" in event:
                progress.update(task, total=event["of"], completed=event["done"], description=f"{text}: {event['shape']}")
            elif "step" in event:
                step, steps = event["step"], event["steps"]
                progress.update(task, total=steps, completed=step, description=f"{text}: step {step}, loss {event['loss']:.4f}")
            else:
                progress.update(task, description=f"{text}: comparing with one process")

        yield show


def _live() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
