"""Prints plans side by side, and the explanation of a plan, for people, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainplan.command.printing import line, table, wrapped
from trainplan.explanation import Difference, Explained
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.plan_words import SHAPE
from trainplan.planning.proof import proof
from trainplan.planning.result_rows import compared_by, devices_per_sample
from trainplan.profiling.base.quantities import format_bytes, format_gap, format_time, plural
from trainplan.tabular import Tabular, cell_text

MOST_NEIGHBOURS = 5  # changed plans that are listed: as many that fit, and as many that do not
ALL_OVERLAP, PEAK, RATE, WHOLE_RATE = "step with overlap", "peak", "tokens/s a GPU", "tokens/s"  # headings
MEASURES = (PEAK, RATE, WHOLE_RATE, "gap")  # headings of columns that the table of a single plan has, too


def side_by_side(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of plans, a row each. Facts that all plans share, such as the model, are printed once above it; the others
    are its columns.

    rows: for each plan the dict of `planning.result_rows.plan_row` (name, step_ns, peak_bytes and so on), the best first; notes
    that the table has are printed below it. Plans on unlike numbers of GPUs, or with unlike batches, are judged by the
    throughput of a GPU. Each step is predicted for the plan's own back-end; if the plans are not in the order of these steps,
    the table also has each plan's step with overlap (`lanes_ns`). Below the table stands which runtime the numbers of each plan
    are of.
    """
    if not rows:
        return
    by = compared_by(rows)
    weights = [devices_per_sample(row) if by == "device" else 1.0 for row in rows]
    known = [row["step_ns"] * weight for row, weight in zip(rows, weights, strict=True) if row["step_ns"] is not None]
    rank = "step_ns" if known == sorted(known) else "lanes_ns"
    judged = [None if row[rank] is None else row[rank] * weight for row, weight in zip(rows, weights, strict=True)]
    best = min((value for value in judged if value is not None), default=None)
    facts = [_facts(row) for row in rows]
    shared = [name for name in facts[0] if len({facts_of_plan[name] for facts_of_plan in facts}) == 1]
    wrapped("ALL PLANS" if len(rows) > 1 else "PLAN", [text for name in shared if (text := _shared_text(name, facts[0][name]))])
    if {"GPUs", "samples", "tokens"} <= {*shared}:  # then the rate is the step in another unit
        shared += [RATE, WHOLE_RATE]
    against = ["against the best"] * (len(rows) > 1 and bool(by))
    columns = ["plan", "step", *[ALL_OVERLAP] * (rank == "lanes_ns"), *against]
    differing = [name for name in facts[0] if name not in shared or (len(rows) == 1 and name in MEASURES)]
    if by != "device" and WHOLE_RATE in differing:
        differing.remove(WHOLE_RATE)
    cells = []
    for name, row, own, value in zip(_names(rows), rows, facts, judged, strict=True):
        times = [cell_text("_ns", row["step_ns"]), *[cell_text("_ns", row["lanes_ns"])] * (rank == "lanes_ns")]
        above = [_less(value, best) if by == "device" else _above(value, best)] * len(against)
        cells.append([name, *times, *above, *(own[name] for name in differing)])
    table((*columns, *differing), cells, left=("plan", "model", "layout", "recomputed", "back-end"))
    if not by:
        line("of different models or sequences: their steps do not compare")
    if by == "device":
        unlike = [text for name, text in (("GPUs", "numbers of GPUs"), ("samples", "batches")) if name not in shared]
        line(f"of unlike {' and '.join(unlike)}: judged by tokens/s a GPU, the most first")
    if isinstance(rows, Tabular):
        for note in rows.notes():
            line(note)
    if rank == "lanes_ns":
        line("in the order of steps with overlap; a plan's step is that on its own back-end")
    by_runtime = _by_runtime(rows)
    for whose, names in by_runtime.items():
        line(f"{', '.join(names)}: {whose}" if len(by_runtime) > 1 else f"step and memory: {whose}")


def _by_runtime(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """The names of plans by the phrase that says which runtime their step and memory are of.

    rows: for each plan the dict of `planning.result_rows.plan_row`.
    """
    named: dict[str, list[str]] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        if row["whose"]:
            named.setdefault(row["whose"], []).append(name)
    return named


def _facts(row: dict[str, Any]) -> dict[str, str]:
    """The facts of a plan except its step, as texts by the heading of their column.

    row: the plan as a dict, as `planning.result_rows.plan_row` makes it.
    """
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
        "recomputed": run[-1].removesuffix(" recomputed"),
        PEAK: cell_text("_bytes", row["peak_bytes"]),
        WHOLE_RATE: cell_text("_per_s", row["tokens_per_s_per_device"] and row["tokens_per_s_per_device"] * row["devices"]),
        RATE: cell_text("tokens_per_s_per_device", row["tokens_per_s_per_device"]),
        "gap": "-" if gap is None else format_gap(gap),
    }


def _shared_text(name: str, text: str) -> str:
    """A fact that all compared plans share, with its unit or heading: ("samples", "64") gives "64 samples a step".

    name: the fact's heading. text: its value. Empty for an unknown value ("-") and for measured columns such as the peak.
    """
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
    """The names of plans, from the field "name" of each row: without folders and `.json` ("runs/a.json" gives "a"), unless two
    plans would then have the same name."""
    names = [str(row["name"]) for row in rows]
    short = [Path(name).name.removesuffix(".json") for name in names]
    return short if len(set(short)) == len(set(names)) else names


def _less(device_ns: float | None, best_ns: float | None) -> str:
    """How much less throughput of a device a plan has than the best one, such as `-12.30 %`; "the best" if they are equal, "-"
    if either is None. device_ns, best_ns: what a sample takes of a device."""
    if device_ns is None or best_ns is None:
        return "-"
    return "the best" if device_ns == best_ns else _change(best_ns, device_ns)


def _above(step_ns: float | None, best_ns: float | None) -> str:
    """How much longer a step is than the best one, such as `+12.30 %`; "the best" if they are equal, "-" if either is None."""
    if step_ns is None or best_ns is None:
        return "-"
    return "the best" if step_ns == best_ns else _change(step_ns, best_ns)


def _change(step_ns: float, than_ns: float) -> str:
    """How much longer, in percent, the step `step_ns` is than the step `than_ns`, as a text with its sign: (1.123, 1.0) gives
    `+12.30 %`."""
    return f"{step_ns / than_ns - 1:+.2%}".replace("%", " %")


def explained(plan: Explained) -> None:
    """Print the explanation of a plan: where its time and memory go, what other strategies of its units (sub-layers) would gain
    or lose, and whether they fit."""
    wrapped("MODEL", [plan.model])
    wrapped("RUN", plan.run)
    solver = f"solver's objective {format_time(plan.objective_ns)}"
    wrapped("STEP", [", ".join(filter(None, (format_time(plan.step_ns), plan.whose))), solver])
    wrapped("PROOF", [proof(plan.objective_ns, plan.bound_ns, plan.checked_ns)])
    wrapped("MEMORY", [f"{format_bytes(plan.limit_bytes)} a device"])
    rows = []
    for stage in plan.stages:
        shares = (f"{share:.1%}" for share in (stage.compute, stage.communication, stage.waiting))
        sizes = map(format_bytes, (stage.peak_bytes, stage.limit_bytes - stage.peak_bytes))
        rows.append([str(stage.stage), stage.ranks, *shares, *sizes, "faster" if stage.binds else "no gain"])
    columns = ["stage", "ranks", "compute", "exposed", "waiting", "peak", "free", "more memory"]
    if not plan.changed_alone:  # the use of more memory is not known
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    title = "time and memory of each stage (exposed: communication, not hidden)"
    table(columns, rows, title, ("more memory",))
    if plan.software:
        line(f"shares of time: of {SHAPE}")
    _changes(plan)
    _neighbours(plan)
    if not plan.complete:
        line("the time limit ended before all was tried (--time-limit)")


def _changes(plan: Explained) -> None:
    """Print, for each run of equal units (sub-layers) of an explained plan, the best other strategy that one of them could
    have, and the faster one that memory prevents, each with the plan's step under that change, and whether it fits."""
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
    table([columns[index] for index in shown], [[row[index] for index in shown] for row in rows], title, left)


def _fits(plan: Explained, change: Any) -> str:
    """Whether a plan still fits after a change of one unit (sub-layer), as a text: "yes", or the bytes that are lacking, such
    as "1.2 GiB over".

    If it fits by the prediction and exceeds the limit only by the solver's count of memory, which is higher, the text says so.
    change: one of the alternatives in the explanation's `changes`.
    """
    if change.over_bytes > 0 and not plan.lacking_bytes(change):
        return f"{_over(change.over_bytes)} (solver's count)"
    return _over(plan.lacking_bytes(change))


def _neighbours(plan: Explained) -> None:
    """Print the plans that differ from an explained plan in one decision for all units (sub-layers): first at most
    MOST_NEIGHBOURS that are faster but do not fit, then as many that fit."""
    over = plan.prevented
    fitting = [neighbour for neighbour in plan.neighbours if neighbour.peak_bytes <= plan.limit_bytes]
    rows = []
    for neighbour in (*over[:MOST_NEIGHBOURS], *fitting[:MOST_NEIGHBOURS]):
        cells = [neighbour.what, _change(neighbour.step_ns, plan.step_ns), format_bytes(neighbour.peak_bytes)]
        rows.append([*cells, _over(neighbour.peak_bytes - plan.limit_bytes)])
    if not rows:
        return
    title = f"one decision changed for the whole plan, as {plan.software} runs it"
    table(("change", "step", "peak", "fits"), rows, title, ("change", "fits"))
    if (more := len(plan.neighbours) - len(rows)) > 0:
        line(f"and {more} that are slower (--json has all)")


def _over(size: int) -> str:
    """The text of a table's cell that says whether something fits: "yes", or such as "1.2 GiB over". size: the bytes by which
    the memory limit is exceeded, 0 or less if it is not."""
    return f"{format_bytes(size)} over" if size > 0 else "yes"


def two_plans(rows: Sequence[dict[str, Any]], differences: Sequence[Difference], names: tuple[str, str]) -> None:
    """Print two plans in one table, and the sub-layers that they treat differently.

    rows: for each plan the dict of `planning.result_rows.plan_row` (name, step_ns, peak_bytes and so on), the shortest step
    first. differences: the runs of sub-layers with different stages or strategies. names: the plans' files, in the order in
    which `differences` compares them.
    """
    side_by_side(rows)
    if not differences:
        line("all sub-layers are in the same stages, with the same strategies")
        return
    staged = any(difference.first_stage or difference.second_stage for difference in differences)

    def cell(stage: int, text: str) -> str:
        return f"stage {stage}: {in_words(text)}" if staged else in_words(text)

    cells = [
        [
            difference.units,
            str(difference.count),
            cell(difference.first_stage, difference.first),
            cell(difference.second_stage, difference.second),
        ]
        for difference in differences
    ]
    title = f"{plural(sum(difference.count for difference in differences), 'sub-layer')} that the plans treat differently"
    short = _names([{"name": name} for name in names])
    table(("sub-layers", "count", *short), cells, title, ("sub-layers", *short))
