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
    """The best result over several instances of one problem, with a lower bound that holds for all of them.

    instance: the instance whose solution is best. result: the method's result on it. solution: the solution, None where nothing
    was found. objective_ns, bound_ns: nanoseconds of the solution, and a lower bound on those of all solutions of all
    instances, both in the problem's own terms (which may count more than `result` does, for instance the whole step where the
    method minimises the iteration). alternatives: one row of numbers for every instance that was tried. tried: all of these
    instances with the method's results, where the searcher keeps them.
    """

    instance: Any
    result: Result
    solution: Any
    objective_ns: int | None
    bound_ns: int | None
    alternatives: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    tried: tuple[tuple[Any, Result], ...] = field(default=(), repr=False)

    @property
    def gap(self) -> float | None:
        """The relative gap (objective - bound) / objective; None where one of the two is missing."""
        return relative_gap(self.objective_ns, self.bound_ns)

    @property
    def status(self) -> str:
        """`optimal` where the bound meets the objective within the requested tolerance; else `feasible`, or, without a
        solution, the method's own status."""
        if self.gap is None:
            return self.result.status if self.objective_ns is None else "feasible"
        return "optimal" if self.gap <= self.result.tolerance else "feasible"


def in_turn(instances: Sequence[Any], time_limit: float | None, clock: Clock) -> Iterator[tuple[Any, float | None]]:
    """Yield the instances one after the other, each with its time limit in seconds: an equal share of the time that is left.

    time_limit: seconds for all instances together; None gives None for every instance.
    """
    started = clock()
    for index, instance in enumerate(instances):
        left = None if time_limit is None else time_limit - (clock() - started)
        yield instance, None if left is None else max(0.01, left / (len(instances) - index))


def least_bound(bounded: Iterable[tuple[Result, int | None]]) -> int | None:
    """The smallest lower bound over pairs of a result and its bound in ns, without results that prove their instance
    infeasible.

    None where one of the other results has no bound: then nothing is proven about all instances together.
    """
    bounds = [bound for result, bound in bounded if result.status != "infeasible"]
    return None if None in bounds else min((bound for bound in bounds if bound is not None), default=None)


def rank(result: Result, objective: int | None) -> tuple[int, float]:
    """Sort key of a result; the smallest is the best. objective: nanoseconds of its solution, None without one.

    Solutions come first, by their time. Results without a solution follow: first those of instances that may still have one,
    then the infeasible ones by the least memory with which they would fit.
    """
    if objective is not None:
        return 0, objective
    if result.status != "infeasible":
        return 1, 0
    return (2, result.reason.least_memory_bytes) if result.reason else (3, 0)


def stopped_with(best: Result, results: Iterable[Result]) -> Result:
    """The best of several results; where nothing stopped it, with the reason that stopped the first of the others (such as
    "time limit")."""
    return best if best.stopped else replace(best, stopped=next((result.stopped for result in results if result.stopped), None))


def with_solution(answer: Answer, solution: Any, source: str, message: str | None = None) -> Answer:
    """The same answer with another solution of its instance, whose time and costs are evaluated anew.

    source: the method or step that the solution comes from. message: a remark for users, by default the result's own.
    """
    problem, instance, result = problem_of(answer.instance), answer.instance, answer.result
    objective = problem.evaluate(instance, solution).objective
    taken: dict[str, Any] = {"objective": objective, "solution": problem.solution_dict(solution)}
    taken |= {"gap": relative_gap(objective, result.bound), "solution_source": source}
    taken |= {"evaluation": problem.describe(instance, solution), "message": message or result.message}
    return replace(answer, result=replace(result, **taken), solution=solution, objective_ns=objective)


def best_answer(
    instances: Sequence[Any], method: str, *, time_limit: float | None = None, clock: Clock | None = None, **arguments: Any
) -> Answer:
    """Solve the instances one after the other; return the best solution, and the least of their bounds.

    time_limit: seconds in all, of which each instance gets an equal share of the time that is left. arguments: those of
    `solve`. Where no instance has a solution, the answer is about the one that needs the least memory. After an interrupt no
    further instance is solved, and no bound over all instances is returned. Raises InputError.
    """
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
    rows = tuple({"name": each.name, "status": result.status, "time_ns": result.objective} for each, result in results)
    solution = None if best.solution is None else problem_of(instance).load_solution(best.solution)
    return Answer(instance, best, solution, best.objective, bound, rows if len(rows) > 1 else (), tuple(results))
