"""The fast methods whose plans MILP and CP-SAT begin from: of each problem one or more, tried until one has a plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainplan.profiling.base.errors import Unsuited
from trainplan.solvers.core.clock import Overrun, ended_after
from trainplan.solvers.core.registry import method as method_named
from trainplan.solvers.core.search import Search

# The proving ones end at the gap below, or with their share of the time.
FAST: dict[str, tuple[str, ...]] = {
    "layer-strategies": ("label-setting",),
    "pipeline": ("branch-and-bound", "galvatron-base"),
    "stage-assignment": ("sweep",),
    "pipeline-partition": ("algorithm-1", "branch-and-bound"),
    "memory-switches": ("label-setting", "manual"),
    "cluster-strategy": ("megatron", "branch-and-bound"),
}
GAP = 0.01
SHARE, MOST_SECONDS = 0.2, 1.0  # of the time left, and at most, for each method
LATE = 0.5  # of its time, by which it may overrun


@dataclass(frozen=True)
class Bound:
    """No solution is below; source: who says so."""

    ns: int
    source: str | None


def fast_incumbent(instance: Any, search: Search) -> Bound | None:
    """Report a plan of a fast method, if it has one soon; its bound is kept apart from those of the search itself."""
    for name in FAST.get(instance.problem, ()):
        with search.clock.paused():
            method = method_named(instance.problem, name).method()
        share = search.seconds(SHARE)
        inner = search.within(MOST_SECONDS if share is None else min(share, MOST_SECONDS), name)
        inner.gap = max(search.gap, GAP)
        with suppress(Unsuited, Overrun), ended_after(lambda inner=inner: inner.remaining() + LATE * inner.time_limit):
            method(instance, inner)
        if search.objective is not None:
            return None if inner.bound is None else Bound(inner.bound, inner.bound_source)
    return None
