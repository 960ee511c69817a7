"""Run any method on an instance: limit its time and memory, check its answer on the integers, and state what is proven."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.problem import problem_of
from trainplan.profiling.base.arguments import checked
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.solvers.core.clock import Clock, Overrun, ended_after, grace_seconds
from trainplan.solvers.core.heuristic import cheap_bound, explain, first_plan
from trainplan.solvers.core.heuristic import fits as known_to_fit
from trainplan.solvers.core.incumbents import FIRST_PLAN, begin_model
from trainplan.solvers.core.limits import GAP
from trainplan.solvers.core.memory_limit import memory_limited
from trainplan.solvers.core.method_registry import Entry
from trainplan.solvers.core.method_registry import method as method_named
from trainplan.solvers.core.method_registry import methods as methods_of
from trainplan.solvers.core.result import Infeasibility, Result, Status, relative_gap
from trainplan.solvers.core.search import CUTOFF, Outcome, Progress, Search, Unsupported, judge

LEAST_MEMORY = 2**26
INCUMBENT = "plan that the search began from"
EXPLAINING = 0.7  # the share of the grace in which an explanation and a cheap bound have to be ready
PACKAGES = ("trainplan", "numpy", "pyomo", "highspy", "ortools")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of every installed package that may have contributed to an answer (trainplan, numpy, pyomo,
    highspy, ortools): {name: version}."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


@checked
def solve(
    instance: Any,
    method: str = "exact",
    *,
    time_limit: float | None = None,
    gap: float = GAP,
    seed: int = 0,
    progress: Progress | None = None,
    explained: bool = True,
    cold: bool = False,
    solver_memory: str | int | None = None,
    incumbents: Sequence[Plan] = (),
    clock: Clock | None = None,
    **options: Any,
) -> Result:
    """Run a method on an instance; the answer is checked by the problem's own `evaluate` and `violations`.

    instance: the data of one optimisation problem. method: the name of a registered method; `exact` is the problem's first one,
    which proves optimality. time_limit: seconds from the call, for all but imports; reaching it is an outcome, not an error,
    and so is Ctrl-C: the best solution and bound until then are the result, whose `stopped` names the reason. gap: relative gap
    at which to stop; the status `optimal` then means within it. seed: the seed of all random choices. progress: called with a
    `Point` for each better solution or bound. explained: if a method finds nothing, find out whether anything fits. cold: MILP
    and CP-SAT do not begin from the plan of a fast method. solver_memory: memory that the method may take in addition to what
    the process has already, such as "8GiB" or a number of bytes (on Linux). incumbents: plans that the search begins from, if
    they are solutions of the instance. clock: counts the seconds. options: the method's own parameters, by name. Raises
    InputError for a method, limit or option that does not exist."""
    entry = method_named(instance.problem, method)
    check_arguments(time_limit, gap, seed)
    memory_bytes = None if solver_memory is None else _memory_bytes(solver_memory)
    _check_options(entry, options)
    search = Search(judge(instance), time_limit, seed, gap, options, progress, clock or Clock(), source=entry.name)
    search.memory_bytes = memory_bytes
    run = _Run(instance, entry, search, cold, incumbents)
    try:
        run.solve()
        return run.result(explained)
    except KeyboardInterrupt:
        run.outcome = replace(run.outcome, stopped="interrupt")
        return run.result(explained=False)


def check_arguments(time_limit: float | None, gap: float, seed: int) -> None:
    """Check the arguments that all solution methods share. time_limit: seconds, above 0, or None for no limit. gap: relative
    gap at which a method may stop, from 0 to below 1. seed: from 0 to 2^31 - 1. Raises InputError for any other value."""
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise InputError("command line", "--time-limit", f"is {time_limit}", "give seconds above 0, such as 10")
    if not 0 <= gap < 1:
        raise InputError("command line", "--gap", f"is {gap}", "give a share such as 1e-4")
    if not 0 <= seed < 2**31:
        raise InputError("command line", "--seed", f"is {seed}", "give 0 to 2147483647")


def _check_options(entry: Entry, options: dict[str, Any]) -> None:
    """Check the options that a caller gives to a solution method.

    entry: the method. options: values by name; None means that the option is not given. Raises InputError if the method has no
    option of that name, or does not take that value.
    """
    possible = {option.name: option for option in entry.options}
    for name, value in options.items():
        if name not in possible:
            names = ", ".join(map(str, entry.options)) or "none"
            raise InputError("command line", f"--option {name}", f"is not an option of {entry.name}", f"it has: {names}")
        choices, most = possible[name].choices, possible[name].most
        if value is None:
            continue
        if choices and value not in choices:
            raise InputError("command line", f"--option {name}", f"is {value!r}", f"give one of: {', '.join(choices)}")
        if not choices and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= (most or value)):
            fix = f"give a whole number of at least 1{f' and at most {most}' if most else ''}"
            raise InputError("command line", f"--option {name}", f"is {shown(value)}", fix)


def _memory_bytes(memory: str | int) -> int:
    """Parse the argument `solver_memory`, the memory that a method may take in addition: "8GiB" -> 8589934592. memory: a text
    with a unit, or a number of bytes. Raises InputError if it cannot be read, or is below 64 MiB or too large."""
    size = parse_bytes(memory, "--solver-memory") if isinstance(memory, str) else memory
    if not LEAST_MEMORY <= size < 2**62:
        raise InputError("command line", "--solver-memory", f"is {memory!r}", "give at least 64MiB, such as 8GiB")
    return size


class _Run:
    """One run of one solution method on one instance: it collects the method's outcome, checks it, and turns it into the
    result.

    search: the limits, and the best solution and bound reported so far. outcome: what the method returned, or what ended it.
    first: the problem's first plan (a solution found in milliseconds), if it was computed. cheap: a quick lower bound in ns and
    its reason. begins: whether the method may begin from a fast method's plan. grace: seconds that may be used after the time
    limit.
    """

    def __init__(self, instance: Any, entry: Entry, search: Search, cold: bool, incumbents: Sequence[Plan]) -> None:
        """Prepare the run. cold: a MILP or CP-SAT model begins without a fast method's plan. incumbents: plans to begin from.

        instance: the data of one optimisation problem. search: the run's limits and options, and its best solution so far."""
        self.instance, self.entry, self.search, self.incumbents = instance, entry, search, incumbents
        self.problem = problem_of(instance)
        self.grace, self.seconds_apart = grace_seconds(search.time_limit), search.clock.seconds_apart
        self.cheap: tuple[int, str] | None = None
        self.first: Any = None
        # With a cutoff only solutions below it are wanted, and a model that begins cold starts from no other plan.
        self.begins = not (entry.model and cold) and CUTOFF not in search.options
        self.outcome = Outcome()

    def solve(self) -> None:
        """Run the method within the limits of time and memory, and store its outcome in `outcome`. An exception, a time limit
        or a memory limit becomes part of the outcome. Raises only InputError and KeyboardInterrupt."""
        search, name = self.search, self.entry.name
        try:
            with search.clock.paused():
                method = self.entry.method()
                versions()
            with ended_after(lambda: search.remaining() + self.grace / 2), memory_limited(search.memory_bytes):
                begun = self._begun()
                _ = self.instance.digest  # cached now: for large instances it takes time, within the limit
                self.outcome = begun or method(self.instance, search)
        except InputError:
            raise
        except Overrun:
            self.outcome = Outcome(stopped="time limit", message=f"{name} did not stop at its limit and was ended")
        except TimeoutError:
            self.outcome = Outcome(stopped="time limit")
        except MemoryError:
            self.outcome = Outcome(stopped="memory limit", message="memory ran out")
        except Exception as error:
            self.outcome = Outcome(failed=True, message=f"{type(error).__name__}: {error}")
        if self.outcome.stopped is None and search.out_of_time():
            self.outcome = replace(self.outcome, stopped="time limit")

    def _begun(self) -> Outcome | None:
        """Give the search the solutions that the method may begin from (for example those of a fast method); or, for a method
        that begins without one, compute the first plan (a quick solution that fits) that `fall_back` may report after the time
        limit.

        Returns the outcome of the whole run if these solutions and the cheap bound solve the instance already, else None."""
        instance, entry, search = self.instance, self.entry, self.search
        if (refinement := self.problem.refinement) is not None:
            for solution in [refinement.solution_of_plan(instance, plan) for plan in self.incumbents]:
                search.report(solution, source=INCUMBENT)
        if (entry.model or entry.starts) and self.begins:
            search.report(first_plan(instance), source=FIRST_PLAN)
            search.provisional = entry.starts and search.best is not None
        elif entry.proves and not entry.model and search.time_limit is not None:
            self.first = first_plan(instance)
            _ = self.first is not None and search.evaluate(
                self.first
            )  # problems cache it, so that it costs no time after the limit
        self.cheap = cheap_bound(instance) if entry.model else None
        return begin_model(instance, search, self.cheap) if entry.model and self.begins else None

    def fall_back(self) -> None:
        """Report the problem's first plan (a quick solution that fits) if the method was stopped without a solution, or if a
        method that can prove optimality was stopped with a worse solution than the first plan. Does nothing if the method was
        not stopped or proved that nothing fits."""
        search = self.search
        if self.outcome.stopped is None or self.outcome.infeasible or not self.begins:
            return
        with suppress(Overrun, KeyboardInterrupt), ended_after(lambda: search.remaining() + self.grace * EXPLAINING):
            if self.first is None and (search.best is None or (self.entry.proves and not self.entry.starts)):
                self.first = first_plan(self.instance)
            search.report(self.first, source=FIRST_PLAN)

    def explanation(self) -> tuple[bool | None, Infeasibility | None, str | None]:
        """Find out, for a run without a solution, whether any solution fits the memory.

        Returns three values: True, False or None (fits, does not fit, not known); the reason why nothing fits, None if unknown;
        and a text for users if that reason is missing. A method's own proof that nothing fits is trusted, as its bounds are,
        unless some solution is known to fit.
        """
        claimed, text = self.outcome.infeasible and self.entry.proves, None
        if self.outcome.stopped == "interrupt":
            return None, None, "it was interrupted before it was looked for whether anything fits"
        try:
            with ended_after(lambda: self.search.remaining() + self.grace * EXPLAINING):
                if (reason := explain(self.instance)) is not None:
                    return False, reason, None
                fits = known_to_fit(self.instance)
        except Overrun:
            fits, text = None, f"there was no time left to find out {'why nothing' if claimed else 'whether anything'} fits"
        if fits is None and not claimed:
            return None, None, text or "whether anything fits is not known"
        return fits or False, None, None if fits else text or "nothing fits, and no memory is known with which something would"

    def bound(self) -> tuple[int, str | None] | None:
        """The largest known lower bound in ns on all solutions, with the name of the method or argument that proves it (None if
        not stated); None if there is no bound.

        The bounds of the method's outcome and of its search are compared; the problem's cheap bound (found without a search) is
        compared, too, if neither of them proves the solution optimal."""
        outcome, search = self.outcome, self.search
        claims = (outcome.bound, outcome.bound_source), (search.bound, search.bound_source)
        bounds = [(ns, source) for ns, source in claims if ns is not None]
        if not any(search.closed(ns) for ns, _ in bounds):
            with suppress(Overrun), ended_after(lambda: search.remaining() + self.grace * EXPLAINING):
                cheap = self.cheap or cheap_bound(self.instance)
                bounds += [] if cheap is None else [cheap]
        return max(bounds, key=lambda bound: bound[0], default=None)

    def result(self, explained: bool) -> Result:
        """The checked result of the run: the method's solution, bound and status, as far as the problem's own evaluation
        confirms them; a contradiction gives the status `failed`.

        explained: if no solution was found, find out whether any solution fits the memory.
        """
        instance, problem, search, outcome, name = self.instance, self.problem, self.search, self.outcome, self.entry.name
        broken = [] if outcome.choice is None else problem.violations(instance, outcome.choice)
        search.report(outcome.choice)
        self.fall_back()
        choice, objective, message = search.best, search.objective, outcome.message
        fits: bool | None = None
        reason: Infeasibility | None = None
        unexplained: str | None = None
        if objective is None and not outcome.failed and (outcome.infeasible or broken or explained):
            fits, reason, unexplained = self.explanation()
        bound, source = (None if outcome.failed or fits is False else self.bound()) or (None, None)

        status: Status
        if outcome.failed:
            status = "failed"
        elif outcome.infeasible and choice is not None:
            status, message = "failed", f"{name} says that nothing fits, but a choice within the memory exists"
        elif fits is False:
            status, message = "infeasible", _joined(message if outcome.infeasible else None, unexplained)
        elif outcome.infeasible and fits:
            status, message = "failed", f"{name} says that nothing fits, but a choice within the memory exists"
        elif broken and fits:
            status, message = "failed", f"{name} gave a choice that breaks the constraints"
        elif objective is None:
            status, message = "unknown", _joined(message, unexplained)
        elif bound is not None and bound > objective:
            status, message = "failed", f"{source} gave a bound of {bound} above the objective {objective} of {name}"
        else:
            status = "optimal" if bound is not None and search.closed(bound) else "feasible"
        bound, source = (None, None) if status == "failed" else (bound, source)
        if status == "infeasible":
            source = outcome.bound_source if outcome.infeasible else "least memory over all choices"
        proven = status in ("optimal", "infeasible")
        return Result(
            problem=instance.problem,
            method=name,
            status=status,
            objective=objective,
            bound=bound,
            gap=relative_gap(objective, bound),
            solution=None if choice is None else problem.solution_dict(choice),
            build_seconds=round(outcome.build_seconds, 6),
            solve_seconds=round(max(0.0, search.elapsed() - outcome.build_seconds), 6),
            history=tuple(search.history),
            seed=search.seed,
            versions=versions(),
            instance_hash=instance.digest,
            bound_source=source,
            tolerance=search.gap,
            evaluation=None if choice is None else problem.describe(instance, choice),
            violations=tuple(broken),
            reason=reason,
            message=message,
            statistics=outcome.statistics,
            import_seconds=round(search.clock.seconds_apart - self.seconds_apart, 6),
            solution_source=search.best_source,
            stopped=None if proven else outcome.stopped,
        )


def _joined(*texts: str | None) -> str | None:
    """The texts that are neither None nor empty, joined by "; "; None if none is left."""
    return "; ".join(text for text in texts if text) or None


@checked
def compare(
    instance: Any,
    methods: Sequence[str] | None = None,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    cold: bool = True,
    solver_memory: str | int | None = None,
    progress: Any = None,
) -> tuple[list[Result], list[str]]:
    """Run several methods (default: all that the instance's size admits), and list every contradiction between them.

    instance: the data of one optimisation problem.

    Returns the results in the order of the methods, and a text for each contradiction: a proven bound above another method's
    objective, or a solution where another method proved that none exists. time_limit: seconds for each method. solver_memory:
    memory that each method may take, such as "8GiB" or a number of bytes. seed: the seed of all random choices. cold: no method
    begins from the plan of another. progress: called with (method, point) for each better solution or bound. After an interrupt
    no further method is run. Raises Unsupported if a method that was named does not support the instance."""
    names = list(methods) if methods else [entry.name for entry in methods_of(instance.problem)]
    check_arguments(time_limit, 0.0, seed)
    results: list[Result] = []
    limits: dict[str, Any] = {"time_limit": time_limit, "seed": seed, "cold": cold, "solver_memory": solver_memory}
    for name in names:
        try:
            notify = (lambda point, name=name: progress(name, point)) if progress else None
            results.append(solve(instance, name, progress=notify, **limits))
        except Unsupported:
            if methods:
                raise
        if results and results[-1].stopped == "interrupt":
            break
    return results, contradictions(results)


def contradictions(results: Sequence[Result]) -> list[str]:
    """Compare the results of several methods on one instance: one text for each contradiction between two of them, and one for
    each method that failed; an empty list if all agree.

    A contradiction is a proven lower bound above another method's objective, or a solution where another method proved that
    none exists."""
    contradicted = []
    for a in results:
        if a.status == "failed":
            contradicted.append(f"{a.method} failed: {a.message}")
        for b in results:
            if a.bound is not None and b.objective is not None and a.bound > b.objective:
                contradicted.append(f"{a.method} proves at least {a.bound} ns, but {b.method} has {b.objective} ns")
            if a.status == "infeasible" and b.objective is not None:
                contradicted.append(f"{a.method} proves that nothing fits, but {b.method} has a solution")
    return contradicted
