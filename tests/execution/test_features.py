"""Features of plans that programs do not have yet are refused by name, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from trainplan.execution.compile.compiler import compile_plan
from trainplan.formulations.plan.plan import load_plan

from tests.helpers.plans import GPT2, plan_of
from tests.helpers.refusals import refused

UNITS = len(GPT2.units)


@pytest.mark.parametrize(
    ("strategy", "fields", "message"),
    [
        ("dp2-ep2", {}, ("units[0].strategy", "dp2-ep2", ("dp", "sdp", "tp"))),
        (
            "dp2",
            {"precision": "fp8"},
            ("units[0].precision", "fp8", "model"),
        ),
    ],
)
def test_the_compiler_names_what_it_cannot_do(strategy: str, fields: dict[str, Any], message: tuple[Any, ...]) -> None:
    plan = plan_of(GPT2, ["single"] * UNITS, 1).model_dump()
    degree = 4 if "ep" in strategy else 2
    plan |= {"world": degree, "units": [{"name": u["name"], "strategy": strategy, **fields} for u in plan["units"]]}
    plan["stages"][0]["ranks"] = list(range(degree))
    with refused(*message):
        compile_plan(load_plan(plan))


def test_heads_that_ranks_cannot_share_are_refused_in_the_plan() -> None:
    plan = plan_of(GPT2, ["single"] * UNITS, 1).model_dump()
    heads = GPT2.units[1].sublayer.heads  # type: ignore[union-attr]
    plan |= {"world": 3 * heads, "units": [{"name": u["name"], "strategy": f"cp{3 * heads}h"} for u in plan["units"]]}
    plan["stages"][0]["ranks"] = list(range(3 * heads))
    with refused("units[1].strategy", problem=f"cp{3 * heads}h", fix=(f"cp{3 * heads}", heads)):
        load_plan(plan)


def test_zero_bubble_schedules_are_refused() -> None:
    plan = plan_of(GPT2, ["single"] * UNITS, 2, 8, 4, [3]).model_dump()
    with refused("schedule", problem="zero-bubble", fix="1f1b"):
        compile_plan(load_plan({**plan, "schedule": "zero-bubble"}))
