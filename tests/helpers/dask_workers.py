"""A scheduler of dask and workers, as processes of this machine that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60
FEWER = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}  # workers that may die with a cell before it is given up


def wait_for(mark: str) -> int:
    """Wait until a file is there; return the number of this process."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not Path(mark).exists() and time.monotonic() < until:
        time.sleep(0.02)
    return os.getpid()


@contextmanager
def dask_workers(folder: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and workers, each a process of its own without a nanny; the path of its scheduler file, and the workers."""
    file = folder / "scheduler.json"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    quiet["env"] = {**os.environ, **FEWER}
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", *common, "--port", "0", "--host", "127.0.0.1"]
    started = [subprocess.Popen(dask, **quiet)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", *common, "--no-nanny", "--nthreads", "1"]
    worker += ["--host", "127.0.0.1", "--local-directory", str(folder)]
    started += [subprocess.Popen(worker, **quiet) for _ in range(workers)]
    try:
        wait_for(str(file))
        yield str(file), started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()
