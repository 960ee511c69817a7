"""The work of a process that a launcher such as torchrun has started, possibly on several nodes: it is one rank of a group.

Where `run_workers` starts and supervises processes itself, here the launcher does: it ends all processes if one fails, and
passes signals on.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.profiling.base.processes import Reporter
from trainplan.profiling.base.progress import Report
from trainplan.profiling.base.watchdog import Position


class Launched(NamedTuple):
    """The rank of this process among the processes that a launcher (torchrun) started. rank, world: its rank, and the number
    of processes, on all machines together. local_rank, local_world: its rank, and the number of processes, on its own machine.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int


def launched() -> Launched | None:
    """The rank of this process and the number of processes, as torchrun's environment variables state them; None if torchrun
    did not start this process.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Launched(*(int(os.environ[name]) for name in names))


class _DirectReporter(Reporter):
    """A Reporter (channel for progress events of a worker) that passes events directly to a function of the same process; with
    None as the function, as on all ranks except 0, events are dropped.
    """

    def __init__(self, progress: Report | None, position: Position) -> None:
        super().__init__(None, position)
        self._progress = progress

    def __call__(self, event: dict[str, Any]) -> None:
        """Pass an event to the function, if there is one."""
        if self._progress is not None:
            self._progress(event)


def run_launched(
    target: str, process: Launched, job: Any, *, progress: Report | None = None, backend: str = "gloo"
) -> list[Any]:
    """Run `module:function(rank, world, job, report)` in this process as one rank of the group that torchrun started. Returns
    the results of all ranks, in rank order, on every rank. The process group is ended afterwards.

    target: the function, as `module:function`. process: this process's rank, from `launched`. job: the value that the
    function gets; every rank passes its own. progress: called with events of rank 0. backend: backend of torch.distributed.
    """
    import torch.distributed as dist

    module, name = target.split(":")
    function = getattr(importlib.import_module(module), name)
    dist.init_process_group(backend)
    with tempfile.TemporaryDirectory(prefix="trainplan-") as folder:
        report = _DirectReporter(progress if process.rank == 0 else None, Position(Path(folder, "position")))
        result = function(process.rank, process.world, job, report)
    results: list[Any] = [None] * process.world
    dist.all_gather_object(results, result, group=dist.new_group(backend="gloo"))
    dist.destroy_process_group()
    return results
