"""Time limits of trainplan's own methods, by a clock that tells how often it was looked at: runs are stopped at many places."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.problem import problem
from trainplan.profiling.base.errors import Unsuited
from trainplan.solvers.core.registry import METHODS, ROOMS, Entry, methods
from trainplan.solvers.core.search import Outcome, Search, judge

from tests.assignments import random_assignment
from tests.cluster_instances import random_cluster
from tests.instances import random_instance, random_pipeline
from tests.partition_instances import random_partition
from tests.switch_instances import random_instance as random_switches

MODELS = ("milp", "cpsat")
FIRST = (1, 2, 3, 4, 6, 9, 14, 21, 34, 55, 89)
NEVER = 10**6  # looks, more than any run here takes
LOOKS = 60  # at the clock, after the limit
INSTANCES: dict[str, Callable[[int], Any]] = {
    "layer-strategies": lambda seed: random_instance(seed, 12, 5),
    "pipeline": lambda seed: random_pipeline(seed, 6, 3),
    "stage-assignment": lambda seed: random_assignment(seed, 12, 4, memory=seed % 2 > 0),
    "pipeline-partition": lambda seed: random_partition(seed, 10, 4, 6, memory=seed % 2 > 0),
    "memory-switches": lambda seed: random_switches(
        np.random.default_rng(seed), 3 - seed % 2, synchronisation="free" if seed % 2 else "forced"
    ),
    "cluster-strategy": lambda seed: random_cluster(seed, 4, 5),
}
OWN = [(name, entry) for name in ROOMS for entry in METHODS[name] if entry.name not in MODELS]


def limited(instance: Any, entry: Entry, limit: float | None) -> tuple[Search, Outcome, float]:
    """A run that a clock stops, which goes on by one whenever it is looked at; and what the clock says then."""
    clock = map(float, count()).__next__
    search = Search(judge(instance), limit, clock=clock)
    outcome = entry.method()(instance, search)
    return search, outcome, search.elapsed()


def places(looks: int) -> list[int]:
    """Looks at which to stop a run that looks so often: the first ones, and ever fewer."""
    return [limit for limit in FIRST if limit < looks] + [looks * part // 4 for part in (2, 3) if looks > FIRST[-1]]


@pytest.mark.parametrize("name, entry", OWN, ids=[f"{name}-{entry.name}" for name, entry in OWN])
def test_methods_that_are_stopped_claim_no_more_than_they_know(name: str, entry: Entry) -> None:
    checked, stopped, planned = problem(name), 0, 0
    for seed in range(4):
        instance = INSTANCES[name](seed)
        exact = limited(instance, methods(name)[0], None)[0]
        try:
            looks = limited(instance, entry, NEVER)[2]
        except Unsuited:
            continue
        for limit in places(int(looks)):
            search, outcome, looks = limited(instance, entry, limit)
            where = f"seed {seed}, stopped at look {limit}"
            assert not outcome.failed, where
            assert not outcome.infeasible or exact.objective is None, where
            plan = search.best if outcome.choice is None else outcome.choice
            assert plan is None or not checked.violations(instance, plan), where
            if exact.objective is not None:
                assert all(bound is None or bound <= exact.objective for bound in (outcome.bound, search.bound)), where
                assert search.objective is None or search.objective >= exact.objective, where
            assert looks <= limit + LOOKS, where
            stopped, planned = stopped + 1, planned + (plan is not None)
    assert not stopped or planned
