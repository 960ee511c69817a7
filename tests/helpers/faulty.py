"""Ranks of trials in which some plans go wrong on purpose; a plan is told by its samples. For the processes of a test.

A plan that hangs does so until its time is over, which here is at once: no real time decides.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.analysis.timing.measured_costs import Span
from trainplan.execution.launch import trials
from trainplan.execution.launch.trials import try_rank
from trainplan.execution.run.executor import Executor

__all__ = ["try_rank"]
KILLED, RAISING, HANGING, FULL, SPOILED = 12, 20, 28, 36, 44
_seen: list[int] = []
_over: list[Callable[[], None]] = []  # what a rank does when a plan's time is over, the last plan's last
_step = Executor.step


def _faulty(executor: Executor, backend: Backend = "serial", spans: list[Span] | None = None) -> float:
    samples = executor.program.samples
    _seen.append(samples)
    if executor.rank == 1 and samples == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if executor.rank == 1 and samples == RAISING:
        raise ValueError("no such luck")
    if executor.rank == 1 and samples == HANGING:
        _over[-1]()
    if executor.rank == 1 and samples == FULL:
        raise MemoryError
    if samples == SPOILED and _seen[0] != SPOILED:
        raise RuntimeError("another plan ran here before")
    return _step(executor, backend, spans)


class _Timer:
    """A timer that nothing but a hanging plan lets run out."""

    daemon = True

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        _over.append(function)

    def start(self) -> None:
        """Nothing: real time does not count."""

    cancel = start


Executor.step = _faulty  # type: ignore[method-assign]
trials.threading.Timer = _Timer  # type: ignore[misc, assignment]
