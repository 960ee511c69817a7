"""The starting solution of MILP and CP-SAT models: the problem's first plan, else a plan of its exact method."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from trainplan.profiling.base.errors import Unsupported
from trainplan.solvers.core.clock import Overrun, ended_after
from trainplan.solvers.core.method_registry import methods
from trainplan.solvers.core.search import Outcome, Search

FIRST_PLAN = "first plan that fits"
# Where there is no first plan, the exact method may run to this gap, for this share of the time left, and no longer than this.
GAP, SHARE, MOST_SECONDS = 0.1, 0.3, 2.0
LATE = 0.2  # the share of its time by which it may overrun


def begin_model(instance: Any, search: Search, cheap: tuple[int, str] | None) -> Outcome | None:
    """Give a MILP or CP-SAT run a solution to start from: if the search has none, run the problem's fast exact method for a
    short time, which reports its solutions to the search.

    instance: the data of one optimisation problem. search: the run's limits and its best solution so far, which is updated.
    cheap: a lower bound in ns found without a search and the text that says why it holds, None if the problem has none. Returns
    the outcome of the whole run if no MILP or CP-SAT model is needed any more, because the cheap bound proves the search's
    solution optimal or the exact method proves that nothing fits; else None, and the model is to be solved."""
    if search.objective is not None:
        bound, source = cheap or (None, None)
        return Outcome(bound=bound, bound_source=source) if search.closed(bound) else None
    exact = methods(instance.problem)[0]
    if exact.model:
        return None
    with search.clock.paused():
        method = exact.method()
    share = search.seconds(SHARE)
    limit = MOST_SECONDS if share is None else min(share, MOST_SECONDS)
    inner = search.within(limit, exact.name)
    inner.gap = max(search.gap, GAP)
    with suppress(Unsupported, Overrun), ended_after(lambda: inner.remaining() + LATE * limit):
        outcome = method(instance, inner)
        if outcome.infeasible:
            source = f"{exact.name}, {outcome.bound_source}"
            return Outcome(infeasible=True, bound_source=source, message=f"{exact.name} proves it before a model is built")
    return None
