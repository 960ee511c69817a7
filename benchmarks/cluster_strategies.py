"""Time AMP's planners on growing clusters, against the seconds of the paper's Table 2, and the search for the optimum.

GPT-2 of 24 layers on k x k devices, k nodes of k devices, k = 2 to 64: all T4 with equal links, and mixed, a quarter of the
nodes T4 and the others V100, with the links of the paper's clusters. The batch is the paper's 32, and 2 samples a device, for
with 32 a large cluster has few strategies. Exit status 1 where the optimum of the paper's 4 x 4 is not proven, or any is worse
than a planner's strategy.

    python benchmarks/cluster_strategies.py --json results.json
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
from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.solvers.core.solve import solve

import trainplan as tp

SIDES = (2, 4, 8, 16, 32, 64)
CLUSTERS = ("amp-homogeneous-16", "amp-heterogeneous-16")
PAPER = {2: 58.0, 4: 325.6, 8: 890.3, 16: 1627.4}  # Table 2
PLANNERS = ("amp", "megatron", "simulated-annealing")


def square(name: str, side: int) -> Cluster:
    """A shipped cluster with `side` nodes of `side` devices; of two kinds of nodes, the second has a quarter."""
    shipped = load_cluster(name)
    few = max(1, side // 4) if len(shipped.nodes) > 1 else 0
    nodes = [
        node.changed(devices=side, count=count, islands=[island.changed(devices=side) for island in node.islands])
        for node, count in zip(shipped.nodes, (side - few, few), strict=False)
    ]
    islands = [island.changed(devices=side * side) for island in shipped.islands]
    return shipped.changed(name=f"{name} {side}x{side}", nodes=nodes, islands=islands)


def timed(instance: Instance, method: str, repeats: int, time_limit: float | None = None) -> tuple[float, Any]:
    """Median seconds of fresh solves, each of an instance of its own, and the last result."""
    seconds = []
    for _ in range(repeats):
        fresh = tp.load(instance.to_dict())
        started = time.perf_counter()
        result = solve(fresh, method, time_limit=time_limit, explained=False)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), result


def row_of(name: str, side: int, batch: int, repeats: int, exact: bool, limit: float) -> dict[str, Any]:
    instance = tp.build("cluster-strategy", model="amp-gpt2", cluster=square(name, side), batch=batch, dtype="float32")
    assert isinstance(instance, Instance)
    row: dict[str, Any] = {"devices": f"{side}x{side}", "batch": batch}
    for method in PLANNERS:
        row[f"{method} s"], result = timed(instance, method, repeats)
        row[f"{method} ms"] = None if result.objective is None else result.objective / 1e6
        if method == "amp":
            row["strategies"] = result.statistics["estimated"]
    row |= {"optimum s": None, "optimum ms": None, "gap": None}
    if exact:
        row["optimum s"], result = timed(instance, "exact", 1, limit)
        row |= {"optimum ms": None if result.objective is None else result.objective / 1e6}
        row["gap"] = "none" if result.gap is None else "0" if result.status == "optimal" else f"{result.gap:.2%}"
    return row | {"paper's AMP s": PAPER.get(side) if batch == 32 and len(instance.kinds) == 1 else None}


def shown(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*("-" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=200).print(table)


def wrong(row: dict[str, Any]) -> bool:
    """Whether the optimum was requested and is worse than a planner's strategy, or on the paper's cluster not proven."""
    if row["gap"] is None:
        return False
    known = [row[f"{method} ms"] for method in PLANNERS if row[f"{method} ms"] is not None]
    unproven = row["devices"] in ("2x2", "4x4") and row["gap"] != "0"
    return unproven or row["optimum ms"] is None or row["optimum ms"] > min(known, default=float("inf"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="up to 4x4 devices only")
    parser.add_argument("--repeats", type=int, default=3, help="fresh solves of each instance, of which the median counts")
    parser.add_argument("--exact-side", type=int, default=32, metavar="K", help="search the optimum up to KxK devices (0: not)")
    parser.add_argument("--time-limit", type=float, default=30, metavar="SECONDS", help="of the search for one optimum")
    given = parser.parse_args()
    solve(
        tp.build("cluster-strategy", model="amp-gpt2", cluster="amp-p3-16", batch=8, dtype="float32"), "amp"
    )  # imports and caches of numpy
    parts: dict[str, list[dict[str, Any]]] = {}
    for name in CLUSTERS:
        title = load_cluster(name).name.removesuffix("-16")
        parts[title] = [
            row_of(name, side, batch, given.repeats, side <= given.exact_side, given.time_limit)
            for side in SIDES[: 2 if given.quick else None]
            for batch in dict.fromkeys((32, 2 * side * side))
        ]
        shown(f"GPT-2 (24 layers), {title}, seconds of each method and the step time it finds", parts[title])
    if given.json:
        given.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    return 1 if any(wrong(row) for rows in parts.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
