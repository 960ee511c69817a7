"""How every method keeps its time limit, on every problem at 1,000 layers or 1,024 devices, and what it has by then.

A run may take its limit plus the larger of 10 % of it and 0.5 s, from the call; what it imports is timed apart. Each is a
process of its own, ended after GRACE times its limit and START_S. Exit status 1 where a limit is not kept, or where a run ends
without a plan though another method has one.

    python benchmarks/limits.py --limits 1 5 --json results.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.errors import Unsupported
from trainplan.profiling.models.model import load_model
from trainplan.solvers.core.method_registry import methods
from trainplan.solvers.core.solve import solve

import trainplan as tp

DEEP = load_model("gpt2-345m", dtype="float32").with_fields(n_layer=998)
GRACE, START_S = 10, 60.0
INSTANCES: dict[str, Callable[[], Any]] = {
    "layer-strategies": lambda: tp.build("layer-strategies", model=DEEP, cluster="a100-16", batch=64, memory="60GiB"),
    "layer-strategies, tight": lambda: tp.build("layer-strategies", model=DEEP, cluster="a100-16", batch=64, memory="44GiB"),
    "pipeline": lambda: tp.build("pipeline", model=DEEP, cluster="a100-64", batch=64, memory="30GiB"),
    "stage-assignment": lambda: tp.build(
        "stage-assignment", model=DEEP, cluster="a100-64", batch=64, pipeline=64, micro_batches=64, recompute=True
    ),
    "pipeline-partition": lambda: tp.build(
        "pipeline-partition", model=DEEP, cluster="a100-64", batch=64, pipeline=64, micro_batches=64, recompute=True
    ),
    "memory-switches": lambda: tp.build("memory-switches", model=DEEP, cluster="h3t-a100-64", batch=1024, memory="30GiB"),
    "cluster-strategy": lambda: tp.build(
        "cluster-strategy", model="gpt3-175b", cluster="h200-1024", batch=1024, dtype="float32"
    ),
}


def run(instance: Any, method: str, limit: float) -> dict[str, Any]:
    """One limited run, in a process of its own."""
    queue: Any = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=_child, args=(instance, method, limit, queue))
    started = time.perf_counter()
    process.start()
    while queue.empty() and process.is_alive() and time.perf_counter() - started < GRACE * limit + START_S:
        time.sleep(0.02)
    if queue.empty():
        process.kill()
        return {"seconds": time.perf_counter() - started, "status": "ended from outside"}
    answer: dict[str, Any] = queue.get()
    process.join()
    return answer


def _child(instance: Any, method: str, limit: float, queue: Any) -> None:
    started = time.perf_counter()
    try:
        result = solve(instance, method, time_limit=limit)
    except Unsupported as error:
        queue.put({"seconds": time.perf_counter() - started, "status": "unsuited", "message": str(error)})
        return
    seconds = time.perf_counter() - started - result.import_seconds
    keys = ("status", "objective", "bound", "gap", "bound_source", "solution_source", "stopped", "message")
    queue.put({"import_s": result.import_seconds, "seconds": seconds} | {key: getattr(result, key) for key in keys})


def rows(names: list[str], limits: list[float], chosen: list[str] | None) -> Iterator[dict[str, Any]]:
    """Every run, as it ends."""
    for name in names:
        instance = INSTANCES[name]()
        for entry in methods(problem_of(instance).name):
            for limit in limits if not chosen or entry.name in chosen else ():
                answer = run(instance, entry.name, limit)
                kept = answer["seconds"] <= limit + max(0.1 * limit, 0.5)
                yield {"instance": name, "method": entry.name, "limit": limit, "kept": kept, **answer}


def main() -> None:
    """Print a row for each run, and how many keep their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 5.0], metavar="SECONDS")
    parser.add_argument("--instances", nargs="+", choices=INSTANCES, default=list(INSTANCES), metavar="NAME")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    console, results = Console(width=150), []
    for row in rows(arguments.instances, arguments.limits, arguments.methods):
        results.append(row)
        objective, bound = (f"{row[key] / 1e9:.4g} s" if row.get(key) is not None else "-" for key in ("objective", "bound"))
        late = "" if row["kept"] else "LATE"
        console.print(
            f"{row['instance']:<24} {row['method']:<20} limit {row['limit']:g} s: {row['seconds']:7.2f} s {late:<4} "
            f"{row['status']:<12} {objective:>10} >= {bound:>10}  {row.get('message') or ''}",
            soft_wrap=True,
        )
    table = Table(title="runs that keep their limit")
    for name in ("instance", "runs", "kept", "with a plan", "with a bound"):
        table.add_column(name, justify="left" if name == "instance" else "right")
    failed = False
    for name in arguments.instances:
        ours = [row for row in results if row["instance"] == name and row["status"] != "unsuited"]
        counts = [sum(bool(row[key]) for row in ours) for key in ("kept",)]
        counts += [sum(row.get(key) is not None for row in ours) for key in ("objective", "bound")]
        failed |= counts[0] < len(ours) or 0 < counts[1] < len(ours)
        table.add_row(name, str(len(ours)), *map(str, counts))
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
