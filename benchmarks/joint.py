"""Time the joint problem: what gap is proven, in what time, on whole models and clusters, cut by sub-layer.

Every case runs in a process of its own, after imports and a solve of a small instance of another model, so that nothing of the
case is known before: neither tables nor bounds. Wall and processor seconds are from the request to the answer: estimating the
profile, tables, and search; `tables` are the processor's seconds for the tables of all configurations, once more, with up to
this number of `options` a unit. `reached` is the gap proven when the search ends, at the gap requested or at the limit; `first`
is when the first plan was there. Part 2 (--growth): seconds by layers, devices and micro-batches. Part 3 (--walk): seconds in
which the plan of a case is compiled, checked and analysed, and those of `check` on it, its claim's evidence included.

    python benchmarks/joint.py --json results.json
    python benchmarks/joint.py --case llama3-405b-16384 --walk
    python benchmarks/joint.py --case llama3-405b --seconds 60 --gap 3e-4
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

GIB = 2**30
# Request, gap requested, seconds.
CASES: dict[str, tuple[dict[str, Any], float, float]] = {
    "gpt2": ({"model": "gpt2", "cluster": "cpu-4", "batch": 8, "sequence": 256}, 1e-5, 0.5),
    "bert-huge-48": ({"model": "bert-huge-48", "cluster": "rtx-titan-8", "batch": 64, "memory": 8 * GIB}, 1e-5, 0.5),
    "bert-xhuge": ({"model": "bert-xhuge", "cluster": "a100-64", "batch": 256, "memory": 12 * GIB}, 1e-4, 5.0),
    "gpt3-175b": (
        {"model": "gpt3-175b", "cluster": "a100-64", "batch": 512, "memory": 80 * GIB, "dtype": "float16"},
        1e-4,
        5.0,
    ),
    "gpt3-175b-40gb": (
        {"model": "gpt3-175b", "cluster": "h3t-a100-64", "batch": 512, "dtype": "float16", "host": "all"},
        3e-3,
        20.0,
    ),
    "distinct-96": (
        {"model": "gpt3-175b", "cluster": "a100-64", "batch": 512, "memory": 80 * GIB, "dtype": "float16"},
        1e-3,
        30.0,
    ),
    "llama3-405b": (
        {"model": "llama3-405b", "cluster": "h100-1024", "batch": 2048, "sequence": 8192, "dtype": "bfloat16"},
        1e-3,
        10.0,
    ),
    "llama3-405b-fine": (
        {"model": "llama3-405b", "cluster": "h100-1024", "batch": 2048, "sequence": 8192, "dtype": "bfloat16"},
        3e-4,
        60.0,
    ),
    "llama3-405b-16384": (
        {"model": "llama3-405b", "cluster": "h100-16384", "batch": 16384, "sequence": 8192, "dtype": "bfloat16"},
        1e-2,
        120.0,
    ),
}
FIRST_SECONDS = {"llama3-405b": 3.0, "llama3-405b-fine": 3.0, "llama3-405b-16384": 3.0}  # for the first plan; else 1
NOISE = 0.03  # by which layers differ where all are distinct


def distinct(instance: Any, seed: int = 0) -> Any:
    """The instance with every unit of a kind of its own, whose times differ a little from those of its former kind."""
    import random
    from dataclasses import replace

    import numpy as np
    from trainplan.formulations.joint.tables import OptionTable, Tables

    rng = random.Random(seed)
    factors = [1 + NOISE * rng.uniform(-1, 1) for _ in instance.units]

    def scaled(table: OptionTable, factor: float) -> OptionTable:
        times = {name: np.rint(getattr(table, name) * factor).astype(np.int64) for name in ("forward_ns", "backward_ns")}
        return replace(table, **times)

    def own(make: Any) -> Any:
        made: list[tuple[Tables, ...]] = []

        def tables() -> tuple[Tables, ...]:
            if not made:
                for entry in make():
                    units = tuple(scaled(entry.units[u.kind], f) for u, f in zip(instance.units, factors, strict=True))
                    made.append((replace(entry, units=units),))
            return made[0]

        return tables

    units = tuple(replace(unit, kind=index) for index, unit in enumerate(instance.units))
    configurations = tuple(
        replace(configuration, make_tables=own(configuration.make_tables)) for configuration in instance.configurations
    )
    return replace(instance, units=units, configurations=configurations)


def solved(request: dict[str, Any], gap: float, seconds: float, noisy: bool = False) -> dict[str, Any]:
    """One case in this process, whose imports are done first."""
    import trainplan as tp

    tp.solve(tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=8, memory="8GiB"), time_limit=2)
    wall, processor = time.perf_counter(), time.process_time()
    instance = tp.build("joint", **request, cost_model="executed")
    instance = distinct(instance) if noisy else instance
    built = time.perf_counter() - wall
    result = tp.solve(instance, gap=gap, time_limit=max(0.1, seconds))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    anew, tables = tp.build("joint", **request, cost_model="executed"), time.process_time()
    options = max(
        len(table.options) for one_configuration in anew.configurations for table in one_configuration.tables[0].units
    )
    tables = time.process_time() - tables
    first = next((point.seconds for point in result.history if point.objective is not None), None)
    configuration = None if result.solution is None else str(instance.configurations[result.solution["configuration"]])
    return {
        "units": instance.length,
        "configurations": len(instance.configurations),
        "options": options,
        "tables_s": tables,
        "status": result.status,
        "step_s": None if result.objective is None else result.objective / 1e9,
        "bound_s": None if result.bound is None else result.bound / 1e9,
        "reached": result.gap,
        "wall_s": wall,
        "processor_s": processor,
        "first_s": None if first is None else first + built,
        "plan": configuration,
        "statistics": result.statistics,
    }


def apart(*arguments: Any, what: Callable[..., dict[str, Any]] = solved) -> dict[str, Any]:
    """`solved`, or another one, in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        row: dict[str, Any] = pool.apply(what, arguments)
    return row


def shown(rows: list[dict[str, Any]]) -> None:
    columns = (
        "case",
        "units",
        "configurations",
        "options",
        "tables_s",
        "asked",
        "reached",
        "limit_s",
        "wall_s",
        "processor_s",
        "first_s",
        "step_s",
        "plan",
    )
    table = Table(title="the joint problem, proven", title_justify="left")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if name in ("case", "plan") else "right")
    for row in rows:
        table.add_row(*(_text(name, row[name]) for name in columns))
    Console(width=180).print(table)


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("asked", "reached"):
        return f"{value:.2g}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def compiled_and_simulated(request: dict[str, Any], gap: float, seconds: float) -> dict[str, Any]:
    """A plan of one case, compiled, checked and analysed, in this process; and `check` on its certified form."""
    import trainplan as tp

    began: list[tuple[str, float]] = []

    def note(event: Any) -> None:
        if isinstance(event, str):
            began.append((event, time.perf_counter()))

    planned = tp.plan(**request, gap=gap, time_limit=seconds + 300, comparisons=False, cost_model="executed", progress=note)
    ended = time.perf_counter()
    walk_s = ended - next(at for event, at in began if event.startswith("compiling"))
    certified = tp.certify(planned, time_limit=30)
    began_check = time.perf_counter()
    checked = tp.check(certified.plan)
    assert not checked.faults and checked.claim is not None and not checked.claim.faults, checked
    check_s = time.perf_counter() - began_check
    return {"programs": checked.programs, "instructions": checked.instructions, "walk_s": walk_s, "check_s": check_s}


def growth() -> list[dict[str, Any]]:
    """Seconds to a gap of 1e-4 as one number of a case grows."""
    base, rows = CASES["bert-xhuge"][0], []
    for name, values in (("batch", (64, 128, 256, 512)), ("memory", (8 * GIB, 12 * GIB, 24 * GIB, 40 * GIB))):
        for value in values:
            print(f"bert-xhuge, {name} {value}", flush=True)
            rows.append(
                {
                    "case": f"bert-xhuge, {name} {value}",
                    "asked": 1e-4,
                    "limit_s": 60.0,
                    **apart({**base, name: value}, 1e-4, 60.0),
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--case", choices=tuple(CASES), action="append", help="only this one; may be given again")
    parser.add_argument("--seconds", type=float, help="limit, in place of each case's own")
    parser.add_argument("--gap", type=float, help="gap asked for, in place of each case's own")
    parser.add_argument("--growth", action="store_true", help="part 2 alone")
    parser.add_argument("--walk", action="store_true", help="part 3 alone")
    options = parser.parse_args()
    if options.walk:
        for name in options.case or CASES:
            row = apart(*CASES[name], what=compiled_and_simulated)
            print(f"{name}: {row['programs']} programs of {row['instructions']:,} instructions", end=", ")
            print(f"compiled, checked and walked in {row['walk_s']:.1f} s; `check` {row['check_s']:.1f} s", flush=True)
        return 0
    rows = growth() if options.growth else []
    for name in () if options.growth else options.case or CASES:
        request, gap, seconds = CASES[name]
        gap, limit = options.gap or gap, options.seconds or seconds
        print(f"{name}, at most {limit:g} s of search", flush=True)
        row = apart(request, gap, limit, name.startswith("distinct"))
        rows.append({"case": name, "asked": gap, "limit_s": limit, **row})
        shown(rows[-1:])
    shown(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed = [row["case"] for row in rows if row["reached"] is None or row["reached"] > row["asked"]]
    late = [row["case"] for row in rows if (row["first_s"] or 1e9) > FIRST_SECONDS.get(row["case"], 1.0)]
    print(f"gap missed: {', '.join(missed) or 'none'}; first plan late: {', '.join(late) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
