"""The body of a rank that runs a lowered plan wrongly on purpose, so that a test can show that the fault is found."""

from __future__ import annotations

from typing import Any

from trainplan.profiling.base.processes import Reporter


def run_averaging_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> list[dict[str, Any]]:
    """Run a lowered plan as `run_rank` does, but with gradients averaged over each unit's ranks, as FSDP does by default."""
    from trainplan.execution.lowering import parallel
    from trainplan.execution.lowering.ranks import run_rank

    parallel.sums = lambda module: None  # type: ignore[assignment]
    return run_rank(rank, world, job, report)
