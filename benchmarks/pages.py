"""Pages of cells that are planned: rows in a JSON file, with which a later call goes on, and the tables that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, plural
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.precision import usual_precision

import trainplan as tp
from trainplan.planning.result import PlanningResult

DOCS = Path(__file__).parent.parent / "docs"
Row = dict[str, Any]
Make = Callable[[], Row]


def fill(
    path: Path,
    cells: Iterable[tuple[str, Make]],
    page: Callable[[dict[str, Row], str], str],
    again: bool,
    said: Callable[[Row], str] | None = None,
) -> None:
    """Make the rows of the cells, by name, that a JSON file does not have yet, or all of them, and the page next to the file
    after each. page: of all rows and the date. said: what is printed of a row that has a plan."""
    kept = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    for name, make in cells:
        if name in kept["cells"] and not again:
            continue
        kept["cells"][name] = row = make()
        kept["date"] = datetime.now(UTC).date().isoformat()
        path.write_text(json.dumps(kept, indent=1) + "\n")
        path.with_suffix(".md").write_text(page(kept["cells"], kept["date"]))
        print(name, row.get("why") or (said or _said)(row), flush=True)


def _said(row: Row) -> str:
    """What is printed of a row that `row_of` made: its layout, step and MFU."""
    return f"{layout_text(row)}: {format_time(row['step_ns'])}, {row['mfu']:.1%}"


def state_bytes(model: Model, devices: int) -> int:
    """Least bytes of the model's states on each GPU, where all of them share all states."""
    element, precision = model.element_bytes, usual_precision(model.element_bytes)
    bytes_each = element + precision.gradient_bytes(element) + 3 * precision.stepped_bytes(element)
    return model.total_parameters * bytes_each // devices


def planned_row(model: Model, cluster: str, batch: int, **requested: Any) -> Row:
    """A request's row: its plan, or why there is none. requested: the keywords of `plan`."""
    machine = load_cluster(cluster)
    if (states := state_bytes(model, machine.devices)) > machine.used_kinds[0].usable_bytes:
        return {"why": "does not fit", "state_bytes": states}
    try:
        return row_of(tp.plan(model=model, cluster=machine, batch=batch, comparisons=False, **requested))
    except InputError as error:
        return {"why": str(error)}


def row_of(answer: PlanningResult) -> dict[str, Any]:
    """The fields of an answer's row on the page."""
    plan, performance = answer.plan, answer.performance
    if plan is None or performance is None or plan.predicted is None or plan.claim is None:
        reason = answer.result.reason
        if answer.result.stopped:
            return {"why": answer.result.message or answer.result.status, "open": True}
        if reason is None:
            return {"why": "nothing that fits was found"}
        return {"why": "does not fit", "least_bytes": reason.least_memory_bytes}
    first, ckpt = plan.units[0].strategy, sum(unit.strategy.ckpt for unit in plan.units)
    layout = {axis: first.degree(axis) for axis in ("dp", "sdp", "cp", "tp")}  # type: ignore[arg-type]
    bound = plan.claim.bound_ns
    return {
        "pp": plan.depth,
        "vpp": plan.chunks,
        **layout,
        "zero": first.zero_stage,
        "sequence_parallel": first.sequence_parallel,
        "micro_batches": plan.batch.micro_batches,
        "recomputed": ckpt / len(plan.units),
        "step_ns": performance.step_ns,
        "tokens_per_s_per_device": performance.tokens_per_s_per_device,
        "mfu": performance.mfu,
        "bubble": performance.bubble,
        "exposed_communication": performance.exposed_communication,
        "peak_bytes": plan.predicted.most_bytes,
        "limit_bytes": plan.memory_bytes,
        "bound_ns": bound,
        "search_gap": plan.claim.gap,
    }


def layout_text(row: dict[str, Any]) -> str:
    """A layout as engineers say it."""
    words = [f"pp{row['pp']}"] * (row["pp"] > 1) + [f"vpp{row.get('vpp')}"] * (row.get("vpp", 1) > 1)
    words += [f"tp{row['tp']}" + " sp" * row["sequence_parallel"]] * (row["tp"] > 1)
    words += [f"cp{row.get('cp')}"] * (row.get("cp", 1) > 1)
    shared = f"dp{row['sdp']} ZeRO-{row['zero']}" if row["sdp"] > 1 else f"dp{row['dp']}"
    return f"{', '.join([*words, shared])}, {plural(row['micro_batches'], 'micro-batch')}"


PLAN_HEAD = ["layout", "recomputed", "step", "tokens/s a GPU", "MFU", "memory", "faster at most"]


def plan_cells(row: Row | None) -> list[str]:
    """The cells of a page's row, as PLAN_HEAD has it: its plan, or why there is none."""
    if row is None or "why" in row:
        return ["not run yet" if row is None else why_text(row), *[""] * (len(PLAN_HEAD) - 1)]
    step, bound = row["step_ns"], row["bound_ns"]
    return [
        layout_text(row),
        f"{row['recomputed']:.0%}",
        format_time(step),
        f"{row['tokens_per_s_per_device']:,.0f}",
        f"{row['mfu']:.1%}",
        format_bytes(row["peak_bytes"]),
        "not known" if not bound else f"{max(0.0, step / bound - 1):.1%}",
    ]


def why_text(row: dict[str, Any]) -> str:
    """Why a cell has no plan."""
    if "least_bytes" in row:
        return f"does not fit: needs {format_bytes(row['least_bytes'])} a GPU at least"
    if "state_bytes" in row:
        return f"does not fit: its states alone are {format_bytes(row['state_bytes'])} a GPU"
    return str(row["why"])


def table_row(cells: list[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
