"""Time whole pipelines: one batch size to proven optimality, the whole search over batch sizes, and how both grow.

Part 1: optimum over stages, micro-batches and strategies for one batch size: 48-layer models on 8 devices, and bert-xhuge
(128 layers) on 64. Part 2: the search over all batch sizes for every model of the paper's Table I on 8 and on 16 devices, by
Galvatron-BMW and by the exact method. Part 3: growth with layers, memory, strategies and devices. Exit status 1 where a result
is not proven, or Galvatron-BMW is better than the optimum.

    python benchmarks/pipelines.py --json results.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.formulations.pipeline.batches import BatchInstances
from trainplan.formulations.pipeline.instance import Instance
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.solvers.core.solve import solve

import trainplan as tp
from trainplan.planning.presets import OPTIMUM, planner
from trainplan.planning.throughput import search_throughput

MODELS_48 = ("bert-huge-48", "vit-huge-48", "t5-large-48", "swin-huge-48")
TABLE_I = ("bert-huge-32", "bert-huge-48", "vit-huge-32", "vit-huge-48", "t5-large-32", "t5-large-48",
           "t5-512-4-32", "t5-512-4-48", "swin-huge-32", "swin-huge-48")  # fmt: skip
LAYERS = (24, 48, 96, 192)
MEMORIES = ("8GiB", "16GiB", "32GiB", "64GiB")
SPACES = ("dp+pp", "no-ckpt", "full", "full-dp-sdp")
CLUSTERS = (("rtx-titan-8", 8), ("rtx-titan-16", 16), ("a100-64", 64))


def timed(instance: Instance, repeats: int) -> dict[str, Any]:
    """Median seconds of fresh solves. Each has an instance of its own, so that nothing solved before is known."""
    seconds = []
    for _ in range(repeats):
        fresh = tp.load(instance.to_dict())
        started = time.perf_counter()
        result = solve(fresh, "exact", time_limit=120)
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": statistics.median(seconds),
        "status": result.status,
        "time_ns": result.objective,
        "gap": result.gap,
        "configurations": len(instance.configurations),
        "layers": instance.layers,
    }


def built(model: str | Model, cluster: str, batch: int, memory: str, space: str = "full") -> Instance:
    return tp.build("pipeline", model=model, cluster=cluster, batch=batch, memory=memory, space=space)


def one_batch(quick: bool, repeats: int) -> list[dict[str, Any]]:
    cases = [(m, "rtx-titan-8", b, g) for m in MODELS_48 for b in (64, 128) for g in ("8GiB", "12GiB", "16GiB")]
    cases += [("bert-xhuge", "a100-64", b, g) for b in (128, 376) for g in ("16GiB", "32GiB")]
    if quick:
        cases = cases[::6]
    return [{"model": m, "cluster": c, "batch": b, "memory": g, **timed(built(m, c, b, g), repeats)} for m, c, b, g in cases]


def whole_search(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for name in TABLE_I[: 2 if quick else None]:
        for cluster in ("rtx-titan-8", "rtx-titan-16"):
            model, found = load_model(name, dtype="float32"), load_cluster(cluster)
            row: dict[str, Any] = {"model": name, "cluster": cluster, "memory": "12GiB"}
            for method in ("galvatron-bmw", OPTIMUM):
                started = time.perf_counter()
                result = search_throughput(BatchInstances(model, found), planner(method), 12 * 2**30)
                row[f"{method}_seconds"] = time.perf_counter() - started
                row[f"{method}_batches"] = len(result.points)
                row[f"{method}_throughput"] = result.best.throughput if result.best else 0.0
            rows.append(row)
    return rows


def growth(quick: bool, repeats: int) -> list[dict[str, Any]]:
    rows = []
    model = load_model("bert-huge-48")
    for layers in LAYERS[: 2 if quick else None]:
        instance = built(model.with_fields(num_hidden_layers=layers), "rtx-titan-8", 64, "16GiB")
        rows.append({"varied": "layers", "value": layers, **timed(instance, repeats)})
    for memory in MEMORIES[: 2 if quick else None]:
        rows.append({"varied": "memory", "value": memory, **timed(built(model, "rtx-titan-8", 64, memory), repeats)})
    for space in SPACES[: 2 if quick else None]:
        rows.append({"varied": "space", "value": space, **timed(built(model, "rtx-titan-8", 64, "16GiB", space), repeats)})
    for cluster, devices in CLUSTERS[: 2 if quick else None]:
        rows.append({"varied": "devices", "value": devices, **timed(built(model, cluster, 64, "16GiB"), repeats)})
    return rows


def shown(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=180).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="a few cases of each part: under a minute")
    parser.add_argument("--repeats", type=int, default=3, help="fresh solves of each instance, of which the median counts")
    given = parser.parse_args()
    repeats = 1 if given.quick else given.repeats
    solve(built("bert-huge-32", "rtx-titan-8", 8, "8GiB"), "exact")  # imports and caches of numpy
    parts = {"one batch size": one_batch(given.quick, repeats)}
    shown("one batch size, to proven optimality", parts["one batch size"])
    parts["whole search"] = whole_search(given.quick)
    shown("all batch sizes", parts["whole search"])
    parts["growth"] = growth(given.quick, repeats)
    shown("growth of one batch size", parts["growth"])
    if given.json:
        given.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    unproven = [row for part in ("one batch size", "growth") for row in parts[part] if row["status"] != "optimal"]
    worse = [row for row in parts["whole search"] if row["galvatron-bmw_throughput"] > row["optimum_throughput"] * (1 + 1e-9)]
    return 1 if unproven or worse else 0


if __name__ == "__main__":
    sys.exit(main())
