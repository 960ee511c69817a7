"""Two ranks of a pipeline whose second one is held up before it computes until the first one's second message is gone.

Only a receive that is posted before can take that message meanwhile. For the processes of a test.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store
from trainplan.execution.instructions import Op
from trainplan.execution.run.ranks import make_executor, start_rank

PATIENCE_S = 3.0


def run_rank(rank: int, world: int, job: dict[str, Any], report: Any) -> bool:
    """A step under GPipe. On rank 1: whether rank 0 had sent its second message before rank 1's first computation."""
    device, groups, _ = start_rank(rank, world, job)
    program = job["jobs"][0]["programs"][rank]
    executor, store = make_executor(program, groups, 0, device, job["transport"]), _get_default_store()
    sends = [place for place, i in enumerate(program.instructions) if i.op is Op.SEND]
    computes = next(place for place, i in enumerate(program.instructions) if i.op is Op.FORWARD)
    early = False

    def begins(place: int) -> None:
        nonlocal early
        if rank == 0 and place == sends[1] + 1:
            store.set("sent", "")
        if rank == 1 and place == computes:
            try:
                store.wait(["sent"], timedelta(seconds=PATIENCE_S))
                early = True
            except RuntimeError:
                pass

    executor.begins = begins
    executor.step("serial")
    return early
