"""Time layer assignments: every method on AMP's sizes, the sweep on sizes that only it takes, and how both grow.

Part 1: all methods at 56 layers and 8 stages (the TransGAN generator of AMP's Table 10). Part 2: the sweep at 512 and 2000
layers in 64 stages. Layers are equal, equal with 3 % noise, random, or random on every stage's own device. Transfers of cuts
differ up to one layer's time. Times are warm medians; a method gets 20 s. Exit status 1 where the sweep does not prove its
answer, a method is better than it, or it takes longer than 0.1 s (512 layers) or 1 s (2000 layers).

    python benchmarks/stage_assignment.py --json results.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from trainplan.formulations.stage_assignment.problem import Instance, load
from trainplan.solvers.core.method_registry import methods
from trainplan.solvers.core.search import Unsupported
from trainplan.solvers.core.solve import solve

LAYER_NS = 10**7
LAYERS = ("equal", "noisy", "random", "own devices")
SIZES = ((56, 8), (512, 64), (2000, 64))
MICRO_BATCHES = (4, 64)
ALLOWED_SECONDS = {56: 0.1, 512: 0.1, 2000: 1.0}
LIMIT_SECONDS = 20.0


def instance_of(layers: int, stages: int, kind: str, micro_batches: int) -> Instance:
    rng = np.random.default_rng(layers)
    times = {
        "equal": np.full(layers, LAYER_NS),
        "noisy": (LAYER_NS * (1 + 0.03 * rng.standard_normal(layers))).astype(np.int64),
        "random": rng.integers(1, 2 * LAYER_NS, layers),
        "own devices": rng.integers(1, 2 * LAYER_NS, (stages, layers)),
    }[kind]
    return load(
        {
            "problem": "stage-assignment",
            "version": 1,
            "stages": stages,
            "micro_batches": micro_batches,
            "layer_ns": times.tolist(),
            "transfer_ns": rng.integers(0, LAYER_NS, layers - 1).tolist(),
            "parameters": rng.integers(1, 10**6, layers).tolist(),
        }
    )


def timed(instance: Instance, method: str, repeats: int) -> dict[str, Any]:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = solve(instance, method, time_limit=LIMIT_SECONDS)
        seconds.append(time.perf_counter() - started)
    return {
        "method": method,
        "seconds": statistics.median(seconds),
        "status": result.status,
        "time_ns": result.objective,
        "gap": result.gap,
        "steps": result.statistics.get("steps"),
    }


def measured(methods: list[str], sizes: tuple[tuple[int, int], ...], repeats: int) -> list[dict[str, Any]]:
    rows = []
    for layers, stages in sizes:
        for kind in LAYERS:
            for micro_batches in MICRO_BATCHES:
                instance = instance_of(layers, stages, kind, micro_batches)
                best = None
                for method in methods:
                    try:
                        row = timed(instance, method, repeats if method == "sweep" else 1)
                    except Unsupported:
                        continue
                    best = row["time_ns"] if best is None else best
                    above = None if row["time_ns"] is None else row["time_ns"] / best - 1
                    case = {"layers": layers, "stages": stages, "times": kind, "micro_batches": micro_batches}
                    rows.append(case | row | {"above_sweep": above})
    return rows


def shown(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        cells = ("-" if value is None else f"{value:.5f}" if isinstance(value, float) else str(value) for value in row.values())
        table.add_row(*cells)
    Console(width=180).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="without the solvers that take long: a few seconds")
    parser.add_argument(
        "--repeats", type=int, default=5, help="solves of each instance by the sweep, of which the median counts"
    )
    given = parser.parse_args()
    names = [entry.name for entry in methods("stage-assignment") if not given.quick or entry.name not in ("milp", "cpsat")]
    solve(instance_of(56, 8, "random", 4))  # imports and caches of numpy
    parts = {"every method": measured(names, SIZES[:1], given.repeats)}
    shown("every method, 56 layers", parts["every method"])
    parts["sweep"] = measured(["sweep", "uniform-layers", "uniform-parameters"], SIZES[1:], given.repeats)
    shown("the sweep, 512 and 2000 layers", parts["sweep"])
    if given.json:
        given.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    wrong = [
        row
        for row in parts["every method"] + parts["sweep"]
        if (row["above_sweep"] is not None and row["above_sweep"] < 0)
        or (row["method"] == "sweep" and (row["status"] != "optimal" or row["seconds"] > ALLOWED_SECONDS[row["layers"]]))
    ]
    for row in wrong:
        print(f"not as it should be: {row}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
