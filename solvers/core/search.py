"""The interface of methods: the `Search` that each is given (limits, seed, where to report), and the `Outcome` that it
returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.errors import Unsuited as Unsuited
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.limits import GAP
from trainplan.solvers.core.result import Point, Stop

Progress = Callable[[Point], None]
CUTOFF = "cutoff_ns"  # the option of methods that look for nothing but what is below it


@dataclass
class Search:
    """One run of a method: its limits and options, and the best solution and bound that it has reported.

    The type of a solution is the problem's: a sequence of options for layer-strategies, a `Solution` for pipeline.

    Attributes:
        evaluate: returns the objective of a solution in ns, None where it breaks a constraint.
        time_limit: seconds from the start, None for no limit.
        seed: of all random choices.
        gap: relative gap at which the method may stop.
        options: the method's own parameters, by name.
        progress: called with a `Point` for each better solution or bound; `report` does that.
        clock: the clock that the seconds are counted by.
        started: its reading at the start.
        source: the name of the method.
        start: a solution that the method may begin from.
        memory_bytes: the most that the method's own processes may take, None for no limit.
        provisional: the best solution is another method's, and gives way to one that is as good.
        history: a `Point` for each better solution or bound, in order of time.
        best: the best solution until now.
        best_source: the method that found it.
        objective: its nanoseconds.
        bound: the best lower bound until now, in ns.
        bound_source: the method that proved it.
    """

    evaluate: Callable[[Any], int | None]
    time_limit: float | None = None
    seed: int = 0
    gap: float = GAP
    options: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    clock: Clock = field(default_factory=Clock)
    started: float = math.nan
    source: str | None = None
    start: Any = None
    memory_bytes: int | None = None
    provisional: bool = False
    history: list[Point] = field(default_factory=list)
    best: Any = None
    best_source: str | None = None
    objective: int | None = None
    bound: int | None = None
    bound_source: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.clock, Clock):
            self.clock = Clock(self.clock)
        if math.isnan(self.started):
            self.started = self.clock()

    def elapsed(self) -> float:
        """Seconds since the start, without those that do not count (see `Clock`)."""
        return self.clock() - self.started

    def remaining(self) -> float:
        """Seconds until the time limit; infinite without a limit."""
        return float("inf") if self.time_limit is None else self.time_limit - self.elapsed()

    def seconds(self, share: float = 1.0) -> float | None:
        """A share of the seconds that are left, as the limit of a search within this one; None without a limit."""
        return None if self.time_limit is None else self.remaining() * share

    def within(self, seconds: float | None, source: str | None = None) -> Search:
        """A search over the same solutions that ends after `seconds`, and reports its solutions, but not its bounds, to this
        one.

        source: the name of its method, by default that of this one.
        """

        def pass_on(_: Point) -> None:
            if inner.best is not None:
                self.report(inner.best, source=inner.source)

        inner = self.inner(self.evaluate, seconds, seed=self.seed, gap=self.gap, progress=pass_on)
        inner.source = source or self.source
        return inner

    def inner(self, evaluate: Callable[[Any], int | None], seconds: float | None = None, **fields: Any) -> Search:
        """A search over other solutions, judged by `evaluate`, by the same clock. It ends with this one, or after `seconds` if
        that is sooner. fields: further attributes of the new search."""
        left = self.remaining()
        limit = left if seconds is None else min(seconds, left)
        inner = Search(evaluate, None if math.isinf(limit) else limit, clock=self.clock, **fields)
        inner.source, inner.memory_bytes = self.source, self.memory_bytes
        return inner

    def out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return self.remaining() <= 0

    def check_time(self) -> None:
        """Raise TimeoutError where the time limit is reached; for steps of a method that have no partial result."""
        if self.out_of_time():
            raise TimeoutError

    def closed(self, bound: float | None = None) -> bool:
        """Whether the best solution is within the gap of a lower bound in ns, by default the best bound."""
        bound = self.bound if bound is None else bound
        return self.objective is not None and bound is not None and self.objective - bound <= self.gap * self.objective

    def target(self) -> float:
        """The largest objective in ns that is still worth finding; infinite where there is no solution yet.

        It is below the best one by the gap, and by 1 ns at least (unless the best is provisional, which an equal one replaces);
        and below the option `cutoff_ns` of methods that have it.
        """
        limits = [value for value in (self.objective, self.options.get(CUTOFF)) if value is not None]
        return min((value - max(not self.provisional, math.floor(value * self.gap)) for value in limits), default=math.inf)

    def betters(self, objective: int) -> bool:
        """Whether a solution with this objective would be the best so far."""
        return self.objective is None or objective < self.objective

    def report(self, choice: Any = None, bound: int | None = None, source: str | None = None) -> None:
        """Record a solution or a lower bound in ns, where it is better than the best so far. source: the method that has it, by
        default this one."""
        improved, source = False, source or self.source
        value = None if choice is None else self.evaluate(choice)
        if value is not None and (self.betters(value) or (self.provisional and value == self.objective)):
            self.best, self.objective, self.best_source, improved = choice, value, source, True
            self.provisional = False
        if bound is not None and (self.bound is None or bound > self.bound):
            self.bound, self.bound_source, improved = bound, source, True
        if improved:
            self.history.append(Point(round(self.elapsed(), 6), self.objective, self.bound, source))
            if self.progress:
                self.progress(self.history[-1])


def judge(instance: Any) -> Callable[[Any], int | None]:
    """The function that returns the objective in ns of a solution of this instance, None where it breaks a constraint."""
    problem = problem_of(instance)

    def objective(solution: Any) -> int | None:
        return None if problem.violations(instance, solution) else problem.evaluate(instance, solution).objective

    return objective


@dataclass
class Outcome:
    """What a method returns, in addition to the solutions that it reported to its `Search`.

    Attributes:
        choice: its answer, where that is not simply the best solution reported; not checked yet.
        bound: lower bound in ns on all solutions.
        bound_source: the method or argument that proves it.
        infeasible: it has proven that no solution fits.
        build_seconds: the time that it took before it searched.
        message: a remark for users.
        failed: it broke.
        stopped: what ended it before it was done, other than the search's own time limit.
        statistics: numbers of its own, by name.
    """

    choice: Any = None
    bound: int | None = None
    bound_source: str | None = None
    infeasible: bool = False
    build_seconds: float = 0.0
    message: str | None = None
    failed: bool = False
    stopped: Stop | None = None
    statistics: dict[str, Any] = field(default_factory=dict)


def first_fitting(instance: Any, search: Search, tried: Iterable[Any], who: str) -> Outcome:
    """Report the first of several solutions that fits; the end of a method that does not consider memory itself.

    tried: solutions, the best first. who: the method, for the message of the outcome where none fits.
    """
    problem, broken = problem_of(instance), list[str]()
    for solution in tried:
        if not (violated := problem.violations(instance, solution)):
            search.report(solution)
            return Outcome()
        broken = broken or violated
    return Outcome(message=f"{who} knows no memory, and its answer does not fit: {broken[0]}")


class Method(Protocol):
    """The type of a method: a function of an instance and a search that returns an outcome."""

    def __call__(self, instance: Any, search: Search) -> Outcome: ...
