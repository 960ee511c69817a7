"""Units of a plan: their records, and the printed form of these."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainplan.formulations.plan.strategy import MODULES, PARADIGMS, Strategy, parse_strategy
from trainplan.formulations.plan.unit import UNIT_SWITCHES, PlannedUnit, planned_unit
from trainplan.profiling.base.files import parse

from tests.helpers.refusals import refused
from tests.helpers.switch_instances import any_combinations


@st.composite
def every_strategy(draw: st.DrawFn) -> Strategy:
    """Any strategy that can be written."""
    axes = draw(st.lists(st.sampled_from(PARADIGMS), unique=True, max_size=4))
    levels = tuple((axis, draw(st.integers(2, 9))) for axis in axes)
    zero = draw(st.integers(1, 3)) if "sdp" in axes else 3
    shared = "tp" in axes and draw(st.booleans())
    ckpt = draw(st.booleans())
    modules = () if ckpt else tuple(sorted(draw(st.sets(st.sampled_from(MODULES)))))
    return Strategy(levels, ckpt, zero, shared, modules)


@given(every_strategy())
def test_a_strategy_is_what_it_prints(strategy: Strategy) -> None:
    assert parse_strategy(str(strategy)) == strategy


@given(every_strategy(), st.none() | st.sampled_from(any_combinations()))
def test_a_unit_comes_back_from_its_file(strategy: Strategy, switches: Any) -> None:
    unit = planned_unit("block0.ffn", strategy, switches)
    assert unit.strategy == strategy
    again = parse(unit.model_dump(mode="json"), PlannedUnit)
    assert again == unit and again.strategy == strategy
    assert unit.switches is None if switches is None else unit.switches is not None
    if switches is not None and unit.switches is not None:
        assert [name for name in unit.switches.names if name != "ckpt"] == [n for n in switches.names if n != "ckpt"]
    printed: dict[str, Any] = {"name": "block0.ffn", "strategy": str(strategy)}
    if switches is not None:
        printed["switches"] = [name for name in switches.names if name != "ckpt"]
    assert parse(printed, PlannedUnit) == unit


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ({"layout": {"levels": [{"axis": "dp", "degree": 2}] * 2}}, ("layout.levels", "dp, dp")),
        ({"layout": {"levels": [{"axis": "dp", "degree": 1}]}}, ("layout.levels[0].degree", 1, 2)),
        (
            {"layout": {"levels": [{"axis": "pp", "degree": 2}]}},
            ("layout.levels[0].axis", "pp", ("dp", "sdp", "tp", "cp", "ep")),
        ),
        ({"layout": {"sequence_parallel": True}}, ("layout.sequence_parallel", "true", ("layout.levels", "tp"))),
        ({"layout": {"exchange": "heads"}}, ("layout.exchange", "heads", ("layout.levels", "cp"))),
        ({"states": {"zero": 2}}, ("states.zero", 2, ("layout.levels", "sdp"))),
        ({"states": {"zero": 4}}, ("states.zero", 4, (0, 1, 2, 3))),
        ({"activations": {"recompute": []}}, ("activations.recompute", "[]", "none")),
        (
            {"activations": {"recompute": ["norms", "loss"]}},
            ("activations.recompute", "['norms', 'loss']", "['loss', 'norms']"),
        ),
        ({"order": {}}, ("order", (), ("sub-layer", "host"))),
        ({"strategy": "dp2-zero1"}, ("strategy", "dp2-zero1", ("zero1", "sdp"))),
        ({"strategy": "sdp2-sp"}, ("strategy", "sdp2-sp", "tp")),
        (
            {"strategy": "sdp2-ckpt:softmax"},
            ("strategy", ("sdp2-ckpt:softmax", "softmax"), ("activation", "attention", "loss", "norms")),
        ),
        ({"strategy": "sdp2-zero3"}, ("strategy", "sdp2-zero3", ("dp", "sdp", "tp", "dp2-tp4-ckpt"))),
    ],
)
def test_what_is_wrong_is_named(unit: dict[str, Any], message: tuple[Any, ...]) -> None:
    with refused(*message):
        parse({"name": "head", **unit}, PlannedUnit)


def test_the_schema_has_both_forms() -> None:
    properties = PlannedUnit.model_json_schema()["properties"]
    assert {"layout", "states", "activations", "order", "strategy", "switches"} <= set(properties)
    assert properties["switches"]["items"]["enum"] == list(UNIT_SWITCHES)
