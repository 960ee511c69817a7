"""Solvers in processes of their own, which can be ended at any moment: both ends of the connection to one.

A process lives on between requests, because starting Python and importing a solver costs more than a small solve; and it keeps
HiGHS apart from OR-Tools, with which it shares a library name. It is asked with a dict and answers with any number of messages
(kind, content), the last of which is of the kind "done".
"""

from __future__ import annotations

import atexit
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from trainplan.solvers.core.memory_limit import memory_limited, unlimited
from trainplan.solvers.core.search import Search

Send = Callable[[tuple[str, Any]], None]

# A solver that has not answered so long after its limit is ended: what it had by then has been sent.
PATIENCE_SECONDS = 0.15


class Late(Exception):
    """The process did not answer by its limit, and was ended."""


class Worker:
    """A process that solves one request after the other, started on first use and again after it was ended.

    module: what it runs; its `main` calls `serve`.
    """

    def __init__(self, module: str) -> None:
        self.module, self.lock = module, threading.Lock()
        self.child: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)

    def answer(self, request: dict[str, Any], search: Search, receive: Callable[[str, Any], None]) -> dict[str, Any]:
        """The answer to a request within a search's limits of time and memory. receive: called with what is sent before.

        Raises Late where the time is up before. The process is ended then, and by any other exception, too: it would go on.
        """
        with self.lock:
            try:
                with search.clock.paused():
                    self._start()
                limits = {"time_limit": search.seconds(), "memory_bytes": search.memory_bytes}
                self.connection.send({**request, **limits})
                while True:
                    left = None if search.time_limit is None else search.remaining() + PATIENCE_SECONDS
                    if (left is not None and left < 0) or not self.connection.poll(left):
                        raise Late
                    kind, content = self.connection.recv()
                    if kind == "done":
                        answer: dict[str, Any] = content
                        return answer
                    receive(kind, content)
            except (EOFError, OSError):
                code = self.end()
                if search.memory_bytes is not None:
                    raise MemoryError from None
                return {"error": f"its process ended with exit code {code}"}
            except BaseException:
                self.end()
                raise

    def _start(self) -> None:
        """Start the process, if there is none, and wait until it has imported what it needs."""
        if self.child is None or self.child.poll() is not None:
            self.connection, other_end = Pipe()
            number, quiet = other_end.fileno(), subprocess.DEVNULL
            command = [sys.executable, "-P", "-m", self.module, str(number)]
            self.child = subprocess.Popen(command, pass_fds=[number], stdin=quiet, stdout=quiet, stderr=quiet)
            other_end.close()
            self.connection.recv()

    def end(self) -> int | None:
        """End the process, if there is one; its exit code."""
        child, self.child = self.child, None
        if child is None:
            return None
        child.kill()
        return child.wait()


def serve(solve: Callable[[dict[str, Any], Send], dict[str, Any]]) -> None:
    """In the process: solve requests until the connection is closed. An exception is an answer, too.

    Interrupts are left to the process that asked, which ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unlimited()
    connection = Connection(int(sys.argv[1]))
    connection.send(("ready", None))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            with memory_limited(request["memory_bytes"]):
                answer = solve(request, connection.send)
        except MemoryError:
            answer = {"out_of_memory": True}
        except Exception:
            answer = {"error": traceback.format_exc(limit=-3).strip()}
        connection.send(("done", answer))
