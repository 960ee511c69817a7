"""Tables of pipelines cut at sub-layers, and of simulated steps."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from trainplan.command.render import out, pairs, result
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, describe
from trainplan.partitioning import PartitionPlan
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span
from trainplan.simulating import Simulation
from trainplan.solvers.core.result import Result

MOST_CANDIDATES = 12
LEFT = ("holds", "sub-layers", "status", "")


def solved(instance: Instance, found: Result) -> None:
    """The stages of a result, and the result."""
    if found.evaluation is not None:
        stages(instance, found.evaluation)
    result(found)


def stages(instance: Instance, seen: dict[str, Any]) -> None:
    """A row for every stage, the master stage marked; then what the simulated step is made of. seen: as of `describe`."""
    limited = instance.memory is not None
    table = _table("stage", "sub-layers", "count", "forward", "backward", "transfer", *(["peak", "of"] if limited else []), "")
    for number, stage in enumerate(seen["stages"]):
        first, last = stage["first"], stage["last"]
        cells = [str(number), _span(instance, first, last), str(last - first + 1)]
        cells += [format_time(stage[name]) for name in ("forward_ns", "backward_ns", "transfer_ns")]
        if instance.memory is not None:
            cells += [format_bytes(stage["peak_bytes"]), format_bytes(int(instance.memory.limit_bytes[number]))]
        table.add_row(*cells, "<- master stage" if number == seen["master_stage"] else "")
    out.print(table)
    pairs([("start-up", format_time(seen["startup_ns"])), ("bubble", f"{seen['bubble']:.1%}")])


def _span(instance: Instance, first: int, last: int) -> str:
    return span(instance.name_of(first), instance.name_of(last))


def partitioned(found: PartitionPlan) -> None:
    """The depths that were tried, the stages of the best, what slicing does to it, and its certificate."""
    best, proven = found.best, found.result
    if len(found.candidates) > 1:
        _candidates(found)
    if best.cuts is None or best.timeline is None or best.step_ns is None or found.plan is None or found.plan.predicted is None:
        pairs([row for row in proven.summary() if row[0] != "problem"])
        return
    seen = describe(best.instance, Solution(best.cuts))
    stages(best.instance, seen)
    degrees, timeline, predicted = best.degrees, best.timeline, found.plan.predicted
    each = plural(best.instance.provenance["mbs"], "sample")
    told = f"{plural(degrees.dp, 'pipeline')} of {plural(degrees.pp, 'stage')}"
    tensor = f" of {degrees.tp} tensor-parallel devices" if degrees.tp > 1 else ""
    rows = [("pipelines", f"{told}{tensor}; {plural(degrees.micro_batches, 'micro-batch')} of {each} each")]
    told = f"{format_time(seen['time_ns'])} ({seen['time_ns']} ns)"
    if seen["time_ns"] != proven.objective and proven.objective is not None:
        told += f" for a shorter step; the least is {format_time(proven.objective)}"
    if proven.bound is not None:
        told += f", {proven.status}, lower bound {format_time(proven.bound)} by {proven.bound_source}"
    rows.append(("iteration", f"{told}; {proven.method}"))
    if best.sliced:
        saved, startup = seen["time_ns"] - timeline.time_ns, timeline.startup_ns
        told = f"{plural(best.sliced, 'micro-batch')}: {format_time(timeline.time_ns)}, {format_time(saved)} less"
        rows.append(("sliced", f"{told}; start-up {format_time(startup)}"))
    rows.append(("predicted time", f"{format_time(best.step_ns)} a step, gradients and optimizer included"))
    if predicted.lower_bound_ns is not None and predicted.gap is not None:
        among = " at any depth and number tried" if len(found.candidates) > 1 else ""
        rows.append(("lower bound", f"{format_time(predicted.lower_bound_ns)} a step{among}, gap {predicted.gap:.3%}"))
    if best.instance.memory is not None:
        rows.append(("predicted memory", f"{format_bytes(predicted.peak_bytes)} at most on any device"))
    rows.append(("memory walk", f"{format_bytes(max(found.walk_bytes))} at most on any rank compiled, by its program"))
    rows.append(("seconds", f"{sum(one.result.build_seconds + one.result.solve_seconds for one in found.candidates):.3f}"))
    rows += [("message", proven.message)] if proven.message else []
    pairs(rows)


def _candidates(found: PartitionPlan) -> None:
    title = f"{len(found.candidates)} depths and numbers of micro-batches, shortest step first"
    table = _table("stages", "pipelines", "micro-batches", "sliced", "iteration", "step", "status", "")
    table.title, table.title_justify = title, "left"
    for one in found.candidates[:MOST_CANDIDATES]:
        numbers = (one.degrees.pp, one.degrees.dp, one.degrees.micro_batches, one.sliced)
        times = (None if one.timeline is None else one.timeline.time_ns, one.step_ns)
        cells = [*map(str, numbers), *("-" if time is None else format_time(time) for time in times), one.result.status]
        table.add_row(*cells, "<- planned" if one is found.best and found.plan is not None else "")
    out.print(table)
    if (left := len(found.candidates) - MOST_CANDIDATES) > 0:
        out.print(f"and {left} more (--json has all)")


def simulated(found: Simulation) -> None:
    """A row for every device, then the step and its critical path."""
    timeline = found.timeline
    count, work = len(timeline.devices), timeline.work
    last = any(found.syncs_ns)
    table = _table("device", "holds", "forward", "backward", "busy", "idle", "in flight", *["at the end"] * last)
    for device in range(count):
        mine = range(device, work.stages, count)
        busy = timeline.busy_ns[device]
        times = (sum(work.forward_ns[x] for x in mine), sum(work.backward_ns[x] for x in mine), busy, timeline.time_ns - busy)
        holds = "; ".join(found.stages[x] for x in mine)
        cells = [*map(format_time, times), str(found.in_flight[device]), *[format_time(found.syncs_ns[device])] * last]
        table.add_row(str(device), holds, *cells)
    out.print(table)
    schedule = found.schedule + (f", {found.chunks} stages a device" if found.chunks > 1 else "")
    halves = f", {found.sliced} sliced" if found.sliced else ""
    rows = [
        ("pipeline", f"{found.name}: {schedule}, {plural(found.micro_batches, 'micro-batch')}{halves}"),
        ("iteration", f"{format_time(timeline.time_ns)} ({timeline.time_ns} ns)"),
        ("start-up", format_time(timeline.startup_ns)),
        ("bubble", f"{timeline.bubble:.1%} of all devices' time"),
    ]
    if last:
        rows.insert(2, ("step", f"{format_time(found.step_ns)}, gradients and optimizer included"))
    master = found.critical.master
    rows.append(("master stage", f"{master} ({found.stages[master]})"))
    rows.append(("critical path", f"{len(found.critical.path)} passes: {_path(found)}"))
    pairs(rows)


def _path(found: Simulation) -> str:
    """The devices that the critical path is on, one after the other, with the number of passes on each."""
    runs: list[list[int]] = []
    for event in found.critical.path:
        if runs and runs[-1][0] == event.device:
            runs[-1][1] += 1
        else:
            runs.append([event.device, 1])
    told = [f"{device}" if passes == 1 else f"{device} (x{passes})" for device, passes in runs]
    return "devices " + " > ".join(told if len(told) <= 24 else [*told[:12], "...", *told[-11:]])


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name, justify="left" if name in LEFT else "right")
    return table
