"""A rank of programs that also tells what of the project it imported by itself, after it was forked."""

from __future__ import annotations

import sys
from typing import Any

from trainplan.execution.run import ranks
from trainplan.execution.run.ranks import IMPORTED_BEFORE_FORKS as IMPORTED_BEFORE_FORKS
from trainplan.profiling.base.processes import Reporter


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> tuple[list[dict[str, Any]], list[str]]:
    """What `ranks.run_rank` returns, and the modules that it imported."""
    before = set(sys.modules)
    results = ranks.run_rank(rank, world, job, report)
    return results, sorted(name for name in set(sys.modules) - before if name.startswith(("trainplan.", "torch._dynamo")))
