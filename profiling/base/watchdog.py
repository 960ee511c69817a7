"""Notices that processes which work together make no progress, so that nobody waits for them for ever.

There are two signs, each of which must last for a stated time without a break:

- *stopped*: the system holds a process back, by SIGSTOP or for a debugger. It may have been stopped by hand, and be continued.
- *stuck*: all processes have begun their work, but no position has changed, none waits for a disk or for a processor, and
  together they have used almost no processor time. They wait for each other, or for something that does not come.

Work that is merely slow shows neither sign: it uses a processor, or wants one that others use. (How long processes may take to
connect to each other before their work is limited by torch.) If the watching process was itself held back in the meantime, all
counts begin anew. The state of a process is read from /proc; on systems without it, nothing is noticed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

STALL_S = 30.0  # seconds that either sign must last, by default
TOO_LONG = 124  # exit code of a process that ended itself because a step took too long, as of the command `timeout`
IDLE = 0.005  # share of a processor that a waiting process may use: threads of torch wake up now and then
NUMBERS = 3  # whole numbers in a position


class Activity(NamedTuple):
    """The activity of a process, as the operating system reports it. state: the letter for its state in /proc/PID/stat, such
    as T for stopped. busy_s: seconds for which it has used a processor, or its main thread was ready to run but had no
    processor.
    """

    state: str
    busy_s: float


class Stall(NamedTuple):
    """A lack of progress that has lasted too long. kind: `stopped` if the system holds one process back, `stuck` if all wait.
    name: the rank of the process that is stopped; None if all are stuck.
    """

    kind: Literal["stopped", "stuck"]
    name: int | None = None


class Position:
    """The position of a process in its work, as three whole numbers such as step and instruction (zeros before it begins), in a
    memory-mapped file that it shares with the process that watches it.
    """

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            file.truncate(8 * NUMBERS)
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 8 * NUMBERS)).cast("q")

    def set(self, *numbers: int) -> None:
        """Set the process's position in its work: up to three whole numbers, not all 0, which means that work has not begun.
        This takes less than a microsecond.
        """
        for index, number in enumerate(numbers):
            self._numbers[index] = number

    def get(self) -> tuple[int, ...]:
        """The process's position in its work, three whole numbers such as step and instruction; zeros before it has set one."""
        return tuple(self._numbers)


def activity(process: int) -> Activity | None:
    """Read the activity of a process from /proc, by its process id; None if the process is gone, or the system has no /proc."""
    folder = Path(f"/proc/{process}")
    try:
        state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
        delay = folder / "schedstat"  # not every kernel has it
        delayed_s = int(delay.read_text().split()[1]) / 1e9 if delay.exists() else 0.0
    except OSError:
        return None
    return Activity(state, (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK") + delayed_s)


class Watchdog:
    """Checks worker processes repeatedly for a stall (no progress for too long).

    positions: how far the processes are in their work; stall_s: seconds that a sign of a stall must last; activity_of: reads
    what the operating system reports on a process, by its process id.
    """

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
        self._positions_then: list[tuple[int, ...]] = []

    def look(self, now: float, processes: Mapping[int, int]) -> Stall | None:
        """Check all processes once more for a lack of progress. Returns the stall if it has lasted too long, else None.

        now: the time of this check, in seconds by any steady clock. processes: process ids by rank.
        """
        activities = {name: self._activity_of(process) for name, process in processes.items()}
        positions = [position.get() for position in self._positions]
        busy_s = sum(found.busy_s for found in activities.values() if found)
        if now - self._last_look > self._stall_s / 2:
            self._stopped_since.clear()
            self._quiet_since = float("inf")
        self._last_look = now
        for name, found in activities.items():
            if found is None or found.state not in "Tt":
                self._stopped_since.pop(name, None)
            elif now - self._stopped_since.setdefault(name, now) >= self._stall_s:
                return Stall("stopped", name)
        # A process that ends takes its time with it: the sum may fall, too.
        active = any(found is None or found.state in "DR" for found in activities.values())
        starting = not all(map(any, positions))
        worked = abs(busy_s - self._busy_then) > IDLE * self._stall_s * len(processes)
        if active or starting or worked or positions != self._positions_then or now < self._quiet_since:
            self._quiet_since, self._busy_then, self._positions_then = now, busy_s, positions
        return Stall("stuck") if now - self._quiet_since >= self._stall_s else None
