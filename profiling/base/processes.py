"""Local processes that work together: start them, give them one job, collect their results, end them all when one fails.

A process fails when it raises, when a signal ends it, or when it makes no progress (see watchdog.py). The error is one line:
which process, where it was in its work, and the cause, or what its end may mean.
"""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from trainplan.profiling.base.files import write_whole
from trainplan.profiling.base.progress import Report
from trainplan.profiling.base.watchdog import STALL_S, TOO_LONG, Position, Stall, Watchdog

BEGAN, ENDED = b"began", b"ended"
LAUNCHER = -1  # among the ranks, the process that starts them
LOOK_S = 0.25  # seconds between two checks of the watchdog
LAST_WORDS_S = 0.5  # seconds that others have to fail after one has: the first end that is noticed need not be the cause
DescribePosition = Callable[[int, tuple[int, ...]], str]  # rank and position to words


class WorkerError(RuntimeError):
    """A worker process ended without a result, or made no progress. code: its exit code, if it ended."""

    code: int | None = None


class Reporter:
    """The channel from a worker process to the process that started it. Calling it sends an event (a dict); only rank 0 has
    `answers`, the stream that events are written to, and calls on other ranks do nothing. `position` tells the watchdog how
    far the rank is in its work.
    """

    def __init__(self, answers: TextIO | None, position: Position) -> None:
        """Make the channel of one rank. answers: the stream to the starting process, for rank 0; position: of this rank."""
        self._answers, self.position = answers, position

    def __call__(self, event: dict[str, Any]) -> None:
        """Send an event to the starting process; nothing happens on ranks other than 0."""
        if self._answers:
            print(json.dumps(event), file=self._answers, flush=True)


@dataclass
class _Workers:
    """The worker processes (ranks) as seen by the process that started them.

    folder: shared with the ranks; holds the job, logs, results and positions. world: number of ranks. describe_position:
    describes the position of a rank in its work as text, such as "in step 2". positions: the position of every rank in its
    work, by rank. ids: process ids by rank, of the ranks that run. codes: exit codes by rank, in the order in which the ranks
    ended.
    """

    folder: Path
    world: int
    describe_position: DescribePosition
    positions: list[Position] = field(init=False)
    ids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = [_position(self.folder, rank) for rank in range(self.world)]

    def name(self, rank: int) -> str:
        """The process of a rank as a phrase for messages, such as "process 1 of 4"."""
        return "the process that starts the others" if rank == LAUNCHER else f"process {rank} of {self.world}"

    def whereabouts(self, rank: int) -> str:
        """The last known position of a rank in its work, as a phrase to append to the process's name, such as ", in step 2";
        empty if the position is unknown.
        """
        where = "" if rank == LAUNCHER else self.describe_position(rank, self.positions[rank].get())
        return where and f", {where}"

    def failed(self, rank: int, code: int) -> WorkerError:
        """Build the error for a worker process that ended without a result. rank: its rank. code: its exit code, or minus the
        number of the signal that ended it.
        """
        if code == -signal.SIGKILL:
            end = "was killed (SIGKILL), by hand or by the system for lack of memory"
        else:
            end = f"was ended by {_signal_name(-code)}" if code < 0 else "failed" if rank != LAUNCHER else "ended"
        cause = self._cause(rank) if code > 0 else ""
        error = WorkerError(self.name(rank) + f" {end}{self.whereabouts(rank)}" + (cause and f": {cause}"))
        error.code = code
        return error

    def _cause(self, rank: int) -> str:
        """The reason why the process of a rank failed, as text: the error that it wrote into the shared folder, or else the
        last line of its log.
        """
        if (note := _note(self.folder, rank)).exists():
            return str(json.loads(note.read_text())["cause"])
        log = Path(self.folder, "log" if rank == LAUNCHER else f"log.{rank}")
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return lines[-1] if lines else "it gave no reason"

    def first_failed(self) -> tuple[int, int] | None:
        """The (rank, exit code) of the process whose failure is most likely the cause of all failures; None if no process has
        failed. A process that ended itself because a step took too long comes first, since its end may crash other processes;
        then processes ended by a signal; then the process that raised an error first.
        """
        failed = [(rank, code) for rank, code in self.codes.items() if code]

        def order(rank_and_code: tuple[int, int]) -> tuple[bool, bool, int]:
            """The key by which failures are ordered, the cause of the others first."""
            rank, code = rank_and_code
            return code != TOO_LONG, code > 0, self._raised_at(rank) if code > 0 else 0

        return min(failed, key=order, default=None)

    def _raised_at(self, rank: int) -> int:
        """The time in ns, by the clock `time.monotonic_ns`, at which the process of a rank raised an error; a very large
        number if it recorded no time.
        """
        note = _note(self.folder, rank)
        return json.loads(note.read_text())["time"] if note.exists() else sys.maxsize

    def stalled(self, stall: Stall, stall_s: float) -> WorkerError:
        """Build the error for processes that make no progress. stall: which process is stopped, or that all of them are stuck.
        stall_s: seconds for which this has lasted.
        """
        if stall.name is not None:
            rank, meaning = stall.name, "by SIGSTOP or a debugger; all processes were ended"
            return WorkerError(f"{self.name(rank)} was stopped for {stall_s:g} s{self.whereabouts(rank)}: {meaning}")
        last = min(self.ids, key=lambda rank: self.positions[rank].get() if rank != LAUNCHER else (sys.maxsize,))
        meaning = "the processes wait for each other or for a lost connection; all were ended"
        return WorkerError(
            f"nothing has moved for {stall_s:g} s, {self.name(last)} least of all{self.whereabouts(last)}: {meaning}"
        )


def run_workers(
    target: str,
    world: int,
    job: Any,
    *,
    timeout: float = float("inf"),
    stall_timeout: float = STALL_S,
    progress: Report | None = None,
    describe_position: DescribePosition = lambda rank, position: "",
    backend: str = "gloo",
    passes_on: bool = False,
) -> list[Any]:
    """Run `module:function(rank, world, job, report)` in `world` processes that are joined by torch.distributed. Returns the
    functions' results, in the order of the ranks.

    The job and the results are pickled. `report` is a Reporter: events of rank 0 reach `progress` while the work goes on.

    Args:
        target: the function, as `module:function`.
        world: number of processes.
        job: the value that every process gets.
        timeout: seconds for all of the work.
        stall_timeout: seconds for which a process may be stopped, or all of them make no progress.
        progress: called with every event of rank 0, a dict.
        describe_position: describes the position that a rank has set, for errors; called with the rank and its position.
        backend: backend of torch.distributed, such as gloo.
        passes_on: whether a first SIGTERM, after all ranks have begun their work, is passed to the ranks so that they end
            in order; a second one ends them at once.

    Raises WorkerError if a process fails, stalls, or does not finish in time.
    """
    with tempfile.TemporaryDirectory(prefix="trainplan-") as folder:
        Path(folder, "job").write_bytes(pickle.dumps((job, backend)))
        workers = _Workers(Path(folder), world, describe_position)
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
        workers.ids[LAUNCHER] = launcher.pid
        relay = threading.Thread(target=_relay, args=(launcher, workers, progress), daemon=True)
        try:
            relay.start()
            with _passing_on(workers) if passes_on else nullcontext():
                _await(launcher, workers, time.monotonic() + timeout, stall_timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)  # the launcher's and all ranks'
            launcher.wait()
            if relay.ident is not None:  # an interrupt may come at any time: only a thread that has begun can be joined
                relay.join(timeout=5)  # wait for the last events
        return [pickle.loads(Path(folder, f"result.{rank}").read_bytes()) for rank in range(world)]


@contextmanager
def _passing_on(workers: _Workers) -> Iterator[None]:
    """Context manager: while its block runs, pass the first SIGTERM on to the ranks if all of them have begun their work.
    Outside of the main thread, which is the only one that gets signals, it does nothing. workers: the ranks, with their
    process ids.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: Any) -> None:
        """Handle SIGTERM: pass it on to all ranks, or end this process where a rank has not begun its work."""
        signal.signal(signal.SIGTERM, before)
        if not all(any(position.get()) for position in workers.positions):
            os.kill(os.getpid(), number)
            return
        for rank, process in list(workers.ids.items()):
            if rank != LAUNCHER:
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _relay(launcher: subprocess.Popen[bytes], workers: _Workers, progress: Report | None) -> None:
    """Read the output of the launcher (the process that starts the ranks) until it ends: pass events of rank 0 to `progress`,
    and write the ranks' process ids and exit codes to `workers`.
    """
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if not line.endswith(b"\n"):
            return  # the last one, cut short because the processes were killed
        if progress and line.startswith(b"{"):
            progress(json.loads(line))
        elif line.startswith(BEGAN):
            rank, process = map(int, line.split()[1:])
            workers.ids[rank] = process
        elif line.startswith(ENDED):
            rank, code = map(int, line.split()[1:])
            workers.ids.pop(rank)
            workers.codes[rank] = code


def _await(launcher: subprocess.Popen[bytes], workers: _Workers, deadline: float, stall_s: float) -> None:
    """Wait until all ranks have ended. launcher: the process that starts the ranks. workers: the ranks' process ids and exit
    codes, as they become known. deadline: in seconds by the clock time.monotonic. Raises WorkerError if a rank fails, if the
    deadline passes, or if there is no progress for `stall_s` seconds.
    """
    watchdog, next_look = Watchdog(workers.positions, stall_s), 0.0
    while True:
        gone = launcher.poll()
        if workers.first_failed():
            time.sleep(LAST_WORDS_S)
            cause = workers.first_failed()
            assert cause is not None
            raise workers.failed(*cause)
        if len(workers.codes) == workers.world:
            return
        if gone is not None and gone != 0:
            raise workers.failed(LAUNCHER, gone)
        now = time.monotonic()
        if now > deadline:
            raise WorkerError(f"the {workers.world} processes did not finish in time and were ended")
        if now > next_look:
            next_look = now + LOOK_S
            if stall := watchdog.look(now, dict(workers.ids)):
                raise workers.stalled(stall, stall_s)
        time.sleep(0.02)


def _position(folder: Path, rank: int) -> Position:
    """Open the position of one rank in its work, which is in memory that the rank shares with the process that started it.
    folder: the folder of the memory-mapped file.
    """
    return Position(folder / f"position.{rank}")


def _note(folder: Path, rank: int) -> Path:
    """The path of the file in which the process of a rank records the time and the error if it raises an error. folder: the
    folder that all ranks share.
    """
    return folder / f"raised.{rank}"


def _signal_name(number: int) -> str:
    """The name of the signal with this number, such as SIGTERM; "signal 99" if it has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def launch(folder: str, world: int, target: str) -> None:
    """Run the launcher, the process that starts the ranks: it imports the modules that they need and then forks them, so that
    the import happens only once. Returns when all ranks have ended.

    folder: the shared folder with the job. world: number of ranks. target: the function that every rank runs, as
    `module:function`. The module's `IMPORTED_BEFORE_FORKS`, if it has that, names what the function imports when it runs.
    """
    import torch.distributed  # noqa: F401

    module = importlib.import_module(target.split(":")[0])
    for name in getattr(module, "IMPORTED_BEFORE_FORKS", ()):
        importlib.import_module(name)
    ranks = {}
    for rank in range(world):
        if (process := os.fork()) == 0:
            _run(folder, rank, world, target)
        ranks[process] = rank
        _say(BEGAN, rank, process)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for _ in range(world):
        process, status = os.wait()
        _say(ENDED, ranks[process], os.waitstatus_to_exitcode(status))


def _say(event: bytes, rank: int, number: int) -> None:
    """Tell the process that started the launcher that a rank began or ended, by a line on the standard output. event: BEGAN or
    ENDED. number: the rank's process id if it began, its exit code if it ended. The line is written in one piece, because rank
    0 writes to the same pipe and may be killed between two pieces.
    """
    os.write(1, b"%s %d %d\n" % (event, rank, number))


def _run(folder: str, rank: int, world: int, target: str) -> NoReturn:
    """Run one forked rank: do its work, write an error to the shared folder, and exit; it never returns. folder: the shared
    folder. world: number of ranks. target: the function that the rank runs, as `module:function`.
    """
    code = 1
    try:
        os.dup2(os.open(Path(folder, f"log.{rank}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        work(folder, rank, world, target)
        code = 0
    except BaseException as error:
        raised = time.monotonic_ns()  # before others fail because this one does
        write_whole(_note(Path(folder), rank), json.dumps({"time": raised, "cause": error_line(error)}))
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def error_line(error: BaseException) -> str:
    """Format an exception as one line of text: its class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _end_with_parent() -> None:
    """Wait until the standard input closes, which happens when the process at its other end ends, then end this process as
    well.
    """
    os.read(0, 1)
    os._exit(1)


def work(folder: str, rank: int, world: int, target: str) -> None:
    """Do the work of one rank: join the process group of torch.distributed, call the function with the job, and save its
    result in the shared folder. The rank ends when the process that started it ends.

    folder: the shared folder. world: number of ranks. target: the function, as `module:function`.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    report = Reporter(answers if rank == 0 else None, _position(Path(folder), rank))
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
