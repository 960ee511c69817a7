"""Local processes that work together: start them, hand each a job, collect what they return, end them all when one fails."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Report = Callable[[dict[str, Any]], None]


class WorkerError(RuntimeError):
    """A worker process ended without an answer; the message holds the end of what it wrote. code: its exit code, if any."""

    code: int | None = None


def run_workers(
    target: str,
    world: int,
    job: Any,
    *,
    timeout: float = float("inf"),
    progress: Report | None = None,
    backend: str = "gloo",
) -> list[Any]:
    """Run `module:function(rank, world, job, report)` in `world` processes joined by `backend`; results by rank.

    The job and the results are pickled. What rank 0 reports reaches `progress` while the work goes on. Raises WorkerError.
    """
    with tempfile.TemporaryDirectory(prefix="trainplan-") as folder:
        Path(folder, "job").write_bytes(pickle.dumps((target, job, backend)))
        environment = {
            "GLOO_SOCKET_IFNAME": "lo",
            **os.environ,
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // world)),
            "PYTHONUNBUFFERED": "1",
        }
        children, threads = [], list[threading.Thread]()
        try:
            for rank in range(world):
                command = [sys.executable, "-P", "-m", "trainplan.profiling.worker", folder, str(rank), str(world)]
                with Path(folder, f"log.{rank}").open("wb") as log:
                    children.append(
                        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment)
                    )
            for child in children:
                thread = threading.Thread(target=_relay, args=(child, progress), daemon=True)
                thread.start()
                threads.append(thread)  # an interrupt may come at any time: only what has begun can be joined
            _await(children, folder, time.monotonic() + timeout)
        finally:
            for child in children:
                child.kill()
                child.wait()
            for thread in threads:  # what was reported last counts as well
                thread.join(timeout=5)
        return [pickle.loads(Path(folder, f"result.{rank}").read_bytes()) for rank in range(world)]


def _relay(child: subprocess.Popen[bytes], progress: Report | None) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if progress and line.startswith(b"{"):
            progress(json.loads(line))


def _await(children: list[subprocess.Popen[bytes]], folder: str, deadline: float) -> None:
    while True:
        codes = [child.poll() for child in children]
        for rank, code in enumerate(codes):
            if code:
                # The first to fail is often not the cause: give the others a moment to write theirs.
                time.sleep(0.5)
                log = Path(folder, f"log.{rank}").read_text(errors="replace").strip().splitlines()
                told = f"process {rank} of {len(children)} ended with code {code}: " + (" | ".join(log[-3:]) or "no message")
                error = WorkerError(told)
                error.code = code
                raise error
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise WorkerError(f"the {len(children)} processes did not finish in time and were ended")
        time.sleep(0.02)


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def work(folder: str, rank: int, world: int) -> None:
    """Body of one worker process. It ends when its parent does, however that ends: then its standard input closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(event: dict[str, Any]) -> None:
        if rank == 0:
            print(json.dumps(event), file=answers, flush=True)

    target, job, backend = pickle.loads(Path(folder, "job").read_bytes())
    module, name = target.split(":")
    function = getattr(importlib.import_module(module), name)
    dist.init_process_group(backend, store=dist.FileStore(str(Path(folder, "store")), world), rank=rank, world_size=world)
    result = function(rank, world, job, report)
    Path(folder, f"result.{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
