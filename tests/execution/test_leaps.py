"""Steps of very many micro-batches: what repeats is added, and equals the analysis of all of it."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from trainplan.execution.analysis.timing import leaps
from trainplan.execution.analysis.timing.simulate import Lanes, TimeWalk, time_walk
from trainplan.execution.compile.compiler import compile_classes
from trainplan.execution.steady_state import Rounds
from trainplan.formulations.plan.plan import Plan

from tests.execution.test_classes import _cost, _in_sixes
from tests.helpers.plans import random_plan, random_regular_interleaved_plan, random_sliced_plan
from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all
from trainplan.prediction.metrics import _busy_ns

MADE: tuple[Any, ...] = (random_plan, random_sliced_plan, random_regular_interleaved_plan, _in_sixes)


def of_micro_batches(plan: Plan, count: int) -> Plan:
    samples = plan.batch.global_samples // plan.batch.micro_batches * count
    return plan.changed(batch=plan.batch.changed(micro_batches=count, global_samples=samples))


def walk_of(plan: Plan, backend: Lanes) -> TimeWalk:
    classes = compile_classes(plan)
    stands_for = {rank: device_class.ranks[0] for device_class in classes for rank in device_class.ranks[1:]}
    return time_walk([device_class.rounds for device_class in classes], _cost, backend, stands_for)


@pytest.mark.parametrize("count", some_and_all(12, 50))
def test_an_analysis_in_leaps_is_that_of_every_round(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rng, leaping = random.Random(3), 0
    for _ in range(count):
        plan = rng.choice(MADE)(rng, rng.choice([2, 4, 8]))
        if plan.batch.shares is not None:
            continue
        plan = of_micro_batches(plan, rng.randint(60, 110) * plan.depth)
        backend: Lanes = rng.choice(("serial", "threads", "overlapped"))
        whole = walk_of(plan, backend)
        with monkeypatch.context() as patch:
            patch.setattr(leaps, "FOLLOWED", 32)
            patch.setattr(leaps, "LONGEST", 8)
            walk = walk_of(plan, backend)
        if walk.shorter is None:
            continue
        leaping += 1
        assert walk.step_ns == whole.step_ns and sum(map(len, walk.end_ns)) < sum(map(len, whole.end_ns))
        for index in range(len(walk.rounds)):
            assert _busy_ns(walk, index) == _busy_ns(whole, index)
        with refused("batch.micro_batches", problem=plan.batch.micro_batches, fix=re.compile(r"\d+")):
            walk.assure_whole()
    assert leaping > count // 4


def test_rounds_that_do_not_repeat_are_simulated_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = of_micro_batches(random_sliced_plan(random.Random(5), 4), 400)
    step_ns = walk_of(plan, "serial").step_ns
    monkeypatch.setattr(leaps, "_repeated", lambda *_: None)
    monkeypatch.setattr(leaps, "FOLLOWED", 32)
    assert walk_of(plan, "serial").step_ns == step_ns
    monkeypatch.setattr(leaps, "MOST_INSTRUCTIONS", 1000)
    with refused("batch.micro_batches", problem=400, fix=re.compile(r"\d+")):
        walk_of(plan, "serial")


def test_programs_of_few_rounds_are_simulated_as_they_are() -> None:
    assert (
        leaps.extrapolated(
            [Rounds(device_class.few) for device_class in compile_classes(random_plan(random.Random(1), 2))], walk_of
        )
        is None
    )
