"""Warm starts of the processes that plans run in and solvers work in: forks of a process that has done their imports.

`trainplan` starts these by `python -P -m MODULE`, and each start imports torch (4 s of processor time), HiGHS or OR-Tools (1 s)
anew. `Warm` stands in for `subprocess.Popen` there: a server, one for each module, has the imports done; it forks a process
that gets the same arguments, folder, environment and open files, and runs the module as `-m` does. What differs from a usual
start (another program or environment of Python, a limit of memory) is started as usual, as is all that a real `trainplan`
command starts.

This file is also what a server runs, so that it imports nothing but Python's own modules.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import pickle
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

RANKS = "trainplan.profiling.base.processes"
IMPORTS = {
    RANKS: ["torch.distributed", "trainplan.execution.run.ranks", "trainplan.execution.lowering.ranks"],
    "trainplan.solvers.adapters.highs_worker": [],
    "trainplan.solvers.adapters.cpsat_worker": [],
}
READ_BY_IMPORTS = ("PYTHON", "LD_", "TORCH", "CUDA", "OMP_", "MKL_", "NCCL_", "GLOO_")  # beginnings of names of variables
TAKEN_ON = {"PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"}  # of these, what ranks read later
LENGTH_BYTES = 8
folder: str | None = None  # of the servers' sockets, which the processes of `calls` know from the process that starts them
_own: tempfile.TemporaryDirectory[str] | None = None
_servers: list[subprocess.Popen[bytes]] = []


def install(sockets: str | None = None) -> None:
    """Have this process start ranks and solvers warm. sockets: the folder of the servers' sockets; without it they are made
    here, and the servers start, which end with this process."""
    global folder, _own
    from trainplan.profiling.base import processes
    from trainplan.solvers.adapters import worker

    if sockets is None:
        _own = tempfile.TemporaryDirectory(prefix="warm-")
        sockets = _own.name
        for module, imports in IMPORTS.items():
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(Path(sockets, module)))
                listener.listen(64)
                number = listener.fileno()
                command = [sys.executable, "-P", __file__, str(number), module, *imports]
                _servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[number]))
    folder = sockets
    names = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    processes.subprocess = worker.subprocess = SimpleNamespace(**names, Popen=start)  # type: ignore[assignment]


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes] | Warm:
    """Start a process as `subprocess.Popen` does, warm where it can be."""
    environment = dict(options.get("env") or os.environ)
    known = folder is not None and list(command[:3]) == [sys.executable, "-P", "-m"] and command[3] in IMPORTS
    if known and _read(environment) == _read(AT_START) and resource.getrlimit(resource.RLIMIT_AS) == MEMORY_AT_START:
        return Warm(list(command[3:]), environment, **options)
    return subprocess.Popen(command, **options)


def _read(environment: dict[str, str]) -> dict[str, str]:
    """What imports may read of the environment."""
    return {name: value for name, value in environment.items() if name.startswith(READ_BY_IMPORTS) and name not in TAKEN_ON}


class Warm:
    """A process that a server has forked, with those methods of `subprocess.Popen` that ranks and solvers are started with."""

    def __init__(
        self,
        words: list[str],
        environment: dict[str, str],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Any = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        """words: the module and its arguments; the others are those of `subprocess.Popen`."""
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        files, closed = list[int](), list[int]()
        for stream, mode in ((stdin, "wb"), (stdout, "rb"), (stderr, "")):
            if stream == subprocess.PIPE:
                read, write = os.pipe()
                theirs, ours = (read, write) if mode == "wb" else (write, read)
                setattr(self, "stdin" if mode == "wb" else "stdout", os.fdopen(ours, mode, 0 if mode == "wb" else -1))
                closed.append(theirs)
            elif stream == subprocess.DEVNULL:
                closed.append(theirs := os.open(os.devnull, os.O_RDWR))
            else:
                theirs = stream if isinstance(stream, int) else stream.fileno()
            files.append(theirs)
        request = {
            "words": words,
            "folder": os.getcwd(),
            "environment": environment,
            "files": [0, 1, 2, *pass_fds],
            "session": start_new_session,
            "group": os.getpgrp(),
        }
        payload = pickle.dumps(request)
        self.connection = socket.socket(socket.AF_UNIX)
        assert folder is not None
        self.connection.connect(str(Path(folder, words[0])))
        socket.send_fds(self.connection, [len(payload).to_bytes(LENGTH_BYTES, "big")], [*files, *pass_fds])
        self.connection.sendall(payload)
        for number in closed:
            os.close(number)
        self.pid = self._number()

    def _number(self) -> int:
        """The next number that the server sends: the process's id, then its exit code."""
        content = self.connection.recv(LENGTH_BYTES, socket.MSG_WAITALL)
        return int.from_bytes(content, "big", signed=True) if content else -signal.SIGKILL

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        return self.wait() if self.returncode is None and select.select([self.connection], [], [], 0)[0] else self.returncode

    def wait(self) -> int:
        """Wait until the process has ended; return its exit code."""
        if self.returncode is None:
            self.returncode = self._number()
            self.connection.close()
            if self.stdin is not None:
                with suppress(OSError):
                    self.stdin.close()
        return self.returncode


def serve(listener: socket.socket, module: str, imports: list[str]) -> NoReturn:
    """Fork a process for each connection, and send its id and its exit code there, until the standard input closes. The module
    and the other imports are imported at the first connection: not all tests need them."""
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is of the tests, whose end ends this process
    children = dict[int, socket.socket]()
    while True:
        ready = select.select([listener, ended, 0], [], [])[0]
        if 0 in ready:
            os._exit(0)
        if ended in ready:
            ended.recv(4096)
            while children and (found := os.waitpid(-1, os.WNOHANG))[0]:
                with suppress(OSError):  # of a client that has ended
                    children[found[0]].sendall(os.waitstatus_to_exitcode(found[1]).to_bytes(LENGTH_BYTES, "big", signed=True))
                children.pop(found[0]).close()
        if listener in ready:
            connection = listener.accept()[0]
            length, numbers, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 16)
            if module not in sys.modules:
                for name in (module, *imports):
                    importlib.import_module(name)
                gc.collect()
                gc.freeze()  # so that processes share the memory of what is imported
            content = b""
            while len(content) < int.from_bytes(length, "big"):
                content += connection.recv(1 << 20)
            if not (process := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for other in (listener, ended, wake, connection, *children.values()):
                    other.close()
                _become(module, pickle.loads(content), numbers)
            children[process] = connection
            connection.sendall(process.to_bytes(LENGTH_BYTES, "big", signed=True))
            for number in numbers:
                os.close(number)


def _become(module: str, request: dict[str, Any], numbers: list[int]) -> NoReturn:
    """In a fork of the server: take on the request's files, folder and environment, and run the module as `-m` does.

    numbers: of the open files as received, in the order of `request["files"]`, the numbers that they are to have."""
    code = 1
    try:
        if request["session"]:
            os.setsid()
        else:
            with suppress(OSError):  # of another session
                os.setpgid(0, request["group"])
        above = max(256, *request["files"]) + 1
        moved = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in numbers]
        for number in numbers:
            os.close(number)
        for number, wanted in zip(moved, request["files"], strict=True):
            os.dup2(number, wanted)
            os.close(number)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        sys.argv = [str(sys.modules[module].__file__), *request["words"][1:]]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


AT_START, MEMORY_AT_START = dict(os.environ), resource.getrlimit(resource.RLIMIT_AS)

if __name__ == "__main__":  # `python -P warm.py SOCKET MODULE IMPORT...`
    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # by runpy: the module was imported before
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
