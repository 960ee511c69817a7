"""Plans that no program carries out yet, in the place of those that programs do: for what they take and hold.

Programs have no products in 8 or 4 bits: in the plan that stands for one with some, all numbers are as wide as the model's, so
that operands are kept in no fewer bytes; beside them are the copies of weights that a recipe has (`weight_copies`). And there
are sub-layers whose samples no program can cut (`sublayers.why_not_cut`: parallel blocks, windows). But for attention's cores,
whose keys and values go around, a context-parallel rank does what a data-parallel one does with samples of its share of the
tokens, and adds up gradients with the same ranks. So of such a model each sample of a plan with context parallelism of degree c
is c samples of one c-th of the tokens in the plan that stands for it, whose data-parallel groups are as many times larger.

Plans with Muon in ZeRO's stage 1 are their own programs, which the executor refuses: to deal whole matrices to ranks, as
Megatron-Core does, it would need collectives of unlike parts. In the programs each rank has an equal shard of the states of
layers, and those of embedding and head whole, as the fullest rank has; what reduces gradients to shards takes as long as the
sum of whole ones, which such ranks need.
"""

from __future__ import annotations

from math import ceil

from trainplan.execution.analysis.memory.peak import Walk
from trainplan.execution.prediction.compiled_plan import Compiled, compiled, default_backend
from trainplan.formulations.costs.overlapped.analytic_memory import copied_bytes
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import without_cp
from trainplan.profiling.clusters.recipes import RECIPES, Recipe
from trainplan.profiling.models.sublayers import why_not_cut


def surrogate_of(plan: Plan) -> Plan:
    """The plan whose programs stand for those of a plan: itself where programs carry it out."""
    model, degree = plan.planned_model(), plan.units[0].strategy.degree("cp")
    if not stood_in_for(plan):
        return plan
    units, batch = [unit.changed(precision="model") for unit in plan.units], plan.batch
    if _uncut(plan):
        model = model.with_fields(sequence=model.sequence_tokens // degree)
        units = [unit.laid_out(without_cp(unit.strategy)) for unit in units]
        batch = batch.changed(global_samples=batch.global_samples * degree)
    return plan.changed(model=model.shape(), units=units, batch=batch, predicted=None, claim=None)


def stood_in_for(plan: Plan) -> tuple[str, ...]:
    """What of a plan no program carries out, in words, so that others stand for its own; nothing of most plans."""
    recipe = recipe_of(plan)
    named = () if recipe is None else (f"matrix multiplications in {recipe.name}",)
    return (*named, "context parallelism of layers whose samples programs cannot cut") if _uncut(plan) else named


def _uncut(plan: Plan) -> bool:
    degree = plan.units[0].strategy.degree("cp")
    return degree > 1 and any(why_not_cut(unit.sublayer, degree) for unit in plan.planned_model().units)


def memory_of(plan: Plan) -> tuple[Compiled, tuple[Walk, ...]]:
    """The programs that carry a plan out or stand for it, compiled for the back-end that it runs on and checked; and the memory
    walk of each that was compiled, with copies of weights beside its buffers. No walks of programs with faults."""
    walked, copies = surrogate_of(plan), weight_copies(plan)
    made = compiled(walked, default_backend(walked), by_class=True)
    if made.faults:
        return made, ()
    walks = zip(made.classes, made.memory(default_backend(walked)), strict=True)
    return made, tuple(walk.beside(copies[rank]) for rank, walk in walks)


def recipe_of(plan: Plan) -> Recipe | None:
    """The recipe by which a plan computes products of transformer layers, by the first unit that has one; None of none."""
    return next((RECIPES[unit.precision] for unit in plan.units if unit.precision != "model"), None)


def weight_copies(plan: Plan) -> list[int]:
    """Bytes of weights in few bits that each rank holds beside the buffers of the programs that stand for a plan, by rank."""
    held = [0] * plan.world
    if recipe_of(plan) is None:
        return held
    model = plan.planned_model()
    by_rank: dict[tuple[int, ...], list[int]] = {}
    for stage in plan.stages:
        by_rank.setdefault(tuple(stage.ranks), []).extend(range(stage.first_unit, stage.last_unit + 1))
    for ranks, indices in by_rank.items():
        units = [plan.units[index] for index in indices]
        weights = [
            part.parameter_count(part.degree(unit.strategy.degree("tp")))
            for unit, index in zip(units, indices, strict=True)
            for part in [model.units[index].sublayer]
            if unit.precision != "model"
        ]
        size = ceil(copied_bytes(weights, recipe_of(plan), model.element_bytes, units[0].strategy.zero_stage))
        for rank in ranks:
            held[rank] = size
    return held
