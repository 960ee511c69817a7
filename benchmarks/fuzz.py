"""Fuzz all problems: the methods that prove optimality must agree to the nanosecond on random small instances.

Those that prove nothing run on the same instances: none may be below the optimum; how far above it they stay is printed. Where
nothing fits, the memory that is reported to be enough must be enough, and a byte less must not; where there is no strategy at
all, all methods must say so in the same words. A disagreement is printed with the instance, and makes the exit status 1.

    python -m benchmarks.fuzz --count 5000 --seed 0
    python -m benchmarks.fuzz --problem cluster-strategy --count 500
    python -m benchmarks.fuzz --degenerate --count 850      # one layer, one device, one option, no strategy
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from trainplan.profiling.base.errors import InputError, Unsupported
from trainplan.solvers.core.solve import solve

import trainplan as tp
from tests.helpers import degenerate_instances as degenerate
from tests.helpers.assignments import random_assignment_dict
from tests.helpers.cluster_instances import random_cluster_dict
from tests.helpers.instances import random_pipeline_dict
from tests.helpers.partition_instances import random_partition_dict
from tests.helpers.switch_instances import random_instance as random_switches_instance

JUDGE = "brute-force"
SECONDS = 60.0


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


def random_assignment(rng: random.Random) -> dict[str, Any]:
    return random_assignment_dict(rng, memory=rng.random() < 0.5)


def random_partition(rng: random.Random) -> dict[str, Any]:
    return random_partition_dict(rng, memory=rng.random() < 0.5)


def random_switches(rng: random.Random) -> dict[str, Any]:
    """Up to 4 layers: ties, small numbers, or large ones."""
    scale, layers, needed = rng.choice((2, 100, 10**9)), rng.randint(1, 4), rng.random() < 0.75
    numbers = np.random.default_rng(rng.randrange(2**32))
    return random_switches_instance(numbers, layers, scale, offload_needs_ckpt=needed).to_dict()


Generators = dict[str, Callable[[random.Random], dict[str, Any]]]
GENERATORS: Generators = {
    "layer-strategies": lambda rng: random_instance(rng, layers=6, options=5),
    "pipeline": random_pipeline_dict,
    "stage-assignment": random_assignment,
    "cluster-strategy": random_cluster_dict,
    "pipeline-partition": random_partition,
    "memory-switches": random_switches,
}
DEGENERATE: Generators = {
    "layer-strategies": lambda rng: degenerate.layer_strategies(rng, GENERATORS["layer-strategies"]),
    "pipeline": degenerate.pipeline,
    "stage-assignment": degenerate.stage_assignment,
    "cluster-strategy": degenerate.cluster_strategy,
    "pipeline-partition": degenerate.pipeline_partition,
    "memory-switches": degenerate.memory_switches,
}


def solved(instance: Any, problem: str, name: str) -> Any:
    """A method's result, or the error where there is nothing to solve; None where the instance does not suit the method."""
    entry = next(entry for entry in tp.methods(problem) if entry.name == name)
    more = {"workers": 1} if any(option.name == "workers" for option in entry.options) else {}
    try:
        return tp.solve(instance, name, time_limit=SECONDS, explained=entry.proves, **more)
    except Unsupported:
        return None
    except InputError as error:
        return error


def with_more(instance: Any, more: int) -> Any:
    """The instance with a given number of bytes more on every device."""
    if hasattr(instance, "kinds"):
        return replace(instance, kinds=tuple(replace(kind, memory_bytes=kind.memory_bytes + more) for kind in instance.kinds))
    if (memory := getattr(instance, "memory", None)) is not None:
        return replace(instance, memory=memory.with_limits(memory.limit_bytes + more))
    return instance.with_memory(instance.memory_bytes + more)


def misexplained(instance: Any, reason: Any) -> list[str]:
    """Faults, in words, of the memory that an explanation states would be enough."""
    over = reason.least_memory_bytes - reason.memory_bytes
    wrong = [f"{over} bytes more do not do"] if solve(with_more(instance, over), JUDGE).objective is None else []
    if over > 1 and solve(with_more(instance, over - 1), JUDGE).objective is not None:
        wrong.append(f"{over} bytes more are said to be needed, but {over - 1} do")
    return wrong


def disagreements(results: dict[str, Any], proving: list[str]) -> list[str]:
    """Contradictions, in words, between the results of one instance."""
    errors = {name: str(result) for name, result in results.items() if isinstance(result, InputError)}
    if errors:
        others = [f"{name} is {results[name].status}" for name in results if name in proving and name not in errors]
        return others + ([f"errors differ: {errors}"] if len(set(errors.values())) > 1 else [])
    judge = results[JUDGE]
    reported = f"but {JUDGE}: {judge.status} {judge.objective}"
    found = [f"{name} is {r.status}: {r.message}" for name, r in results.items() if r.status == "failed"]
    if judge.status not in ("optimal", "infeasible"):
        found.append(f"{JUDGE} is {judge.status}")
    for name, got in results.items():
        if name in proving and (got.status, got.objective) != (judge.status, judge.objective):
            found.append(f"{name}: {got.status} {got.objective}, {reported}")
        if name not in proving and got.objective is not None and (judge.objective is None or got.objective < judge.objective):
            found.append(f"{name} has {got.objective}, {reported}")
        if name not in proving and got.status == "optimal" and got.objective != judge.objective:  # its bound is the problem's
            found.append(f"{name} claims to prove {got.objective}, {reported}")
    return found


def fuzz(problem: str, count: int, first: int, console: Console, generators: Generators) -> int:
    """Number of instances on which methods disagree; prints them, and what the methods did. generators: by problem."""
    generator = generators[problem]
    proving = [entry.name for entry in tp.methods(problem) if entry.proves]
    names = [entry.name for entry in tp.methods(problem)]
    statuses: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    gaps: dict[str, list[float]] = {name: [] for name in names if name not in proving}
    solvable = wrong = 0
    for number in track(range(count), problem, console=console, disable=not console.is_terminal):
        seed = first + number
        record = generator(random.Random(seed))
        instance = tp.load(record)
        tried = {name: solved(instance, problem, name) for name in names}
        results = {name: result for name, result in tried.items() if result is not None}
        texts = disagreements(results, proving)
        results = {name: result for name, result in results.items() if not isinstance(result, InputError)}
        for name, result in results.items():
            statuses[name, result.status] += 1
            seconds[name] += result.build_seconds + result.solve_seconds
        judged = results.get(JUDGE)
        if judged is not None and (best := judged.objective) is not None:
            solvable += 1
            for name, known in gaps.items():
                if name in results and (own := results[name].objective) is not None:
                    known.append((own - best) / best if best else float(own > 0))
        if judged is not None and judged.reason is not None:
            texts += misexplained(instance, judged.reason)
        if texts:
            wrong += 1
            console.print(f"seed {seed}:", *texts, sep="\n  ", markup=False)
            console.print(json.dumps(record), markup=False, soft_wrap=True)

    kinds = ("optimal", "feasible", "unknown", "infeasible", "failed")
    shown = ("found", "median gap", "95 % below", "largest gap")
    table = Table("method", *kinds, "seconds", *shown, title=f"{problem}: {count} instances, seeds from {first}")
    for name in names:
        row = [str(statuses[name, kind]) for kind in kinds] + [f"{seconds[name]:.1f}"]
        if known := gaps.get(name):
            levels = np.percentile(known, [50, 95, 100], method="lower")
            row += [f"{len(known) / max(1, solvable):.1%}", *(f"{level:.2%}" for level in levels)]
        table.add_row(name, *row)
    console.print(table)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--problem", choices=[*GENERATORS], action="append", help="may be repeated (default: all)")
    parser.add_argument("--count", type=int, default=1000, help="instances of each problem (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--degenerate", action="store_true", help="one layer, one device, one option, no strategy")
    arguments = parser.parse_args()
    console, started = Console(width=None if sys.stdout.isatty() else 160), time.perf_counter()
    generators, names = DEGENERATE if arguments.degenerate else GENERATORS, arguments.problem or GENERATORS
    wrong = sum(fuzz(name, arguments.count, arguments.seed, console, generators) for name in names)
    console.print(f"{wrong} disagreements; {time.perf_counter() - started:.1f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
