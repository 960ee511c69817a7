"""Work of processes that somebody else has started, as torchrun does on each of several nodes: each is one rank of a group.

What `run_workers` does for processes of its own, a launcher does here: it ends all where one fails, and passes signals on.
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
    """This process among those that were started: its rank of how many, and its place among how many of its machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int


def launched() -> Launched | None:
    """What torchrun says of this process; None where it was not started so."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Launched(*(int(os.environ[name]) for name in names))


class _DirectReporter(Reporter):
    """Events of rank 0 go to a function of this process."""

    def __init__(self, progress: Report | None, position: Position) -> None:
        super().__init__(None, position)
        self._progress = progress

    def __call__(self, event: dict[str, Any]) -> None:
        if self._progress is not None:
            self._progress(event)


def run_launched(target: str, place: Launched, job: Any, *, progress: Report | None = None, backend: str = "gloo") -> list[Any]:
    """Run `module:function(rank, world, job, report)` as one rank of the launcher's group; results by rank, on every rank.

    As `run_workers`, whose job each rank then has by itself. Ends the group.
    """
    import torch.distributed as dist

    module, name = target.split(":")
    function = getattr(importlib.import_module(module), name)
    dist.init_process_group(backend)
    with tempfile.TemporaryDirectory(prefix="trainplan-") as folder:
        report = _DirectReporter(progress if place.rank == 0 else None, Position(Path(folder, "position")))
        result = function(place.rank, place.world, job, report)
    results: list[Any] = [None] * place.world
    dist.all_gather_object(results, result, group=dist.new_group(backend="gloo"))
    dist.destroy_process_group()
    return results
