"""Memory switches in plan files: what is valid, and how the rest is refused."""

from typing import Any

import pytest
from trainplan.execution.compile.compiler import compile_plan
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.switches import Switches, SwitchName
from trainplan.formulations.plan.unit import planned_unit

from tests.helpers.plans import GPT2, plan_of
from tests.helpers.refusals import refused
from tests.helpers.switch_plans import switch_plan

UNITS = len(GPT2.units)
SOME = Switches(ckpt=True, offload_hidden=True, lazy_prefetch=True, segment_sync=True)


def _content(**changed: Any) -> dict[str, Any]:
    return {**switch_plan(GPT2, 2, [SOME] * UNITS, False).model_dump(), **changed}


def _with_unit(position: int, **changed: Any) -> dict[str, Any]:
    """A file's content with fields of one unit's records changed, by record; None leaves a record out."""
    content = _content()
    unit = content["units"][position]
    for name, fields in changed.items():
        unit[name] = {**unit.get(name, {}), **fields} if isinstance(fields, dict) else fields
    return content


def _printed(position: int = 2, **changed: Any) -> dict[str, Any]:
    """The printed form of a file's content, with fields of one unit changed."""
    content = _content()
    names = ["offload_hidden", "lazy_prefetch", "segment_sync"]
    units = [{"name": unit["name"], "strategy": "sdp2-ckpt", "switches": names} for unit in content["units"]]
    units[position] |= changed
    return {**content, "units": units}


def test_a_plan_with_switches_comes_back_from_its_file() -> None:
    plan = load_plan(_content())
    assert plan.model_dump() == _content()
    assert plan.switches() == [SOME] * UNITS
    unit = plan.units[1]
    assert unit.states.model_dump() == {
        "zero": 3, "parameters": "host", "gradients": "host", "optimizer": "host", "kept_whole": True,
    }  # fmt: skip
    assert unit.activations.model_dump() == {"recompute": "full", "hidden": "host"}
    assert unit.order is not None and unit.order.model_dump() == {"synchronised": True}
    assert str(unit) == "sdp2-ckpt, offload_hidden, lazy_prefetch, segment_sync"
    assert plan.nvlink is False


def test_switches_may_be_given_by_their_names() -> None:
    assert load_plan(_printed()) == load_plan(_content())


def test_a_plan_without_switches_says_nothing_of_them() -> None:
    content = plan_of(GPT2, ["sdp2-ckpt"] * UNITS, 2).model_dump()
    del content["nvlink"]
    assert all(set(unit) == {"name", "layout", "states", "activations"} for unit in content["units"])
    plan = load_plan(content)
    assert plan.switches() is None
    assert not any(name.startswith("host-") for name in compile_plan(plan)[0].buffers)


def test_no_switch_on_is_another_thing_than_no_switches() -> None:
    """Then the optimizer works on the host, and nothing else is saved but what is gathered, which is kept."""
    plan = switch_plan(GPT2, 2, [Switches()] * UNITS)
    assert all(unit.states.kept_whole and unit.states.optimizer == "host" for unit in plan.units)
    assert plan.switches() == [Switches()] * UNITS
    assert compile_plan(plan)[0].steps_on_host(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_with_unit(3, order=None), ("units[3].order", (), "{}")),
        (_with_unit(3, states={"optimizer": "device"}), ("units[3].states.parameters", "host", ("device", "host"))),
        (
            _with_unit(3, states={"optimizer": "device", "parameters": "device"}),
            ("units[3].states.gradients", "host", ("device", "host")),
        ),
        (_with_unit(3, states={"gradients": "device"}), ("units[3].states.gradients", "device", "host")),
        (_with_unit(3, states={"zero": 0}), ("units[3].states.zero", 0, (1, 2, 3, "layout.levels", "sdp"))),
        (_with_unit(2, activations={"recompute": "none"}), ("units[2].activations.hidden", "host", ("device", "full"))),
        (_printed(switches=["ckpt"]), ("units[2].switches[0]", "ckpt", "offload_hidden")),
        (_printed(switches=["partition"] * 2), ("units[2].switches", "['partition', 'partition']", "['partition']")),
        (_printed(switches="partition"), ("units[2].switches", "partition")),
        (_printed(strategy="sdp2"), ("units[2].activations.hidden", "host", ("device", "full"))),
        (
            _printed(strategy="dp2-ckpt"),
            ("units[0].order.synchronised", "true", "micro-batch"),
        ),
        (_printed(strategy="tp2"), ("units[2].activations.hidden", "host", ("device", "full", "tp2-ckpt"))),
        (_printed(strategy=2), ("units[2].strategy", 2, "'dp2-tp4'")),
        (_printed(states={}), ("units[2].strategy", "sdp2-ckpt", "states")),
        (_printed(switches=None), ("units[0].order.synchronised", "true")),
        (_printed(0, switches=None), ("units[1].order.synchronised", "true")),
        (_content(nvlink=None), ("nvlink", (), ("true", "false", "host"))),
        (_content(batch={"global_samples": 4, "micro_batches": 2}), ("units[0].order.synchronised", "true")),
        ({**plan_of(GPT2, ["sdp2"] * UNITS, 2).model_dump(), "nvlink": True}, ("nvlink", "true", "sub-layer")),
    ],
)
def test_bad_switches_get_one_line(content: dict[str, Any], message: tuple[Any, ...]) -> None:
    with refused(*message) as caught:
        load_plan(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", ["eco_forward", "eco_backward", "segment_sync"])
def test_orders_of_segments_are_for_one_stage_and_one_micro_batch(order: SwitchName) -> None:
    """The other switches are for any plan; those that say in which order segments copy, for H3T's step alone."""

    def switched(plan: Plan, *names: SwitchName) -> Plan:
        units = [planned_unit(unit.name, unit.strategy, Switches.of(names)) for unit in plan.units]
        return load_plan({**plan.model_dump(), "units": units, "nvlink": False})

    field = "synchronised" if order == "segment_sync" else order
    plans = [
        plan_of(GPT2, ["single"] * UNITS, 2, cuts=[3]),
        plan_of(GPT2, ["dp2"] * UNITS, 2, shares=[1, 1]),
        plan_of(GPT2, ["dp4"] * UNITS, 4),
        plan_of(GPT2, ["sdp2"] * UNITS, 2, micro_batches=2),
        plan_of(GPT2, ["sdp2"] * (UNITS - 1) + ["tp2"], 2),
    ]
    for plan in plans:
        assert switched(plan, "partition").switches() is None
        with refused(f"units[0].order.{field}", problem="true"):
            switched(plan, "partition", order)
    for world in (1, 2):
        plan = plan_of(GPT2, ["single" if world == 1 else "sdp2"] * UNITS, world)
        assert switched(plan, order).switches() == [Switches.of([order])] * UNITS
