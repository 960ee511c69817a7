"""Time the exact solver of memory-switches on H3T's models, and how it grows.

Part 1: the twelve settings of the paper's Tables 1 and 3 (BERT of 48 to 56 Transformer layers, on 2080 Ti without NVLink and
A100 with it), estimated from their shapes; layers equal, or with 3 % noise of all their times and bytes; memory 0.2, 2, 10, 30
and 60 % of the way from the least that fits to what the fastest choice needs. Part 2: inputs of random sizes whose offload
costs the same for a byte in every layer, which makes a great number of choices nearly as good; exactly in 20 s, and to a
certified gap of 1e-3. Part 3: BERT-1.8B with 100 to 400 layers, to a gap of 1e-4. Times are warm medians, segments simulated
each time. Exit status 1 where something is not proven (but exactly in part 2, where that may take long), or where part 1 takes
1 s or more in the median, or 5 s or more at worst.

    python benchmarks/memory_switches.py --json results.json
"""

from __future__ import annotations

import argparse
import json
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
from trainplan.formulations.memory_switches.costs import build
from trainplan.formulations.memory_switches.problem import Instance
from trainplan.formulations.memory_switches.segments import segments
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.solve import solve
from trainplan.solvers.switches.exact import least_switches

SETTINGS = (
    *(("bert-1.8b", "h3t-2080ti-8", batch) for batch in (128, 512)),
    *(("bert-6b", "h3t-2080ti-8", batch) for batch in (8, 32)),
    *(("bert-6b", "h3t-a100-8", batch) for batch in (128, 512)),
    *(("bert-13b", "h3t-a100-8", batch) for batch in (128, 512)),
    *(("bert-13b", "h3t-a100-64", batch) for batch in (1024, 4096)),
    *(("bert-100b", "h3t-a100-64", batch) for batch in (1024, 2048)),
)
SHARES = (0.002, 0.02, 0.1, 0.3, 0.6)
DEPTHS = (100, 200, 400)
NOISE, DEEP_GAP, DEGENERATE_GAP = 0.03, 1e-4, 1e-3
AMPLE = 2**48
LIMIT_SECONDS, MEDIAN_SECONDS, WORST_SECONDS = 20.0, 1.0, 5.0


def estimated(model: str, cluster: str, batch: int) -> Instance:
    """Its Transformer layers, as in the paper."""
    machine, shape = load_cluster(cluster), load_model(model, dtype="float16")
    profile = estimate_shapes(shape, machine, [(1, batch // machine.devices)], machine.devices)
    whole = build(profile, batch, AMPLE, by_unit=False)
    return whole.part(1, whole.layers - 1)


def noisy(instance: Instance, seed: int = 0) -> Instance:
    """Every time and size of every layer times a factor of its own; inputs and outputs as they were, peaks above them."""
    rng, columns = np.random.default_rng(seed), dict(instance.columns)
    for name, column in instance.columns.items():
        if name not in ("input_bytes", "output_bytes") and not name.endswith("peak_bytes"):
            columns[name] = (column * (1 + NOISE * rng.uniform(-1, 1, len(column)))).astype(np.int64)
    columns["forward_peak_bytes"] = columns["forward_peak_bytes"] + columns["graph_bytes"] - instance["graph_bytes"]
    return replace(instance, columns=columns)


def limited(instance: Instance, share: float) -> Instance:
    """Memory a share of the way from the least that fits to that of the fastest choice."""
    least = least_switches(instance)[0]
    fastest = solve(replace(instance, memory_bytes=AMPLE)).evaluation
    assert fastest is not None
    return replace(instance, memory_bytes=least + round(share * (fastest["peak_bytes"] - least)))


def alike_offloads(seed: int, nvlink: bool) -> Instance:
    """BERT-1.8B with inputs of 60 to 140 MB, copied at one rate; the rest of the times hides no copy."""
    base, rng = estimated(*SETTINGS[0]), np.random.default_rng(seed)
    sizes = rng.integers(60_000_000, 140_000_000, base.layers + 1)
    columns = {name: np.where(name.endswith("_ns"), 1000, column) for name, column in base.columns.items()}
    columns |= {"input_bytes": sizes[:-1], "output_bytes": sizes[1:], "graph_bytes": 8 * sizes[:-1]}
    columns |= {"offload_hidden_ns": sizes[:-1] // 10, "prefetch_hidden_ns": sizes[:-1] // 10}
    columns |= {"forward_without_graph_peak_bytes": 2 * sizes[1:], "forward_peak_bytes": sizes[1:] + 8 * sizes[:-1]}
    return replace(base, columns=columns | {"backward_peak_bytes": 2 * sizes[:-1]}, nvlink=nvlink)


def papers(quick: bool) -> Iterator[tuple[dict[str, Any], Instance, float]]:
    for setting in SETTINGS[::4] if quick else SETTINGS:
        equal = estimated(*setting)
        for kind, instance in (("equal", equal), ("3 % noise", noisy(equal))):
            for share in SHARES:
                case = dict(zip(("model", "cluster", "batch"), setting, strict=True)) | {"layers kind": kind, "memory": share}
                yield case, limited(instance, share), 0.0


def degenerate(quick: bool) -> Iterator[tuple[dict[str, Any], Instance, float]]:
    for seed in range(1 if quick else 3):
        for nvlink in (True, False):
            for share in (0.02, 0.2):
                instance = limited(alike_offloads(seed, nvlink), share)
                for gap in (0.0, DEGENERATE_GAP):
                    yield {"seed": seed, "nvlink": nvlink, "memory": share}, instance, gap


def deep(quick: bool) -> Iterator[tuple[dict[str, Any], Instance, float]]:
    layer = estimated(*SETTINGS[0]).part(1, 2)
    for depth in DEPTHS[:1] if quick else DEPTHS:
        equal = replace(layer, columns={name: np.repeat(column, depth) for name, column in layer.columns.items()})
        for kind, instance in (("equal", equal), ("3 % noise", noisy(equal))):
            yield {"layers": depth, "layers kind": kind, "memory": 0.1}, limited(instance, 0.1), DEEP_GAP


def measured(case: dict[str, Any], instance: Instance, gap: float, repeats: int) -> dict[str, Any]:
    """One row: median seconds of warm solves (of one, where that takes over two seconds)."""
    seconds = []
    while not seconds or (len(seconds) < repeats and seconds[0] < 2):
        started = time.perf_counter()
        result = solve(instance, time_limit=LIMIT_SECONDS, gap=gap)
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    segments(instance)
    return case | {
        "gap asked": gap,
        "status": result.status,
        "time_ns": result.objective,
        "gap": result.gap,
        "labels": result.statistics.get("labels", 0),
        "seconds": statistics.median(seconds),
        "of which segments": time.perf_counter() - started,
    }


def shown(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=180).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="a quarter of the settings, the smallest sizes: under a minute")
    parser.add_argument("--repeats", type=int, default=3, help="warm solves of which the median counts")
    given = parser.parse_args()
    repeats = 1 if given.quick else given.repeats
    solve(limited(estimated(*SETTINGS[0]), 0.5))  # imports and caches of numpy
    parts = {}
    for title, cases in (("the paper's settings", papers), ("one price of a byte", degenerate), ("deeper models", deep)):
        parts[title] = [measured(*case, repeats) for case in cases(given.quick)]
        shown(title, parts[title])
    seconds = [row["seconds"] for row in parts["the paper's settings"]]
    median, worst = statistics.median(seconds), max(seconds)
    print(f"the paper's settings: {len(seconds)} instances, median {median:.2f} s, worst {worst:.2f} s")
    if given.json:
        given.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    wrong = [
        row
        for title, rows in parts.items()
        for row in rows
        if row["status"] != "optimal" and (row["gap asked"] or title != "one price of a byte")
    ]
    for row in wrong:
        print(f"not proven: {row}", file=sys.stderr)
    return int(bool(wrong) or median >= MEDIAN_SECONDS or worst >= WORST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
