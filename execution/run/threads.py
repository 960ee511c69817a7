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
    """Runs instructions on parallel lanes, step after step; a lane is a queue of instructions that one thread runs in order.
    waits: for each instruction, indices of earlier instructions that must be done first. lanes: the lane of each instruction.
    The lane `here` runs on the thread that calls `step`, every other on a thread of its own, which ends when this object is
    gone (an abandoned one, when its current instruction ends)."""

    def __init__(self, waits: Sequence[Sequence[int]], lanes: Sequence[str], here: str) -> None:
        assert all(index < position for position, before in enumerate(waits) for index in before)
        self._waits, self._here = waits, here
        self._indices = {
            lane: [position for position, other in enumerate(lanes) if other == lane] for lane in sorted({*lanes, here})
        }
        self._threads = {lane: ThreadPoolExecutor(1, lane) for lane in self._indices if lane != here}

    def step(self, run: Callable[[int], None]) -> None:
        """Call `run` with the index of every instruction, each lane in order, and return when all are done.

        The first error of any lane is raised. From then on no lane begins anything; a lane that is still inside an instruction
        after GRACE_S seconds (in a collective whose other ranks are gone, for instance) is abandoned.
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
        """The body of a lane's thread: call `run` with these indices of instructions, in order, each after the instructions
        that it waits for; stop when any lane has failed. progress: shared by all lanes."""
        try:
            for index in indices:
                if not progress.reaches(self._waits[index]):
                    return
                run(index)
                progress.done(index)
        except BaseException as error:
            progress.failed(error)


class PausingLanes(Lanes):
    """A thread for each lane (queue of instructions) of a program, which pauses at random before instructions, up to
    `longest_pause_s` seconds, drawn from `rng`: to show that results do not depend on timing."""

    def __init__(
        self, instructions: Sequence[Instruction], rng: random.Random, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        super().__init__([i.waits for i in instructions], [i.stream for i in instructions], here="compute")
        self._rng, self._longest_pause_s = rng, longest_pause_s

    def step(self, run: Callable[[int], None]) -> None:
        """Call `run` with the index of every instruction, each lane in order, with pauses that differ from step to step, and
        return when all are done. The first error of any lane is raised."""
        rng, longest = self._rng, self._longest_pause_s
        pauses = [rng.uniform(0, longest) if rng.random() < PAUSED else 0.0 for _ in self._waits]

        def paused(index: int) -> None:
            if pauses[index]:
                time.sleep(pauses[index])
            run(index)

        super().step(paused)


def fused_lanes(instructions: Sequence[Instruction]) -> Lanes:
    """Threads for the back-end `fused`: one lane (queue of instructions), on the calling thread, for computations, and a
    second one for everything else, in issue order, as NCCL runs communication."""
    lanes = ["compute" if instruction.stream == "compute" else "rest" for instruction in instructions]
    return Lanes([instruction.waits for instruction in instructions], lanes, here="compute")


class _Progress:
    """The progress of a step on several lanes (threads): which instructions are done, and the first error of any lane."""

    def __init__(self, instructions: int) -> None:
        self.error: BaseException | None = None
        self._done = [False] * instructions
        self._changed = threading.Condition()

    def reaches(self, indices: Sequence[int]) -> bool:
        """Wait until the instructions with these indices are done, and return True; or until a lane has failed, and return
        False."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or all(self._done[index] for index in indices))
            return self.error is None

    def done(self, index: int) -> None:
        """Record that instruction number `index` is done."""
        with self._changed:
            self._done[index] = True
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Record that a lane has failed with this error, and wake the others; only the first error is kept."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
