"""What every method is given (limits, seed, where to report) and what it gives back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.errors import Unsuited as Unsuited
from trainplan.solvers.core.result import Point

Progress = Callable[[Point], None]


@dataclass
class Search:
    """One run of a method. `evaluate` gives the objective of a solution, None where it breaks a constraint.

    What a solution is, the problem says: a sequence of options for layer-strategies, a `Solution` for pipeline.

    time_limit: seconds from the start, None for no limit. gap: relative gap at which the method may stop.
    options: the method's own parameters, by name. clock: what seconds are told by; started: its time at the start.
    around: a search among the same solutions that this one is a part of.
    """

    evaluate: Callable[[Any], int | None]
    time_limit: float | None = None
    seed: int = 0
    gap: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    clock: Callable[[], float] = time.perf_counter
    started: float = math.nan
    around: Search | None = None
    history: list[Point] = field(default_factory=list)
    best: Any = None
    objective: int | None = None
    bound: int | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.started):
            self.started = self.clock()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    def remaining(self) -> float:
        """Seconds left; infinite without a limit."""
        return float("inf") if self.time_limit is None else self.time_limit - self.elapsed()

    def seconds(self, share: float = 1.0) -> float | None:
        """A share of the seconds left, for a search within this one; None without a limit."""
        return None if self.time_limit is None else self.remaining() * share

    def within(self, seconds: float | None) -> Search:
        """A search among the same solutions that ends earlier, and passes on what it finds but for its bounds."""

        def pass_on(_: Point) -> None:
            if inner.best is not None:
                self.report(inner.best)

        inner = self.inner(self.evaluate, seconds, seed=self.seed, gap=self.gap, progress=pass_on, around=self)
        return inner

    def inner(self, evaluate: Callable[[Any], int | None], seconds: float | None = None, **fields: Any) -> Search:
        """A search among other solutions, by the same clock, that ends with this one, or after so many seconds."""
        left = self.remaining()
        limit = left if seconds is None else min(seconds, left)
        return Search(evaluate, None if math.isinf(limit) else limit, clock=self.clock, **fields)

    def out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return self.remaining() <= 0

    def check_time(self) -> None:
        """For stages that have nothing to give before they end. Raises TimeoutError where the time limit is reached."""
        if self.out_of_time():
            raise TimeoutError

    def closed(self, bound: float | None = None) -> bool:
        """Whether no solution above a bound, by default the best bound, is better than the best one by more than the gap."""
        bound = self.bound if bound is None else bound
        return self.objective is not None and bound is not None and self.objective - bound <= self.gap * self.objective

    def betters(self, objective: int) -> bool:
        """Whether a solution with this objective would be the best so far."""
        return self.objective is None or objective < self.objective

    def report(self, choice: Any = None, bound: int | None = None) -> None:
        """Note a new solution or bound, where it is better than what is known."""
        improved = False
        if choice is not None and (value := self.evaluate(choice)) is not None and self.betters(value):
            self.best, self.objective, improved = choice, value, True
        if bound is not None and (self.bound is None or bound > self.bound):
            self.bound, improved = bound, True
        if improved:
            self._note(self._claimed() if self.objective is None else self.objective)

    def claim(self, objective: int) -> None:
        """Note an incumbent that a solver reports while it runs, its solution not yet in hand: it enters the history only."""
        claimed = self._claimed()
        if self.objective is None and (claimed is None or objective < claimed):
            self._note(objective)

    def _claimed(self) -> int | None:
        return self.history[-1].objective if self.history else None

    def _note(self, objective: int | None) -> None:
        self.history.append(Point(round(self.elapsed(), 6), objective, self.bound))
        if self.progress:
            self.progress(self.history[-1])


def judge(instance: Any) -> Callable[[Any], int | None]:
    """What gives the objective of a solution of an instance, None where it breaks a constraint."""
    problem = problem_of(instance)

    def objective(solution: Any) -> int | None:
        return None if problem.violations(instance, solution) else problem.evaluate(instance, solution).objective

    return objective


@dataclass
class Outcome:
    """What a method claims. choice: its answer, where it is not simply the best one reported; unchecked as yet."""

    choice: Any = None
    bound: int | None = None
    bound_source: str | None = None
    infeasible: bool = False
    build_seconds: float = 0.0
    message: str | None = None
    failed: bool = False
    statistics: dict[str, Any] = field(default_factory=dict)


def first_fitting(instance: Any, search: Search, tried: Iterable[Any], who: str) -> Outcome:
    """What a method that knows no memory comes to: the first of its solutions that fits, the best of them first."""
    problem, broken = problem_of(instance), list[str]()
    for solution in tried:
        if not (violated := problem.violations(instance, solution)):
            search.report(solution)
            return Outcome()
        broken = broken or violated
    return Outcome(message=f"{who} knows no memory, and its answer does not fit: {broken[0]}")


class Method(Protocol):
    """A solver is a callable from an instance and a search to an outcome."""

    def __call__(self, instance: Any, search: Search) -> Outcome: ...
