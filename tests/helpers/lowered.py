"""A body of a rank that lowers plans wrongly, for tests."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.processes import Reporter


def run_averaging_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """As that of lowered plans, but gradients are averaged over each unit's ranks, as FSDP does where nobody says otherwise."""
    from trainplan.execution.lowering import parallel
    from trainplan.execution.lowering.ranks import run_rank

    parallel.sums = lambda module: None  # type: ignore[assignment]
    return run_rank(rank, world, job, report)
