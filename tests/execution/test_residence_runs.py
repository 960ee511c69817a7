"""Plans with states and inputs of some units on the host on real processes: against one process, and their memory."""

import random

import pytest
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.launch.processes import run_plans
from trainplan.formulations.plan.plan import Plan

from tests.helpers.measured import memory_follows_the_walk
from tests.helpers.plans import DROPPING, random_plan, random_unlike_plan
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.sizes import first_and_others, some_and_all
from tests.helpers.switch_plans import LARGER

# Plans of each world and back-end, each in one start of the processes: 200.
COUNTS: dict[tuple[int, Backend], int] = {
    (1, "threads"): 20,
    (2, "serial"): 60,
    (2, "threads"): 50,
    (3, "threads"): 20,
    (4, "fused"): 25,
    (4, "threads"): 25,
}


def _plans(world: int, backend: Backend) -> list[Plan]:
    rng = random.Random(f"residences {world} {backend}")
    kind = random_unlike_plan if world == 3 else None
    return [random_residence_plan(rng, world, kind) for _ in range(COUNTS[world, backend])]


def test_the_plans_are_many_and_varied() -> None:
    plans = [plan for world, backend in COUNTS for plan in _plans(world, backend)]
    assert len(plans) >= 200
    units = [unit for plan in plans for unit in plan.units]
    seen = {
        (u.states.optimizer, u.states.parameters, u.states.kept_whole, u.activations.hidden, u.strategy.degree("sdp") > 1)
        for u in units
    }
    assert len(seen) == 3 * 2 * 2 * 2, "all that a unit can have, sharded or not"
    assert {plan.nvlink for plan in plans} == {True, False, None}
    assert {plan.planned_model().tied for plan in plans} == {True, False}
    assert {len(plan.stages) for plan in plans} >= {1, 2, 3, 4}
    assert {plan.schedule for plan in plans} == {"1f1b", "gpipe", "interleaved-1f1b"}
    mixed = [plan for plan in plans if len({unit.uses_host for unit in plan.units}) == 2]
    assert len(mixed) > 100
    assert sum(plan.sliced > 0 for plan in plans) > 10
    assert sum(plan.batch.shares is not None for plan in plans) > 10
    assert sum(plan.batch.micro_batches > 1 for plan in plans) > 100


@pytest.mark.long
@pytest.mark.parametrize("share", some_and_all(8, 1, 6))
@pytest.mark.parametrize(("world", "backend"), first_and_others([*COUNTS], 2))
def test_random_plans_agree_with_one_process(world: int, backend: Backend, share: int) -> None:
    """Gradients of the first step, losses and parameters of three steps of AdamW, in double precision."""
    plans = _plans(world, backend)[::share]
    for plan, report in zip(plans, run_plans(plans, steps=3, backend=backend), strict=True):
        for found in (report.gradient_difference, report.parameter_difference, report.loss_difference):
            assert found is not None
            assert found < 1e-12, plan
        assert report.losses == sorted(report.losses, reverse=True), "the same batch thrice: the loss must fall"


def test_what_is_recomputed_from_the_host_drops_the_same_numbers() -> None:
    rng = random.Random(7)
    plans = [random_residence_plan(rng, 2, lambda r, w, model=model: random_plan(r, w, model)) for model in DROPPING]  # type: ignore[misc]
    for plan, report in zip(plans, run_plans(plans, steps=2, backend="threads"), strict=True):
        assert report.gradient_difference is not None
        assert report.gradient_difference < 1e-12, plan


@pytest.mark.parametrize(("world", "count"), first_and_others([(2, 4), (1, 12), (2, 20), (4, 8)]))
def test_measured_memory_follows_the_memory_analysis(world: int, count: int) -> None:
    """Against torch's own allocations."""
    rng = random.Random(5)
    plans = [random_residence_plan(rng, world, lambda r, w: random_plan(r, w, r.choice(LARGER))) for _ in range(count)]
    memory_follows_the_walk(run_plans(plans, steps=1, compare=False, measure_memory=True), 0.03)
