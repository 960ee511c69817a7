"""Threads that run a program together: each works through a lane in issue order, held back by nothing but the program's waits.

An instruction waits for earlier ones only, so the earliest that is not done can always begin: lanes do not get stuck on each
other. The calling thread takes the lane that computes, so that torch's backward pass stays where its graph was made. The other
threads live as long as their Lanes, step after step, and with them what torch sets up for each thread that computes.

The back-end `threads` gives every lane of the program a thread, and pauses before instructions at random: an order that the
waits do not force will be seen broken. gloo allows one thread to a group; all collectives are on one lane.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from trainplan.execution.program import Instruction

LONGEST_PAUSE_S = 0.001
PAUSED = 0.25  # the share of instructions that are paused before: a late one among prompt ones breaks most orders
GRACE_S = 5.0  # that a lane may take to end what it is in once another has failed


class Lanes:
    """Runs instructions on lanes beside each other, step after step.

    waits, lanes: of each instruction, those that it waits for, and its lane. The lane `here` runs on the thread that calls
    `step`, every other on a thread of its own, which ends when this object is gone (one that has been left behind, once what
    it is in ends).
    """

    def __init__(self, waits: Sequence[Sequence[int]], lanes: Sequence[str], here: str) -> None:
        assert all(index < place for place, before in enumerate(waits) for index in before)
        self._waits, self._here = waits, here
        self._places = {lane: [place for place, other in enumerate(lanes) if other == lane] for lane in sorted({*lanes, here})}
        self._threads = {lane: ThreadPoolExecutor(1, lane) for lane in self._places if lane != here}

    def step(self, run: Callable[[int], None]) -> None:
        """Call `run` with each instruction's place, each lane in issue order.

        The first error of any lane is raised. From then on no lane begins anything; one that is still inside an instruction
        after GRACE_S seconds, in a collective whose other ranks are gone, say, is left behind.
        """
        progress = _Progress(len(self._waits))
        others: list[Future[None]] = [
            thread.submit(self._work, self._places[lane], run, progress) for lane, thread in self._threads.items()
        ]
        self._work(self._places[self._here], run, progress)
        progress.reaches(range(len(self._waits)))
        wait(others, GRACE_S)
        if progress.error is not None:
            raise progress.error

    def _work(self, places: Sequence[int], run: Callable[[int], None], progress: _Progress) -> None:
        """The instructions of a lane, until one of any lane fails."""
        try:
            for index in places:
                if not progress.reaches(self._waits[index]):
                    return
                run(index)
                progress.done(index)
        except BaseException as error:
            progress.failed(error)


class PausingLanes(Lanes):
    """A thread for each lane of a program, which pauses at random before instructions that may begin, up to `longest_pause_s`
    seconds, as `rng` says."""

    def __init__(
        self, instructions: Sequence[Instruction], rng: random.Random, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        super().__init__([i.waits for i in instructions], [i.stream for i in instructions], here="compute")
        self._rng, self._longest_pause_s = rng, longest_pause_s

    def step(self, run: Callable[[int], None]) -> None:
        """As of `Lanes`, with pauses that differ from step to step."""
        rng, longest = self._rng, self._longest_pause_s
        pauses = [rng.uniform(0, longest) if rng.random() < PAUSED else 0.0 for _ in self._waits]

        def paused(place: int) -> None:
            if pauses[place]:
                time.sleep(pauses[place])
            run(place)

        super().step(paused)


def fused_lanes(instructions: Sequence[Instruction]) -> Lanes:
    """Compute on the calling thread, everything else as one FIFO in issue order on a second (NCCL's order)."""
    lanes = ["compute" if instruction.stream == "compute" else "rest" for instruction in instructions]
    return Lanes([instruction.waits for instruction in instructions], lanes, here="compute")


class _Progress:
    """Which instructions are done, and the first error."""

    def __init__(self, instructions: int) -> None:
        self.error: BaseException | None = None
        self._done = [False] * instructions
        self._changed = threading.Condition()

    def reaches(self, places: Sequence[int]) -> bool:
        """Wait until all of these are done (True) or a lane has failed (False)."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or all(self._done[index] for index in places))
            return self.error is None

    def done(self, place: int) -> None:
        with self._changed:
            self._done[place] = True
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
