"""Processes of which one meets a fault that the job names, while the others wait for it: for tests of what is said of it."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from trainplan.profiling.base.processes import Reporter


def meet(rank: int, world: int, job: dict[str, Any], report: Reporter) -> int:
    """Rank 1 meets the fault; the others wait in a barrier."""
    import torch.distributed as dist

    dist.barrier()
    report.position.set(0, 2, 5 if rank == 1 else 7)
    if rank == 1:
        if job["fault"] == "waits":
            threading.Event().wait()
        if job["fault"] == "raises":
            raise ArithmeticError("of two lines\nof which one counts")
        os.kill(os.getpid(), signal.Signals[job["fault"]])
    dist.barrier()
    return rank
