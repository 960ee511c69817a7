"""Solvers in processes of their own, which can be ended at any moment: both ends of the connection to such a process.

A server process is started on first use. It imports the solver, which takes longer than a small solve, and forks a process that
answers one request after the other; where that one is ended, it forks another. Each solver has its own server, which keeps
HiGHS apart from OR-Tools, with which it shares a library name. A request is a dict; the answer is any number of messages (kind,
content), the last of which is of the kind "done".
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from trainplan.solvers.core.clock import wait_seconds
from trainplan.solvers.core.memory_limit import memory_limited, unlimited
from trainplan.solvers.core.search import Outcome, Search

Send = Callable[[tuple[str, Any]], None]

# A solver that has not answered so long after its limit is ended: what it had by then has been sent.
PATIENCE_SECONDS = 0.15


class Late(Exception):
    """The process did not answer by its limit, and was ended."""


class Worker:
    """The client of one solver's server, and of the process that the server forked last.

    module: the module that the server runs, which calls `serve`.
    """

    def __init__(self, module: str) -> None:
        self.module, self.lock = module, threading.Lock()
        self.server: subprocess.Popen[bytes] | None = None
        self.process: tuple[Connection, int] | None = None  # and its number, which is its own until the next one is forked
        atexit.register(self.close)

    def answer(self, request: dict[str, Any], search: Search, receive: Callable[[str, Any], None]) -> dict[str, Any]:
        """The answer to a request, within a search's limits of time and memory. receive: called with each message (kind,
        content) before it.

        Raises Late where the time is over first. The process is ended then, and by any other exception, too.
        """
        with self.lock:
            with search.clock.paused():
                self._start()
            connection, number = self.process = self.process or self._fork()
            try:
                limits = {"time_limit": search.seconds(), "memory_bytes": search.memory_bytes}
                connection.send({**request, **limits})
                while True:
                    left = search.remaining() + PATIENCE_SECONDS
                    if left < 0:
                        raise Late
                    if not connection.poll(wait_seconds(left)):
                        continue
                    kind, content = connection.recv()
                    if kind == "done":
                        answer: dict[str, Any] = content
                        return answer
                    receive(kind, content)
            except BaseException as ended:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
                connection.close()
                self.process = None
                if not isinstance(ended, EOFError | OSError):
                    raise
                if search.memory_bytes is not None:
                    raise MemoryError from None
                return {"error": "its process broke off"}

    def _start(self) -> None:
        """Start the server, unless it runs, and wait until it has imported its solver."""
        if self.server is not None and self.server.poll() is None:
            return
        self.process = None
        self.control, other_end = socket.socketpair()
        number, quiet = other_end.fileno(), subprocess.DEVNULL
        command = [sys.executable, "-P", "-m", self.module, str(number)]
        self.server = subprocess.Popen(command, pass_fds=[number], stdin=quiet, stdout=quiet, stderr=quiet)
        other_end.close()
        if not self.control.recv(1):
            raise RuntimeError(f"{self.module} ended with exit code {self.server.wait()} before it could solve anything")

    def _fork(self) -> tuple[Connection, int]:
        """Have the server fork a new process; return the connection to it, and its process id."""
        connection, other_end = Pipe()
        try:
            socket.send_fds(self.control, [b"?"], [other_end.fileno()])
            other_end.close()
            return connection, connection.recv()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server, if there is one, and with it its process."""
        if self.server is not None:
            self.control.close()
            self.server.wait()
            self.server, self.process = None, None


def outcome(
    worker: Worker,
    instance: Any,
    search: Search,
    source: str,
    late: tuple[str, str | None],
    read: Callable[[dict[str, Any]], Outcome],
    **request: Any,
) -> Outcome:
    """The outcome of a worker's solver on an instance, which only looks for solutions better than the search has already.

    source: the name under which bounds are reported while the solver runs. late: messages for a time limit that is reached
    before the model is built, and after. read: turns an answer into an outcome, without the seconds of building. request:
    further fields that this solver alone needs.
    """
    build_seconds = list[float]()

    def receive(kind: str, content: Any) -> None:
        if kind == "built":
            build_seconds.append(content)
        elif kind == "solution":
            search.report(content)
        else:
            search.report(bound=content, source=source)

    request |= {"instance": instance, "gap": search.gap, "seed": search.seed}
    try:
        answer = worker.answer({**request, "below_ns": search.objective, "start": search.start}, search, receive)
    except Late:
        spent, message = (build_seconds[0], late[1]) if build_seconds else (search.elapsed(), late[0])
        return Outcome(
            bound=search.bound, bound_source=search.bound_source, build_seconds=spent, stopped="time limit", message=message
        )
    if answer.get("out_of_memory"):
        raise MemoryError
    return replace(read(answer), build_seconds=sum(build_seconds))


def serve(solve: Callable[[dict[str, Any], Send], dict[str, Any]]) -> None:
    """The server's loop: end the last process and fork another whenever a client requests one, until the client's connection is
    closed.

    solve: answers one request in the forked process. Interrupts are ignored here: the client, which receives them too, ends the
    others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unlimited()
    control, forked = socket.socket(fileno=int(sys.argv[1])), 0
    control.send(b"!")
    while True:
        message, numbers, _, _ = socket.recv_fds(control, 1, 1)
        if forked and (not message or os.waitpid(forked, os.WNOHANG)[0] == 0):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(forked, signal.SIGKILL)
                os.waitpid(forked, 0)
        if not message:
            return
        forked = os.fork()
        if not forked:
            control.close()
            _answer(solve, Connection(numbers[0]))
            os._exit(0)
        os.close(numbers[0])


def _answer(solve: Callable[[dict[str, Any], Send], dict[str, Any]], connection: Connection) -> None:
    """In the forked process: answer requests until the connection is closed. An exception is returned as an answer, too."""
    with suppress(EOFError, OSError):
        connection.send(os.getpid())
        while True:
            request = connection.recv()
            try:
                with memory_limited(request["memory_bytes"]):
                    answer = solve(request, connection.send)
            except MemoryError:
                answer = {"out_of_memory": True}
            except Exception:
                answer = {"error": traceback.format_exc(limit=-3).strip()}
            connection.send(("done", answer))
