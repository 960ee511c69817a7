"""How much time segments that need not be synchronised save on H3T's models, and how much of it is proven.

The paper's settings as in `memory_switches`, and small batches, where copies and collectives take longer than computing; layers
equal or with 3 % noise; memory 1, 10 and 50 % of the way from the least that fits (synchronised) to what the fastest choice
needs. With --profile FILE, profiles in the format of H3T's published code instead. Each is solved synchronised and free, to a
gap of 1e-4. Exit status 1 where a free step takes longer than the synchronised one, a bound is above what was found, or more
than 2 % below it.

    python -m benchmarks.free_switches --json results.json
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

from rich.console import Console
from rich.progress import track
from rich.table import Table
from trainplan.formulations.memory_switches.problem import Instance
from trainplan.profiling.imports.source import Source
from trainplan.solvers.core.solve import solve

from benchmarks.memory_switches import AMPLE, SETTINGS, estimated, limited, noisy
from trainplan.papers.h3t_file import build

SMALL_BATCHES = (("bert-1.8b", "h3t-2080ti-8", 32), ("bert-1.8b", "h3t-a100-8", 16), ("bert-13b", "h3t-a100-8", 16))
MEMORY = (0.01, 0.1, 0.5)
GAP, LARGEST_GAP = 1e-4, 0.02
Case = tuple[dict[str, Any], Instance]


def papers(quick: bool) -> Iterator[Case]:
    for number, setting in enumerate([*SMALL_BATCHES, *([] if quick else SETTINGS)]):
        equal = estimated(*setting)
        kind, instance = ("3 % noise", noisy(equal)) if number % 2 else ("equal", equal)
        for share in MEMORY:
            model, cluster, batch = setting
            yield (
                {"model": model, "cluster": cluster, "batch": batch, "layers": kind, "memory": share},
                limited(instance, share),
            )


def profiles(files: list[Path]) -> Iterator[Case]:
    for file in files:
        for share in MEMORY:
            yield (
                {"profile": file.stem, "memory": share},
                limited(build(Source(str(file), json.loads(file.read_text())), AMPLE), share),
            )


def measured(case: dict[str, Any], instance: Instance, seconds: float | None) -> dict[str, Any]:
    forced = solve(instance, gap=GAP)
    started = time.perf_counter()
    free = solve(replace(instance, synchronisation="free"), gap=GAP, time_limit=seconds)
    assert forced.objective is not None and free.objective is not None
    return case | {
        "synchronised ms": forced.objective / 1e6,
        "free ms": free.objective / 1e6,
        "saved %": 100 * (1 - free.objective / forced.objective),
        "gap %": 100 * free.gap if free.gap is not None else None,
        "status": free.status,
        "seconds": time.perf_counter() - started,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quick", action="store_true", help="small batches only")
    parser.add_argument(
        "--profile", type=Path, action="append", metavar="FILE", help="of H3T's published code; may be repeated"
    )
    parser.add_argument("--seconds", type=float, help="time limit of each")
    given = parser.parse_args()
    cases = list(profiles(given.profile) if given.profile else papers(given.quick))
    rows = [measured(*case, given.seconds) for case in track(cases, "solving", console=Console(stderr=True))]
    table = Table()
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    gaps, saved = [row["gap %"] for row in rows], [row["saved %"] for row in rows]
    print(
        f"{len(rows)} instances: saved {statistics.median(saved):.2g} % in the median, {max(saved):.2g} % at most; "
        f"gap {statistics.median(gaps):.2g} % in the median, {max(gaps):.2g} % at most; "
        f"{sum(row['status'] == 'optimal' for row in rows)} proven to {GAP}"
    )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    wrong = [r for r in rows if r["status"] == "failed" or r["saved %"] < -100 * GAP or r["gap %"] > 100 * LARGEST_GAP]
    for row in wrong:
        print(f"not as it should be: {row}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
