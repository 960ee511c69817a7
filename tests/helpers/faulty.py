"""Ranks of trial runs in which some plans fail on purpose; a plan's number of samples states its fault.

A test's worker processes import this module in place of `execution.launch.trials`. The time limit of a plan that hangs runs out
at once, so that no real time decides.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace

from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.analysis.timing.measured_costs import Span
from trainplan.execution.launch import trials
from trainplan.execution.launch.trials import try_rank
from trainplan.execution.run.executor import Executor

__all__ = ["try_rank"]
KILLED, RAISING, HANGING, FULL, SPOILED = 12, 20, 28, 36, 44
_ran: list[int] = []  # the samples of the steps that ran in this process
_over: list[Callable[[], None]] = []  # functions that a rank calls when a plan's time is over, the last plan's last
_step = Executor.step


def _faulty(executor: Executor, backend: Backend = "serial", spans: list[Span] | None = None) -> float:
    """A step of a program that fails as its number of samples states; else an ordinary one."""
    samples = executor.program.samples
    _ran.append(samples)
    if executor.rank == 1 and samples == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if executor.rank == 1 and samples == RAISING:
        raise ValueError("no such luck")
    if executor.rank == 1 and samples == HANGING:
        _over[-1]()
    if executor.rank == 1 and samples == FULL:
        raise MemoryError
    if samples == SPOILED and _ran[0] != SPOILED:
        raise RuntimeError("another plan ran here before")
    return _step(executor, backend, spans)


class _Timer:
    """A timer that never runs out by itself; a plan that hangs calls its function."""

    daemon = True

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        _over.append(function)

    def start(self) -> None:
        """Does nothing, since real time does not count."""

    cancel = start


Executor.step = _faulty  # type: ignore[method-assign]
trials.threading = SimpleNamespace(**{**vars(threading), "Timer": _Timer})  # type: ignore[assignment]
