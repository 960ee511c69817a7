"""How a rank ends before its work is done: at a step's end on SIGTERM, at once where a step takes too long."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from trainplan.profiling.base.watchdog import TOO_LONG

LOOK_S = 0.2


class Ending:
    """Context manager in whose block SIGTERM does not end the process but sets `requested` to True."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def _request(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM: note that the end is requested. number, frame: unused; part of a handler's signature."""
        self.requested = True

    def __enter__(self) -> Ending:
        self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.signal(signal.SIGTERM, self._before)


class StepWatch:
    """Context manager that ends the process, with a line on standard error, if a training step takes longer than `limit_s`
    seconds (None: never): other ranks may be gone, and nobody else may notice. Evaluation and checkpoints count with the step
    that they follow. rank: for the message."""

    def __init__(self, rank: int, limit_s: float | None) -> None:
        self.rank, self.limit_s = rank, limit_s
        self._step, self._begun = 0, time.monotonic()
        self._done = threading.Event()

    def begins(self, step: int) -> None:
        """Note that the step with this number begins now."""
        self._step, self._begun = step, time.monotonic()

    def _watch(self, limit_s: float) -> None:
        """The body of the watching thread: end the process if the current step takes longer than `limit_s` seconds."""
        while not self._done.wait(LOOK_S):
            if time.monotonic() - self._begun > limit_s:
                text = f"rank {self.rank}: step {self._step} took longer than {limit_s:g} s (--step-timeout)"
                print(text, file=sys.stderr, flush=True)
                os._exit(TOO_LONG)

    def __enter__(self) -> StepWatch:
        if self.limit_s is not None:
            threading.Thread(target=self._watch, args=(self.limit_s,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
