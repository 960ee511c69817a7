"""Every positive finite time limit works, also those that no timer of the system takes."""

from __future__ import annotations

import pytest
from trainplan.profiling.base.errors import Unsuited
from trainplan.solvers.core.clock import ended_after

import trainplan as tp
from tests.test_hostile_files import VERSIONED, base

PROBLEMS = [name for name in VERSIONED if name not in ("plan", "profile")]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_method_takes_every_limit(problem: str) -> None:
    instance = tp.load(base(problem))
    for entry in tp.methods(problem):
        for seconds in (1e7, 1e300) if problem == "layer-strategies" else (1e300,):
            try:
                result = tp.solve(instance, entry.name, time_limit=seconds)
            except Unsuited:
                continue
            assert result.status != "failed" and result.stopped is None, (entry.name, seconds, result.message)


@pytest.mark.parametrize("seconds", [1e7, 1e10, 1e300, 1.7e308])
def test_timers_are_set_for_any_number_of_seconds(seconds: float) -> None:
    with ended_after(lambda: seconds), ended_after(lambda: seconds * 1.1):
        pass


def test_a_plan_takes_every_limit() -> None:
    planned = tp.plan(model="gpt2", cluster="cpu-4", batch=8, sequence=32, time_limit=1e300)
    assert planned.result.status == "optimal"
