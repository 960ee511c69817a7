"""A study from its cells to its folder: which cells are finished already, and the others by any executor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, get_args

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.base.files import FilePath
from trainplan.studies import isolated
from trainplan.studies.cells import Cell, key_of, problem_of
from trainplan.studies.environment import machine_id, versions
from trainplan.studies.pace import Pace, Progress
from trainplan.studies.rows import Status
from trainplan.studies.specification import Specification
from trainplan.studies.storage import Storage, StudyStopped, current_rows, read_rows

MOST_JOBS = 1024
MOST_AHEAD = 10_000  # cells that another executor is given before the first of them are finished
AHEAD = 2  # times the jobs: cells that the threads of this process are given
LOOK_S = 1.0  # between two reports of the progress, if no cell ends
Row = dict[str, Any]


@dataclass
class Agenda:
    """Which cells of a study are finished.

    Attributes:
        rest: the cells that have to be run, as `Cell.to_dict` gives them.
        done: the rows of the finished ones.
        restated: those of these rows whose cell has another name or other groups now, changed to these.
        pace: the seconds that the finished cells took.
    """

    rest: list[dict[str, Any]]
    done: list[Row]
    restated: list[Row]
    pace: Pace


def agenda(cells: Iterable[Cell], rows: Sequence[Row], any_machine: bool = False, again: Sequence[str] = ()) -> Agenda:
    """Compare cells with the rows of a folder: a cell is finished if a row has its key, which covers instance, method, options,
    limits, versions and machine.

    rows: in the order in which they were written. any_machine: rows of other machines count, too, since the executor decides
    where cells run. again: statuses with which a cell does not count as finished. Raises InputError for an unknown status.
    """
    for status in again:
        if status not in get_args(Status):
            raise InputError(COMMAND_LINE, "--again", f"is {shown(status)}", one_of(status, get_args(Status)))

    here, current, pace = versions(), current_rows(rows), Pace()
    by_key = {row["key"]: row for row in rows}
    by_key = {key: row for key, row in by_key.items() if row["status"] not in again}
    hashes: dict[tuple[str, str], dict[str | None, None]] = {}
    for earlier in rows:
        hashes.setdefault((earlier["task"], earlier["request"]), {})[earlier["instance_hash"]] = None
    machines = {row["machine_id"]: None for row in rows} if any_machine else {machine_id(): None}
    found = Agenda([], [], [], pace)
    for cell in cells:
        stated = cell.to_dict()
        instances = hashes.get((cell.task, stated["request_text"]), {})
        if cell.task == "plan" and instances:
            instances = {None: None}  # the request stands for its instance
        keys = (key_of(stated, instance, here, machine) for instance in instances for machine in machines)
        row = next((by_key[key] for key in keys if key in by_key), None)
        if row is None:
            found.rest.append(stated)
            continue
        pace.add(row)
        if current.get(stated["name"], {}).get("key") != row["key"] or [*row["groups"]] != stated["groups"]:
            row = {**row, "name": stated["name"], "groups": stated["groups"]}
            found.restated.append(row)
        found.done.append(row)
    return found


def run_study(
    study: Specification,
    folder: FilePath,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    again: Sequence[str] = (),
) -> Progress:
    """Run the cells of a study that are not finished, and store their rows in its folder.

    jobs: the number of cells that run at a time, on this machine or, if known, by the executor. executor: runs
    `isolated.run_cell`; by default threads of this process. progress: called whenever cells have ended, and about each second.
    again: statuses with which cells do not count as finished. Returns the last progress. Raises StudyStopped where the disk is
    full or the executor broke, and KeyboardInterrupt; everything finished is stored then, and another call goes on.
    """
    check_jobs(jobs)
    own = ThreadPoolExecutor(jobs, "cell") if executor is None else None
    try:
        with Storage(folder, study.content) as storage:
            todo = agenda(study.cells, read_rows(Path(folder)), any_machine=own is None, again=again)
            storage.append(todo.restated)
            return _Run(storage, todo, own or executor, jobs, own is not None, progress).run()
    finally:
        if own is not None:
            isolated.close()  # what still runs is ended, and has no row
            own.shutdown(cancel_futures=True)


def check_jobs(jobs: int) -> None:
    """Raise InputError unless a number of jobs is from 1 to MOST_JOBS."""
    if not 1 <= jobs <= MOST_JOBS:
        raise InputError(COMMAND_LINE, "--jobs", f"is {jobs}", f"give 1 to {MOST_JOBS}, such as the machine's cores")


class _Run:
    """One call of `run_study`.

    rest: the cells that have no row yet, by name; those that run come first. ended: futures that have ended.
    """

    def __init__(
        self,
        storage: Storage,
        todo: Agenda,
        executor: Any,
        jobs: int,
        own: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """storage: of the study's folder. todo: the cells. executor: runs them. jobs: at a time. own: the executor is threads
        of this process."""
        self.storage, self.executor, self.jobs, self.report = storage, executor, jobs, progress
        self.rest = {cell["name"]: cell for cell in todo.rest}
        self.pace, self.total = todo.pace, len(todo.rest) + len(todo.done)
        self.statuses = Counter(row["status"] for row in todo.done)
        self.most = AHEAD * jobs if own else MOST_AHEAD
        self.running: set[Future[Row]] = set()
        self.ended: SimpleQueue[tuple[dict[str, Any], Future[Row]]] = SimpleQueue()

    def run(self) -> Progress:
        """Submit cells as others end, and store each row, until all are stored; return the last progress."""
        waiting = iter(list(self.rest.values()))
        try:
            self._tell()
            while self.rest:
                for cell in islice(waiting, self.most - len(self.running)):
                    self._submit(cell)
                if self._store(self._next()):
                    self._tell()
                elif not self.running and self.ended.empty():
                    raise StudyStopped(
                        f"{self.storage.folder}: the executor has ended without all cells; give the same line again"
                    )
        except BaseException:
            for future in self.running:
                future.cancel()
            self._store(self._at_once())
            raise
        return self._tell()

    def _submit(self, cell: dict[str, Any]) -> None:
        """Give a cell to the executor. Raises StudyStopped if it takes none."""
        try:
            future = self.executor.submit(isolated.run_cell, cell)
        except (BrokenExecutor, RuntimeError) as error:
            raise self._broken(error) from None
        self.running.add(future)
        future.add_done_callback(partial(self._end, cell))

    def _end(self, cell: dict[str, Any], future: Future[Row]) -> None:
        """Note that a cell has ended; called in any thread."""
        self.ended.put((cell, future))

    def _next(self) -> list[tuple[dict[str, Any], Future[Row]]]:
        """The cells that have ended, after at most LOOK_S seconds; empty, and the progress is reported, if none has."""
        try:
            first = self.ended.get(timeout=LOOK_S)
        except Empty:
            self._tell()
            return []
        return [first, *self._at_once()]

    def _at_once(self) -> list[tuple[dict[str, Any], Future[Row]]]:
        """The cells that have ended until now."""
        found = []
        while not self.ended.empty():
            found.append(self.ended.get())
        return found

    def _store(self, ended: Sequence[tuple[dict[str, Any], Future[Row]]]) -> bool:
        """Store the rows of cells that have ended; return whether there were any. Raises StudyStopped if the executor broke."""
        rows, broken = list[Row](), None
        for cell, future in ended:
            self.running.discard(future)
            try:
                rows.append(future.result())
            except CancelledError:
                continue
            except BrokenExecutor as error:
                broken = error
            except Exception as error:
                rows.append(isolated.row_without_run(cell, " ".join(f"{type(error).__name__}: {error}".split())))
        self.storage.append(rows)
        for row in rows:
            self.rest.pop(row["name"], None)
            self.statuses[row["status"]] += 1
            self.pace.add(row)
        if broken is not None:
            raise self._broken(broken)
        return bool(rows)

    def _broken(self, error: Exception) -> StudyStopped:
        """The line for users about an executor that takes no cells."""
        text = " ".join(str(error).split()) or type(error).__name__
        return StudyStopped(
            f"{self.storage.folder}: the executor broke ({text}); what is finished is kept: give the same line again"
        )

    def _tell(self) -> Progress:
        """Report the progress, and return it."""
        left, known = self.pace.rest(self.rest.values(), self.jobs)
        state = Progress(self.total - len(self.rest), self.total, self.statuses.copy(), left, known)
        if self.report is not None:
            self.report(state)
        return state


def dry_run(study: Specification, folder: FilePath | None, jobs: int, again: Sequence[str] = ()) -> dict[str, Any]:
    """Count what a call of `run_study` would do, without doing it; the counts as a dict of JSON values.

    folder: whose finished cells count; None for none. again: statuses with which cells do not count as finished. Keys: name,
    cells (their number), counts (rows of problem, method, cells and done), excluded (by entry of the study), without (pairs of
    a problem and a method that it does not have), done, rest, limit_seconds (the time limits of the rest by `jobs` workers;
    None where a cell has none), seconds (by the finished cells; None if they do not tell).
    """
    check_jobs(jobs)
    rows = read_rows(folder) if folder is not None and Path(folder).is_dir() else []
    todo = agenda(study.cells, rows, again=again)
    rest = {cell["name"] for cell in todo.rest}
    counts: dict[tuple[str | None, str], list[int]] = {}
    for cell in study.cells:
        numbers = counts.setdefault((problem_of(cell.task, cell.problem), cell.method), [0, 0])
        numbers[0] += 1
        numbers[1] += cell.name not in rest
    seconds, known = todo.pace.rest(todo.rest, jobs)
    return {
        "name": study.name,
        "cells": len(study.cells),
        "counts": [
            {"problem": problem, "method": method, "cells": cells, "done": done}
            for (problem, method), (cells, done) in counts.items()
        ],
        "excluded": [*study.excluded],
        "without": [[problem, method] for problem, method in study.without],
        "done": len(todo.done),
        "rest": len(todo.rest),
        "limit_seconds": Pace().rest(todo.rest, jobs)[0],
        "seconds": seconds if known else None,
    }
