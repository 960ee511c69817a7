"""What every method is given (limits, seed, where to report) and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainplan.profiling.base.errors import Unsuited as Unsuited
from trainplan.solvers.core.result import Point

Progress = Callable[[Point], None]


@dataclass
class Search:
    """One run of a method. `evaluate` gives the objective of a solution, None where it breaks a constraint.

    What a solution is, the problem says: a sequence of options for layer-strategies, a `Solution` for pipeline.

    time_limit: seconds from the start, None for no limit. gap: relative gap at which the method may stop.
    options: the method's own parameters, by name.
    """

    evaluate: Callable[[Any], int | None]
    time_limit: float | None = None
    seed: int = 0
    gap: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    started: float = field(default_factory=time.perf_counter)
    history: list[Point] = field(default_factory=list)
    best: Any = None
    objective: int | None = None
    bound: int | None = None

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def remaining(self) -> float:
        """Seconds left; infinite without a limit."""
        return float("inf") if self.time_limit is None else self.time_limit - self.elapsed()

    def out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return self.remaining() <= 0

    def report(self, choice: Any = None, bound: int | None = None) -> None:
        """Note a new solution or bound, where it is better than what is known."""
        improved = False
        if (
            choice is not None
            and (value := self.evaluate(choice)) is not None
            and (self.objective is None or value < self.objective)
        ):
            self.best, self.objective, improved = choice, value, True
        if bound is not None and (self.bound is None or bound > self.bound):
            self.bound, improved = bound, True
        if improved:
            claimed = self.history[-1].objective if self.history else None
            self.history.append(
                Point(round(self.elapsed(), 6), claimed if self.objective is None else self.objective, self.bound)
            )
            if self.progress:
                self.progress(self.history[-1])

    def claim(self, objective: int) -> None:
        """Note an incumbent that a solver reports while it runs, its solution not yet in hand: it enters the history only."""
        if self.objective is None and (
            not self.history or self.history[-1].objective is None or objective < self.history[-1].objective
        ):
            self.history.append(Point(round(self.elapsed(), 6), objective, self.bound))
            if self.progress:
                self.progress(self.history[-1])


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


class Method(Protocol):
    """A solver is a callable from an instance and a search to an outcome."""

    def __call__(self, instance: Any, search: Search) -> Outcome: ...
