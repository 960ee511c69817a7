"""Units of a joint solution as units of a plan."""

from __future__ import annotations

from typing import Any

from trainplan.formulations.joint.tables import Option
from trainplan.formulations.plan.unit import Order, PlannedUnit, planned_unit
from trainplan.profiling.models.model import Unit
from trainplan.profiling.models.sublayers import LAYER_KINDS


def unit_of(unit: Unit, option: Option, products: str) -> PlannedUnit:
    """One sub-layer of a plan, run as an option says. unit: the sub-layer in the model. option: a strategy, and what of the
    sub-layer is kept on the host. products: the precision of matrix multiplications of transformer layers.
    """
    planned = _planned(unit.name, option)
    return planned.changed(precision=products) if unit.kind in LAYER_KINDS else planned


def _planned(name: str, option: Option) -> PlannedUnit:
    """One sub-layer of a plan, run as an option says. name: the sub-layer's name in the plan. option: a strategy, and what of
    the sub-layer is kept on the host.
    """
    assert option.strategy is not None
    unit, states = planned_unit(name, option.strategy), dict[str, Any]()
    if not option.host:
        return unit
    if "optimizer" in option.host:
        states = {"gradients": "host", "optimizer": "host", "parameters": "host" if "parameters" in option.host else "device"}
    hidden = unit.activations.changed(hidden="host" if "hidden" in option.host else "device")
    return unit.changed(states=unit.states.changed(**states), activations=hidden, order=Order())
