"""Plans that no program carries out yet, in the place of those that programs do: for what they take and hold.

Programs have neither context parallelism nor products in 8 bits. But for attention's cores, whose keys and values go around,
a context-parallel rank does what a data-parallel one does with samples of its share of the tokens, and adds up gradients with
the same ranks. So each sample of a plan with context parallelism of degree c is c samples of one c-th of the tokens in the plan
that stands for it, whose data-parallel groups are as many times larger; and in it all numbers are as wide as the model's.
"""

from __future__ import annotations

from trainplan.formulations.plan import Plan
from trainplan.formulations.strategies import without_cp


def standing_in(plan: Plan) -> Plan:
    """The plan whose programs stand for those of a plan: itself where it has neither context parallelism nor few bits."""
    degree = plan.units[0].strategy.degree("cp")
    few = any(unit.precision != "model" for unit in plan.units)
    if degree == 1 and not few:
        return plan
    model = plan.planned_model()
    if degree > 1:
        model = model.with_fields(sequence=model.sequence_tokens // degree)
    units = [unit.laid_out(without_cp(unit.strategy)).changed(precision="model") for unit in plan.units]
    batch = plan.batch.changed(global_samples=plan.batch.global_samples * degree)
    return plan.changed(model=model.shape(), units=units, batch=batch, predicted=None, claim=None)
