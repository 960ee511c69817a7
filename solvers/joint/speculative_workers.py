"""Advances configurations on several cores, with the answer of one.

The search advances the configuration of the least bound by a step that depends on the best plan so far. Forked processes, which
have the instance and its tables already, take that step; idle ones take the first steps of the configurations that come next. A
step taken in advance counts if the best plan is still the same when its turn comes; else it is taken again. So steps count in
the order of a search in one process, and plan, bound and counts are the same on any number of cores.

A process that has bounds of a configuration on all spans keeps them, and takes the later steps of that configuration. All
processes are killed once the search is over, however it ends; if the process that forked them is gone, they end by themselves.
"""

from __future__ import annotations

import heapq
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from trainplan.solvers.core.clock import wait_seconds
from trainplan.solvers.core.memory_limit import memory_limited
from trainplan.solvers.core.search import Search

JOBS = "jobs"  # the method's option
AHEAD = 4  # configurations for each process, of which the first step may be taken in advance
PATIENCE_SECONDS = 0.15  # beyond the limit, for a process that has not noticed it yet


class Entry(Protocol):
    """The state of one configuration (number of stages and micro-batches, with a schedule) in the search, with the fields that
    a worker process needs. stage: the step of the method that comes next."""

    configuration_index: int
    stage: int


class Run(Protocol):
    """The search over configurations (numbers of stages and micro-batches, with a schedule) in one process, with the fields
    that worker processes need: the function that takes a step, and the numbers that a step changes in addition to the
    configuration's entry, which are combined over all processes.

    search: the limits and the best plan so far. statistics: counts of steps by name. abandoned_bound_ns: the least bound in ns
    of the configurations that are not searched further. abandoned: whether some configurations were given up. source: the name
    of what proves the bound. loosest: the largest relative gap of a stage that was solved."""

    search: Search
    statistics: dict[str, Any]
    abandoned_bound_ns: float
    abandoned: bool
    source: str
    loosest: float

    def advanced(self, bound: float, entry: Any) -> float | None:
        """Take the next step of one configuration; return its lower bound in ns afterwards, None once it cannot improve the
        best plan. bound: the configuration's lower bound in ns so far. entry: the configuration's record in the search (its
        next step and what it has found), which is changed. Raises TimeoutError.
        """


@dataclass(frozen=True)
class Task:
    """A task for a worker process: one step of the method for one configuration (number of stages and micro-batches, with a
    schedule) with all that the step's result depends on: the configuration's lower bound, the name of the step (stage), and the
    step time of the best plan. provisional: whether that best plan was found by another method, so that an equally good plan
    replaces it."""

    configuration_index: int
    stage: int
    bound: float
    objective: int | None
    provisional: bool


@dataclass
class _Process:
    """A forked worker process: its number, the task that it works on, and the plans that it has sent for that task."""

    number: int
    connection: Connection
    task: Task | None = None
    plans: list[Any] = field(default_factory=list)


@dataclass
class Step:
    """The result of a task, that is, of one step for one configuration, as a worker process returns it. bound: the
    configuration's lower bound in ns after the step, None once the configuration (number of stages and micro-batches, with a
    schedule) cannot improve the best plan. error: raised in place of a result. plans: the plans that were found during the
    step, in order, except those that the search knows already. process: the process that took the step."""

    task: Task
    stage: int = 0
    bound: float | None = None
    abandoned_bound_ns: float = inf
    abandoned: bool = False
    source: str = ""
    loosest: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    error: Exception | None = None
    plans: list[Any] = field(default_factory=list)
    process: _Process | None = None


class Ahead:
    """The worker processes of one search over configurations (numbers of stages and micro-batches, with a schedule), and the
    steps that they have taken in advance. A step counts only if nothing that it depends on has changed, so that the result is
    the same as with one process.

    processes: the forked processes, empty before the first step. keepers: a dict from each configuration's index to the process
    that has its tables and takes its later steps. ready: a dict from each configuration's index to its step that was taken in
    advance and is not used yet. lifeline: the pipe by whose end the processes notice that this process is gone."""

    def __init__(self, run: Run, jobs: int | None, early: Sequence[int], entry: Callable[[int, int], Entry]) -> None:
        """run: the search. jobs: the number of processes; with 1 or None all steps are taken in this process. early: the stages
        whose steps depend on nothing but their tasks. entry: gives a new entry of a configuration index in such a stage."""
        self.run, self.search, self.early, self.entry = run, run.search, early, entry
        self.jobs = jobs if jobs is not None and hasattr(os, "fork") else 1
        self.source = run.source
        self.processes: list[_Process] = []
        self.lifeline: int | None = None
        self.keepers: dict[int, _Process] = {}  # by index of configurations with bounds on all spans
        self.ready: dict[int, Step] = {}  # by index, steps taken in advance

    def advanced(self, bound: float, entry: Any, waiting: Sequence[tuple[float, int, Any]]) -> float | None:
        """Take the next step of one configuration, or use its result if a worker process has taken it in advance. Returns the
        configuration's lower bound in ns afterwards; None once it cannot improve the best plan.

        bound: the configuration's lower bound in ns so far. entry: the configuration's record in the search (its next step and
        what it has found). waiting: all entries as a heap (bound, index, entry), of which this entry is the first; idle
        processes take steps of the next ones in advance. Raises TimeoutError, or what the step raised.
        """
        if not self.processes:
            if self.jobs == 1 or len(waiting) == 1:
                return self.run.advanced(bound, entry)
            self._fork([item[2] for item in waiting])
        task = self._task(bound, entry)
        step = self.ready.pop(task.configuration_index, None)
        while step is None or step.task != task:
            self._give(task)
            for ahead_bound, _, other in heapq.nsmallest(AHEAD * self.jobs, waiting):
                if other.stage in self.early and other is not entry and ahead_bound <= self.search.target():
                    next_task = self._task(ahead_bound, other)
                    if other.configuration_index not in self.ready or self.ready[other.configuration_index].task != next_task:
                        self._give(next_task)
            self._receive(task)
            step = self.ready.pop(task.configuration_index, None)
        return self._counted(step, entry)

    def _task(self, bound: float, entry: Entry) -> Task:
        """The task of a configuration's next step: all that the step's result depends on. bound: the configuration's lower
        bound in ns. entry: the configuration's record in the search (its next step and what it has found).
        """
        return Task(entry.configuration_index, entry.stage, bound, self.search.objective, self.search.provisional)

    def _give(self, task: Task) -> None:
        """Send a task to an idle process that can take it. Nothing is sent if none is idle, or if a process works on the task
        already; a later step of a configuration can only be taken by the process that has its tables."""
        if any(process.task == task for process in self.processes):
            return
        keeper = None if task.stage in self.early else self.keepers.get(task.configuration_index)
        for process in self.processes if keeper is None else [keeper]:
            if process.task is None:
                process.task = task
                with suppress(OSError):  # a process that is gone is noticed when its answer is waited for
                    process.connection.send(task)
                return

    def _receive(self, needed: Task) -> None:
        """Wait for messages of busy processes and handle them: keep finished steps in `ready`, and report the plans of the task
        that is needed now. Raises TimeoutError after the search's time limit, and MemoryError or RuntimeError if a process
        broke off."""
        busy = {process.connection: process for process in self.processes if process.task is not None}
        seconds = self.search.remaining() + PATIENCE_SECONDS
        if seconds < 0:
            raise TimeoutError
        for connection in wait(list(busy), wait_seconds(seconds)):
            process = busy[connection]  # type: ignore[index]
            try:
                message = process.connection.recv()
            except (EOFError, OSError):
                if self.search.memory_bytes is not None:
                    raise MemoryError from None
                raise RuntimeError("a process of the search broke off") from None
            if not isinstance(message, Step):
                process.plans.append(message)
            if process.task == needed:
                self._report(process.plans)
            if isinstance(message, Step):
                message.plans, message.process = process.plans, process
                process.task, process.plans = None, []
                if message.task == needed or message.task.objective == self.search.objective:
                    self.ready[message.task.configuration_index] = message

    def _report(self, plans: list[Any]) -> None:
        """Report plans that a worker process has found to the search, in order, and empty the list `plans`."""
        for plan in plans:
            self.search.report(plan)
        plans.clear()

    def _counted(self, step: Step, entry: Entry) -> float | None:
        """Use the result of a step that a worker process has taken: report its plans, and add its numbers to the run and to the
        configuration's entry; return the configuration's lower bound in ns (None if it cannot improve the best plan). Raises
        the exception that the step raised, if any. entry: the configuration's record in the search (its next step and what it
        has found), which is changed.
        """
        run = self.run
        self._report(step.plans)
        if step.error is not None:
            raise step.error
        assert step.process is not None
        entry.stage, self.keepers[entry.configuration_index] = step.stage, step.process
        run.abandoned_bound_ns, run.loosest = (
            min(run.abandoned_bound_ns, step.abandoned_bound_ns),
            max(run.loosest, step.loosest),
        )
        run.abandoned |= step.abandoned
        run.source = run.source if step.source == self.source else step.source
        for name, count in step.counts.items():
            run.statistics[name] += count
        return step.bound

    # Processes

    def _fork(self, entries: Sequence[Any]) -> None:
        """Start the worker processes, which inherit the run and the entries of all configurations by forking. Interrupts are
        blocked until each process ignores them."""
        lifeline, self.lifeline = os.pipe()
        for _ in range(self.jobs):
            connection, other_end = Pipe()
            signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGALRM])
            try:
                if (number := os.fork()) == 0:
                    try:
                        os.close(self.lifeline)
                        threading.Thread(target=_watch, args=[lifeline], daemon=True).start()
                        signal.signal(signal.SIGINT, signal.SIG_IGN)
                        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
                        self._serve({entry.configuration_index: entry for entry in entries}, other_end)
                    finally:
                        os._exit(0)
                self.processes.append(_Process(number, connection))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            other_end.close()
        os.close(lifeline)
        for entry in entries:  # of which the processes have copies
            entry.candidate = None

    def close(self) -> None:
        """Kill all worker processes and wait for their end."""
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
        for process in self.processes:
            os.kill(process.number, signal.SIGKILL)
            os.waitpid(process.number, 0)
            process.connection.close()
        self.processes = []

    def _serve(self, entries: dict[int, Any], connection: Connection) -> None:
        """The main loop of a forked process: receive tasks, take their steps, and send plans and results, until the process is
        killed. entries: the states of configurations by index. connection: the pipe to the parent process."""
        search, memory_bytes = self.search, self.search.memory_bytes
        search.progress = lambda _: connection.send(search.best)
        with suppress(EOFError, OSError), memory_limited(None if memory_bytes is None else memory_bytes // self.jobs):
            while True:
                task: Task = connection.recv()
                if task.stage in self.early:
                    entries[task.configuration_index] = self.entry(task.configuration_index, task.stage)
                search.best, search.objective, search.provisional = None, task.objective, task.provisional
                step = self._taken(task, entries[task.configuration_index])
                if step.bound is None:
                    del entries[task.configuration_index]
                connection.send(step)

    def _taken(self, task: Task, entry: Any) -> Step:
        """Take a task's step in this (forked) process, and return its result; an exception is part of the result. entry: the
        configuration's record in the search (its next step and what it has found), which is changed.
        """
        run, step = self.run, Step(task)
        run.abandoned_bound_ns, run.abandoned, run.loosest, run.source = inf, False, 0.0, self.source
        run.statistics.update(dict.fromkeys(run.statistics, 0))
        try:
            step.bound = run.advanced(task.bound, entry)
        except Exception as error:
            step.error = error
        step.stage, step.abandoned_bound_ns, step.abandoned = entry.stage, run.abandoned_bound_ns, run.abandoned
        step.source, step.loosest, step.counts = run.source, run.loosest, dict(run.statistics)
        return step


def _watch(lifeline: int) -> None:
    """End this forked process as soon as its parent is gone. lifeline: the reading end of a pipe whose other end only the
    parent holds. Runs in a thread."""
    os.read(lifeline, 1)
    os._exit(1)


@contextmanager
def ahead(run: Run, jobs: int | None, early: Sequence[int], entry: Callable[[int, int], Entry]) -> Iterator[Ahead]:
    """Context manager that starts the worker processes of a search, which take its steps in advance, and kills them at its end.

    run: the search. jobs: the number of processes; with 1 or None all steps are taken in this process. early: the steps of the
    method that depend on nothing but their task, so that any process can take them. entry: a function that makes the state of a
    configuration (number of stages and micro-batches, with a schedule) from its index and such a step."""
    processes = Ahead(run, jobs, early, entry)
    try:
        yield processes
    finally:
        processes.close()
