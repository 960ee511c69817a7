"""The answer to a planning request: the best of the instances that a problem builds for it, and the bound proven over all of
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.display import in_one_line
from trainplan.solvers.core.clock import Clock
from trainplan.solvers.core.result import Result, relative_gap
from trainplan.solvers.core.solve import solve


@in_one_line
@dataclass(frozen=True)
class Answer:
    """The best result over several instances of one planning problem, with a lower bound that holds for all of them.

    instance: the instance (input data of one optimisation problem) whose solution is best. result: the method's result on that
    instance. solution: the solution of that instance, None if none was found. objective_ns: the solution's time in ns;
    bound_ns: a lower bound in ns on the time of every solution of every instance; both as the planning problem counts time,
    which may be more than `result` counts (for instance the whole step, where the method minimises the iteration only).
    alternatives: one dict of numbers for every instance that was tried. tried: pairs of an instance and the method's result on
    it, for callers that keep them; else empty."""

    instance: Any
    result: Result
    solution: Any
    objective_ns: int | None
    bound_ns: int | None
    alternatives: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    tried: tuple[tuple[Any, Result], ...] = field(default=(), repr=False)

    @property
    def gap(self) -> float | None:
        """The relative gap (objective_ns - bound_ns) / objective_ns as a fraction; None if the objective or the bound is
        missing."""
        return relative_gap(self.objective_ns, self.bound_ns)

    @property
    def status(self) -> str:
        """`optimal` if the gap is within the result's tolerance, else `feasible`; without a solution, the status of the
        method's result (such as `infeasible`). A solution without a bound is `feasible`."""
        if self.gap is None:
            return self.result.status if self.objective_ns is None else "feasible"
        return "optimal" if self.gap <= self.result.tolerance else "feasible"


def in_turn(instances: Sequence[Any], time_limit: float | None, clock: Clock) -> Iterator[tuple[Any, float | None]]:
    """Divide a time limit among several instances (inputs of one optimisation problem): yield them in order, each with its own
    limit in seconds, an equal share of the time that is left, at least 0.01 s.

    instances: the inputs to solve. time_limit: seconds for all instances together; None gives None for every instance. clock:
    counts the seconds that the caller spends between two instances."""
    started = clock()
    for index, instance in enumerate(instances):
        seconds_left = None if time_limit is None else time_limit - (clock() - started)
        yield instance, None if seconds_left is None else max(0.01, seconds_left / (len(instances) - index))


def least_bound(bounded: Iterable[tuple[Result, int | None]]) -> int | None:
    """The smallest lower bound in ns that holds for several instances together.

    bounded: for every instance, its result and its lower bound in ns (None if there is none). Results that prove their instance
    infeasible are skipped. Returns None if a remaining instance has no bound, since then nothing is proven about all of them,
    or if no instance remains.
    """
    bounds = [bound for result, bound in bounded if result.status != "infeasible"]
    return None if None in bounds else min((bound for bound in bounds if bound is not None), default=None)


def rank(result: Result, objective: int | None) -> tuple[int, float]:
    """Sort key that orders the results of one request on several instances, the best first.

    result: a method's result on one instance. objective: the time in ns of the result's solution, None if it has none. Results
    with a solution come first, by their time. Results without a solution follow: first results that do not prove their instance
    infeasible, then infeasible ones by the least memory in bytes with which they would fit, then infeasible ones without a
    stated reason."""
    if objective is not None:
        return 0, objective
    if result.status != "infeasible":
        return 1, 0
    return (2, result.reason.least_memory_bytes) if result.reason else (3, 0)


def stopped_with(best: Result, results: Iterable[Result]) -> Result:
    """The best result, marked as stopped if any run was stopped early.

    best: the best of `results`. results: the results on all instances of one request. Returns `best` itself if its `stopped` is
    set; else a copy whose `stopped` is the first reason among `results`, such as "time limit", or None if no run was stopped.
    """
    return best if best.stopped else replace(best, stopped=next((result.stopped for result in results if result.stopped), None))


def with_solution(answer: Answer, solution: Any, source: str, message: str | None = None) -> Answer:
    """A copy of an answer in which another solution of the same instance replaces the present one; its time and costs are
    evaluated.

    answer: the answer to copy. solution: the new solution, in the problem's own type. source: name of the method or step that
    the solution comes from, recorded as `solution_source`. message: a remark for users; None keeps the result's own remark."""
    problem, instance, result = problem_of(answer.instance), answer.instance, answer.result
    objective = problem.evaluate(instance, solution).objective
    taken: dict[str, Any] = {"objective": objective, "solution": problem.solution_dict(solution)}
    taken |= {"gap": relative_gap(objective, result.bound), "solution_source": source}
    taken |= {"evaluation": problem.describe(instance, solution), "message": message or result.message}
    return replace(answer, result=replace(result, **taken), solution=solution, objective_ns=objective)


def best_answer(
    instances: Sequence[Any], method: str, *, time_limit: float | None = None, clock: Clock | None = None, **arguments: Any
) -> Answer:
    """Solve several instances one after the other; return the best solution, and a lower bound that holds for all of them.

    instances: the inputs of one optimisation problem to choose among. method: name of the solution method. time_limit: seconds
    for all instances together; each instance may use an equal share of the time that is left. clock: counts these seconds.
    arguments: further arguments of `solvers.core.solve.solve`. If no instance has a solution, the answer is about the instance
    that needs the least memory. After an interrupt (Ctrl-C) no further instance is solved, and the answer's bound is None.
    Raises InputError for an unknown method or argument."""
    assert instances, "a problem makes at least one instance of a request"
    results, clock = list[tuple[Any, Result]](), clock or Clock()
    for instance, seconds in in_turn(instances, time_limit, clock):
        results.append((instance, solve(instance, method, time_limit=seconds, clock=clock, **arguments)))
        if results[-1][1].stopped == "interrupt":
            break
    instance, best = min(results, key=lambda pair: rank(pair[1], pair[1].objective))
    best = stopped_with(best, [result for _, result in results])
    all_tried = len(results) == len(instances)
    least = least_bound((result, result.bound) for _, result in results) if all_tried else None
    bound = least if best.objective is None or least is None else min(least, best.objective)
    rows = tuple({"name": tried.name, "status": result.status, "time_ns": result.objective} for tried, result in results)
    solution = None if best.solution is None else problem_of(instance).load_solution(best.solution)
    return Answer(instance, best, solution, best.objective, bound, rows if len(rows) > 1 else (), tuple(results))
