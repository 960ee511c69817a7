"""The interface of solution methods: the `Search` that a method is given (limits, seed, where to report), and the `Outcome`
that it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.errors import Unsupported as Unsupported
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
        evaluate: returns the objective of a solution in ns, None if it breaks a constraint.
        time_limit: seconds from the start, None for no limit.
        seed: the seed of all random choices.
        gap: relative gap at which the method may stop.
        options: the method's own parameters, by name.
        progress: called with a `Point` for each better solution or bound; `report` does that.
        clock: the clock by which the seconds are counted.
        started: the clock's reading at the start, in seconds.
        source: the name of the method.
        start: a solution that the method may begin from.
        memory_bytes: the most that the method's own processes may take, None for no limit.
        provisional: whether the best solution is another method's, which an equally good one replaces.
        history: a `Point` for each better solution or bound, in order of time.
        best: the best solution until now.
        best_source: the name of the method that found the best solution.
        objective: the time in ns of the best solution, None without one.
        bound: the best lower bound until now, in ns, None without one.
        bound_source: the name of the method that proved the bound.
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
        """Seconds since the start of the search, without seconds that do not count towards the limit (imports and process
        starts)."""
        return self.clock() - self.started

    def remaining(self) -> float:
        """Seconds until the time limit; infinite without a limit."""
        return float("inf") if self.time_limit is None else self.time_limit - self.elapsed()

    def seconds(self, share: float = 1.0) -> float | None:
        """The time limit in seconds for one part of a method: a share of the seconds left until the search's own limit; None
        without a limit. share: from 0 to 1."""
        return None if self.time_limit is None else self.remaining() * share

    def within(self, seconds: float | None, source: str | None = None) -> Search:
        """A search for one part of a method: it is over the same solutions, and ends after `seconds` (None: at the end of this
        search). It reports its solutions, but not its bounds, to this search.

        source: the name of the method that uses the new search; None takes this search's name."""

        def pass_on(_: Point) -> None:
            """Report the best solution of the inner search to this one."""
            if inner.best is not None:
                self.report(inner.best, source=inner.source)

        inner = self.inner(self.evaluate, seconds, seed=self.seed, gap=self.gap, progress=pass_on)
        inner.source = source or self.source
        return inner

    def inner(self, evaluate: Callable[[Any], int | None], seconds: float | None = None, **fields: Any) -> Search:
        """A new search over another set of solutions (for instance of a part of the problem), which shares this search's clock
        and memory limit. It reports nothing to this search by itself.

        evaluate: returns the objective in ns of one of the new search's solutions, None if it breaks a constraint. seconds: the
        new search's time limit; it never outlasts this search. fields: further attributes of the new search by name, such as
        seed or progress.
        """
        seconds_left = self.remaining()
        limit = seconds_left if seconds is None else min(seconds, seconds_left)
        inner = Search(evaluate, None if math.isinf(limit) else limit, clock=self.clock, **fields)
        inner.source, inner.memory_bytes = self.source, self.memory_bytes
        return inner

    def out_of_time(self) -> bool:
        """Whether the search has reached its time limit; always False without a limit."""
        return self.remaining() <= 0

    def check_time(self) -> None:
        """Raise TimeoutError if the time limit is reached; called by steps of a method that have no partial result."""
        if self.out_of_time():
            raise TimeoutError

    def closed(self, bound: float | None = None) -> bool:
        """Whether the best solution so far is proven to be good enough: its objective exceeds the lower bound by at most the
        relative gap that the caller accepts. bound: a lower bound in ns; None takes the best bound reported. False without a
        solution or a bound."""
        bound = self.bound if bound is None else bound
        return self.objective is not None and bound is not None and self.objective - bound <= self.gap * self.objective

    def target(self) -> float:
        """The largest objective in ns that is still worth finding; infinite without a solution and without the option
        `cutoff_ns`.

        It is below the best objective, and below `cutoff_ns` if given, by the relative gap, and by at least 1 ns. While the
        best solution is provisional (another method's), an equal one is worth finding, too.
        """
        limits = [value for value in (self.objective, self.options.get(CUTOFF)) if value is not None]
        return min((value - max(not self.provisional, math.floor(value * self.gap)) for value in limits), default=math.inf)

    def betters(self, objective: int) -> bool:
        """Whether a solution with this objective in ns is strictly better than the best solution so far; True if there is none
        yet."""
        return self.objective is None or objective < self.objective

    def report(self, choice: Any = None, bound: int | None = None, source: str | None = None) -> None:
        """Record a solution, a lower bound, or both, if they improve on the best solution or the largest bound so far; then
        append a `Point` to the history and call `progress`.

        choice: the solution, which is evaluated here and ignored if it breaks a constraint. bound: a lower bound in ns on all
        solutions. source: the name of the method that found the solution or the bound; None takes this search's name."""
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
    """Build the function that judges solutions of an instance: it returns a solution's objective in ns, or None if the solution
    breaks a constraint of the problem (such as memory). instance: the data of one optimisation problem."""
    problem = problem_of(instance)

    def objective(solution: Any) -> int | None:
        """The objective of a solution in ns; None where it breaks a constraint."""
        return None if problem.violations(instance, solution) else problem.evaluate(instance, solution).objective

    return objective


@dataclass
class Outcome:
    """The return value of a method, in addition to the solutions that it reported to its `Search`.

    Attributes:
        choice: the method's answer, not checked yet; None for the best solution reported.
        bound: lower bound in ns on all solutions.
        bound_source: the method or argument that proves the bound.
        infeasible: whether the method has proven that no solution fits.
        build_seconds: the seconds that the method took before it searched.
        message: a remark for users.
        failed: whether the method broke.
        stopped: what ended the method before it was done, other than the search's own time limit.
        statistics: the method's own numbers, by name.
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
    """Report the first solution of a ranked list that fits the memory, for a method that ignores memory when it ranks.

    instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to which
    better ones are reported. tried: solutions in order, the best first; they are checked one by one against the instance's
    constraints until one satisfies all of them. who: the method's name, for the outcome's message if none does. Returns the
    method's outcome, without a bound."""
    problem, broken = problem_of(instance), list[str]()
    for solution in tried:
        if not (violated := problem.violations(instance, solution)):
            search.report(solution)
            return Outcome()
        broken = broken or violated
    return Outcome(message=f"{who} knows no memory, and its answer does not fit: {broken[0]}")


class Method(Protocol):
    """The type of a method: a function of an instance and a search that returns an outcome."""

    def __call__(self, instance: Any, search: Search) -> Outcome:
        """Search for the instance's best solution within the search's limits, report it there, and return the outcome.

        instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far, to
        which better ones are reported."""
