"""Local processes that work together: start them, hand each a job, collect what they return, end them all when one fails."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from trainplan.profiling.base.progress import Report

ENDED = b"ended"


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
        Path(folder, "job").write_bytes(pickle.dumps((job, backend)))
        environment = {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // world)),
            **os.environ,
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-P", "-m", "trainplan.profiling.base.processes", folder, str(world), target]
        with Path(folder, "log").open("wb") as log:
            launcher = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
            )
        codes: dict[int, int] = {}
        relay = threading.Thread(target=_relay, args=(launcher, codes, progress), daemon=True)
        try:
            relay.start()
            _await(launcher, codes, world, folder, time.monotonic() + timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)  # the launcher's and all ranks'
            launcher.wait()
            if relay.ident is not None:  # an interrupt may come at any time: only what has begun can be joined
                relay.join(timeout=5)  # what was reported last counts as well
        return [pickle.loads(Path(folder, f"result.{rank}").read_bytes()) for rank in range(world)]


def _relay(launcher: subprocess.Popen[bytes], codes: dict[int, int], progress: Report | None) -> None:
    """Pass on what rank 0 reports, and note which rank ended with which code."""
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if progress and line.startswith(b"{"):
            progress(json.loads(line))
        elif line.startswith(ENDED):
            rank, code = map(int, line.split()[1:])
            codes[rank] = code


def _await(launcher: subprocess.Popen[bytes], codes: dict[int, int], world: int, folder: str, deadline: float) -> None:
    while True:
        gone = launcher.poll()
        for rank, code in sorted(codes.items()):
            if code:
                # The first to fail is often not the cause: give the others a moment to write theirs.
                time.sleep(0.5)
                raise _failed(f"process {rank} of {world}", code, Path(folder, f"log.{rank}"))
        if len(codes) == world:
            return
        if gone is not None and gone != 0:
            raise _failed("the process that starts the others", gone, Path(folder, "log"))
        if time.monotonic() > deadline:
            raise WorkerError(f"the {world} processes did not finish in time and were ended")
        time.sleep(0.02)


def _failed(who: str, code: int, log: Path) -> WorkerError:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    error = WorkerError(f"{who} ended with code {code}: " + (" | ".join(lines[-3:]) or "no message"))
    error.code = code
    return error


def launch(folder: str, world: int, target: str) -> None:
    """Body of the process that starts the ranks: it imports what they need once, and forks them."""
    import torch.distributed  # noqa: F401

    importlib.import_module(target.split(":")[0])
    ranks = {}
    for rank in range(world):
        if (process := os.fork()) == 0:
            _run(folder, rank, world, target)
        ranks[process] = rank
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for _ in range(world):
        process, status = os.wait()
        print(ENDED.decode(), ranks[process], os.waitstatus_to_exitcode(status), flush=True)


def _run(folder: str, rank: int, world: int, target: str) -> NoReturn:
    """A forked rank, to its end."""
    code = 1
    try:
        os.dup2(os.open(Path(folder, f"log.{rank}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        work(folder, rank, world, target)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def work(folder: str, rank: int, world: int, target: str) -> None:
    """Body of one rank. It ends when the caller's process does, however that ends: then its standard input closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(event: dict[str, Any]) -> None:
        if rank == 0:
            print(json.dumps(event), file=answers, flush=True)

    job, backend = pickle.loads(Path(folder, "job").read_bytes())
    module, name = target.split(":")
    function = getattr(importlib.import_module(module), name)
    dist.init_process_group(backend, store=dist.FileStore(str(Path(folder, "store")), world), rank=rank, world_size=world)
    result = function(rank, world, job, report)
    Path(folder, f"result.{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # `python -m ... FOLDER WORLD TARGET`
    launch(sys.argv[1], int(sys.argv[2]), sys.argv[3])
