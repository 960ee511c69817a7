"""Clocks and repeats of a measuring process: the same code on CPU (wall clock) and CUDA (events)."""

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
    """Some process could not hold what it was to measure."""


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
        """Seconds between each mark and the next one."""
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self._marks, self._marks[1:], strict=False)]
        return [b - a for a, b in zip(self._marks, self._marks[1:], strict=False)]


def timed(device: torch.device, *steps: Callable[[], object]) -> list[float]:
    """Seconds that each step takes on a device, one after the other."""
    clock = Clock(device)
    clock.mark()
    for step in steps:
        step()
        clock.mark()
    return clock.parts()


def attempted(work: Callable[[], T]) -> tuple[T | None, float]:
    """What the work gives, and 0; None and 1 where this process has not enough memory for it."""
    try:
        return work(), 0.0
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, 1.0


def slowest(world: int, values: Sequence[float]) -> list[float]:
    """The largest of each value over all processes."""
    if world == 1:
        return list(values)
    shared = torch.tensor(list(values), dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.tolist()


def spread(values: Sequence[float]) -> float:
    """Half-width of the middle half, relative to the median."""
    if len(values) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(values, n=4)
    return (upper - lower) / 2 / middle if middle else 0.0


class Timed(NamedTuple):
    """The median of many repeats, and their spread: the relative half-width of the middle half."""

    seconds: float
    spread: float


def repeat(world: int, spread_bound: float, budget_s: float, parts: int, run: Callable[[], Sequence[float]]) -> list[Timed]:
    """Timings of `run()`, which gives the seconds of its `parts`, until the spread of each is below the bound or time is over.

    A repeat counts with its slowest process. Raises OutOfMemory on all ranks.
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
        # All processes decide on the same shared numbers, seldom once there are many.
        if len(repeats) < LEAST_REPEATS or len(repeats) % max(1, len(repeats) // 20):
            continue
        if shared[-1] > budget_s or max(spread(column) for column in zip(*repeats, strict=True)) < spread_bound:
            break
    return [Timed(statistics.median(column), spread(column)) for column in zip(*repeats, strict=True)]


def is_out_of_memory(error: BaseException) -> bool:
    """torch's CPU allocator tells it only in words."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error).lower()
