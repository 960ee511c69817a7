"""One cell in a process of its own, within limits of time and memory: whatever happens to the process becomes the cell's row.

`run_cell` is what executors call, on this machine or another one. It starts a server (`server`), or takes an idle one that an
earlier cell has started, which has imported everything and forks a process for each cell.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainplan.profiling.base.quantities import parse_bytes
from trainplan.solvers.adapters.worker import Worker
from trainplan.solvers.core.clock import wait_seconds
from trainplan.studies.axes import LARGEST
from trainplan.studies.cells import canonical, key_of, problem_of
from trainplan.studies.environment import machine, machine_id, versions
from trainplan.studies.rows import row_of

GRACE_SHARE, LEAST_GRACE_S = 0.25, 10.0
PLAN_GRACE_SHARE, LEAST_PLAN_GRACE_S = 1.25, 60.0  # the search for evidence may take as long as planning
BUILD_S = 600.0  # in which an instance has to be built
SERVER = "trainplan.studies.server"
HIGHS, CPSAT = "highs", "cpsat"


class _Slot(Worker):
    """The client of one server, which solves one cell at a time. solver: the general solver that the server has imported.
    request: what identifies the request whose instance the server's process has built; None if it has built none."""

    def __init__(self, solver: str) -> None:
        super().__init__(SERVER)
        self.arguments = [solver]
        self.solver = solver
        self.request: str | None = None

    def solve(self, cell: Mapping[str, Any], request: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Solve a cell. request: what identifies its request. Returns what the server's process says about the instance, and
        about the cell (see `server`); both empty where the process died, and `late` in the second where it was ended while it
        built."""
        try:
            if self.request != request or self.process is None:
                self.drop()
                self.process = self._forked()
                self.request = request
                self.process[0].send(cell)
                if not _arrives(self.process[0], BUILD_S):
                    self.drop()
                    return {}, {"late": True}
                self.about = self.process[0].recv()
                if "instance" not in self.about:
                    about = self.about
                    self.drop()
                    return about, {}
            else:
                self.process[0].send(cell)
            answer: dict[str, Any] = self.process[0].recv()
            return self.about, answer
        except (EOFError, OSError):
            self.drop()
            return {}, {}
        except BaseException:
            self.close()
            raise

    def _forked(self) -> tuple[Connection, int]:
        """A new process of the server, which is started again if it has ended. Raises OSError or EOFError if that ends, too."""
        try:
            self._start()
            return self._fork()
        except (EOFError, OSError):
            self.close()
            self._start()
            return self._fork()

    def drop(self) -> None:
        """End the process that has built a request's instance, if there is one."""
        if self.process is not None:
            self.process[0].close()
        self.process, self.request = None, None


_idle: list[_Slot] = []
_all: list[_Slot] = []
_lock = threading.Lock()


def run_cell(cell: Mapping[str, Any], folder: str | None = None) -> dict[str, Any]:
    """Solve a cell in a process of its own, and return its row, whatever happens to the process.

    Executors call this function, in threads or in processes; it keeps the servers that it has started for further cells.

    cell: as `Cell.to_dict` gives it. folder: the study's folder, in which the contents of files are written at once; None, as
    studies do it, returns them in the row's entry "files", by column.
    """
    started, limits = _now(), _limits(cell)
    request = canonical([cell["task"], cell["task"] == "solve" and cell["problem"], cell["request_text"]])
    slot = _taken(request, CPSAT if cell["method"] == CPSAT else HIGHS)
    try:
        about, message = slot.solve({**cell, "limits": limits}, request)
    finally:
        with _lock:
            if slot in _all:  # else it has been closed meanwhile
                _idle.append(slot)
    values = {**_stated(cell), **about.get("instance", {}), **message.get("used", {}), "started": started}
    values |= _ended(about, message, limits)
    values = {name: value for name, value in values.items() if value is not None or name not in ("problem", "memory_bytes")}
    key = key_of(cell, values.get("instance_hash") if cell["task"] == "solve" else None, versions(), machine_id())
    files = values.pop("files", {})
    row = {**row_of({**values, "key": key}), "files": files}
    if folder is not None:
        from trainplan.studies.storage import with_files

        return with_files(Path(folder), row)
    return row


def row_without_run(cell: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """The row of a cell whose executor failed instead of returning one. reason: in one line."""
    values = {**_stated(cell), "started": _now(), "status": "crashed", "reason": f"the executor failed: {reason}"}
    return row_of({**values, "key": key_of(cell, None, versions(), machine_id())})


def close() -> None:
    """End all servers of this process, with whatever they are solving."""
    with _lock:
        slots = [*_all]
        _all.clear()
        _idle.clear()
    for slot in slots:
        slot.close()


def grace_seconds(cell: Mapping[str, Any]) -> float:
    """The seconds after its time limit at which a cell's process is killed: those of its limits, or else a quarter of the time
    limit and at least 10 s, since starting solvers does not count; to plan, at least 60 s and five quarters, since the plan is
    then predicted and evidence of its bound gathered."""
    limits, plans = cell["limits"], cell["task"] == "plan"
    if limits["grace"] is not None:
        return float(limits["grace"])
    share, least = (PLAN_GRACE_SHARE, LEAST_PLAN_GRACE_S) if plans else (GRACE_SHARE, LEAST_GRACE_S)
    return max(share * (limits["time_limit"] or 0.0), least)


def _now() -> str:
    """The time in UTC, as rows have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _limits(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's limits, with the seconds of grace filled in."""
    return {**cell["limits"], "grace": grace_seconds(cell)}


def _taken(request: str, solver: str) -> _Slot:
    """An idle slot whose server has imported a general solver, one that has built the request's instance if there is one; a new
    one if none is idle."""
    with _lock:
        suitable = [slot for slot in _idle if slot.solver == solver]
        if suitable:
            slot = next((slot for slot in suitable if slot.request == request), suitable[-1])
            _idle.remove(slot)
            return slot
        slot = _Slot(solver)
        _all.append(slot)
        return slot


def _arrives(connection: Connection, seconds: float) -> bool:
    """Whether a message, or the connection's end, arrives within a number of seconds."""
    return connection.poll(wait_seconds(seconds))


def _stated(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a cell's row that the cell itself states."""
    request, limits = cell["request"], cell["limits"]
    memory = request.get("memory")
    return {
        **{name: cell[name] for name in ("name", "task", "method", "runtime", "groups", "seed", "cold", "repeat")},
        "problem": problem_of(cell["task"], cell["problem"]),
        **{name: request.get(name) for name in ("model", "cluster", "batch", "sequence")},
        "memory_bytes": _bytes(memory),
        "options": canonical(dict(cell["options"])),
        "request": cell["request_text"],
        "tolerance": limits["gap"],
        "time_limit_s": limits["time_limit"],
        "solver_memory_bytes": limits["memory"],
        "versions": canonical(dict(versions())),
        "machine": canonical(machine()),
        "machine_id": machine_id(),
    }


def _bytes(memory: Any) -> int | None:
    """A size such as "8GiB", or a number of bytes, in bytes; None for what is none, which the process of the cell refuses."""
    try:
        size = memory if isinstance(memory, int) else parse_bytes(memory)
    except (ValueError, TypeError):
        return None
    return size if size <= LARGEST else None


def _ended(about: Mapping[str, Any], message: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that follow from how its process ended: its answer, or the status and the reason why there is none.

    about, message: as `_Slot.solve` returns them. limits: the cell's, with its grace.
    """
    if "status" in about:
        return dict(about)
    if (answer := message.get("answer")) is not None:
        return dict(answer)
    if message.get("late"):
        if "used" not in message:
            return {"status": "timed out", "reason": f"its instance was not built within {BUILD_S:g} s"}
        text = f"it ran on for {limits['grace']:g} s after its limit of {limits['time_limit']:g} s, and was ended"
        return {"status": "timed out", "reason": text, "stopped": "time limit"}
    if message.get("memory"):
        return {"status": "out of memory", "reason": message["reason"], "stopped": "memory limit"}
    while_building = "its process died while its instance was built" if not about else "the process that forks it died"
    return {"status": "crashed", "reason": message.get("reason") or while_building}
