"""The clock that counts towards a search's time limit, and a timer that ends code which does not check the clock itself."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SHARE, LEAST_GRACE_SECONDS = 0.1, 0.5
TICK_SECONDS = 0.001
AGAIN_SECONDS = 0.2  # until Overrun is raised once more, where something swallowed it
LONGEST_WAIT_SECONDS = 1e6  # of one call: timers and pipes accept no more than some thousand times as many
# Code that begins and ends an `ended_after`: an Overrun inside it would leave the handler installed.
BETWEEN = (__file__, contextlib.__file__, signal.__file__)


def grace_seconds(time_limit: float | None) -> float:
    """Seconds that a search may go on after its time limit: 10 % of the limit, and at least half a second; infinite without a
    limit (None). time_limit: in seconds."""
    return math.inf if time_limit is None else max(GRACE_SHARE * time_limit, LEAST_GRACE_SECONDS)


def wait_seconds(seconds: float) -> float:
    """Clip a waiting time to what a timer or a pipe accepts in one call: at least a millisecond, at most the largest value that
    timers take. The caller checks the time again after the wait. seconds: the seconds left until the limit."""
    return min(max(seconds, TICK_SECONDS), LONGEST_WAIT_SECONDS)


class Clock:
    """A clock of the seconds that count towards a time limit: seconds in which packages are imported or processes are started
    are left out.

    read: function that returns seconds that never decrease (tests count calls instead). seconds_apart: the seconds left out so
    far.
    """

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self.read, self.seconds_apart = read, 0.0
        self._paused_at: float | None = None

    def __call__(self) -> float:
        """Seconds since some fixed moment in the past, without those that do not count."""
        return (self.read() if self._paused_at is None else self._paused_at) - self.seconds_apart

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager in which the clock stands still: its seconds do not count towards the time limit, and are added to
        `seconds_apart`. A nested pause has no further effect."""
        if self._paused_at is not None:
            yield
            return
        self._paused_at = self.read()
        try:
            yield
        finally:
            self.seconds_apart += self.read() - self._paused_at
            self._paused_at = None


class Overrun(BaseException):
    """Raised inside code that is past its time limit. It is not a subclass of Exception, so that no handler mistakes it for an
    ordinary error."""


@contextmanager
def ended_after(seconds_left: Callable[[], float]) -> Iterator[None]:
    """Context manager whose code is interrupted by the exception `Overrun`, at its next Python instruction, as soon as no
    seconds are left.

    seconds_left: returns the seconds left, infinite without a limit. Uses the alarm signal of Unix, which only a main thread
    receives; elsewhere nothing is interrupted. A timer that was set before is set again afterwards.
    """
    if (
        seconds_left() == math.inf
        or threading.current_thread() is not threading.main_thread()
        or not hasattr(signal, "SIGALRM")
    ):
        yield
        return
    over = False

    def look(number: int, frame: FrameType | None) -> None:
        """Signal handler: raise Overrun if the time is over, else set the timer again."""
        nonlocal over
        seconds = seconds_left()
        between = frame is not None and frame.f_code.co_filename in BETWEEN
        again = TICK_SECONDS if between else AGAIN_SECONDS
        signal.setitimer(signal.ITIMER_REAL, again if seconds <= 0 else wait_seconds(seconds))
        if seconds <= 0 and not between:
            over = True
            raise Overrun

    begun, (outer, _) = time.monotonic(), signal.getitimer(signal.ITIMER_REAL)
    handler = signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, wait_seconds(seconds_left()))
        yield
    except Exception as error:
        if over:  # some libraries turn an exception raised inside them into another error
            raise Overrun from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, wait_seconds(outer - (time.monotonic() - begun)))
