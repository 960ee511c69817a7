"""Folders of studies for tests of results: rows of real solves, written as a journal and as Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import parse_bytes

import trainplan as tp
from trainplan.studies.rows import row_of
from trainplan.studies.storage import Storage

SMALL: dict[str, Any] = {  # a study of eight cells, half of which are infeasible
    "name": "small",
    "models": "gpt2",
    "clusters": "cpu-4",
    "batches": [8, 16],
    "problems": "layer-strategies",
    "methods": ["exact", "galvatron-dp"],
    "with": {"memory": ["2GiB", "100MiB"]},
    "limits": {"time_limit": 30},
}
MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 8 * 2**30, "system": "Linux"}
Solved = tuple[dict[str, Any], list[dict[str, Any]]]  # a row, and the history of its search


def solved(problem: str, request: Mapping[str, Any], methods: Sequence[str], time_limit: float = 5.0) -> Iterator[Solved]:
    """Build an instance and solve it with each method, and yield the row of each with the history of its search."""
    common = {"task": "solve", "problem": problem, "options": "{}", "request": json.dumps(dict(request)), "groups": ["all"]}
    common |= {name: request.get(name) for name in ("model", "cluster", "batch", "sequence")}
    common |= {"time_limit_s": time_limit, "machine": json.dumps(MACHINE), "machine_id": "m1", "certificate": False}
    instance, refusal = None, ""
    try:
        instance = tp.build(problem, **request)
    except InputError as error:
        refusal = str(error)
    size = {name: request.get(name) for name in ("model", "cluster", "batch", "memory")}
    title = " · ".join(str(value) for value in size.values() if value is not None)
    for method in methods:
        row = {**common, "name": f"{title} · {problem} · {method}", "method": method}
        row |= {"started": datetime.now(UTC).isoformat(timespec="microseconds"), "seed": 0, "repeat": 0, "cold": False}
        history: list[dict[str, Any]] = []
        memory = request.get("memory")
        row |= {"memory_bytes": parse_bytes(memory) if memory else None, "versions": "{}"}
        result = None
        try:
            result = instance and tp.solve(instance, method, time_limit=time_limit)
        except InputError as error:
            refusal = str(error)
        if instance is None or result is None:
            row |= {"status": "refused", "reason": refusal, "instance_hash": getattr(instance, "digest", None)}
        else:
            row |= {"status": result.status, "stopped": result.stopped, "value_ns": result.objective, "gap": result.gap}
            row |= {"bound_ns": result.bound, "bound_source": result.bound_source, "tolerance": result.tolerance}
            row |= {"reason": result.message or (str(result.reason) if result.reason else None)}
            row |= {"build_seconds": result.build_seconds, "solve_seconds": result.solve_seconds}
            row |= {"seconds": result.build_seconds + result.solve_seconds, "versions": json.dumps(result.versions)}
            row |= {"instance_hash": instance.digest, "instance_name": getattr(instance, "name", None)}
            row |= {"solution_source": result.solution_source}
            row |= {"devices": getattr(instance, "devices", None), "peak_bytes": (result.evaluation or {}).get("peak_bytes")}
            history = [
                {"seconds": p.seconds, "value_ns": p.objective, "bound_ns": p.bound, "source": p.source} for p in result.history
            ]
        row["key"] = sha256(json.dumps([row["name"], row["instance_hash"] if instance else None]).encode()).hexdigest()[:32]
        yield row_of(row), history


@cache
def small_study() -> tuple[Solved, ...]:
    """Rows of gpt2 on four CPUs under three memory limits by three methods: some optimal, some infeasible, one refused."""
    rows: list[Solved] = []
    for memory in ("400MB", "1GiB", "2GiB", "4GiB"):
        request = {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": memory, "sequence": 64}
        rows += solved("layer-strategies", request, ["label-setting", "milp", "galvatron-dp"])
    for batch in (8, 16):
        request = {"model": "gpt2", "cluster": "cpu-4", "batch": batch, "memory": "2GiB", "sequence": 64}
        rows += solved("pipeline", request, ["branch-and-bound", "galvatron-bmw"])
    rows += solved("pipeline", {"model": "gpt2", "cluster": "cpu-4", "batch": 8, "memory": "2GB", "sequence": 10**6}, ["milp"])
    return tuple(rows)


def write_study(folder: Path, rows: Sequence[Solved], *, batches: int = 1, journal: int = 2) -> Path:
    """Write rows as a study's folder: all but the last `journal` rows in `batches` Parquet files, these in a journal, as a
    study leaves them that was killed."""
    done = len(rows) - journal
    share = max(1, -(-done // batches))
    for start in range(0, done, share):
        with Storage(folder, {"name": "gpt2-memory", "models": ["gpt2"]}) as storage:
            for row, history in rows[start : min(done, start + share)]:
                storage.append([row | {"files": {"history_path": json.dumps(history)} if history else {}}])
    late = "".join(json.dumps(row) + "\n" for row, _ in rows[done:])
    folder.joinpath(f"journal-{batches + 1:05}.jsonl").write_text(late)
    return folder
