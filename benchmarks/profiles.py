"""Profiles: how well three sizes predict two others on this machine, and how long instances take to make.

Held out: a layer is measured at five sizes; its times and bytes at two of them are predicted from the other three, by rows (a
line through the profiled sizes, as `profiling.interpolate` draws it) and by hidden size (the roofline calibrated to them).
Pairs: every shipped model on every shipped cluster becomes an instance.

    python -m benchmarks.profiles [--budget 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.clusters.network import Island
from trainplan.profiling.estimate import estimated_cost
from trainplan.profiling.interpolate import complete
from trainplan.profiling.measure.measure import measure
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.profiles import Profile, UnitCost
from trainplan.profiling.shipped import shipped

import trainplan as tp
from benchmarks.calibration import Sample, calibrate

PARTS = ("attention", "ffn")
SEEN_ROWS, HELD_ROWS = (1, 4, 16), (2, 8)
SEEN_SIZES, HELD_SIZES = (256, 512, 1024), (384, 768)


def one_process() -> Cluster:
    base = load_cluster("cpu-4")
    alone = base.nodes[0].changed(devices=1, islands=[Island(devices=1, bandwidth_bytes_per_s=1e9)])
    return base.changed(nodes=[alone])


def of_width(hidden: int) -> Model:
    return load_model("gpt2", 256, "float32").with_fields(n_embd=hidden, n_head=hidden // 64, n_layer=1, vocab_size=512)


def row(by: str, part: str, size: int, predicted: UnitCost, measured: UnitCost) -> dict[str, Any]:
    def total(entry: UnitCost, *names: str) -> int:
        return sum(getattr(entry, name).value for name in names)

    times = ("forward_ns", "backward_ns")
    return {
        "by": by,
        "part": part,
        "size": size,
        "predicted_ns": total(predicted, *times),
        "measured_ns": total(measured, *times),
        "spread": max(measured.forward_ns.spread, measured.backward_ns.spread),
        "time_error": total(predicted, *times) / total(measured, *times) - 1,
        "bytes_error": total(predicted, "kept_bytes") / max(1, total(measured, "kept_bytes")) - 1,
    }


def by_rows(budget: float) -> list[dict[str, Any]]:
    cluster, model = one_process(), of_width(512)
    shapes = [(1, rows) for rows in sorted((*SEEN_ROWS, *HELD_ROWS))]
    whole = measure(model, cluster, shapes, budget_seconds=budget)
    seen = whole.changed(costs=[entry for entry in whole.costs if entry.rows in SEEN_ROWS])
    line = complete(seen, [(1, rows) for rows in HELD_ROWS])
    return [
        row("rows", part, rows, line.cost(part, 1, rows), whole.cost(part, 1, rows)) for part in PARTS for rows in HELD_ROWS
    ]


def by_width(budget: float, rows: int = 4) -> list[dict[str, Any]]:
    cluster = one_process()
    models = {hidden: of_width(hidden) for hidden in sorted((*SEEN_SIZES, *HELD_SIZES))}
    found: dict[int, Profile] = {
        hidden: measure(model, cluster, [(1, rows)], budget_seconds=budget / len(models)) for hidden, model in models.items()
    }
    samples = [
        Sample(models[h].sublayers[part], 1, rows, cost.forward_ns.value, cost.backward_ns.value)
        for h in SEEN_SIZES
        for part in PARTS
        for cost in [found[h].cost(part, 1, rows)]
    ]
    kind = calibrate(cluster.kinds[0], samples)
    return [
        row(
            "hidden size", part, h, estimated_cost(part, models[h].sublayers[part], kind, 1, rows), found[h].cost(part, 1, rows)
        )
        for part in PARTS
        for h in HELD_SIZES
    ]


def pairs() -> list[dict[str, Any]]:
    found = []
    for cluster_name in shipped("clusters"):
        cluster = load_cluster(cluster_name)
        dtypes = set.intersection(*(set(kind.flops_per_s) for kind in cluster.used_kinds))
        for model in shipped("models"):
            started = time.perf_counter()
            instance = tp.build(model=model, cluster=cluster_name, batch=2 * cluster.devices, dtype=max(dtypes))
            seconds = time.perf_counter() - started
            found.append({"cluster": cluster_name, "model": model, "layers": instance.layers, "seconds": seconds})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", type=float, default=60, help="seconds for the repeats of each of the two measurements")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    held = by_rows(options.budget) + by_width(options.budget)
    made = pairs()
    slowest = sorted(made, key=lambda item: -item["seconds"])[:5]
    seconds = [item["seconds"] for item in made]
    times = {"pairs": len(made), "median_s": statistics.median(seconds), "most_s": max(seconds), "slowest": slowest}
    if options.json:
        print(json.dumps({"held_out": held, "instances": times}, indent=1))
        return
    console = Console(width=120)
    table = Table(
        "by", "part", "held out", "predicted", "measured", "spread", "time error", "bytes error", title="Held-out sizes"
    )
    for item in held:
        figures = (f"{item[name] / 1e6:.3f} ms" for name in ("predicted_ns", "measured_ns"))
        errors = (f"{item['time_error']:+.1%}", f"{item['bytes_error']:+.2%}")
        table.add_row(item["by"], item["part"], str(item["size"]), *figures, f"{item['spread']:.1%}", *errors)
    console.print(table)
    worst = max(abs(item["time_error"]) for item in held), max(abs(item["bytes_error"]) for item in held)
    console.print(f"worst: time {worst[0]:.1%}, bytes {worst[1]:.2%}")
    console.print(f"{len(made)} instances: median {times['median_s']:.3f} s, most {times['most_s']:.3f} s")
    for item in slowest:
        console.print(f"  {item['seconds']:.3f} s  {item['model']} on {item['cluster']}, {item['layers']} layers")


if __name__ == "__main__":
    main()
