"""Predicted against measured steps: 20 plans on one and two local processes, by a profile measured beforehand on this machine.

The profile knows sub-layers, collectives and the optimizer; no plan is run before it is predicted. Each plan runs STEPS steps,
one thread a process; the median of all but the first counts. Printed are the time walk by the profile, the time walk by the
times that the instructions themselves took, what was measured, and the memory walk beside what torch allocated.

    python benchmarks/predictions.py --json results.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.execution.run.processes import run_plans
from trainplan.formulations.plan import Plan
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import load_model

import trainplan as tp

STEPS = 6
MODEL = load_model("gpt2", 128).with_fields(n_layer=6, n_embd=384, n_head=6, n_inner=1536, n_positions=128, vocab_size=8192)
BATCH = 8
ONE = [{"micro_batches": m} for m in (1, 2, 4)] + [{"micro_batches": 2, "space": "full", "memory": "300MiB"}]
TWO: list[dict[str, Any]] = [
    *({"space": space, "micro_batches": m} for space in ("dp", "sdp", "tp") for m in (1, 2, 4)),
    *({"pipeline": 2, "micro_batches": m, "schedule": schedule} for m in (2, 4) for schedule in ("1f1b", "gpipe")),
    {"like": "partition", "pipeline": 2, "micro_batches": 4},
    {"like": "partition", "pipeline": 2, "micro_batches": 2, "recompute": True},
    {"like": "place", "recompute": True},
]


def plans(devices: int, requests: list[dict[str, Any]]) -> list[Plan]:
    """The plans of these requests on so many processes, predicted by one measured profile."""
    whole = load_cluster("cpu-4")
    islands = [whole.nodes[0].islands[0].changed(devices=devices)] if devices > 1 else []
    cluster = whole.changed(name=f"cpu-{devices}", nodes=[whole.nodes[0].changed(devices=devices, islands=islands)])
    tps = [t for t in (1, 2) if t <= devices]
    profile = tp.profile(model=MODEL, cluster=cluster, rows=(1, 2, 4, 8), tp=tps, measured=True, budget_seconds=25)
    made = []
    for request in requests:
        plan = tp.plan(model=MODEL, cluster=cluster, batch=BATCH, profile=profile, **request).plan
        assert plan is not None, request
        made.append(plan)
    return made


def main() -> None:
    """Print a row for each plan, and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    rows = []
    for devices, requests in ((1, ONE), (2, TWO)):
        made = plans(devices, requests)
        timed = run_plans(made, steps=STEPS, compare=False, measure=True)
        memory = run_plans(made, steps=1, compare=False, measure_memory=True)
        for request, plan, report, held in zip(requests, made, timed, memory, strict=True):
            assert plan.predicted is not None and report.walked_seconds is not None and held.peak_bytes is not None
            rows.append(
                {
                    "plan": f"{devices} x " + ", ".join(f"{name} {value}" for name, value in request.items()),
                    "predicted_s": plan.predicted.step_ns / 1e9,
                    "walked_s": report.walked_seconds,
                    "measured_s": median(report.step_seconds[1:]),
                    "memory": max(held.predicted_peak_bytes) / max(held.peak_bytes) - 1,
                }
            )
    table = Table(title="predicted and measured steps")
    for name in ("plan", "predicted", "by instructions", "measured", "error", "error by instructions", "memory"):
        table.add_column(name, justify="left" if name == "plan" else "right")
    for row in rows:
        errors = [f"{row[name] / row['measured_s'] - 1:+.1%}" for name in ("predicted_s", "walked_s")]
        times = [f"{row[name] * 1e3:.1f} ms" for name in ("predicted_s", "walked_s", "measured_s")]
        table.add_row(row["plan"], *times, *errors, f"{row['memory']:+.2%}")
    console = Console(width=150)
    console.print(table)
    for name, about in (("predicted_s", "time walk by the profile"), ("walked_s", "time walk by the instructions' own times")):
        errors = [abs(row[name] / row["measured_s"] - 1) for row in rows]
        console.print(f"{about}: error {median(errors):.1%} in the median, {max(errors):.1%} at worst, of {len(rows)} plans")
    memories = [abs(row["memory"]) for row in rows]
    console.print(f"memory walk: error {median(memories):.2%} in the median, {max(memories):.2%} at worst")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
