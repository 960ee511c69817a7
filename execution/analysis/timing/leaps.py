"""Time simulations of programs with very many rounds: they run until rounds repeat, and the rest is added, exactly.

Every start and end is a maximum of sums of durations. What an instruction waits for lies a round back at most on its own rank;
on other ranks it is of the same micro-batch, so no further back than a program of few micro-batches has rounds. Suppose that,
for that many consecutive rounds on every rank, all instructions end one same time later than in the round a few before. Then so
do all later rounds: the maximum of times that are all later by one time is later by that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from trainplan.execution.steady_state import Rounds
from trainplan.profiling.base.errors import InputError

FOLLOWED = 4096  # rounds that are simulated one by one
LONGEST = 16  # rounds that may repeat together
MOST_INSTRUCTIONS = 2**25  # that are simulated where rounds do not repeat

Walked = Callable[[Sequence[Rounds]], Any]  # from programs to their `TimeWalk`


def extrapolated(rounds: Sequence[Rounds], walked: Walked) -> tuple[Any, Any, int] | None:
    """Simulate the time of programs of very many rounds (repeated groups of micro-batches) by simulating fewer rounds exactly.
    A program is one rank's instructions for a training step.

    rounds: the programs of all ranks, in compact form. walked: simulates programs and returns a `TimeWalk`. Returns (a
    simulation of fewer rounds, a simulation of still fewer rounds, n): the time of the whole programs is the first simulation's
    time plus n times the difference of both simulations' times. None if the programs have few rounds or do not repeat, so that
    the caller has to simulate all rounds. Raises InputError if rounds do not repeat and are too many to be simulated one by
    one.
    """
    count, size = rounds[0].count, rounds[0].size
    if max(program.count for program in rounds) <= FOLLOWED:
        return None
    if all((program.count, program.size) == (count, size) for program in rounds):
        window = max(program.few.micro_batches for program in rounds) // size + 2
        tried = 2 * (window + LONGEST)
        while 2 * tried <= count and tried <= FOLLOWED:
            few = [replace(program, count=tried) for program in rounds]
            if (repeated := _repeated(few, walked(few).end_ns, window)) is not None:
                whole = tried + (count - tried) % repeated
                longer, shorter = (walked([replace(r, count=n) for r in rounds]) for n in (whole, whole - repeated))
                return longer, shorter, (count - whole) // repeated
            tried *= 2
    if (total := sum(map(len, rounds))) > MOST_INSTRUCTIONS:
        number = max(program.few.micro_batches + program.count * program.size for program in rounds)
        fix = f"give at most {max(FOLLOWED, number * MOST_INSTRUCTIONS // total)}"
        raise InputError("plan", "batch.micro_batches", f"is {number}, in rounds that do not repeat", fix)
    return None


def _repeated(rounds: Sequence[Rounds], ends: Sequence[Sequence[int]], window: int) -> int | None:
    """The period of the programs' rounds (repeated groups of micro-batches): the smallest number p of rounds such that, for
    some one time t, every instruction of the last `window` rounds of every program ends exactly t later than in the round p
    before. None if there is no such p up to LONGEST. ends: end of every instruction in ns, by program, in issue order."""
    tables = []
    for program, moments in zip(rounds, ends, strict=True):
        size, last = program.end - program.begin, program.end + program.count * (program.end - program.begin)
        many = min(program.count, window + LONGEST)
        tables.append(np.array(moments[last - many * size : last], np.int64).reshape(many, size))
    for few in range(1, LONGEST + 1):
        later = [(table[few:] - table[:-few])[-window:] for table in tables]
        if all((differences == later[0][0, 0]).all() for differences in later):
            return few
    return None
