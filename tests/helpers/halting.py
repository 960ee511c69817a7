"""Worker processes of which one fails as the job states while the others wait for it, for tests of the error report."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from trainplan.profiling.base.processes import Reporter


def meet(rank: int, world: int, job: dict[str, Any], report: Reporter) -> int:
    """The body of a rank: rank 1 fails by the job's "fault" ("waits", "raises" or a signal); others wait in a barrier."""
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
