"""Threads that run a program together: each works through a lane in issue order, held back by nothing but the program's waits.

An instruction waits for earlier ones only, so the earliest that is not done can always begin: lanes do not get stuck on each
other. The calling thread takes the lane that computes, so that torch's backward pass stays where its graph was made.

The back-end `threads` gives every lane of the program a thread, and pauses before instructions at random: an order that the
waits do not force will be seen broken. gloo allows one thread to a group; all collectives are on one lane.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from trainplan.execution.program import Instruction

LONGEST_PAUSE_S = 0.001
PAUSED = 0.25  # the share of instructions that are paused before: a late one among prompt ones breaks most orders
GRACE_S = 5.0  # that a lane may take to end what it is in once another has failed


def run_threads(
    instructions: Sequence[Instruction],
    run: Callable[[Instruction], None],
    rng: random.Random,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> None:
    """A thread for each lane; once an instruction may begin, it pauses for up to `longest_pause_s` seconds, as `rng` says."""
    pauses = [rng.uniform(0, longest_pause_s) if rng.random() < PAUSED else 0.0 for _ in instructions]

    def paused(place: int) -> None:
        if pauses[place]:
            time.sleep(pauses[place])
        run(instructions[place])

    run_lanes([i.waits for i in instructions], [i.stream for i in instructions], paused, here="compute")


def run_fused(instructions: Sequence[Instruction], run: Callable[[Instruction], None]) -> None:
    """Compute on the calling thread, everything else as one FIFO in issue order on a second (NCCL's order)."""
    lanes = ["compute" if instruction.stream == "compute" else "beside" for instruction in instructions]
    run_lanes([i.waits for i in instructions], lanes, lambda place: run(instructions[place]), here="compute")


def run_lanes(waits: Sequence[Sequence[int]], lanes: Sequence[str], run: Callable[[int], None], here: str) -> None:
    """Call `run` with each instruction's place: lanes beside each other, `here` on the calling thread, each in issue order.

    waits, lanes: of each instruction. The first error of any lane is raised. From then on no lane begins anything; one that is
    still inside an instruction after GRACE_S seconds, in a collective whose other ranks are gone, say, is left behind.
    """
    assert all(index < place for place, before in enumerate(waits) for index in before)
    progress = _Progress(len(waits))

    def work(lane: str) -> None:
        try:
            for place in (place for place, other in enumerate(lanes) if other == lane):
                if not progress.reaches(waits[place]):
                    return
                run(place)
                progress.done(place)
            if lane == here:
                progress.reaches(range(len(waits)))
        except BaseException as error:
            progress.failed(error)

    others = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in sorted({*lanes} - {here})]
    for thread in others:
        thread.start()
    work(here)
    deadline = time.monotonic() + GRACE_S
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if progress.error is not None:
        raise progress.error


class _Progress:
    """Which instructions are done, and the first error."""

    def __init__(self, instructions: int) -> None:
        self.error: BaseException | None = None
        self._done = [False] * instructions
        self._changed = threading.Condition()

    def reaches(self, places: Sequence[int]) -> bool:
        """Wait until all of these are done (True) or a lane has failed (False)."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or all(self._done[place] for place in places))
            return self.error is None

    def done(self, place: int) -> None:
        with self._changed:
            self._done[place] = True
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
