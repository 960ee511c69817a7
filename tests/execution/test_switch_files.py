"""Memory switches in plan files: what is valid, and how the rest is refused."""

from typing import Any

import pytest
from trainplan.execution.compile.compiler import compile_plan
from trainplan.formulations.memory_switches.switches import Switches
from trainplan.formulations.plan import Plan, load_plan
from trainplan.profiling.base.errors import InputError

from tests.execution.plans import GPT2, plan_of
from tests.execution.switch_plans import switch_plan

UNITS = len(GPT2.units)
SOME = Switches(ckpt=True, offload_hidden=True, lazy_prefetch=True, segment_sync=True)


def _content(**changed: Any) -> dict[str, Any]:
    return {**switch_plan(GPT2, 2, [SOME] * UNITS, False).model_dump(), **changed}


def _with_unit(position: int, **changed: Any) -> dict[str, Any]:
    content = _content()
    content["units"][position] |= changed
    return content


def test_a_plan_with_switches_comes_back_from_its_file() -> None:
    plan = load_plan(_content())
    assert plan.model_dump() == _content()
    assert plan.switches() == [SOME] * UNITS
    assert plan.units[1].switches == ["offload_hidden", "lazy_prefetch", "segment_sync"]
    assert plan.units[1].strategy == "sdp2-ckpt"
    assert plan.nvlink is False


def test_a_plan_without_switches_says_nothing_of_them() -> None:
    content = plan_of(GPT2, ["sdp2-ckpt"] * UNITS, 2).model_dump()
    del content["nvlink"]
    for unit in content["units"]:
        del unit["switches"]
    plan = load_plan(content)
    assert plan.switches() is None
    assert not any(name.startswith("host-") for name in compile_plan(plan)[0].buffers)


def test_no_switch_on_is_another_thing_than_no_switches() -> None:
    """Then the optimizer works on the host, and nothing else is saved."""
    plan = switch_plan(GPT2, 2, [Switches()] * UNITS)
    assert [unit.switches for unit in plan.units] == [[]] * UNITS
    assert plan.switches() == [Switches()] * UNITS
    assert compile_plan(plan)[0].optimizer_on_host


def test_the_schema_names_the_switches() -> None:
    definition = Plan.model_json_schema()["$defs"]["PlannedUnit"]["properties"]["switches"]
    (names,) = [choice["items"]["enum"] for choice in definition["anyOf"] if choice.get("type") == "array"]
    assert names == ["offload_hidden", "partition", "lazy_prefetch", "eco_forward", "eco_backward", "segment_sync"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (_with_unit(3, switches=None), r"units\[3\].switches is missing; give a list, such as \[\]: units\[0\] has one"),
        (_with_unit(0, switches=None), r"units\[1\].switches is \[.*; leave it out, or give a list for each unit"),
        (_with_unit(2, switches=["ckpt"]), r"units\[2\].switches\[0\] is 'ckpt'; give .*offload_hidden"),
        (_with_unit(2, switches=["partition"] * 2), r"units\[2\].switches is .*; give each once: \['partition'\]"),
        (_with_unit(2, strategy="sdp2"), r"units\[2\].switches is .*; leave offload_hidden out, or give strategy sdp2-ckpt"),
        (_with_unit(2, strategy="dp2-ckpt"), r"units\[2\].strategy is 'dp2-ckpt', with switches; give sdp2 or sdp2-ckpt"),
        (_with_unit(2, strategy="tp2"), r"units\[2\].strategy is 'tp2', with switches; give sdp2 or sdp2-ckpt"),
        (_content(nvlink=None), "nvlink is missing; give true or false, with switches"),
        (_content(batch={"global_samples": 4, "micro_batches": 2}), "batch.micro_batches is 2, with switches; give 1"),
        ({**plan_of(GPT2, ["sdp2"] * UNITS, 2).model_dump(), "nvlink": True}, "nvlink is true; leave it out: no unit"),
    ],
)
def test_bad_switches_get_one_line(content: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_plan(content)
    assert "\n" not in str(caught.value)


def test_switches_are_for_one_stage_and_no_shares() -> None:
    def switched(plan: Plan) -> dict[str, Any]:
        content = plan.model_dump()
        for unit in content["units"]:
            unit["switches"] = []
        return {**content, "nvlink": True}

    with pytest.raises(InputError, match="stages are 2, with switches; give 1"):
        load_plan(switched(plan_of(GPT2, ["single"] * UNITS, 2, cuts=[3])))
    with pytest.raises(InputError, match=r"batch\.shares is there, with switches; leave it out"):
        load_plan(switched(plan_of(GPT2, ["dp2"] * UNITS, 2, shares=[1, 1])))
    assert load_plan(switched(plan_of(GPT2, ["single"] * UNITS, 1))).world == 1
    with pytest.raises(InputError, match=r"units\[0\].strategy is 'dp4', with switches; give sdp4 or sdp4-ckpt"):
        load_plan(switched(plan_of(GPT2, ["dp4"] * UNITS, 4)))
