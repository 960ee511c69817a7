"""Solve cluster-strategy exactly: degrees by branch and bound, each first bounded by one pipeline followed through the cluster.

    even       where shares may be uneven, the same search with even ones first, for its best strategy
    quick      a bound in closed form: every layer at its fastest, stages as even as they can be
    followed   the bound of `bounds`, and strategies by `starts`
    uneven     with uneven shares, whether any strategy may still be below the best known time
    climb      where that does not close soon, better strategies by `climb`, one time
    model      degrees that are still open go to CP-SAT, which only has to find something better, or prove that there is nothing

Degrees wait in the order of their bounds, and go through one of these at a time. The least bound of those that wait bounds all;
where it meets the best strategy known, that one is optimal. On clusters whose nodes are alike the followed bound mostly meets a
placement immediately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase, cases
from trainplan.formulations.cluster_strategy.instance import Instance
from trainplan.profiling.base.errors import TooLarge
from trainplan.solvers.adapters.cpsat import solve_one
from trainplan.solvers.adapters.subproblems import Subproblem, by_parts
from trainplan.solvers.cluster.bounds import even_stages_ns, one_pipeline_ns, uneven_shares_leave_none
from trainplan.solvers.cluster.climb import climb
from trainplan.solvers.cluster.one_pipeline import FAR, PipelineSearch, followed
from trainplan.solvers.cluster.starts import starts
from trainplan.solvers.core.search import Outcome, Search

SOURCE = "one pipeline followed through the cluster, for all degrees"
EVEN_TIME = 0.25  # share of the time left, for even shares
SOON, CLIMB_TIME = 0.1, 0.25  # shares of the time limit and of the time left then
FEW = 8  # devices of clusters whose models are solved sooner than climbing ends
NO_LIMIT = 20.0  # seconds that stand for the time limit where none is given
HALVINGS = 3  # of the gap, in search of a time that no strategy is below


@dataclass(order=True)
class _Open:
    """One choice of degrees of parallelism whose strategies may still be better than the best one known, as an item of the
    exact method's heap, ordered by bound.

    bound: a lower bound in ns on the strategies with these degrees, infinite if none fits. number: the index of the degrees in
    the instance. case: the instance with these degrees fixed. step: the next step of the search for them: `followed` (bound by
    one pipeline), `uneven` (exclude uneven shares) or `model` (CP-SAT; no other step remains). pipelines: the search for the
    cheapest single pipeline with these degrees, None before it is built or if it is too large."""

    bound: float
    number: int
    case: DegreeCase = field(compare=False)
    step: str = field(default="followed", compare=False)
    pipelines: PipelineSearch | None = field(default=None, compare=False)


def branch_and_bound(instance: Instance, search: Search) -> Outcome:
    """The method `branch-and-bound` of the problem `cluster-strategy`: the optimal strategy for a mixed cluster (degrees of
    parallelism, placement of devices, cuts into stages, shares of the batch) with proof, or, if time runs out, the best
    strategy found and a lower bound over all strategies.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far, to which better ones are reported."""
    if instance.uneven_shares:
        # The best strategy with even shares: far fewer, and often hard to better.
        even = search.within(search.seconds(EVEN_TIME))
        even.report(search.best)
        branch_and_bound(replace(instance, uneven_shares=False), even)
    cases = [DegreeCase(instance, degrees, reduced=True, check_time=search.check_time) for degrees in instance.degrees()]
    try:
        items = [_Open(even_stages_ns(case), number, case) for number, case in enumerate(cases)]
    except TimeoutError:
        return Outcome(bound=search.bound, bound_source=search.bound_source)
    waiting, unsolved = list(items), []
    heapify(waiting)
    steps: Counter[str] = Counter({"quick": len(items)})
    climbed = False
    while waiting and not search.out_of_time():
        search.report(bound=_bound(items, search))
        if not climbed and search.elapsed() > SOON * (NO_LIMIT if search.time_limit is None else search.time_limit):
            _climb(instance, search)
            climbed = True
        item = heappop(waiting)
        if search.closed(item.bound):
            waiting.clear()
        elif item.step == "model":
            unsolved.append(item)
        else:
            steps[item.step] += 1
            with suppress(TimeoutError):
                _step(item, search)
            if item.bound < inf:
                heappush(waiting, item)
    if (
        not climbed
        and instance.devices > FEW
        and not (search.out_of_time() or all(search.closed(item.bound) for item in unsolved))
    ):
        _climb(instance, search)
    unsolved = [item for item in unsolved if not search.closed(item.bound)]
    source, statistics = SOURCE, {**steps, "models": [str(item.case.degrees) for item in unsolved]}
    if unsolved and not search.out_of_time():
        parts = [Subproblem(DegreeCase(instance, item.case.degrees), item.bound) for item in unsolved]
        outcome = by_parts(_model, parts, search)
        if outcome.failed:
            return outcome
        source = ", and ".join(dict.fromkeys(text for text in (SOURCE, outcome.bound_source) if text))
        for item, part in zip(unsolved, parts, strict=True):
            item.bound = part.bound
    bound = _bound(items, search)
    if bound is None:
        return Outcome(infeasible=True, bound_source=source, statistics=statistics)
    search.report(bound=bound)
    return Outcome(bound=bound, bound_source=source, statistics=statistics)


def _climb(instance: Instance, search: Search) -> None:
    """Run the local search over strategies for a fixed share of the time left; better strategies are reported to the search.

    instance: a model's layers, a cluster of unequal devices, and the batch size. search: the run's limits and options, and its
    best solution so far."""
    seconds = search.seconds(CLIMB_TIME)
    until = search.elapsed() + (CLIMB_TIME * NO_LIMIT if seconds is None else seconds)
    climb(instance, search, lambda: search.elapsed() > until)


def _model(instance: Any, search: Search) -> Outcome:
    """Solve one case (the instance with one choice of degrees of parallelism) by CP-SAT. instance: the case.

    search: the run's limits and options, and its best solution so far, to which better ones are reported. Returns CP-SAT's
    outcome; if the model would be too large, an outcome whose field `bound` is the case's largest lower bound in ns so far."""
    if not instance.statable:
        return Outcome(bound=search.bound, bound_source=SOURCE)
    return solve_one(instance, search)


def _step(item: _Open, search: Search) -> None:
    """Run the next step of the search for one choice of degrees of parallelism. item: the choice and its state, which is
    changed: its `bound` is raised (to infinity if nothing fits), and its `step` is set to the step that comes next. Strategies
    found are reported to the search.

    search: the run's limits and options, and its best solution so far, to which better ones are reported."""
    case, stop, path = item.case, search.out_of_time, None
    step, item.step = item.step, "model"
    if step == "uneven":
        _rule_out(item, search)
        return
    item.pipelines = followed(case, stop)
    if item.pipelines is not None:
        value, path = one_pipeline_ns(item.pipelines, search.objective, stop)
        item.bound = inf if value >= FAR else max(item.bound, value)
        if len(case.share_choices) > 1:
            item.step = "uneven"
    if path is not None or item.pipelines is None:
        for solution in starts(case, path, stop):
            search.report(solution)


def _rule_out(item: _Open, search: Search) -> None:
    """Raise the lower bound of one choice of degrees of parallelism, for which strategies may share the batch unevenly among
    pipelines. It rises to the time of the best strategy known if it is proven that no strategy with these degrees is faster;
    else to a smaller time, or not at all. item: the choice, whose `bound` is changed.

    search: the run's limits and options, and its best solution so far; only read here."""
    if search.objective is None or item.pipelines is None:
        return
    time = search.objective
    for _ in range(HALVINGS):
        if uneven_shares_leave_none(item.pipelines, time, search.out_of_time):
            item.bound = time
            return
        time = (int(item.bound) + time) // 2


def _bound(items: Sequence[_Open], search: Search) -> int | None:
    """The lower bound in ns on all strategies: the smallest of the bounds of the choices of degrees that are still open and the
    time of the best strategy known; None if all these are infinite, that is, if no strategy fits. items: the open choices.

    search: the run's limits and options, and its best solution so far; only read here."""
    least = min([item.bound for item in items] + ([] if search.objective is None else [search.objective]), default=inf)
    return None if least == inf else int(least)


def subproblems(instance: Instance, out_of_time: Callable[[], bool]) -> list[Subproblem]:
    """Divide an instance into parts, one for each choice of degrees of parallelism, each with a lower bound in ns. out_of_time:
    returns whether to stop improving the bounds. Raises TooLarge if groups of devices can be composed of device classes in too
    many ways for a model.

    instance: a model's layers, a cluster of unequal devices, and the batch size."""
    if not all(case.statable for case in cases(instance)):
        raise TooLarge("instance", "", "has too many kinds of groups of devices to state each of them", "give --method exact")
    bounded = []
    for degrees in instance.degrees():
        case = DegreeCase(instance, degrees, reduced=True)
        pipelines = followed(case, out_of_time)
        bound = even_stages_ns(case) if pipelines is None else one_pipeline_ns(pipelines, None, out_of_time)[0]
        bounded.append(Subproblem(DegreeCase(instance, degrees), bound))
    return bounded
