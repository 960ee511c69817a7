"""The `trainplan` command with ranks of which one meets a fault, as FAULT in its environment says: for `benchmarks.faults`."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainplan.execution.instructions import Op
from trainplan.execution.launch import processes
from trainplan.execution.program import Instruction
from trainplan.execution.run import ranks
from trainplan.profiling.base.processes import Reporter

FAULT, TOKEN = "TRAINPLAN_FAULT", "TRAINPLAN_FAULT_RUN"
STALL_S = 3.0
SLOWED_S = 2 * STALL_S
ROOM_BYTES = 2**24  # that a rank without memory still gets


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> Any:
    """A rank that meets its fault in the midst of the instruction."""
    from trainplan.execution.run import executor

    fault = json.loads(os.environ[FAULT])
    methods: dict[Op, Callable[[Any, Instruction], None]] = dict(executor._METHODS)

    def meeting(self: Any, instruction: Instruction) -> None:
        here = (self.indices[id(instruction)], report.position.get()[1])
        if rank == fault["rank"] and here == (fault["place"], fault["step"]):
            Path(fault["note"]).write_text(str(time.monotonic()))
            _meet(fault["fault"])
        methods[instruction.op](self, instruction)

    executor._METHODS.update(dict.fromkeys(Op, meeting))
    return ranks.run_rank(rank, world, job, report)


def _meet(fault: str) -> None:
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "slowed":
        end = time.monotonic() + SLOWED_S
        while time.monotonic() < end:
            pass
    elif fault == "exception":
        raise ArithmeticError("a fault made on purpose")
    else:
        import torch

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM_BYTES, mapped + ROOM_BYTES))
        torch.empty(4 * ROOM_BYTES, dtype=torch.uint8)


if __name__ == "__main__":
    original = processes.run_workers

    def run_workers(target: str, world: int, job: Any, **options: Any) -> Any:
        """As of `trainplan.profiling.base.processes`, with ranks of this module."""
        return original("benchmarks.faulty_ranks:run_rank", world, job, **options)

    processes.run_workers = run_workers
    sys.argv[0] = "trainplan"
    from trainplan.command import main

    main()
