"""Surrogates of plans that no program carries out yet: plans whose programs take the same time and memory.

Programs have no products in 8 or 4 bits: in the surrogate all numbers are as wide as the model's, so that operands are kept in
no fewer bytes; in addition there are the copies of weights that a recipe has (`weight_copies`). And there are sub-layers whose
samples no program can cut (`sublayers.why_not_cut`: parallel blocks, windows). But for attention's cores, whose keys and values
go around, a context-parallel rank does what a data-parallel one does with samples of its share of the tokens, and adds up
gradients with the same ranks. So for such a model each sample of a plan with context parallelism of degree c becomes c samples
of one c-th of the tokens in its surrogate, whose data-parallel groups are as many times larger.

Plans with Muon in ZeRO's stage 1 are simulated by their own programs, which the executor refuses: to deal whole matrices to
ranks, as Megatron-Core does, it would need collectives of unlike parts. In the programs each rank has an equal shard of the
states of layers, and those of embedding and head whole, as the fullest rank has; what reduces gradients to shards takes as long
as the sum of whole ones, which such ranks need.
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
    """The plan whose programs are simulated for a plan: itself where programs carry it out."""
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
    """The features of a plan that no program carries out, in words, for which it has a surrogate; empty for most plans."""
    recipe = recipe_of(plan)
    named = () if recipe is None else (f"matrix multiplications in {recipe.name}",)
    return (*named, "context parallelism of layers whose samples programs cannot cut") if _uncut(plan) else named


def _uncut(plan: Plan) -> bool:
    """Whether a plan has context parallelism of a unit whose samples no program can cut."""
    degree = plan.units[0].strategy.degree("cp")
    return degree > 1 and any(why_not_cut(unit.sublayer, degree) for unit in plan.planned_model().units)


def memory_of(plan: Plan) -> tuple[Compiled, tuple[Walk, ...]]:
    """The programs of a plan, or of its surrogate, compiled for the back-end that it runs on and checked; and the memory of
    each, copies of weights included. No memory for programs with faults."""
    walked, copies = surrogate_of(plan), weight_copies(plan)
    programs = compiled(walked, default_backend(walked), by_class=True)
    if programs.faults:
        return programs, ()
    measured = zip(programs.classes, programs.memory(default_backend(walked)), strict=True)
    return programs, tuple(walk.with_extra(copies[rank]) for rank, walk in measured)


def recipe_of(plan: Plan) -> Recipe | None:
    """The recipe by which a plan computes products of transformer layers, that of the first unit that has one; None if none
    has."""
    return next((RECIPES[unit.precision] for unit in plan.units if unit.precision != "model"), None)


def weight_copies(plan: Plan) -> list[int]:
    """Bytes of weights in few bits that each rank holds in addition to the buffers of the programs of a plan's surrogate, by
    rank."""
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
