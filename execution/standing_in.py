"""Plans that no program carries out yet, in the place of those that programs do: for what they take and hold.

Programs have no products in 8 bits: in the plan that stands for one with some, all numbers are as wide as the model's.
"""

from __future__ import annotations

from trainplan.formulations.plan import Plan


def standing_in(plan: Plan) -> Plan:
    """The plan whose programs stand for those of a plan: itself where all of its products are as wide as the model's."""
    if all(unit.precision == "model" for unit in plan.units):
        return plan
    units = [unit.changed(precision="model") for unit in plan.units]
    return plan.changed(units=units, predicted=None, claim=None)
