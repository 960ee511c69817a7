"""Pyomo on HiGHS: the adapter between a solver process and our searches. The only place that knows how HiGHS is called."""

from __future__ import annotations

import atexit
import math
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from trainplan.solvers.adapters.parts import by_configuration
from trainplan.solvers.core.search import Outcome, Search

# HiGHS once overran a 15 s limit without end: past the limit plus this, its process is ended.
GRACE_SECONDS = 10.0


class _Process:
    """A worker process, started on first use and again after it was ended."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        atexit.register(self.end)

    def request(self, request: dict[str, Any]) -> None:
        if self.child is None or self.child.poll() is not None:
            self.connection, other_end = Pipe()
            number, quiet = other_end.fileno(), subprocess.DEVNULL
            command = [sys.executable, "-P", "-m", "trainplan.solvers.adapters.highs_worker", str(number)]
            self.child = subprocess.Popen(command, pass_fds=[number], stdin=quiet, stdout=quiet, stderr=quiet)
            other_end.close()
        with suppress(OSError):  # of a process that has ended, as `answer` tells
            self.connection.send(request)

    def answer(self, seconds: float | None) -> Any:
        """The next message. Raises TimeoutError."""
        assert self.child is not None
        if not self.connection.poll(seconds):
            raise TimeoutError
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return "done", {"error": f"the HiGHS process ended with exit code {self.child.wait()}"}

    def end(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child = None


_process = _Process()


def milp(instance: Any, search: Search) -> Outcome:
    """The Pyomo MILP on HiGHS, one thread, in a process that is ended when it overruns its limit."""
    return by_configuration(_solve, instance, search)


def _solve(instance: Any, search: Search) -> Outcome:
    """One model. Where the search has an objective already, HiGHS looks for a better solution only."""
    with _process.lock:
        limit = None if search.time_limit is None else max(0.0, search.remaining())
        _process.request(
            {"instance": instance, "time_limit": limit, "gap": search.gap, "seed": search.seed, "below_ns": search.objective}
        )
        try:
            answer = _await(search)
        except TimeoutError:
            _process.end()
            return Outcome(
                bound=search.bound,
                bound_source="HiGHS, its log",
                message="HiGHS did not stop at its limit and was ended",
            )
        except BaseException:
            _process.end()
            raise
    if "error" in answer:
        return Outcome(failed=True, message=answer["error"].splitlines()[-1])
    build_seconds = answer["build_seconds"]
    if answer["termination"] in ("provenInfeasible", "infeasibleOrUnbounded"):
        return Outcome(infeasible=True, bound_source="HiGHS", build_seconds=build_seconds)
    if answer["choice"] is not None:
        search.report(answer["choice"])
    bound = None if answer["bound_ns"] is None else _whole_bound(answer["bound_ns"], answer["noise_ns"])
    if bound is not None:
        search.report(bound=bound)
    return Outcome(
        choice=answer["choice"],
        bound=bound,
        bound_source="HiGHS's dual bound, rounded up within its tolerance",
        build_seconds=build_seconds,
        message=None if answer["choice"] is not None else f"HiGHS ended with {answer['termination']} and no solution",
        statistics={"termination": answer["termination"]},
    )


def _await(search: Search) -> dict[str, Any]:
    while True:
        wait = None if search.time_limit is None else max(0.0, search.remaining()) + GRACE_SECONDS
        message = _process.answer(wait)
        if message[0] == "done":
            answer: dict[str, Any] = message[1]
            return answer
        _, primal, bound = message
        if bound is not None:
            search.report(bound=_whole_bound(bound, abs(bound) * 1e-8))
        if primal is not None:
            search.claim(round(primal))


def _whole_bound(bound_ns: float, noise_ns: float) -> int:
    """A float bound on a whole objective, as a whole number that is surely a bound.

    noise_ns: how far off the float may be. HiGHS keeps constraints within a tolerance, and prints ten digits in its log.
    """
    return math.ceil(bound_ns - noise_ns) if math.isfinite(bound_ns) else 0
