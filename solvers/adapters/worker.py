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
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from trainplan.solvers.core.clock import wait_seconds
from trainplan.solvers.core.memory_limit import memory_limited, unlimited
from trainplan.solvers.core.search import Outcome, Search

Send = Callable[[tuple[str, Any]], None]

# The time after its limit at which a solver is ended that has not answered; its solutions until then have been sent.
PATIENCE_SECONDS = 0.15
ENDING_LOOKS, ENDING_LOOK_SECONDS = 200, 0.005  # at a child process that is to end by itself

# Modules whose server is forked from this process, which has imported them and runs no thread, instead of being started anew.
forked_modules: set[str] = set()

_workers: list[Worker] = []


def close_all() -> None:
    """End the servers of all solvers that this process uses, and wait for them, as happens at its normal end."""
    for worker in _workers:
        worker.close()


class Late(Exception):
    """The process did not answer by its limit, and was ended."""


class Worker:
    """The client of one general solver (HiGHS or CP-SAT) that runs in processes of its own.

    A server process imports the solver's module and forks a child process; the child answers requests and can be killed at any
    time, after which the server forks another. module: the Python module that the server runs, which calls `serve`. server: the
    server process, None before first use. process: the connection to the child and its process id, None if there is no child.
    """

    def __init__(self, module: str) -> None:
        self.module, self.lock = module, threading.Lock()
        self.arguments: list[str] = []  # of the server's command line, after the number of its connection
        self.server: subprocess.Popen[bytes] | _Forked | None = None
        self.process: tuple[Connection, int] | None = None  # and its number, which is its own until the next one is forked
        atexit.register(self.close)
        _workers.append(self)

    def answer(self, request: dict[str, Any], search: Search, receive: Callable[[str, Any], None]) -> dict[str, Any]:
        """Send a request to the solver's process and return its answer, within a search's limits of time and memory.

        search: the run's limits and options, and its best solution so far; only read here. request: the fields that the
        solver's `solve` reads, without the limits, which are added here. receive: called with each message (kind, content) that
        comes before the answer. Returns the answer, or {"error": text} if the process broke off.

        Raises Late if the time is over before the answer, and MemoryError if the process broke off under a memory limit. The
        process is killed then, and also at any other exception."""
        with self.lock:
            with search.clock.paused():
                self._start()
            connection, number = self.process = self.process or self._fork()
            try:
                limits = {"time_limit": search.seconds(), "memory_bytes": search.memory_bytes}
                connection.send({**request, **limits})
                while True:
                    seconds_left = search.remaining() + PATIENCE_SECONDS
                    if seconds_left < 0:
                        raise Late
                    if not connection.poll(wait_seconds(seconds_left)):
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
        """Start the server process, unless it runs, and wait until it has imported its solver. Raises RuntimeError if it ends
        before that."""
        if self.server is not None and self.server.poll() is None:
            return
        self.process = None
        self.control, other_end = socket.socketpair()
        if self.module in forked_modules:
            self.server = _Forked(partial(self._serve_here, other_end))
        else:
            number, quiet = other_end.fileno(), subprocess.DEVNULL
            command = [sys.executable, "-P", "-m", self.module, str(number), *self.arguments]
            self.server = subprocess.Popen(command, pass_fds=[number], stdin=quiet, stdout=quiet, stderr=quiet)
        other_end.close()
        if not self.control.recv(1):
            raise RuntimeError(f"{self.module} ended with exit code {self.server.wait()} before it could solve anything")

    def _serve_here(self, control: socket.socket) -> None:
        """In a fork of the client's process: serve as the module does when it is started. control: the server's end of the
        connection to the client."""
        self.control.close()
        serve_forks(partial(_answer, sys.modules[self.module].solve), control)

    def _fork(self) -> tuple[Connection, int]:
        """Have the server fork a new child process; return the connection to the child, and its process id. After an exception
        the server is closed, too."""
        connection, other_end = Pipe()
        try:
            socket.send_fds(self.control, [b"?"], [other_end.fileno()])
            other_end.close()
            return connection, connection.recv()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server process, if there is one, which also ends its child process."""
        if self.server is not None:
            self.control.close()
            self.server.wait()
            self.server, self.process = None, None


class _Forked:
    """A server process that is a fork of this one, with those methods of `subprocess.Popen` that `Worker` uses."""

    def __init__(self, run: Callable[[], None]) -> None:
        """run: what the process does before it ends."""
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                run()
            finally:
                os._exit(0)

    def poll(self) -> int | None:
        """The exit code of the process, as `wait` gives it; None while it runs."""
        if self.returncode is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.returncode = 0
        return self.returncode

    def wait(self) -> int:
        """Wait until the process has ended; return 0."""
        if self.returncode is None:
            os.waitpid(self.pid, 0)
            self.returncode = 0
        return self.returncode


def outcome(
    worker: Worker,
    instance: Any,
    search: Search,
    source: str,
    late: tuple[str, str | None],
    read: Callable[[dict[str, Any]], Outcome],
    **request: Any,
) -> Outcome:
    """Solve an instance by a general solver's process and turn its answer into an outcome; solutions and bounds are reported to
    the search as they come.

    instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to which
    better ones are reported.

    If the search has a solution already, only better ones are looked for. worker: the client of the solver's process. source:
    the name under which bounds are reported. late: two messages for users about the time limit: reached before the model was
    built, and after. read: turns an answer into an outcome, whose build_seconds are filled in here. request: further fields
    that only this solver needs. Raises MemoryError if the process ran out of memory."""
    build_seconds = list[float]()

    def receive(kind: str, content: Any) -> None:
        """Handle a message: note the seconds of building, or report a solution or a bound."""
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
    """Run the server process of a general solver until the client closes its connection, whose file number is the process's
    first command argument.

    solve: answers one request in a child process; it gets the request and a function that sends messages, and returns the
    answer.
    """
    serve_forks(partial(_answer, solve), socket.socket(fileno=int(sys.argv[1])))


def serve_forks(answer: Callable[[Connection], None], control: socket.socket) -> None:
    """Run a server process: whenever the client requests a child process, kill the last one and fork another, until the client
    closes its connection.

    answer: what a child process does, with its connection to the client, before it ends. control: the connection to the client.
    Interrupts (Ctrl-C) are ignored here, since the client, which receives them too, kills the children.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unlimited()
    control.send(b"!")
    forked = 0
    while True:
        message, numbers, _, _ = socket.recv_fds(control, 1, 1)
        if forked and (not message or os.waitpid(forked, os.WNOHANG)[0] == 0):
            _end(forked)
        if not message:
            return
        forked = os.fork()
        if not forked:
            control.close()
            answer(Connection(numbers[0]))
            os._exit(0)
        os.close(numbers[0])


def _end(process: int) -> None:
    """End a child process and wait for it: by a signal that it may handle, and if it does not end soon by another one."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGTERM)
        for _ in range(ENDING_LOOKS):
            if os.waitpid(process, os.WNOHANG)[0]:
                return
            time.sleep(ENDING_LOOK_SECONDS)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _answer(solve: Callable[[dict[str, Any], Send], dict[str, Any]], connection: Connection) -> None:
    """In a child process: answer requests from the connection, one after the other, until the client closes it.

    solve: computes one answer. connection: to the client. Before the first request the process id is sent. Each answer is sent
    as ("done", answer); running out of memory gives {"out_of_memory": True}, any other exception {"error": traceback}."""
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
