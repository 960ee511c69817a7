"""Fuzz layer-strategies: four methods that prove optimality must agree to the nanosecond on random small instances.

The paper's DP (galvatron-dp) runs beside them: it must never be below the optimum; how far above it stays is printed.
A disagreement is printed with the instance, and makes the exit status 1.

    python benchmarks/fuzz.py --count 5000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import trainplan as tp

METHODS: dict[str, dict[str, int]] = {"brute-force": {}, "label-setting": {}, "cpsat": {"workers": 1}, "milp": {}}
DP = "galvatron-dp"


def random_instance(rng: random.Random, layers: int, options: int) -> dict[str, Any]:
    """An instance's file format, of 1 to `layers` layers with 1 to `options` options each.

    Three families, mixed: ties (tiny numbers, many zeros), noise (large unrelated numbers), trade-offs (a faster option
    takes more memory, as real strategies do). Memory lies from just below the least possible to just above the most needed.
    """
    family = rng.choice(("ties", "noise", "trade-offs"))
    counts = [rng.randint(1, options) for _ in range(rng.randint(1, layers))]
    largest = 3 if family == "ties" else 10 ** rng.randint(3, 9)
    step = rng.choice((1, 977, 2**20, 2**30))

    def option(number: int) -> dict[str, Any]:
        share = rng.random()
        if family == "trade-offs":
            time_ns = round(largest * (1.2 - share) * rng.uniform(0.9, 1.1))
            sizes = [round(limit * share * rng.uniform(0.8, 1.2)) for limit in (1000, rng.choice((0, 2000)), 600)]
        else:
            limits = (2, 3, 1) if family == "ties" else (1000, 1500, 600)
            time_ns, sizes = rng.randint(0, largest), [rng.randint(0, limit) for limit in limits]
        kept, extra, states = (size * step for size in sizes)
        return {
            "strategy": f"s{number}",
            "time_ns": time_ns,
            "forward_bytes": kept,
            "backward_bytes": extra,
            "state_bytes": states,
        }

    rows = [[option(number) for number in range(count)] for count in counts]
    held = [[o["forward_bytes"] + o["state_bytes"] for o in row] for row in rows]
    least, most = sum(map(min, held)), sum(map(max, held)) + max(o["backward_bytes"] for row in rows for o in row)
    moves = [
        [[rng.choice((0, rng.randint(0, max(1, largest // 3)))) for _ in range(after)] for _ in range(before)]
        for before, after in pairwise(counts)
    ]
    return {
        "problem": "layer-strategies",
        "version": 1,
        "memory_bytes": max(1, rng.randint(least * 9 // 10, most + step)),
        "layers": [{"options": row} for row in rows],
        "transitions_ns": moves,
    }


def disagreements(results: dict[str, Any]) -> list[str]:
    """What is wrong between the results of one instance, in words."""
    judge = results["brute-force"]
    found = [f"{name} is {r.status}: {r.message}" for name, r in results.items() if r.status == "failed"]
    if judge.status not in ("optimal", "infeasible"):
        found.append(f"brute-force is {judge.status}")
    for name in METHODS:
        got = results[name]
        if (got.status, got.objective) != (judge.status, judge.objective):
            found.append(f"{name}: {got.status} {got.objective}, but brute-force: {judge.status} {judge.objective}")
    dp = results[DP]
    if dp.objective is not None and (judge.objective is None or dp.objective < judge.objective):
        found.append(f"{DP} has {dp.objective}, but brute-force: {judge.status} {judge.objective}")
    if dp.status == "optimal":
        found.append(f"{DP} claims a proof")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=5000, help="instances (default 5000)")
    parser.add_argument("--layers", type=int, default=6, help="most layers of one (default 6)")
    parser.add_argument("--options", type=int, default=5, help="most options of a layer (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    console, started = Console(width=None if sys.stdout.isatty() else 130), time.perf_counter()
    statuses: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    gaps: list[float] = []
    solvable = wrong = 0
    for number in track(range(arguments.count), "fuzzing", console=console, disable=not console.is_terminal):
        seed = arguments.seed + number
        record = random_instance(random.Random(seed), arguments.layers, arguments.options)
        instance = tp.load(record)
        results = {name: tp.solve(instance, name, time_limit=60, **more) for name, more in METHODS.items()}
        results[DP] = tp.solve(instance, DP)
        for name, result in results.items():
            statuses[name, result.status] += 1
            seconds[name] += result.build_seconds + result.solve_seconds
        best, dp = results["brute-force"].objective, results[DP].objective
        if best is not None:
            solvable += 1
            if dp is not None and best:
                gaps.append((dp - best) / best)
            elif dp is not None:
                gaps.append(0.0 if dp == 0 else float("inf"))
        if texts := disagreements(results):
            wrong += 1
            console.print(f"seed {seed}:", *texts, sep="\n  ", markup=False)
            console.print(json.dumps(record), markup=False, soft_wrap=True)

    kinds = ("optimal", "feasible", "unknown", "infeasible", "failed")
    table = Table("method", *kinds, "seconds", title=f"{arguments.count} instances, seeds from {arguments.seed}")
    for name in results if arguments.count else ():
        table.add_row(name, *(str(statuses[name, kind]) for kind in kinds), f"{seconds[name]:.1f}")
    console.print(table)
    if gaps:
        median, high = np.percentile(gaps, [50, 95], method="lower")
        console.print(
            f"{DP} on {solvable} solvable instances: gap to the optimum median {median:.2%}, 95th percentile {high:.2%}, "
            f"largest {max(gaps):.2%}; above it on {sum(gap > 0 for gap in gaps) / solvable:.2%}, "
            f"nothing found on {1 - len(gaps) / solvable:.2%}"
        )
    console.print(f"{wrong} disagreements; {time.perf_counter() - started:.1f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
