"""Stages in plan files: what is valid, and how the rest is refused."""

from typing import Any

import pytest
from trainplan.execution.compile.compiler import compile_plan
from trainplan.formulations.plan.plan import load_plan

from tests.helpers.plans import GPT2, plan_of
from tests.helpers.refusals import refused

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
    ("stages", "refusal"),
    [
        ([([0, 1], 0, 2), ([2, 3], 4, UNITS - 1)], ("stages[1].first_unit", 4, 3)),
        ([([0, 1], 1, 2), ([2, 3], 3, UNITS - 1)], ("stages[0].first_unit", 1, 0)),
        ([([0, 1], 0, 2), ([2, 3], 3, UNITS - 2)], ("stages[1].last_unit", UNITS - 2, UNITS - 1)),
        ([([0, 1], 0, UNITS - 1), ([2, 3], UNITS, UNITS)], ("stages[0].last_unit", UNITS - 1, (0, UNITS - 2))),
        ([([1, 0], 0, 2), ([2, 3], 3, UNITS - 1)], ("stages[0].ranks", "[1, 0]", "[0, 1]")),
        ([([0, 1], 0, 2), ([1, 2], 3, UNITS - 1)], ("stages[1].ranks[0]", (1, "stages[0]"), (0, 3))),
        ([([0, 1], 0, 2), ([2, 4], 3, UNITS - 1)], ("stages[1].ranks[1]", 4, (0, 3))),
        ([([0], 0, 0), ([1], 1, 1), ([2], 2, UNITS - 1)], ("stages", "rank 3", (0, 3))),
    ],
)
def test_bad_stages_get_one_line(stages: list[tuple[list[int], int, int]], refusal: tuple[Any, ...]) -> None:
    changed = [{"ranks": ranks, "first_unit": first, "last_unit": last} for ranks, first, last in stages]
    with refused(*refusal):
        load_plan({**_content(), "stages": changed})


def test_a_strategy_is_over_the_ranks_of_its_stage() -> None:
    with refused("units[0].strategy", problem=("dp4", 4), fix=2):
        plan_of(GPT2, ["dp4"] * UNITS, 4, cuts=[3])
    with refused("schedule", problem="2f2b", fix="1f1b"):
        load_plan({**_content(), "schedule": "2f2b"})


def test_a_placement_names_a_device_for_each_rank_and_changes_no_program() -> None:
    content = {**_content(), "placement": [2, 0, 3, 1]}
    plan = load_plan(content)
    assert plan.placement == [2, 0, 3, 1]
    assert plan.model_dump() == content
    assert compile_plan(plan) == compile_plan(load_plan(_content()))
    assert load_plan(_content()).placement is None


@pytest.mark.parametrize(
    ("placement", "refusal"),
    [
        ([0, 1, 2, 4], ("placement[3]", 4, (0, 3))),
        ([0, 1, 2, -1], ("placement[3]", -1, (0, 3))),
        ([0, 1, 1, 2], ("placement[2]", (1, "placement[1]"), (0, 3))),
        ([0, 1, 2], ("placement", 3, 4)),
    ],
)
def test_bad_placements_get_one_line(placement: list[int], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        load_plan({**_content(), "placement": placement})
