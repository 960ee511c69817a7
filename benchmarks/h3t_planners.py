"""H3T's planners: how long they take against the paper's times, and how far they are from the proven optimum.

Part 1: the four settings of the paper's Table 5 (64 A100; batch and memory as there): seconds and gaps of the dynamic program
on grids of 64 to 512 levels, of its basic version, of greedy and of random, against the paper's minutes. Part 2: the models and
batches of its Tables 1 and 3, twelve, at three memory limits each, from where nearly all switches are needed to where few are:
of every planner how often it finds something, how often the optimum, and its gaps. Layers differ by 3 %. Gaps are to the proven
optimum, or to its bound where 30 s did not prove it. Exit status 1 where a planner beats a proven bound,
its answer is not valid, the dynamic program at 128 levels takes more than 10 s, or its versions differ.

    python -m benchmarks.h3t_planners --json results.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate
from trainplan.formulations.plan.switches import ALL_ON
from trainplan.solvers.core.solve import solve

from tests.helpers.switch_instances import bert_instance

LEVELS = (64, 128, 256, 512)
LIMIT_SECONDS, ALLOWED_SECONDS = 30.0, 10.0
GB = 10**9
NOISE = 0.03

# Size, batch, memory in GB; minutes of the paper's DP, greedy and random solver (Table 5).
TABLE_5 = (
    ("13b", 1024, 25, {"h3t-dp": 12.0, "h3t-greedy": 0.6, "random": 0.1}),
    ("100b", 1024, 25, {"h3t-dp": 4.7, "h3t-greedy": 0.9, "random": 0.2}),
    ("13b", 4096, 25, {"h3t-dp": 2.8, "h3t-greedy": 0.6, "random": 0.1}),
    ("13b", 1024, 100, {"h3t-dp": 13.9, "h3t-greedy": 0.6, "random": 0.1}),
)
# Size, batch, devices, NVLink (Tables 1 and 3).
TABLE_3 = (
    *(("1.8b", batch, 8, False) for batch in (128, 512)),
    *(("6b", batch, 8, False) for batch in (8, 32)),
    *(("6b", batch, 8, True) for batch in (128, 512)),
    *(("13b", batch, 8, True) for batch in (128, 512)),
    *(("13b", batch, 64, True) for batch in (1024, 4096)),
    *(("100b", batch, 64, True) for batch in (1024, 2048)),
)
SHARES = (0.02, 0.15, 0.5)  # of the bytes between all switches on and all off
Run = tuple[str, str, dict[str, Any]]


def runs(levels: tuple[int, ...], basic: bool) -> list[Run]:
    """Name, method and options of everything that is run."""
    dynamic: list[Run] = [(f"dp, m = {m}", "h3t-dp", {"levels": m}) for m in levels]
    if basic:
        dynamic.append(("dp, basic, m = 128", "h3t-dp", {"levels": 128, "version": "basic"}))
    return [*dynamic, *((name, name, {}) for name in ("h3t-greedy", "random", "manual", "zero-2", "zero-3"))]


def models(shares: tuple[float, ...]) -> list[tuple[dict[str, Any], Instance]]:
    """Part 2's cases: what they are called by, and the instance."""
    found = []
    for size, batch, devices, nvlink in TABLE_3:
        ample = bert_instance(size, 2**47, batch=batch, devices=devices, nvlink=nvlink, noise=NOISE)
        ends = (ALL_ON, ample.options[0])
        least, most = (evaluate(ample, Solution((s,) * ample.layers)).peak_bytes for s in ends)
        for share in shares:
            memory = int(least + share * (most - least))
            case = {"model": size, "batch": batch, "devices": devices, "nvlink": nvlink, "memory_gb": round(memory / GB, 1)}
            found.append((case, replace(ample, memory_bytes=memory)))
    return found


def measured(case: dict[str, Any], instance: Instance, planners: list[Run]) -> list[dict[str, Any]]:
    """The exact answer and those of the planners, one row each."""
    rows: list[dict[str, Any]] = []
    bound: int | None = None
    for name, method, options in [("exact", "exact", {"time_limit": LIMIT_SECONDS}), *planners]:
        started = time.perf_counter()
        result = solve(instance, method, explained=False, **options)
        seconds = time.perf_counter() - started
        bound = result.bound if bound is None else bound
        gap = None if result.objective is None or bound is None else result.objective / bound - 1
        row = {"planner": name, "seconds": seconds, "time_ns": result.objective, "status": result.status, "gap": gap}
        rows.append(case | row | {"states": result.statistics.get("states")})
    return rows


def shown(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        cells = ("-" if value is None else f"{value:.5f}" if isinstance(value, float) else str(value) for value in row.values())
        table.add_row(*cells)
    Console(width=180).print(table)


def by_planner(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Part 2, summed up."""
    found = []
    for planner in dict.fromkeys(row["planner"] for row in rows):
        own = [row for row in rows if row["planner"] == planner]
        gaps = [row["gap"] for row in own if row["gap"] is not None]
        summary = {"planner": planner, "cases": len(own), "found": len(gaps), "at_the_optimum": sum(gap < 1e-9 for gap in gaps)}
        summary |= {"median_gap": statistics.median(gaps) if gaps else None, "worst_gap": max(gaps, default=None)}
        seconds = [row["seconds"] for row in own]
        found.append(summary | {"median_seconds": statistics.median(seconds), "worst_seconds": max(seconds)})
    return found


def wrong_ones(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not as they should be."""
    found = [row for row in rows if row["status"] == "failed" or (row["gap"] is not None and row["gap"] < 0)]
    found += [row for row in rows if row["planner"] == "dp, m = 128" and row["seconds"] > ALLOWED_SECONDS]
    pruned, basic = ([row for row in rows if row["planner"] == f"dp, {which}m = 128"] for which in ("", "basic, "))
    return found + [b for a, b in zip(pruned, basic, strict=False) if a["time_ns"] != b["time_ns"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="128 levels, one memory limit, no basic version: about a minute")
    given = parser.parse_args()
    levels, shares = ((128,), SHARES[1:2]) if given.quick else (LEVELS, SHARES)
    solve(bert_instance("1.8b", 2**47, batch=64, layers=2), "manual")  # imports and caches of numpy

    table_5 = []
    for size, batch, memory, minutes in track(TABLE_5, "Table 5", transient=True):
        instance = bert_instance(size, memory * GB, batch=batch, devices=64, noise=NOISE)
        for row in measured({"model": size, "batch": batch, "memory_gb": memory}, instance, runs(levels, not given.quick)):
            method = "h3t-dp" if row["planner"].startswith("dp") else row["planner"]
            table_5.append(row | {"paper_minutes": minutes.get(method)})
    shown("settings of Table 5", table_5)
    cases = track(models(shares), "models and limits", transient=True)
    rows = [row for case, instance in cases for row in measured(case, instance, runs(levels, basic=False))]
    shown("models of Tables 1 and 3", by_planner(rows))
    if given.json:
        parts = {"table 5": table_5, "models": rows, "by planner": by_planner(rows)}
        given.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    wrong = wrong_ones(table_5) + wrong_ones(rows)
    for row in wrong:
        print(f"not as it should be: {row}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
