"""Stages in plan files: what is valid, and how the rest is refused."""

from typing import Any

import pytest
from trainplan.execution.compile.compiler import compile_plan
from trainplan.formulations.plan.plan import load_plan
from trainplan.profiling.base.errors import InputError

from tests.helpers.plans import GPT2, plan_of

UNITS = len(GPT2.units)


def _content() -> dict[str, Any]:
    return plan_of(GPT2, ["dp2"] * UNITS, 4, 8, 2, cuts=[3], schedule="gpipe").model_dump()


def test_a_plan_of_several_stages_comes_back_from_its_file() -> None:
    content = _content()
    plan = load_plan(content)
    assert (plan.schedule, plan.stage_sizes[0]) == ("gpipe", 2)
    assert plan.model_dump() == content


def test_a_plan_without_a_schedule_is_1f1b() -> None:
    content = plan_of(GPT2, ["dp4"] * UNITS, 4).model_dump()
    del content["schedule"]
    assert load_plan(content).schedule == "1f1b"


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([([0, 1], 0, 2), ([2, 3], 4, UNITS - 1)], r"stages\[1\].first_unit is 4; give 3"),
        ([([0, 1], 1, 2), ([2, 3], 3, UNITS - 1)], r"stages\[0\].first_unit is 1; give 0"),
        ([([0, 1], 0, 2), ([2, 3], 3, UNITS - 2)], rf"stages\[1\].last_unit is {UNITS - 2}; give {UNITS - 1}"),
        ([([0, 1], 0, UNITS - 1), ([2, 3], UNITS, UNITS)], rf"stages\[0\].last_unit is {UNITS - 1}; give 0 to {UNITS - 2}"),
        ([([1, 0], 0, 2), ([2, 3], 3, UNITS - 1)], r"stages\[0\].ranks is \[1, 0\]; give \[0, 1\]"),
        ([([0, 1], 0, 2), ([1, 2], 3, UNITS - 1)], r"stages\[1\].ranks\[0\] is 1, which is in stages\[0\]; give each of"),
        ([([0, 1], 0, 2), ([2, 4], 3, UNITS - 1)], r"stages\[1\].ranks\[1\] is 4; give each of the ranks 0 to 3 once"),
        ([([0], 0, 0), ([1], 1, 1), ([2], 2, UNITS - 1)], r"stages leave rank 3 out"),
    ],
)
def test_bad_stages_get_one_line(stages: list[tuple[list[int], int, int]], told: str) -> None:
    changed = [{"ranks": ranks, "first_unit": first, "last_unit": last} for ranks, first, last in stages]
    with pytest.raises(InputError, match=told):
        load_plan({**_content(), "stages": changed})


def test_a_strategy_is_over_the_ranks_of_its_stage() -> None:
    with pytest.raises(InputError, match=r"units\[0\].strategy is 'dp4', whose degrees multiply to 4; make them multiply to 2"):
        plan_of(GPT2, ["dp4"] * UNITS, 4, cuts=[3])
    with pytest.raises(InputError, match="schedule"):
        load_plan({**_content(), "schedule": "2f2b"})


def test_a_placement_names_a_device_for_each_rank_and_changes_no_program() -> None:
    content = {**_content(), "placement": [2, 0, 3, 1]}
    plan = load_plan(content)
    assert plan.placement == [2, 0, 3, 1]
    assert plan.model_dump() == content
    assert compile_plan(plan) == compile_plan(load_plan(_content()))
    assert load_plan(_content()).placement is None


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        ([0, 1, 2, 4], r"placement\[3\] is 4; give each of the devices 0 to 3 to one rank"),
        ([0, 1, 2, -1], r"placement\[3\] is -1; give each of the devices"),
        ([0, 1, 1, 2], r"placement\[2\] is 1, as is placement\[1\]; give each"),
        ([0, 1, 2], r"placement has 3 items; give a device for each of 4 ranks"),
    ],
)
def test_bad_placements_get_one_line(placement: list[int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_plan({**_content(), "placement": placement})
