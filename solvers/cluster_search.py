"""cluster-strategy, exactly: degrees by branch and bound, each first bounded by one pipeline followed through the cluster.

    quick      a bound in closed form: every layer at its fastest, stages as even as they can be
    followed   the bound of `cluster_bounds`, and strategies by `cluster_starts`
    uneven     with uneven shares, whether anything below the best known time is left
    model      what is still open goes to CP-SAT, which only has to find something better, or prove that there is nothing

Degrees wait in the order of their bounds, and go through one of these at a time. The least bound of those that wait is one of
the whole; where it meets the best strategy known, that one is optimal. On clusters whose nodes are alike the followed bound
mostly meets a placement at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from trainplan.formulations.cluster_strategy.makes import Case
from trainplan.formulations.cluster_strategy.problem import Instance
from trainplan.solvers.cluster_bounds import FAR, Followed, quick_ns
from trainplan.solvers.cluster_starts import starts
from trainplan.solvers.configurations import LARGEST_CASE, Part, by_parts
from trainplan.solvers.cpsat import solve_one
from trainplan.solvers.search import Outcome, Search

SOURCE = "one pipeline followed through the cluster, for all degrees"
HALVINGS = 3  # of the gap, to find a time that surely none of the strategies stays below
STEPS = ("quick", "followed", "uneven")


@dataclass(order=True)
class _Open:
    """Degrees that may hold something better. step: how many of `STEPS` they went through."""

    bound: float
    number: int
    case: Case = field(compare=False)
    step: int = field(default=STEPS.index("followed"), compare=False)
    followed: Followed | None = field(default=None, compare=False)


def cluster_exact(instance: Instance, search: Search) -> Outcome:
    """The optimum, or where time runs out the best strategy and the least bound of all degrees that are open."""
    waiting = []
    for number, given in enumerate(instance.degrees()):
        case = Case(instance, given, reduced=True)
        waiting.append(_Open(quick_ns(case), number, case))  # its step "quick"
    heapify(waiting)
    statistics: dict[str, object] = {"degrees": len(waiting)}
    left: list[_Open] = []
    steps: Counter[str] = Counter()
    while waiting and not search.out_of_time():
        item = waiting[0]
        search.report(bound=_bound([item, *left], search))
        if _closed(item, search):
            waiting = []
            break
        heappop(waiting)
        if item.step == len(STEPS):
            left.append(item)
            continue
        steps[STEPS[item.step]] += 1
        _step(item, search)
        if item.bound < inf:
            heappush(waiting, item)
    statistics |= steps
    left = [item for item in left + waiting if not _closed(item, search)]
    parts = [Part(Case(instance, item.case.degrees), item.bound) for item in left]
    statistics["models"] = [str(item.case.degrees) for item in left]
    if not left or search.out_of_time():
        return _outcome(parts, search, SOURCE, statistics)
    suited = [part for part in parts if part.instance.size <= LARGEST_CASE]
    outcome = by_parts(solve_one, suited, search) if suited else Outcome()
    if outcome.failed:
        return outcome
    return _outcome(parts, search, f"{SOURCE}, and {outcome.bound_source}", statistics)


def _step(item: _Open, search: Search) -> None:
    """The next step of some degrees, which may raise their bound; an infinite one where nothing fits."""
    case, stop = item.case, search.out_of_time
    if item.followed is None:
        item.followed = Followed(case)
        value, path = item.followed.bound(search.objective, stop)
        item.bound = inf if value >= FAR else max(item.bound, value)
        item.step = STEPS.index("uneven") if len(case.share_choices) > 1 else len(STEPS)
        if path is not None:
            for solution in starts(case, path.cuts, stop):
                search.report(solution)
        return
    item.step = len(STEPS)
    if search.objective is None:
        return
    high = search.objective
    for _ in range(HALVINGS):
        if item.followed.closed(int(high), stop):
            item.bound = high
            return
        high = (item.bound + high) // 2


def _closed(item: _Open, search: Search) -> bool:
    """Nothing in it is better than what is known, by more than the gap."""
    return search.objective is not None and search.objective - item.bound <= search.gap * search.objective


def _bound(items: Sequence[_Open], search: Search) -> int | None:
    """That of all degrees; None where nothing fits."""
    least = min([item.bound for item in items] + ([] if search.objective is None else [search.objective]))
    return None if least == inf else int(least)


def _outcome(parts: Sequence[Part], search: Search, source: str, statistics: dict[str, object]) -> Outcome:
    """parts: all that may hold something better, or did."""
    bound = min([part.bound for part in parts] + ([] if search.objective is None else [search.objective]), default=inf)
    if bound == inf:
        return Outcome(infeasible=True, bound_source=source, statistics=statistics)
    search.report(bound=int(bound))
    return Outcome(bound=int(bound), bound_source=source, statistics=statistics)
