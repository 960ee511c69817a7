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
    """Marks moments on a device; `parts` are the seconds between them."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark this moment."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def parts(self) -> list[float]:
        """Seconds from each mark to the next one."""
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self._marks, self._marks[1:], strict=False)]
        return [b - a for a, b in zip(self._marks, self._marks[1:], strict=False)]


def timed(device: torch.device, *steps: Callable[[], object]) -> list[float]:
    """Seconds that each of these steps takes on a device, run in sequence."""
    clock = Clock(device)
    clock.mark()
    for step in steps:
        step()
        clock.mark()
    return clock.parts()


def attempted(work: Callable[[], T]) -> tuple[T | None, float]:
    """The result of `work` and 0; None and 1 if this process has too little memory for it."""
    try:
        return work(), 0.0
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, 1.0


def slowest(world: int, values: Sequence[float]) -> list[float]:
    """The maximum of each value over all processes."""
    if world == 1:
        return list(values)
    shared = torch.tensor(list(values), dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.tolist()


def spread(values: Sequence[float]) -> float:
    """Half the width of the middle half of the values, relative to their median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(values, n=4)
    return (upper - lower) / 2 / middle if middle else 0.0


class Timed(NamedTuple):
    """The median of many repeats in seconds, and their spread: half the width of their middle half, relative to the median."""

    seconds: float
    spread: float


def repeat(world: int, spread_bound: float, budget_s: float, parts: int, run: Callable[[], Sequence[float]]) -> list[Timed]:
    """Repeat `run()`, which returns the seconds of its `parts`, until the spread of each part is below `spread_bound` or
    `budget_s` seconds have passed; one Timed per part.

    The slowest process counts in every repeat. Raises OutOfMemory on all ranks if one has too little memory.
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
    """Whether an error means that memory was exhausted. torch's allocator for the CPU reveals it by the error's text alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error).lower()
