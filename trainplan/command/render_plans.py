"""Plans side by side, and why a plan is as it is, for people, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainplan.command.printing import line, table, wrapped
from trainplan.explanation import Difference, Explained
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.planning.proof import proof
from trainplan.profiling.base.quantities import format_bytes, format_gap, format_time, plural
from trainplan.tabular import cell_text

MOST_NEIGHBOURS = 5  # that fit, and as many that do not
ALL_OVERLAP, PEAK, RATE = "step with overlap", "peak", "tokens/s a GPU"
MEASURES = (PEAK, RATE, "gap")  # which a single plan has, too


def side_by_side(rows: Sequence[dict[str, Any]]) -> None:
    """Plans, a row each, as `planned.plan_row` has them: what all share stands once above, and columns that differ follow.

    They stand in the order of their steps; where steps that are predicted alike for all, with overlap, have another order than
    the steps of each on its own back-end, in that one.
    """
    if not rows:
        return
    known = [row["step_ns"] for row in rows if row["step_ns"] is not None]
    rank = "step_ns" if known == sorted(known) else "lanes_ns"
    best = min((row[rank] for row in rows if row[rank] is not None), default=None)
    facts = [_facts(row) for row in rows]
    shared = [name for name in facts[0] if len({facts_of_plan[name] for facts_of_plan in facts}) == 1]
    wrapped("ALL PLANS" if len(rows) > 1 else "PLAN", [text for name in shared if (text := _said(name, facts[0][name]))])
    if {"GPUs", "samples", "tokens"} <= {*shared}:  # then the rate says what the step says
        shared.append(RATE)
    compared = {"model", "samples", "tokens"} <= {*shared}
    columns = ["plan", "step", *[ALL_OVERLAP] * (rank == "lanes_ns"), *["against the best"] * (len(rows) > 1 and compared)]
    differing = [name for name in facts[0] if name not in shared or (len(rows) == 1 and name in MEASURES)]
    cells = []
    for name, row, own in zip(_names(rows), rows, facts, strict=True):
        times = [cell_text("_ns", row["step_ns"]), *[cell_text("_ns", row["lanes_ns"])] * (rank == "lanes_ns")]
        above = [_above(row[rank], best)] * (len(rows) > 1 and compared)
        cells.append([name, *times, *above, *(own[name] for name in differing)])
    table((*columns, *differing), cells, left=("plan", "model", "layout", "recomputed", "back-end"))
    if not compared:
        line("of different models, batches or sequences: their steps do not compare")
    elif rank == "lanes_ns":
        line("in the order of steps with overlap, which are predicted alike for all; a plan's step is that on its own back-end")


def _facts(row: dict[str, Any]) -> dict[str, str]:
    """What a plan's row says by heading, but for its step."""
    gap, run = row["gap"], row["run"]
    counted = next((word for word in run if "micro-batch" in word), "-")
    return {
        "model": row["model"],
        "GPUs": str(row["devices"]),
        "samples": str(row["batch"]),
        "tokens": str(row["sequence"]),
        "limit": format_bytes(row["memory_bytes"]),
        "back-end": row["backend"] or "-",
        "layout": " ".join(word for word in run[:-1] if word != counted) or "1 GPU",
        "micro-batches": counted.split()[0],
        "recomputed": run[-1].replace(" recomputed", "").replace(" sub-layers", ""),
        PEAK: cell_text("_bytes", row["peak_bytes"]),
        RATE: cell_text("tokens_per_s_per_device", row["tokens_per_s_per_device"]),
        "gap": "-" if gap is None else format_gap(gap),
    }


def _said(name: str, text: str) -> str:
    """A fact that all plans share, in words."""
    units = {
        "GPUs": "GPUs",
        "samples": "samples a step",
        "tokens": "tokens a sample",
        "limit": "a GPU",
        "micro-batches": "micro-batch" if text == "1" else "micro-batches",
        "recomputed": "recomputed",
    }
    if text == "-" or name in MEASURES:
        return ""
    if name in ("model", "layout"):
        return text
    return f"{text} {units[name]}" if name in units else f"{name} {text}"


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The names of plans, without their folders and endings where the rest tells them apart."""
    names = [str(row["name"]) for row in rows]
    short = [Path(name).name.removesuffix(".json") for name in names]
    return short if len(set(short)) == len(set(names)) else names


def _above(step_ns: int | None, best_ns: int | None) -> str:
    if step_ns is None or best_ns is None:
        return "-"
    return "the best" if step_ns == best_ns else _change(step_ns, best_ns)


def _change(step_ns: float, than_ns: float) -> str:
    """`+12.3 %`"""
    return f"{step_ns / than_ns - 1:+.2%}".replace("%", " %")


def explained(plan: Explained) -> None:
    """Where the time and the memory of a plan go, and what could be changed, and whether that fits into what is free."""
    wrapped("MODEL", [plan.model])
    wrapped("RUN", plan.run)
    whose = f", as {plan.software} overlaps" if plan.software else ""
    solver = f"solver's objective {format_time(plan.objective_ns)}"
    wrapped("STEP", [f"{format_time(plan.step_ns)}{whose}", solver])
    wrapped("PROOF", [proof(plan.objective_ns, plan.bound_ns, plan.checked_ns)])
    wrapped("MEMORY", [f"{format_bytes(plan.limit_bytes)} a device"])
    rows = []
    for stage in plan.stages:
        shares = (f"{share:.1%}" for share in (stage.compute, stage.communication, stage.waiting))
        sizes = map(format_bytes, (stage.peak_bytes, stage.limit_bytes - stage.peak_bytes))
        rows.append([str(stage.stage), stage.ranks, *shares, *sizes, "faster" if stage.binds else "no gain"])
    columns = ["stage", "ranks", "compute", "exposed", "waiting", "peak", "free", "more memory"]
    if not any(change.next_best or change.prevented for change in plan.changes):  # then nothing is known of more memory
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    title = "time and memory of each stage (exposed: communication, not hidden)"
    table(columns, rows, title, ("more memory",))
    _changes(plan)
    _neighbours(plan)
    if not plan.complete:
        line("the time limit ended before all was tried (--time-limit)")


def _changes(plan: Explained) -> None:
    """What one unit could have instead: of so many that are alike, since a change of one says nothing of all."""
    rows = []
    for changed in plan.changes:
        for change in (changed.next_best, changed.prevented):
            if change is not None:
                now, other = in_words(changed.option), in_words(change.option)
                step = _change(change.step_ns, plan.objective_ns)
                rows.append([str(changed.stage), changed.units, f"1 of {changed.count}", now, other, step, _fits(plan, change)])
    if not rows:
        whole = "no sub-layer changes alone: the search is of one layout for all of them"
        line(whole if plan.complete else "no change of one sub-layer was tried in the time")
        return
    columns = ("stage", "sub-layers", "changed", "now", "instead", "step", "fits")
    title = "changing one sub-layer only: the solver's objective, and whether it fits"
    shown = range(len(columns)) if len(plan.stages) > 1 else range(1, len(columns))
    left = ("sub-layers", "now", "instead", "fits")
    table([columns[x] for x in shown], [[row[x] for x in shown] for row in rows], title, left)


def _fits(plan: Explained, change: Any) -> str:
    """Whether a change fits into the memory that is free; where the solver, which counts more, refuses it alone, that."""
    if change.over_bytes > 0 and not plan.lacking_bytes(change):
        return f"{_over(change.over_bytes)} (solver's count)"
    return _over(plan.lacking_bytes(change))


def _neighbours(plan: Explained) -> None:
    """What one decision changed for all units would come to: what would be faster, but needs too much; then what fits."""
    over = [
        neighbour
        for neighbour in plan.neighbours
        if neighbour.peak_bytes > plan.limit_bytes and neighbour.step_ns < plan.step_ns
    ]
    fitting = [neighbour for neighbour in plan.neighbours if neighbour.peak_bytes <= plan.limit_bytes]
    rows = []
    for neighbour in (*over[:MOST_NEIGHBOURS], *fitting[:MOST_NEIGHBOURS]):
        cells = [neighbour.what, _change(neighbour.step_ns, plan.step_ns), format_bytes(neighbour.peak_bytes)]
        rows.append([*cells, _over(neighbour.peak_bytes - plan.limit_bytes)])
    if not rows:
        return
    title = f"changing all {plan.units} units, as {plan.software} is predicted to run them"
    table(("change", "step", "peak", "fits"), rows, title, ("change", "fits"))
    if (more := len(plan.neighbours) - len(rows)) > 0:
        line(f"and {more} that are slower (--json has all)")


def _over(size: int) -> str:
    return f"{format_bytes(size)} over" if size > 0 else "yes"


def two_plans(rows: Sequence[dict[str, Any]], parted: Sequence[Difference], names: tuple[str, str]) -> None:
    """Two plans side by side, and the units that they treat differently."""
    side_by_side(rows)
    if not parted:
        line("all sub-layers are in the same stages, with the same strategies")
        return
    staged = any(difference.first_stage or difference.second_stage for difference in parted)

    def cell(stage: int, text: str) -> str:
        return f"stage {stage}: {in_words(text)}" if staged else in_words(text)

    cells = [
        [
            difference.units,
            str(difference.count),
            cell(difference.first_stage, difference.first),
            cell(difference.second_stage, difference.second),
        ]
        for difference in parted
    ]
    title = f"{plural(sum(difference.count for difference in parted), 'sub-layer')} that the plans treat differently"
    short = _names([{"name": name} for name in names])
    table(("sub-layers", "count", *short), cells, title, ("sub-layers", *short))
