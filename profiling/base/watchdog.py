"""Notices that processes which work together have come to a halt, so that nobody waits for them for ever.

Two signs count, each of which must last for a stated time without a break:

- *stopped*: the system holds a process back, by SIGSTOP or for a debugger. It may have been stopped by hand, and be continued.
- *stuck*: all processes have begun their work, but none has got any further, none waits for a disk or for a processor, and
  together they have hardly used one. They wait for each other, or for something that does not come.

Work that is merely slow shows neither: it uses a processor, or wants one that others use. (How long processes may take to find
each other before their work, torch limits.) Where the watching process
itself was held back in the meantime, all counts begin anew. What processes do is read from /proc; where there is none, nothing
is noticed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

STALL_S = 30.0  # that either sign must last for, unless a caller says otherwise
TOO_LONG = 124  # exit code of a process that ended itself for a step that took too long, as `timeout` has it
IDLE = 0.005  # the share of a processor that one may use or want that only waits: threads of torch look about now and then
NUMBERS = 3  # that say where a process is


class Activity(NamedTuple):
    """What the system says of a process: its state, a letter as in /proc/PID/stat, and for how long it has used a processor, or
    its main thread was ready for one that it did not get."""

    state: str
    busy_s: float


class Stall(NamedTuple):
    """A halt that has lasted too long. name: of the process that is stopped; None where all are stuck."""

    kind: Literal["stopped", "stuck"]
    name: int | None = None


class Position:
    """Where a process is in its work: a few whole numbers, in a file's memory that it shares with those who watch it."""

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            file.truncate(8 * NUMBERS)
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 8 * NUMBERS)).cast("q")

    def set(self, *numbers: int) -> None:
        """Say where the process is now; takes less than a microsecond."""
        for index, number in enumerate(numbers):
            self._numbers[index] = number

    def get(self) -> tuple[int, ...]:
        """Where the process is; zeros before it has said so."""
        return tuple(self._numbers)


def activity(process: int) -> Activity | None:
    """What a process does; None where the system does not say, or the process is gone."""
    folder = Path(f"/proc/{process}")
    try:
        state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
        delay = folder / "schedstat"  # not every kernel has it
        delayed_s = int(delay.read_text().split()[1]) / 1e9 if delay.exists() else 0.0
    except OSError:
        return None
    return Activity(state, (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK") + delayed_s)


class Watchdog:
    """Looks at processes again and again. positions: of the processes that work; stall_s: how long either sign must last."""

    def __init__(
        self,
        positions: list[Position],
        stall_s: float = STALL_S,
        activity_of: Callable[[int], Activity | None] = activity,
    ) -> None:
        self._positions, self._stall_s, self._activity_of = positions, stall_s, activity_of
        self._last_look = float("-inf")
        self._stopped_since: dict[int, float] = {}
        self._quiet_since = float("-inf")
        self._busy_then = 0.0
        self._places_then: list[tuple[int, ...]] = []

    def look(self, now: float, processes: Mapping[int, int]) -> Stall | None:
        """A look at the processes, whose ids are listed by their names; the stall, if there is one. now: in seconds."""
        seen = {name: self._activity_of(process) for name, process in processes.items()}
        indices = [position.get() for position in self._positions]
        busy_s = sum(each.busy_s for each in seen.values() if each)
        if now - self._last_look > self._stall_s / 2:
            self._stopped_since.clear()
            self._quiet_since = float("inf")
        self._last_look = now
        for name, each in seen.items():
            if each is None or each.state not in "Tt":
                self._stopped_since.pop(name, None)
            elif now - self._stopped_since.setdefault(name, now) >= self._stall_s:
                return Stall("stopped", name)
        # A process that ends takes its time with it: the sum may fall, too.
        active = any(each is None or each.state in "DR" for each in seen.values())
        starting = not all(map(any, indices))
        worked = abs(busy_s - self._busy_then) > IDLE * self._stall_s * len(processes)
        if active or starting or worked or indices != self._places_then or now < self._quiet_since:
            self._quiet_since, self._busy_then, self._places_then = now, busy_s, indices
        return Stall("stuck") if now - self._quiet_since >= self._stall_s else None
