"""Time the methods for layer-strategies on the paper's models, and label-setting on far larger ones.

Part 1: bert-huge-32 and bert-huge-48 on 8 devices, every stage of pipelines of 1, 2, 4 and 8 stages: 22, 14, 6 and 2
options a layer, together the paper's 44. Every method that proves optimality must have the same objective, else the exit
status is 1.

Part 2: label-setting with 22 options (8 devices) and 46 options (64 devices), 48 to 1000 layers, all equal or with 3 %
noise of each layer's times and bytes. Memory is tight: a tenth of the way from the least that fits to the most useful.

    python benchmarks/layer_strategies.py --json results.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from trainplan.formulations.layer_strategies.problem import COLUMNS, Instance
from trainplan.profiling.clusters.cluster import Cluster, Island, load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.solvers.core.result import Result

import trainplan as tp

MODELS = ("bert-huge-32", "bert-huge-48")
PROVERS = ("label-setting", "cpsat", "milp")
PIPELINES = (1, 2, 4, 8)
SIZES = (48, 128, 512, 1000)
TIGHT = 0.1
NOISE = 0.03
LARGEST = 2**48  # the largest memory limit that an instance may have
COARSE = 512  # layers from which a gap of 1e-4 will do


def stages(model: str) -> Iterator[tuple[int, int, Instance]]:
    """Every stage of every pipeline, with 4 micro-batches of 8 samples where there is more than one stage."""
    for pipeline in PIPELINES:
        micro_batches = 4 if pipeline > 1 else 1
        for stage in range(pipeline):
            yield (
                pipeline,
                stage,
                tp.build(
                    model=model,
                    cluster="rtx-titan-8",
                    batch=8 * micro_batches,
                    memory="8GiB",
                    pipeline=pipeline,
                    stage=stage,
                    micro_batches=micro_batches,
                ),
            )


def compared(instance: Instance, time_limit: float, repeats: int) -> dict[str, Any]:
    """Every method on one instance; label-setting's time is the median of warm repeats."""
    results = {name: tp.solve(instance, name, time_limit=time_limit) for name in (*PROVERS, "galvatron-dp")}
    best, dp = results["label-setting"], results["galvatron-dp"]
    proven = [result.objective for result in results.values() if result.status == "optimal"]
    found = [result.objective for result in results.values() if result.objective is not None]
    fits = {name: result.status == "infeasible" for name, result in results.items() if result.status == "infeasible"}
    agree = len(set(proven)) <= 1 and not (proven and min(found) < proven[0]) and not (fits and found)
    return {
        "options": max(instance.options),
        "layers": instance.layers,
        "methods": {
            name: {"status": r.status, "objective_ns": r.objective, "bound_ns": r.bound, "seconds": seconds(r)}
            for name, r in results.items()
        }
        | {
            "label-setting": {
                "status": best.status,
                "objective_ns": best.objective,
                "bound_ns": best.bound,
                "seconds": timed(instance, best, time_limit, 0.0, repeats),
            }
        },
        "galvatron_gap": None if not (best.objective and dp.objective) else dp.objective / best.objective - 1,
        "agree": agree and not any(result.status == "failed" for result in results.values()),
    }


def seconds(result: Result) -> float:
    return round(result.build_seconds + result.solve_seconds, 4)


def timed(instance: Instance, first: Result, time_limit: float, gap: float, repeats: int) -> float:
    """Median seconds of label-setting over warm repeats; the first run's where that took over two seconds."""
    if seconds(first) > 2:
        return seconds(first)
    runs = [tp.solve(instance, "label-setting", time_limit=time_limit, gap=gap) for _ in range(repeats)]
    return statistics.median(map(seconds, runs))


def large_cases() -> list[tuple[Model, Cluster, int]]:
    """Model, cluster and batch with 22 and with 46 options. 64 heads, so that a tensor-parallel degree of 64 is possible."""
    eight, model = load_cluster("rtx-titan-8"), load_model("bert-huge-48")
    nodes = [eight.nodes[0].changed(count=8)]
    links = [Island(devices=64, bandwidth_bytes_per_s=3e9, latency_ns=30_000)]
    many = Cluster(name="rtx-titan-64", kinds=eight.kinds, nodes=nodes, islands=links)
    return [(model, eight, 8), (model.with_fields(num_attention_heads=64), many, 64)]


def noisy(instance: Instance, seed: int) -> Instance:
    """Every layer's times and bytes, all its options alike, times a factor of its own within the noise."""
    rng, columns = random.Random(seed), {name: list(getattr(instance, name)) for name in COLUMNS}
    for layer in range(instance.layers):
        factors = {name: rng.uniform(1 - NOISE, 1 + NOISE) for name in COLUMNS}
        for name, factor in factors.items():
            columns[name][layer] = np.rint(columns[name][layer] * factor).astype(np.int64)
    return replace(instance, **{name: tuple(column) for name, column in columns.items()})


def tight(instance: Instance) -> Instance:
    """The instance at a tenth of the way from the least memory that fits to that of the fastest choice."""
    nothing, free = tp.solve(instance.with_memory(1)), tp.solve(instance.with_memory(LARGEST))
    assert nothing.reason is not None and free.evaluation is not None
    least, most = nothing.reason.least_memory_bytes, free.evaluation["peak_bytes"]
    return instance.with_memory(least + round(TIGHT * (most - least)))


def scaled(instance: Instance, kind: str, time_limit: float, repeats: int) -> dict[str, Any]:
    """Label-setting on one large instance."""
    gap = 1e-4 if instance.layers >= COARSE else 0.0
    first = tp.solve(instance, "label-setting", time_limit=time_limit, gap=gap)
    return {
        "options": max(instance.options),
        "layers": instance.layers,
        "kind": kind,
        "memory_bytes": instance.memory_bytes,
        "status": first.status,
        "objective_ns": first.objective,
        "gap": first.gap,
        "gap_asked": gap,
        "labels": first.statistics.get("labels"),
        "seconds": timed(instance, first, time_limit, gap, repeats),
    }


def part_1(console: Console, time_limit: float, repeats: int) -> list[dict[str, Any]]:
    names = [f"{name}, s" for name in PROVERS]
    table = Table(
        "model",
        "stage",
        "options",
        "layers",
        "optimum, ms",
        *names,
        "galvatron-dp gap",
        "agree",
        title="The paper's models, 8 devices of 8 GiB",
    )
    rows = []
    for model in MODELS:
        for pipeline, stage, instance in stages(model):
            row = {"model": model, "pipeline": pipeline, "stage": stage, **compared(instance, time_limit, repeats)}
            rows.append(row)
            times = [f"{m['seconds']:.3f} {m['status']}" for m in (row["methods"][name] for name in PROVERS)]
            objective = row["methods"]["label-setting"]["objective_ns"]
            table.add_row(
                model,
                f"{stage} of {pipeline}",
                str(row["options"]),
                str(row["layers"]),
                "none" if objective is None else f"{objective / 1e6:.3f}",
                *times,
                "none found" if row["galvatron_gap"] is None else f"{row['galvatron_gap']:.3%}",
                "yes" if row["agree"] else "NO",
            )
    console.print(table)
    return rows


def part_2(console: Console, sizes: tuple[int, ...], time_limit: float, repeats: int) -> list[dict[str, Any]]:
    table = Table(
        "options", "layers", "kind", "status", "seconds", "certified gap", "labels", title="Label-setting at tight memory"
    )
    rows = []
    for model, cluster, batch in large_cases():
        for layers in sizes:
            equal = tp.build(model=model.with_fields(num_hidden_layers=layers), cluster=cluster, batch=batch, memory="8GiB")
            for kind, instance in (("equal", equal), ("3 % noise", noisy(equal, seed=layers))):
                row = scaled(tight(instance), kind, time_limit, repeats)
                rows.append(row)
                table.add_row(
                    str(row["options"]),
                    str(layers),
                    kind,
                    row["status"],
                    f"{row['seconds']:.3f}",
                    "none" if row["gap"] is None else f"{row['gap']:.2e}",
                    str(row["labels"]),
                )
    console.print(table)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="shorter limits and fewer sizes: under 40 seconds")
    parser.add_argument("--repeats", type=int, default=3, help="warm runs of label-setting, of which the median counts")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats: give at least 1")

    console, started = Console(width=None if sys.stdout.isatty() else 130), time.perf_counter()
    repeats = 1 if arguments.quick else arguments.repeats
    stages_found = part_1(console, 3 if arguments.quick else 20, repeats)
    large = part_2(console, SIZES[:2] if arguments.quick else SIZES, 3 if arguments.quick else 20, repeats)
    agree = all(row["agree"] for row in stages_found) and not any(row["status"] == "failed" for row in large)
    if arguments.json:
        arguments.json.write_text(json.dumps({"stages": stages_found, "scaling": large}, indent=2) + "\n")
    console.print(f"{'all methods agree' if agree else 'METHODS DISAGREE'}; {time.perf_counter() - started:.1f} s")
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
