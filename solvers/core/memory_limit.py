"""A limit on the memory that a search may allocate in addition to what its process has (Linux only; elsewhere nothing is
limited)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def data_bytes() -> int:
    """Bytes of private writable memory of this process, as Linux counts them for its data limit (the field VmData of
    /proc/self/status)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


@contextmanager
def memory_limited(memory_bytes: int | None) -> Iterator[None]:
    """Context manager in which the process may allocate at most `memory_bytes` more than it has at the beginning; beyond that,
    allocations raise MemoryError. None is no limit. On systems other than Linux nothing is limited.

    Processes that are started inside inherit the limit.
    """
    if memory_bytes is None or not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = data_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (least if hard == resource.RLIM_INFINITY else min(least, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def unlimited() -> None:
    """Lift the memory limit that this process has inherited from a parent process that had one (see `memory_limited`); nothing
    happens on systems other than Linux."""
    if sys.platform.startswith("linux"):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
