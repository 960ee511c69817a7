"""Predicted against measured steps and peaks, by a profile measured beforehand on this machine.

The profile knows sub-layers, collectives, copies and the optimizer; no plan is run before it is predicted. There are plans that
planners make, and plans by hand with what planners do not choose: ZeRO stages by unit, hybrid sharding, sequence parallelism,
recomputation of modules, states and inputs on the host, interleaved stages, stages of unlike sizes. Those of one and two ranks
run STEPS steps, one thread a process; the median of all but the first counts. Memory is compared of those of four, too. Printed
are the time simulation by the profile, the time simulation by the times that the instructions themselves took, what was
measured, and the memory analysis against what torch allocated (its own record of allocations, by the profiler's memory events).

    python -m benchmarks.predictions --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.execution.launch.processes import run_plans
from trainplan.execution.prediction.evaluate_plan import judge
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.profiling.clusters.cluster import Cluster, load_cluster
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profiles import Profile

import trainplan as tp
from tests.helpers.plans import plan_of
from tests.helpers.residence_plans import ON_HOST, resident

STEPS = 6
MODEL = load_model("gpt2", 128, "float32").with_fields(
    n_layer=6, n_embd=384, n_head=6, n_inner=1536, n_positions=128, vocab_size=8192
)
UNITS = len(MODEL.units)
BATCH = 8
ONE = [{"micro_batches": m} for m in (1, 2, 4)] + [{"micro_batches": 2, "space": "full", "memory": "300MiB"}]
TWO: list[dict[str, Any]] = [
    *({"space": space, "micro_batches": m} for space in ("dp", "sdp", "tp") for m in (1, 2, 4)),
    *({"pipeline": 2, "micro_batches": m, "schedule": schedule} for m in (2, 4) for schedule in ("1f1b", "gpipe")),
    {"like": "partition", "pipeline": 2, "micro_batches": 4},
    {"like": "partition", "pipeline": 2, "micro_batches": 2, "recompute": True},
    {"like": "place", "recompute": True},
]
REQUESTS: dict[int, list[dict[str, Any]]] = {1: ONE, 2: TWO, 4: []}
TIMED = (1, 2)


def in_turn(*strategies: str) -> list[str]:
    """These strategies, unit by unit, again and again."""
    return list(islice(cycle(strategies), UNITS))


def by_hand(devices: int) -> dict[str, Plan]:
    """By what they are about."""
    every, host = range(UNITS), {"states": {**ON_HOST, "parameters": "device"}}
    single = plan_of(MODEL, in_turn("single"), 1, BATCH, 2)
    if devices == 1:
        return {
            "modules recomputed": plan_of(MODEL, in_turn("single-ckpt:activation+attention+loss+norms"), 1, BATCH, 2),
            "states on the host": resident(single, dict.fromkeys(every, host)),
            "inputs on the host": resident(single, {unit: {"hidden": True} for unit in every if unit % 2}),
        }
    sharded = plan_of(MODEL, in_turn("sdp2"), 2, BATCH, 2)
    if devices == 2:
        return {
            "ZeRO stage 1": plan_of(MODEL, in_turn("sdp2-zero1"), 2, BATCH, 2),
            "ZeRO stages by unit": plan_of(MODEL, in_turn("sdp2-zero1", "sdp2-zero2", "sdp2"), 2, BATCH, 2),
            "sequence parallelism": plan_of(MODEL, in_turn("tp2-sp"), 2, BATCH, 2),
            "sequence parallelism of some": plan_of(MODEL, in_turn("tp2-sp-ckpt", "dp2", "tp2"), 2, BATCH, 2),
            "modules recomputed": plan_of(MODEL, in_turn("dp2-ckpt:activation+norms"), 2, BATCH, 2),
            "states on the host": resident(sharded, {unit: host for unit in every if unit % 2}),
            "interleaved": interleaved([[0], [1]], "single"),
        }
    unlike = plan_of(MODEL, in_turn("single"), 1, 24, 2).model_dump() | {"world": 4}
    unlike["stages"] = [
        {"ranks": [0], "first_unit": 0, "last_unit": 4},
        {"ranks": [1, 2, 3], "first_unit": 5, "last_unit": UNITS - 1},
    ]
    for unit in unlike["units"][5:]:
        unit |= {"layout": {"levels": [{"axis": "sdp", "degree": 3}]}, "states": {"zero": 2}}
    return {
        "hybrid sharding": plan_of(MODEL, in_turn("dp2-sdp2-zero1", "dp2-sdp2-zero2", "dp2-sdp2"), 4, BATCH, 2),
        "hybrid sharding and tensors": plan_of(MODEL, in_turn("sdp2-tp2-sp", "dp2-sdp2-zero1", "tp2-dp2"), 4, BATCH, 2),
        "stages of unlike sizes": load_plan(unlike),
        "interleaved, sharded": interleaved([[0, 1], [2, 3]], "sdp2-zero2"),
    }


def interleaved(groups: list[list[int]], strategy: str) -> Plan:
    """Two stages on each group in turn."""
    content = plan_of(MODEL, in_turn(strategy), len(groups[0]), BATCH, 4).model_dump()
    bounds = [stage * UNITS // 4 for stage in range(5)]
    content["stages"] = [
        {"ranks": groups[stage % 2], "first_unit": bounds[stage], "last_unit": bounds[stage + 1] - 1} for stage in range(4)
    ]
    return load_plan(content | {"world": sum(map(len, groups)), "schedule": "interleaved-1f1b"})


def cluster_of(devices: int) -> Cluster:
    """A cluster of a given number of processes of this machine."""
    whole = load_cluster("cpu-4")
    islands = [whole.nodes[0].islands[0].changed(devices=devices)] if devices > 1 else []
    return whole.changed(name=f"cpu-{devices}", nodes=[whole.nodes[0].changed(devices=devices, islands=islands)])


def measured_profile(cluster: Cluster, devices: int) -> Profile:
    """A profile of this machine's processes, measured for all shapes of the plans."""
    tps = [t for t in (1, 2) if t <= devices]
    return tp.profile(model=MODEL, cluster=cluster, rows=(1, 2, 4, 8), tp=tps, measured=True, budget_seconds=25)


def plans(devices: int) -> dict[str, tuple[Plan, int | None]]:
    """Plans on a given number of processes, by name; and their steps in ns, predicted by one measured profile (None: not
    timed)."""
    cluster, made = cluster_of(devices), dict[str, tuple[Plan, int | None]]()
    profile = measured_profile(cluster, devices) if devices in TIMED else None
    for request in REQUESTS[devices]:
        plan = tp.plan(model=MODEL, cluster=cluster, batch=BATCH, profile=profile, **request).plan
        assert plan is not None and plan.predicted is not None, request
        made[", ".join(f"{name} {value}" for name, value in request.items())] = plan, plan.predicted.step_ns
    for name, plan in by_hand(devices).items():
        made[f"by hand: {name}"] = plan, None if profile is None else judge(plan, profile, backend="serial").step_ns
    return made


def rows(devices: int) -> list[dict[str, Any]]:
    """Predicted and measured steps and peaks of each plan on a given number of processes."""
    made = plans(devices)
    chosen = [plan for plan, _ in made.values()]
    timed = run_plans(chosen, steps=STEPS, compare=False, measure=True) if devices in TIMED else [None] * len(made)
    memory = run_plans(chosen, steps=1, compare=False, measure_memory=True)
    result = []
    for (name, (_, step_ns)), report, held in zip(made.items(), timed, memory, strict=True):
        assert held.peak_bytes is not None
        row: dict[str, Any] = {"plan": f"{devices} x {name}"}
        if report is not None and step_ns is not None:
            row |= {"predicted_s": step_ns / 1e9, "walked_s": report.walked_seconds}
            row["measured_s"] = median(report.step_seconds[1:])
        pairs = zip(held.predicted_peak_bytes, held.peak_bytes, strict=True)
        row["memory"] = max((walk / peak - 1 for walk, peak in pairs), key=abs)  # of the rank furthest off
        result.append(row)
    return result


def main() -> None:
    """Print a row for each plan, and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--ranks", type=int, choices=[*REQUESTS], action="append", help="may be repeated (default: all)")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console, started, found = Console(width=150), time.perf_counter(), list[dict[str, Any]]()
    for devices in arguments.ranks or REQUESTS:
        of_world = rows(devices)
        found += of_world
        table = Table(title=f"predicted and measured, {devices} ranks")
        for name in ("plan", "predicted", "by instructions", "measured", "error", "error by instructions", "memory"):
            table.add_column(name, justify="left" if name == "plan" else "right")
        for row in of_world:
            shown = [""] * 5
            if "measured_s" in row:
                shown = [f"{row[name] * 1e3:.1f} ms" for name in ("predicted_s", "walked_s", "measured_s")]
                shown += [f"{row[name] / row['measured_s'] - 1:+.1%}" for name in ("predicted_s", "walked_s")]
            table.add_row(row["plan"], *shown, f"{row['memory']:+.2%}")
        console.print(table)
    timed = [row for row in found if "measured_s" in row]
    for name, about in (("predicted_s", "time walk by the profile"), ("walked_s", "time walk by the instructions' own times")):
        if errors := [abs(row[name] / row["measured_s"] - 1) for row in timed]:
            worst = max(errors)
            console.print(f"{about}: error {median(errors):.1%} in the median, {worst:.1%} at worst, of {len(timed)} plans")
    memories = [abs(row["memory"]) for row in found]
    console.print(f"memory walk: error {median(memories):.2%} in the median, {max(memories):.2%} at worst, of {len(memories)}")
    console.print(f"{time.perf_counter() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
