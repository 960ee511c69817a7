"""Two ranks of a pipeline, of which the second waits before it computes until the first one's second message has been sent.

Only a receive that was posted early can take that message meanwhile. A test's worker processes run `run_rank`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store
from trainplan.execution.instructions import Op
from trainplan.execution.run.ranks import make_executor, start_rank

PATIENCE_S = 3.0


def run_rank(rank: int, world: int, job: dict[str, Any], report: Any) -> bool:
    """Run one step under GPipe; returns, on rank 1, whether rank 0 had sent its second message before rank 1 first computed."""
    device, groups, _ = start_rank(rank, world, job)
    program = job["jobs"][0]["programs"][rank]
    executor, store = make_executor(program, groups, 0, device, job["transport"]), _get_default_store()
    sends = [index for index, i in enumerate(program.instructions) if i.op is Op.SEND]
    computes = next(index for index, i in enumerate(program.instructions) if i.op is Op.FORWARD)
    early = False

    def begins(index: int) -> None:
        nonlocal early
        if rank == 0 and index == sends[1] + 1:
            store.set("sent", "")
        if rank == 1 and index == computes:
            try:
                store.wait(["sent"], timedelta(seconds=PATIENCE_S))
                early = True
            except RuntimeError:
                pass

    executor.begins = begins
    executor.step("serial")
    return early
