"""Time limits: every positive finite number of seconds works, and a search that is stopped anywhere keeps its answer.

A clock that counts how often it was read stops runs at many points, whatever the speed of the machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.problem import problem
from trainplan.profiling.base.errors import Unsupported
from trainplan.solvers.core.clock import Clock, ended_after
from trainplan.solvers.core.heuristic import first_plan
from trainplan.solvers.core.incumbents import FIRST_PLAN
from trainplan.solvers.core.method_registry import Entry, methods, solvers_of
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Outcome, Search, judge
from trainplan.solvers.core.solve import solve

import trainplan as tp
from tests.helpers.assignments import random_assignment
from tests.helpers.cluster_instances import random_cluster
from tests.helpers.instances import random_instance, random_pipeline
from tests.helpers.joint_instances import random_instance as random_joint
from tests.helpers.partition_instances import random_partition
from tests.helpers.switch_instances import random_instance as random_switches
from tests.test_hostile_files import VERSIONED, base

MODELS = ("milp", "cpsat")
FIRST = (1, 2, 3, 4, 6, 9, 14, 21, 34, 55, 89)
SHORT_S = 1e-3  # of a look at the clock
NEVER = 10**6  # looks, more than any run here takes
LOOKS = 60  # at the clock, after the limit
INSTANCES: dict[str, Callable[[int], Any]] = {
    "layer-strategies": lambda seed: random_instance(seed, 12, 5),
    "pipeline": lambda seed: random_pipeline(seed, 6, 3),
    "stage-assignment": lambda seed: random_assignment(seed, 12, 4, memory=seed % 2 > 0),
    "pipeline-partition": lambda seed: random_partition(seed, 10, 4, 6, memory=seed % 2 > 0),
    "memory-switches": lambda seed: random_switches(np.random.default_rng(seed), 3 - seed % 2),
    "cluster-strategy": lambda seed: random_cluster(seed, 4, 5),
    "joint": lambda seed: random_joint(random.Random(seed)),
}
OWN = [(name, entry) for name in INSTANCES for entry in solvers_of(problem(name)).entries if entry.name not in MODELS]


def limited(instance: Any, entry: Entry, limit: float | None) -> tuple[Search, Outcome, float]:
    """A run that a clock stops, which goes on by one whenever it is looked at; and what the clock says then."""
    clock = map(float, count()).__next__
    search = Search(judge(instance), limit, clock=clock)
    outcome = entry.method()(instance, search)
    return search, outcome, search.elapsed()


def indices(looks: int) -> list[int]:
    """Looks at which to stop a run that looks so often: the first ones, and ever fewer."""
    return [limit for limit in FIRST if limit < looks] + [looks * part // 4 for part in (2, 3) if looks > FIRST[-1]]


@pytest.mark.parametrize("name, entry", OWN, ids=[f"{name}-{entry.name}" for name, entry in OWN])
def test_methods_that_are_stopped_claim_no_more_than_they_know(name: str, entry: Entry) -> None:
    checked = problem(name)
    for seed in range(4):
        instance = INSTANCES[name](seed)
        exact = limited(instance, methods(name)[0], None)[0]
        try:
            looks = limited(instance, entry, NEVER)[2]
        except Unsupported:
            continue
        for limit in indices(int(looks)):
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


@pytest.mark.parametrize("name, entry", OWN, ids=[f"{name}-{entry.name}" for name, entry in OWN])
def test_methods_that_are_stopped_have_the_first_plan_or_a_better_one(
    monkeypatch: pytest.MonkeyPatch, name: str, entry: Entry
) -> None:
    for seed in range(3):
        instance = INSTANCES[name](seed)
        if (plan := first_plan(instance)) is None:
            continue
        worst = problem(name).evaluate(instance, plan).objective
        try:
            results = [limited_result(instance, entry, limit) for limit in (1, 3, 9, 34)]
        except Unsupported:
            continue
        results += [interrupted_result(monkeypatch, instance, entry, look) for look in (1, 2, 4, 14)]
        for result in results:
            if result.objective is None:
                assert result.stopped is None, (seed, result)
                continue
            assert not entry.proves or result.objective <= worst
            assert result.solution_source in (entry.name, FIRST_PLAN) or entry.name in ("branch-and-bound", "brute-force")
            assert result.history[-1].objective == result.objective


def test_a_first_plan_is_never_reported_to_be_the_method_s() -> None:
    instance = INSTANCES["stage-assignment"](0)
    [table] = [entry for entry in methods("stage-assignment") if entry.name == "amp-dp"]
    result = limited_result(instance, table, 3)
    assert result.solution is not None and result.message == "time ran out before the table was filled"
    assert {result.solution_source, *(point.source for point in result.history)} == {FIRST_PLAN}


def limited_result(instance: Any, entry: Entry, looks: int) -> Result:
    """The result of a run that a clock stops after a given number of looks, with many more of them left afterwards."""
    hand = count()
    return solve(instance, entry.name, time_limit=looks * SHORT_S, clock=Clock(lambda: next(hand) * SHORT_S))


def interrupted_result(monkeypatch: pytest.MonkeyPatch, instance: Any, entry: Entry, look: int) -> Result:
    """The result of a run without a limit that is interrupted at a given one of its looks at the clock."""
    looks, remaining = count(1), Search.remaining

    def interrupting(search: Search) -> float:
        if next(looks) == look:
            raise KeyboardInterrupt
        return remaining(search)

    with monkeypatch.context() as patched:
        patched.setattr(Search, "remaining", interrupting)
        return solve(instance, entry.name)


EVERY = [(name, entry) for name in INSTANCES for entry in methods(name)]


@pytest.mark.parametrize("name, entry", EVERY, ids=[f"{name}-{entry.name}" for name, entry in EVERY])
def test_a_limit_that_is_not_reached_changes_nothing(name: str, entry: Entry) -> None:
    options = {"workers": 1} if any(option.name == "workers" for option in entry.options) else {}
    for seed in range(2):
        instance = INSTANCES[name](seed)
        try:
            free, limited = (solve(instance, entry.name, time_limit=limit, **options) for limit in (None, 1e6))
        except Unsupported:
            continue
        claims = ("status", "objective", "bound", "solution", "solution_source", "bound_source", "message")
        assert [getattr(free, claim) for claim in claims] == [getattr(limited, claim) for claim in claims], seed


PROBLEMS = [name for name in VERSIONED if name not in ("plan", "profile")]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_method_takes_every_limit(problem: str) -> None:
    instance = tp.load(base(problem))
    for entry in tp.methods(problem):
        for seconds in (1e7, 1e300) if problem == "layer-strategies" else (1e300,):
            try:
                result = tp.solve(instance, entry.name, time_limit=seconds)
            except Unsupported:
                continue
            assert result.status != "failed" and result.stopped is None, (entry.name, seconds, result.message)


@pytest.mark.parametrize("seconds", [1e7, 1e10, 1e300, 1.7e308])
def test_timers_are_set_for_any_number_of_seconds(seconds: float) -> None:
    with ended_after(lambda: seconds), ended_after(lambda: seconds * 1.1):
        pass


def test_a_plan_takes_every_limit() -> None:
    planned = tp.plan(model="gpt2", cluster="cpu-4", batch=8, sequence=32, time_limit=1e300)
    assert planned.result.status == "optimal"
