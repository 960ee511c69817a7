"""The processes that solve a study's cells: `python -m trainplan.studies.server NUMBER`, see `isolated` and
`solvers.adapters.worker`.

The server imports everything that solves, and forks a process for each request, which builds the instance once and forks a
process for each cell of the request. So whatever happens to a cell happens to its own process, and none of them waits for
imports. The messages of a request's process are dicts: `instance`, about the instance, or `status` and `reason`, where there is
none; and then for each cell that it receives one as `_solved` returns it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from multiprocessing.connection import Connection
from typing import IO, Any, NoReturn

from trainplan.formulations.problem import BUILT_IN, problem
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.plugins import attribute, plugins
from trainplan.solvers.adapters import worker
from trainplan.solvers.core.memory_limit import memory_limited
from trainplan.solvers.core.method_registry import solvers_of
from trainplan.solvers.core.solve import versions
from trainplan.studies.answers import built, planned, solved
from trainplan.studies.environment import PLUGINS

IMPORTED = (
    "trainplan.api.problem_verbs",
    "trainplan.api.plan_verbs",
    "trainplan.validation.plans",
    "trainplan.planning.certify",
)
# General solvers, by the word for a server that has imported them: HiGHS and OR-Tools share a library's name and stay apart.
SOLVERS = {"highs": "trainplan.solvers.adapters.highs_worker", "cpsat": "trainplan.solvers.adapters.cpsat_worker"}
PARENT_DIES = 1  # Linux's PR_SET_PDEATHSIG
LOOK_S = 0.005  # between two looks at whether a cell's process has ended, where a system has no better way
LONGEST_REASON = 500  # characters of what a process that died has written
OUT_OF_MEMORY = ("std::bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory")
_running: set[int] = set()  # the process of the cell that this process has forked, if one runs


def serve_requests(connection: Connection) -> None:
    """In a process that the server has forked: build the instance of the first cell that is received, and solve it and every
    further cell, until the client closes the connection."""
    signal.signal(signal.SIGTERM, _end)
    _die_with_parent(signal.SIGTERM)
    with suppress(EOFError, OSError), _scratch_file() as words, _scratch_file() as answers:
        connection.send(os.getpid())
        cell = connection.recv()
        try:
            with memory_limited(cell["limits"]["memory"]):
                instance, about = built(cell)
        except BaseException as error:
            connection.send(_without_answer(error))
            return
        connection.send({"instance": about})
        while True:
            connection.send(_solved(cell, instance, words, answers, connection))
            cell = connection.recv()


def _solved(
    cell: dict[str, Any], instance: Any, words: IO[bytes], answers: IO[bytes], connection: Connection
) -> dict[str, Any]:
    """Solve a cell in a process of its own, and wait for it within the cell's limits.

    instance: of the cell; None for task plan. words: the file that gets what the process writes to standard error. answers: the
    file that gets its answer. connection: to the client, which the process closes.

    Returns `answer`, the columns of the row that the process knows, or None if it died or was ended; `reason`, if it died, and
    `memory`, whether memory seems to have run out; `late`, whether it was ended after its limit; and the columns wall_seconds,
    processor_seconds and process_peak_bytes under `used`.
    """
    for file in (words, answers):
        file.seek(0)
        file.truncate()
    began, limits = time.monotonic(), cell["limits"]
    process = _forked()
    if not process:
        connection.close()
        _run(cell, instance, words, answers)
    until = None if limits["time_limit"] is None else began + limits["time_limit"] + limits["grace"]
    late = not _ends(process, until)
    if late:
        _kill(process)
    _, status, used = os.wait4(process, 0)
    _kill(process)  # processes that it has started and that still run
    _running.discard(process)
    bytes_of = 1 if sys.platform == "darwin" else 1024
    measured = {
        "wall_seconds": time.monotonic() - began,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "process_peak_bytes": used.ru_maxrss * bytes_of,
    }
    answers.seek(0)
    answer = json.loads(answers.read()) if status == 0 and not late else None
    message: dict[str, Any] = {"answer": answer, "late": late, "used": measured}
    if answer is None and not late:
        words.seek(0)
        text = words.read().decode(errors="replace").strip()
        number = os.waitstatus_to_exitcode(status)
        how = f"exit code {number}" if number >= 0 else signal.Signals(-number).name
        last = text.splitlines()[-1][-LONGEST_REASON:] if text else ""
        message["reason"] = f"its process died ({how})" + (f": {last}" if last else "")
        message["memory"] = limits["memory"] is not None and any(mark in text for mark in OUT_OF_MEMORY)
    return message


def _scratch_file() -> IO[bytes]:
    """A file without a name, in memory where the system has such files, so that a full disk ends no cell."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("cell"), "w+b")
    return tempfile.TemporaryFile()


def _ends(process: int, until: float | None) -> bool:
    """Wait until a child process has ended, which is not waited for yet, and return True; False at a moment of the monotonic
    clock, unless that is None."""
    if hasattr(os, "pidfd_open"):
        number = os.pidfd_open(process)
        try:
            seconds = None if until is None else max(0.0, until - time.monotonic())
            return bool(select.select([number], [], [], seconds)[0])
        finally:
            os.close(number)
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if until is not None and time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def _forked() -> int:
    """Fork the process of a cell, which is in `_running` before this process can be ended; return its number, 0 in itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    process = os.fork()
    if process:
        _running.add(process)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return process


def _end(number: int, frame: Any) -> None:
    """The handler of SIGTERM in a request's process: end the process of the cell that runs, with all that it has started, and
    this one."""
    for process in _running:
        _kill(process)
    os._exit(1)


def _run(cell: dict[str, Any], instance: Any, words: IO[bytes], answers: IO[bytes]) -> NoReturn:
    """In the process of a cell: solve it, write the answer, and end the process."""
    code = 1
    try:
        os.setsid()  # its processes are ended together
        _die_with_parent(signal.SIGKILL)
        os.dup2(words.fileno(), 2)
        try:
            with memory_limited(cell["limits"]["memory"]):
                answer = (solved if cell["task"] == "solve" else planned)(cell, instance)
        except BaseException as error:
            answer = _without_answer(error)
        worker.close_all()  # so that the processor seconds of their processes are counted
        answers.write(json.dumps(answer).encode())
        answers.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _without_answer(error: BaseException) -> dict[str, Any]:
    """The columns status and reason of a cell that ended with an exception."""
    if isinstance(error, InputError):
        return {"status": "refused", "reason": str(error)}
    if isinstance(error, MemoryError):
        return {"status": "out of memory", "reason": "memory ran out"}
    lines = traceback.format_exception_only(error)
    return {"status": "crashed", "reason": " ".join(lines[-1].split())[-LONGEST_REASON:]}


def _kill(process: int) -> None:
    """Kill a cell's process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def _die_with_parent(number: int) -> None:
    """Have Linux send this process a signal when the process that has forked it ends."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PARENT_DIES, number)
        if os.getppid() != parent:
            os._exit(1)


def main(control: socket.socket, solver: str | None) -> None:
    """Import what solves, and serve the client until it closes its connection.

    control: the connection to the client. solver: the general solver (a key of SOLVERS) whose processes are forks of this one;
    None for none.
    """
    for name in IMPORTED:
        import_module(name)
    for solvers in [solvers_of(problem(name)) for name in BUILT_IN]:
        for entry in solvers.entries:
            entry.method()
        for field in fields(solvers):
            if isinstance(target := getattr(solvers, field.name), str):
                attribute(target)
    versions()  # which is kept, as are the names of plug-ins
    for group in PLUGINS:
        plugins(group)
    if solver is not None:
        import_module(SOLVERS[solver])
        worker.forked_modules.add(SOLVERS[solver])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no files of memory where a cell's process crashes
    gc.collect()
    gc.freeze()  # so that children share the memory of what is imported
    worker.serve_forks(serve_requests, control)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
