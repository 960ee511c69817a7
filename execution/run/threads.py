"""Threads that run a program together: each works through a lane in issue order, held back by nothing but the program's waits.

An instruction waits for earlier ones only, so the earliest that is not done can always begin: lanes do not get stuck on each
other. The calling thread takes the lane that computes, so that torch's backward pass stays on the thread that built its graph.
The other threads live as long as their Lanes, step after step, and with them what torch sets up for each thread that computes.

The back-end `threads` gives every lane of the program a thread, and pauses before instructions at random: an order that the
waits do not force will break. gloo allows one thread to a group; all collectives are on one lane.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from trainplan.execution.program import Instruction

LONGEST_PAUSE_S = 0.001
PAUSED = 0.25  # fraction of instructions with a pause before them: a late one among prompt ones breaks most orders
GRACE_S = 5.0  # that a lane may take to end its current instruction after another lane has failed


class Lanes:
    """Runs instructions on parallel lanes, step after step.

    waits: indices that each instruction waits for. lanes: the lane of each instruction. The lane `here` runs on the thread that
    calls `step`, every other on a thread of its own, which ends when this object is gone (an abandoned one, when its current
    instruction ends).
    """

    def __init__(self, waits: Sequence[Sequence[int]], lanes: Sequence[str], here: str) -> None:
        assert all(index < position for position, before in enumerate(waits) for index in before)
        self._waits, self._here = waits, here
        self._indices = {
            lane: [position for position, other in enumerate(lanes) if other == lane] for lane in sorted({*lanes, here})
        }
        self._threads = {lane: ThreadPoolExecutor(1, lane) for lane in self._indices if lane != here}

    def step(self, run: Callable[[int], None]) -> None:
        """Call `run` with the index of every instruction, each lane in issue order.

        The first error of any lane is raised. From then on no lane begins anything; one that is still inside an instruction
        after GRACE_S seconds, in a collective whose other ranks are gone, say, is abandoned.
        """
        progress = _Progress(len(self._waits))
        others: list[Future[None]] = [
            thread.submit(self._work, self._indices[lane], run, progress) for lane, thread in self._threads.items()
        ]
        self._work(self._indices[self._here], run, progress)
        progress.reaches(range(len(self._waits)))
        wait(others, GRACE_S)
        if progress.error is not None:
            raise progress.error

    def _work(self, indices: Sequence[int], run: Callable[[int], None], progress: _Progress) -> None:
        """Run the instructions of a lane, until one of any lane fails."""
        try:
            for index in indices:
                if not progress.reaches(self._waits[index]):
                    return
                run(index)
                progress.done(index)
        except BaseException as error:
            progress.failed(error)


class PausingLanes(Lanes):
    """A thread for each lane of a program, which pauses at random before instructions that may begin, up to `longest_pause_s`
    seconds, drawn from `rng`."""

    def __init__(
        self, instructions: Sequence[Instruction], rng: random.Random, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        super().__init__([i.waits for i in instructions], [i.stream for i in instructions], here="compute")
        self._rng, self._longest_pause_s = rng, longest_pause_s

    def step(self, run: Callable[[int], None]) -> None:
        """As of `Lanes`, with pauses that differ from step to step."""
        rng, longest = self._rng, self._longest_pause_s
        pauses = [rng.uniform(0, longest) if rng.random() < PAUSED else 0.0 for _ in self._waits]

        def paused(index: int) -> None:
            if pauses[index]:
                time.sleep(pauses[index])
            run(index)

        super().step(paused)


def fused_lanes(instructions: Sequence[Instruction]) -> Lanes:
    """Lanes of the back-end `fused`: compute on the calling thread, everything else as one FIFO in issue order on a second
    (NCCL's order)."""
    lanes = ["compute" if instruction.stream == "compute" else "rest" for instruction in instructions]
    return Lanes([instruction.waits for instruction in instructions], lanes, here="compute")


class _Progress:
    """Which instructions of a step are done, and the first error of any lane."""

    def __init__(self, instructions: int) -> None:
        self.error: BaseException | None = None
        self._done = [False] * instructions
        self._changed = threading.Condition()

    def reaches(self, indices: Sequence[int]) -> bool:
        """Wait until the instructions of all these indices are done (True) or a lane has failed (False)."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or all(self._done[index] for index in indices))
            return self.error is None

    def done(self, index: int) -> None:
        """Record that an instruction is done."""
        with self._changed:
            self._done[index] = True
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Record that a lane has failed; the first error counts."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
