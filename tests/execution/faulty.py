"""Ranks of trials in which some plans go wrong on purpose; a plan is told by its samples. For the processes of a test."""

from __future__ import annotations

import os
import signal
import time

from trainplan.execution.run.executor import Executor
from trainplan.execution.run.trials import try_rank
from trainplan.execution.walk.measured import Span
from trainplan.execution.walk.memory import Backend

__all__ = ["try_rank"]
KILLED, RAISING, HANGING, FULL, SPOILED = 12, 20, 28, 36, 44
_seen: list[int] = []
_step = Executor.step


def _faulty(executor: Executor, backend: Backend = "serial", spans: list[Span] | None = None) -> float:
    samples = executor.program.samples
    _seen.append(samples)
    if executor.rank == 1 and samples == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if executor.rank == 1 and samples == RAISING:
        raise ValueError("no such luck")
    if executor.rank == 1 and samples == HANGING:
        time.sleep(1000)
    if executor.rank == 1 and samples == FULL:
        raise MemoryError
    if samples == SPOILED and _seen[0] != SPOILED:
        raise RuntimeError("another plan ran here before")
    return _step(executor, backend, spans)


Executor.step = _faulty  # type: ignore[method-assign]
