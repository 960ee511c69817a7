"""A schedule that the table has and no closed form knows: simulated by its order, and proven by no other one's bounds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from trainplan.execution.launch_files.fields import text
from trainplan.formulations.joint.certificates.check import possible
from trainplan.formulations.joint.certificates.file import ConfigurationEvidence
from trainplan.formulations.joint.enumeration import solutions
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.problem import Instance, Schedule
from trainplan.formulations.schedule.orders import SCHEDULES, ScheduleSpec, by_order, most_in_flight
from trainplan.formulations.schedule.vectorised import pass_ends_ns
from trainplan.profiling.base.errors import InputError, Unsupported
from trainplan.solvers.core.solve import solve
from trainplan.solvers.joint.free_cuts.critical_path_bounds import slope

from tests.helpers.joint_instances import random_instance


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The name of a schedule whose order is GPipe's."""
    monkeypatch.setitem(SCHEDULES, "added", ScheduleSpec("added", SCHEDULES["gpipe"].orders))
    return "added"


def of(instance: Instance, schedule: Schedule) -> Instance:
    """The instance with one schedule in all configurations."""
    return replace(instance, configurations=tuple(replace(one, schedule=schedule) for one in instance.configurations))


def test_memory_in_flight_follows_the_order(added: str) -> None:
    assert [most_in_flight(added, 3, 5, stage) for stage in range(3)] == [5, 5, 5]
    assert Schedule(added).in_flight(3, 5, 2) == 5  # type: ignore[arg-type]


def test_plans_cost_what_their_order_says(added: Any) -> None:
    for seed in range(12):
        instance = random_instance(random.Random(seed), plain=True)
        ours, gpipe = of(instance, Schedule(added)), of(instance, Schedule("gpipe"))
        for solution in list(solutions(gpipe))[:20]:
            one, other = evaluate(ours, solution), evaluate(gpipe, solution)
            assert (one.time_ns, one.stages) == (other.time_ns, other.stages), seed


def test_no_bound_takes_it_for_1f1b(added: Any) -> None:
    instance = of(random_instance(random.Random(3), plain=True), Schedule(added))
    with pytest.raises(Unsupported):
        solve(instance, method="exact")
    for call in (
        lambda: slope(added, 1, 4),
        lambda: by_order(added, gpipe=1, one_f_one_b=2),
        lambda: pass_ends_ns(added, *[None] * 4),  # type: ignore[arg-type]
    ):
        with pytest.raises(Unsupported):
            call()
    claim = ConfigurationEvidence(10**15, prices=(1,), depths=(1,))
    assert possible(instance, instance.configurations[0], claim), "evidence of closed forms proves nothing of it"


def test_a_word_that_a_tool_lacks_is_an_error_of_the_plan() -> None:
    field = text("schedule", "1F1B", lambda plan: plan, words={"1F1B": "1f1b", "GPipe": "gpipe"})
    assert field.spelt("gpipe") == "GPipe"
    with pytest.raises(InputError) as caught:
        field.spelt("added")
    assert caught.value.field == "schedule" and "added" in caught.value.problem
