"""Surrogates of plans that no program carries out yet: plans whose programs take the same time and memory.

Programs have no products in 8 or 4 bits: in the surrogate all numbers are as wide as the model's, so that operands are kept in
no fewer bytes; in addition there are the copies of weights that a recipe has (`weight_copies`). And there are sub-layers whose
samples no program can cut (`sublayers.why_not_cut`: parallel blocks, windows). Except in attention's cores, whose keys and
values go around, a context-parallel rank does what a data-parallel one does with samples of its share of the tokens, and adds
up gradients with the same ranks. So for such a model each sample of a plan with context parallelism of degree c becomes c
samples of one c-th of the tokens in its surrogate, whose data-parallel groups are as many times larger.

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
    """The plan whose programs are simulated in place of this one, if it has features that no program carries out
    (low-precision matrix multiplications, some context parallelism): a plan with the same time and memory without them. The
    plan itself if programs carry it out. A program is one rank's instructions for a training step."""
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
    """Descriptions of the features of a plan that no program carries out, so that a surrogate (a plan with the same time and
    memory without them) is simulated in its place; empty for most plans. A program is one rank's instructions for a training
    step."""
    recipe = recipe_of(plan)
    named = () if recipe is None else (f"matrix multiplications in {recipe.name}",)
    return (*named, "context parallelism of layers whose samples programs cannot cut") if _uncut(plan) else named


def _uncut(plan: Plan) -> bool:
    """Whether a plan has context parallelism in a unit (sub-layer) whose samples programs cannot cut into pieces. A program is
    one rank's instructions for a training step."""
    degree = plan.units[0].strategy.degree("cp")
    return degree > 1 and any(why_not_cut(unit.sublayer, degree) for unit in plan.planned_model().units)


def memory_of(plan: Plan) -> tuple[Compiled, tuple[Walk, ...]]:
    """Compile and check the programs of a plan and analyse their memory. Returns (the compiled programs; for each of them its
    memory analysis, or an empty tuple if the programs have faults). Memory is that of the executor's back-end on which the plan
    runs, copies of low-precision weights included. If the plan has features that no program carries out, it is replaced by its
    surrogate: a plan with the same time and memory without them. A program is one rank's instructions for a training step."""
    walked, copies = surrogate_of(plan), weight_copies(plan)
    programs = compiled(walked, default_backend(walked), by_class=True)
    if programs.faults:
        return programs, ()
    measured = zip(programs.classes, programs.memory(default_backend(walked)), strict=True)
    return programs, tuple(walk.with_extra(copies[rank]) for rank, walk in measured)


def recipe_of(plan: Plan) -> Recipe | None:
    """The low-precision recipe (such as FP8) by which a plan computes the matrix multiplications of its transformer layers,
    taken from the first sub-layer that has a recipe; None if no sub-layer has one."""
    return next((RECIPES[unit.precision] for unit in plan.units if unit.precision != "model"), None)


def weight_copies(plan: Plan) -> list[int]:
    """Bytes of low-precision copies of weights that each rank holds in addition to the buffers of the simulated programs, in
    rank order; 0 for plans without a low-precision recipe. A program is one rank's instructions for a training step."""
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
