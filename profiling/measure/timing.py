"""Clocks and repeats for measurements: one interface for the CPU (wall clock) and CUDA (events)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

LEAST_REPEATS = 3
WARM_UPS = 2
T = TypeVar("T")


class OutOfMemory(Exception):
    """A process had too little memory for the task that it was to measure."""


class Clock:
    """Marks moments on a device, a CPU or a CUDA GPU, and gives the seconds between them."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark this moment; on a GPU, the moment at which all work issued so far is done."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def parts(self) -> list[float]:
        """Seconds between each pair of consecutive marks, in order; waits first until a GPU has finished its work."""
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self._marks, self._marks[1:], strict=False)]
        return [b - a for a, b in zip(self._marks, self._marks[1:], strict=False)]


def timed(device: torch.device, *steps: Callable[[], object]) -> list[float]:
    """Run functions one after the other on a device. Returns the seconds that each of them takes, in order."""
    clock = Clock(device)
    clock.mark()
    for step in steps:
        step()
        clock.mark()
    return clock.parts()


def attempted(work: Callable[[], T]) -> tuple[T | None, float]:
    """Call `work`, a function that may run out of memory. Returns its result and 0.0, or None and 1.0 if this process has too
    little memory for it; other errors are raised.
    """
    try:
        return work(), 0.0
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, 1.0


def slowest(world: int, values: Sequence[float]) -> list[float]:
    """Exchange measured values among all processes: returns the maximum of each value over all `world` processes. Each process
    calls it with its own values, in the same order, and gets the same result.
    """
    if world == 1:
        return list(values)
    shared = torch.tensor(list(values), dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.tolist()


def spread(values: Sequence[float]) -> float:
    """The relative spread of repeated measurements: half the width of their middle half over their median; 0 for a single
    value."""
    if len(values) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(values, n=4)
    return (upper - lower) / 2 / middle if middle else 0.0


class Timed(NamedTuple):
    """The median of many repeats in seconds, and their spread: half the width of their middle half, relative to the median."""

    seconds: float
    spread: float


def repeat(world: int, spread_bound: float, budget_s: float, parts: int, run: Callable[[], Sequence[float]]) -> list[Timed]:
    """Call `run` repeatedly in all processes, and return the median and the spread of each of its parts, in order.

    world: number of processes, all of which call this function; in every repeat the slowest one counts. spread_bound: repeats
    end once the spread of every part is below this bound, or after `budget_s` seconds. run: returns the seconds of its parts
    (such as forward and backward pass); parts: the number of these. Raises OutOfMemory on all processes if one of them has
    too little memory.
    """
    started, repeats = time.perf_counter(), []
    for number in count():
        if world > 1:
            dist.barrier()
        seconds, failed = attempted(run)
        shared = slowest(world, [*(seconds or [0.0] * parts), failed, time.perf_counter() - started])
        if shared[-2]:
            raise OutOfMemory
        if number >= WARM_UPS:
            repeats.append(shared[:parts])
        # All processes decide by the same shared numbers; with many repeats only now and then.
        if len(repeats) < LEAST_REPEATS or len(repeats) % max(1, len(repeats) // 20):
            continue
        if shared[-1] > budget_s or max(spread(column) for column in zip(*repeats, strict=True)) < spread_bound:
            break
    return [Timed(statistics.median(column), spread(column)) for column in zip(*repeats, strict=True)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was exhausted. torch's CPU allocator raises a general error, which is recognised by
    its text.
    """
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error).lower()
