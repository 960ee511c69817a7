"""Time from a plan to analysed programs: classes of equal ranks, their checks, the memory analysis and the time simulation.

Part 1: plans for 1,024 devices in 32 stages with 512 micro-batches, with one strategy and with several; `total_s` is to their
predicted step and peaks. Part 2: plans for 64 devices, all programs compiled and checked whole. Exit status 1 where a check
finds a fault or a plan for 1,024 devices takes longer than 10 seconds of the processor.

    python benchmarks/programs.py --json results.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.timing.profiled_costs import ProfiledCosts
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.compile.reduced_plan import fold
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profile_sources import obtain_profile

MOST_SECONDS = 10.0
# Depth, micro-batches, strategies and chunks of plans for 1,024 devices, and for 64.
LARGE = {
    "uniform": (32, 512, ["dp4-tp8"], 1),
    "mixed": (32, 512, ["dp4-tp8", "dp8-tp4-ckpt", "sdp32-ckpt", "tp8-dp4"], 1),
    "interleaved": (8, 128, ["dp16-tp8"], 12),
}
SMALL = {
    "uniform": (8, 8, ["dp4-tp2"], 1),
    "mixed": (8, 8, ["dp4-tp2", "dp8-ckpt", "sdp8", "tp2-sdp4"], 1),
    "interleaved": (8, 8, ["dp4-tp2"], 4),
}


def even_plan(name: str, world: int, depth: int, micro_batches: int, strategies: list[str], chunks: int = 1) -> Plan:
    """Stages of equally many units, strategies one after the other, as many samples as ranks of a stage; chunks: stages on each
    rank."""
    model = load_model(name, dtype="float32")
    units, size, stages = len(model.units), world // depth, depth * chunks
    bounds = [stage * units // stages for stage in range(stages + 1)]
    return load_plan(
        {
            "model": model.shape(),
            "model_digest": model.digest,
            "world": world,
            "memory_bytes": 2**48,
            "batch": {"global_samples": size * micro_batches, "micro_batches": micro_batches},
            "stages": [
                {
                    "ranks": list(range(i % depth * size, (i % depth + 1) * size)),
                    "first_unit": bounds[i],
                    "last_unit": bounds[i + 1] - 1,
                }
                for i in range(stages)
            ],
            "schedule": "1f1b" if chunks == 1 else "interleaved-1f1b",
            "units": [
                {"name": unit.name, "strategy": strategies[i * len(strategies) // units]} for i, unit in enumerate(model.units)
            ],
        }
    )


def large(name: str, mix: str) -> dict[str, Any]:
    plan = even_plan(name, 1024, *LARGE[mix])
    started = time.process_time()
    classes = compile_classes(plan)
    compiled = time.process_time()
    faults = check_classes(classes)
    checked = time.process_time()
    peak = max(memory_walk(device_class.walked).peak_bytes for device_class in classes)
    simulated = time.process_time()
    cluster = load_cluster("h200-1024")
    profile = obtain_profile(plan.planned_model(), cluster, [32], [32], devices=1024)
    profiled = time.process_time()
    stands_for = {rank: device_class.ranks[0] for device_class in classes for rank in device_class.ranks[1:]}
    costs = ProfiledCosts(
        plan, profile, cluster.device_kinds, {device_class.ranks[0]: device_class.ranks for device_class in classes}
    )
    walk = time_walk([device_class.rounds for device_class in classes], costs, "serial", stands_for)
    timed = time.process_time()
    return {
        "model": name,
        "strategies": mix,
        "classes": len(classes),
        "folded_ranks": fold(plan, plan.planned_model()).folded.world,
        "instructions": sum(map(len, walk.rounds)),
        "compile_s": compiled - started,
        "check_s": checked - compiled,
        "memory_walk_s": simulated - checked,
        "time_walk_s": timed - profiled,
        "total_s": timed - profiled + simulated - started,
        "step_s": walk.step_ns / 1e9,
        "peak_gib": peak / 2**30,
        "faults": len(faults),
    }


def small(name: str, mix: str) -> dict[str, Any]:
    plan = even_plan(name, 64, *SMALL[mix])
    started = time.process_time()
    programs = compile_plan(plan)
    compiled = time.process_time()
    faults = check(programs)
    checked = time.process_time()
    peak = max(memory_walk(program).peak_bytes for program in programs)
    simulated = time.process_time()
    return {
        "model": name,
        "strategies": mix,
        "instructions": sum(len(program.instructions) for program in programs),
        "compile_s": compiled - started,
        "check_s": checked - compiled,
        "walk_s": simulated - checked,
        "total_s": simulated - started,
        "peak_gib": peak / 2**30,
        "faults": len(faults),
    }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=180).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="one model, one strategy")
    options = parser.parse_args()
    cases = [("gpt3-175b", mix) for mix in LARGE][: 1 if options.quick else None]
    parts = {"1,024 devices, by classes": [large(*case) for case in cases]}
    parts["64 devices, all ranks whole"] = [small(*case) for case in cases]
    for title, rows in parts.items():
        show(f"{title} (seconds of the processor)", rows)
    if options.json:
        options.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    faulty = any(row["faults"] for rows in parts.values() for row in rows)
    slow = any(row["total_s"] > MOST_SECONDS for row in parts["1,024 devices, by classes"])
    return 1 if faulty or slow else 0


if __name__ == "__main__":
    sys.exit(main())
