"""Every choice of memory switches of a tiny instance, thousands at a time: the reference that methods are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from trainplan.formulations.memory_switches.problem import Instance, Solution, evaluate
from trainplan.formulations.memory_switches.segments import segments

LARGEST = 20_000_000  # choices of which the tables of the segments are looked at: 4 layers


def count(instance: Instance) -> int:
    """The number of choices of an instance: the number of options (combinations of switches) of one layer to the power of the
    number of layers."""
    return len(instance.options) ** instance.layers


def solutions(instance: Instance) -> Iterator[Solution | None]:
    """Solutions for brute force, each with a shorter step than all before: for each batch of solutions the fastest one that
    fits into memory, if it improves; None at the start of every batch, which takes a while, so that the caller can check
    the time limit.

    A batch is all solutions in which the first layer has one given option (combination of switches); their costs are sums over
    tables of what each layer costs given its neighbours. As a cross-check, an assertion simulates the step of each yielded
    solution and compares its time. instance: times and bytes of every layer, and the memory limit.
    """
    chain, layers, options = segments(instance), instance.layers, range(len(instance.options))
    others = np.ix_(*[options] * (layers - 1))

    def costs(i: int, choice: tuple[Any, ...]) -> tuple[Any, ...]:
        """Time, peak, delta and resident bytes of layer i, over the options of layers i - 1 to i + 1."""
        option = choice[i]
        index = (i, chain.r[choice[i - 1]] if i else 0, option, chain.lazy[choice[i + 1]] if i + 1 < layers else 0)
        return chain.time_ns[index], chain.peak_bytes[index], chain.delta_bytes[i, option], chain.resident_bytes[i, option]

    of_later = [costs(i, (0, *others)) for i in range(2, layers)]
    least = None
    for first in options:
        yield None
        near = [costs(i, (first, *others)) for i in range(min(2, layers))]
        time: Any = 0
        peak: Any = 0
        kept = resident = 0
        for layer_time, layer_peak, delta, layer_resident in near + of_later:
            peak = np.maximum(peak, kept + layer_peak)
            time, kept, resident = time + layer_time, kept + delta, resident + layer_resident
        time, fits = np.broadcast_arrays(time, peak + resident <= instance.memory_bytes)
        time = np.where(fits, time, np.iinfo(np.int64).max)
        best = np.unravel_index(time.argmin(), time.shape)
        if not fits[best] or (least is not None and time[best] >= least):
            continue
        least = time[best]
        solution = _solution(instance, (first, *best))
        assert evaluate(instance, solution).time_ns == least, "the whole step takes as long as its segments"
        yield solution


def _solution(instance: Instance, choice: Any) -> Solution:
    """The solution with given options. choice: for every layer, the index of its option in `Instance.options`. instance: times
    and bytes of every layer, and the memory limit.
    """
    return Solution(tuple(instance.options[int(option)] for option in choice))
