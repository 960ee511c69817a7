"""`trainplan explain`: why a plan is as it is, or what two plans differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.command import options
from trainplan.command.options import Command, Outcome, flag, takes, word
from trainplan.command.printing import line, pairs, table
from trainplan.command.render import plan_rows
from trainplan.explaining import Difference, Explained
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time
from trainplan.solvers.core.limits import TIME_LIMIT_S


def command(name: str, words: Sequence[str]) -> Command:
    """The command."""
    return explain


@takes(
    [
        word("plan", Path, "A plan file, as `plan -o` writes it."),
        word("other", Path | None, "Another plan of the same model, to be told apart from the first.", None),
        flag("profile", Path | None, "The profile that the plan was made from, if it was."),
        flag("time_limit", float | None, f"Seconds for trying what units could have instead. [default: {TIME_LIMIT_S}]"),
    ]
)
def explain(plan: Path, other: Path | None, profile: Path | None, time_limit: float | None) -> Outcome:
    """Say where a plan's time and memory go, what every sub-layer could have in place of what it has, and what keeps it from
    that; or, of two plans, their steps and what they differ in."""
    if other is not None:
        if profile is not None or time_limit is not None:
            raise InputError("command line", "other", "is given", "leave out --profile and --time-limit beside two plans")
        rows, parted = api.compare_plans([plan, other]), api.differences(plan, other)
        return Outcome({"plans": rows, "differences": [asdict(each) for each in parted]}, partial(_show_two, rows, parted))
    explained = api.explain(plan, profile=profile, time_limit=TIME_LIMIT_S if time_limit is None else time_limit)
    code = options.FINE if explained.complete else options.STOPPED
    return Outcome(explained.to_dict(), partial(_show, explained), code=code)


def _show(explained: Explained) -> None:
    whose = f"as {explained.software} overlaps; by the walks over its programs " if explained.software else ""
    claimed = f"{whose}{format_time(explained.objective_ns)} claimed"
    if explained.bound_ns is not None:
        claimed += f", none below {format_time(explained.bound_ns)}"
    pairs([("model", explained.model), ("step", f"{format_time(explained.step_ns)} predicted, {claimed}")])
    rows = []
    for stage in explained.stages:
        shares = (f"{share:.1%}" for share in (stage.compute, stage.communication, stage.waiting))
        free = stage.limit_bytes - stage.peak_bytes
        says = "shorter step" if stage.binds else "no gain found"
        rows.append([str(stage.stage), stage.ranks, *shares, format_bytes(stage.peak_bytes), format_bytes(free), says])
    columns = ("stage", "ranks", "compute", "exposed", "waiting", "peak", "free", "more memory")
    table(columns, rows, "where each stage's time goes, by the walks (exposed: communication and copies), and its memory")
    rows = []
    for each in explained.changes:
        cells = [str(each.stage), each.units, str(each.count), each.option]
        for change in (each.next_best, each.prevented):
            step = "-" if change is None else f"{change.step_ns / explained.objective_ns - 1:+.3%}"
            cells += ["-" if change is None else change.option, step]
        cells.append("-" if each.prevented is None else format_bytes(each.prevented.over_bytes))
        rows.append(cells)
    title = "changing one layer only, by the solver's objective"
    of_units = ("stage", "units", "count", "strategy", "next best", "step", "prevented by memory", "step", "too much")
    table(of_units, rows, title, ("units", "strategy", "next best", "prevented by memory"))
    if not explained.complete:
        line("--time-limit ended before all was tried; what is missing has a -")


def _show_two(rows: Sequence[dict[str, Any]], parted: Sequence[Difference]) -> None:
    plan_rows(rows)
    if not parted:
        line("all units are in the same stages, with the same strategies")
        return
    cells = [
        [each.units, str(each.count), str(each.first_stage), each.first, str(each.second_stage), each.second] for each in parted
    ]
    columns = ("units", "count", "stage", "first plan", "stage", "second plan")
    table(columns, cells, "units that the plans treat differently", ("units", "first plan", "second plan"))
