"""Time walks over programs of very many rounds: walked until rounds repeat, and the rest added, exactly.

Every moment of a walk is a maximum of sums of durations. What an instruction waits for lies a round back at most on its own
rank; on other ranks it is of the same micro-batch, so no further back than a program of few micro-batches has rounds. Let each
of so many rounds, on every rank, end all of its instructions by one time later than the round a few before it. Then so do all
rounds behind them: the latest of some moments that are all later by one time is later by that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from trainplan.execution.steady_state import Rounds
from trainplan.profiling.base.errors import InputError

FOLLOWED = 4096  # rounds that are walked one by one
LONGEST = 16  # rounds that may repeat together
MOST_INSTRUCTIONS = 2**25  # that are walked where rounds do not repeat

Walked = Callable[[Sequence[Rounds]], Any]  # from programs to their `TimeWalk`


def extrapolated(rounds: Sequence[Rounds], walked: Walked) -> tuple[Any, Any, int] | None:
    """A walk of fewer rounds, one of a few rounds less, and how often what the first has beside the second is to be added; None
    where rounds are few, or do not repeat. Raises InputError where they do not, and are too many to be walked."""
    count, size = rounds[0].count, rounds[0].size
    if max(each.count for each in rounds) <= FOLLOWED:
        return None
    if all((each.count, each.size) == (count, size) for each in rounds):
        window = max(each.few.micro_batches for each in rounds) // size + 2
        tried = 2 * (window + LONGEST)
        while 2 * tried <= count and tried <= FOLLOWED:
            few = [replace(each, count=tried) for each in rounds]
            if (repeated := _repeated(few, walked(few).end_ns, window)) is not None:
                whole = tried + (count - tried) % repeated
                longer, shorter = (walked([replace(r, count=n) for r in rounds]) for n in (whole, whole - repeated))
                return longer, shorter, (count - whole) // repeated
            tried *= 2
    if (total := sum(map(len, rounds))) > MOST_INSTRUCTIONS:
        number = max(each.few.micro_batches + each.count * each.size for each in rounds)
        fix = f"give at most {max(FOLLOWED, number * MOST_INSTRUCTIONS // total)}"
        raise InputError("plan", "batch.micro_batches", f"is {number}, in rounds that do not repeat", fix)
    return None


def _repeated(rounds: Sequence[Rounds], ends: Sequence[Sequence[int]], window: int) -> int | None:
    """The fewest rounds of which the last ones of all programs end by one time later than so many before them."""
    tables = []
    for each, moments in zip(rounds, ends, strict=True):
        size, last = each.end - each.begin, each.end + each.count * (each.end - each.begin)
        many = min(each.count, window + LONGEST)
        tables.append(np.array(moments[last - many * size : last], np.int64).reshape(many, size))
    for few in range(1, LONGEST + 1):
        later = [(table[few:] - table[:-few])[-window:] for table in tables]
        if all((each == later[0][0, 0]).all() for each in later):
            return few
    return None
