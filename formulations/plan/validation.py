"""Checks between the fields of a plan: stages cover units and ranks; strategies and schedules fit stages and samples."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from trainplan.formulations.numbers import check_length
from trainplan.formulations.plan.strategy import Strategy, wrong_group
from trainplan.formulations.schedule.orders import SCHEDULES, most_sliced
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.optimizers import OPTIMIZERS
from trainplan.profiling.models.sublayers import why_no_head_share, why_not_shared

if TYPE_CHECKING:
    from trainplan.formulations.plan.plan import Plan
    from trainplan.profiling.models.model import Model


def check_plan(plan: Plan, model: Model) -> None:
    """Raise InputError, which names the field, for the first field of a plan that contradicts another field or the model that
    the plan is for.
    """
    if model.digest != plan.model_digest:
        fix = f"the model given here is {model.digest!r}: plan for it"
        raise InputError("", "model_digest", f"is {plan.model_digest!r}", fix)
    names = [unit.name for unit in model.units]
    check_length("units", plan.units, len(names), "the sub-layers of the model", "items")
    _check_stages(plan, len(names))
    if SCHEDULES[plan.schedule].chunked:
        _check_interleaved(plan)
    _check_placement(plan)
    sizes = [len(stage.ranks) for stage in plan.stages for _ in range(stage.first_unit, stage.last_unit + 1)]
    samples, parts, even = plan.batch.global_samples, plan.batch.micro_batches, plan.batch.shares is None
    if even and samples % parts:
        raise InputError("", "batch.micro_batches", f"is {parts}", f"give a divisor of global_samples = {samples}")
    for position, (unit, name) in enumerate(zip(plan.units, names, strict=True)):
        if unit.name != name:
            raise InputError("", f"units[{position}].name", f"is {unit.name!r}", f"give {name!r}")
        strategy, field = unit.strategy, f"units[{position}].{unit.field}"
        problem = f"is {str(strategy)!r}"
        if strategy.group != sizes[position]:
            raise wrong_group(strategy, "", field, sizes[position])
        part, tp = model.units[position].sublayer, strategy.degree("tp")
        if not part.runs_on(tp):
            works = max(t for t in range(1, tp) if part.runs_on(t))
            raise InputError("", field, problem, f"give a tp degree that this {part.kind} can be split into, such as {works}")
        if strategy.sequence_parallel and (why := why_not_shared(part, tp)):
            printed = unit.field == "strategy"
            field, problem = (field, problem) if printed else (f"units[{position}].layout.sequence_parallel", "is true")
            raise InputError("", field, problem, f"{'leave sp out' if printed else 'give false'}: {why}")
        if strategy.exchanges_heads and (why := why_no_head_share(part, tp, strategy.degree("cp"))):
            keys = replace(strategy, exchange="keys")
            printed = unit.field == "strategy"
            field, problem = (field, problem) if printed else (f"units[{position}].layout.exchange", "is 'heads'")
            raise InputError("", field, problem, f"give {str(keys) if printed else 'keys'!r}: {why}")
        if even and samples // parts % strategy.data_degree:
            raise InputError("", field, problem, f"give a dp x sdp degree that divides {samples // parts} samples")
    if plan.batch.shares is not None:
        _check_shares(plan, plan.batch.shares)
    if plan.sliced:
        _check_sliced(plan)
    _check_host(plan)
    _check_precision(plan, model)
    _check_optimizer(plan)
    if plan.stage_times is not None:
        check_length("predicted.stages", plan.stage_times, len(plan.stages), "one for each stage, or none")


def _check_placement(plan: Plan) -> None:
    """Raise InputError if a plan's placement (the device of each rank) does not give each rank a device of its own."""
    if plan.placement is None:
        return
    first: dict[int, int] = {}
    for rank, device in enumerate(plan.placement):
        if not 0 <= device < plan.world or device in first:
            problem = f"is {device}" + (f", as is placement[{first[device]}]" if device in first else "")
            fix = f"give each of the devices 0 to {plan.world - 1} to one rank"
            raise InputError("", f"placement[{rank}]", problem, fix)
        first[device] = rank
    if (items := len(plan.placement)) != plan.world:
        raise InputError("", "placement", f"has {items} items", f"give a device for each of {plan.world} ranks")


def _check_shares(plan: Plan, shares: list[int]) -> None:
    """Raise InputError if data-parallel replicas of a plan have unequal numbers of micro-batches although the plan's layout
    does not allow that: replicas then work independently until their gradients are summed, so all units need one layout,
    with dp as the outermost level and without sdp.

    shares: the number of micro-batches of each replica.
    """
    batch, size, replicas, total = plan.batch, len(plan.stages[0].ranks), len(shares), sum(shares)
    if len(unlike := {len(stage.ranks) for stage in plan.stages}) > 1:
        problem = f"is there, with stages of {' and '.join(map(str, sorted(unlike)))} ranks"
        raise InputError("", "batch.shares", problem, "leave it out, or give stages of equal size")
    if size % replicas:
        fix = f"give 2, or another divisor of the {size} ranks of a stage" if size > 1 else "leave it out: stages have 1 rank"
        raise InputError("", "batch.shares", f"has {replicas} items", fix)
    wanted = Strategy.of(("dp", replicas), ("tp", size // replicas))
    for position, (unit, strategy) in enumerate(zip(plan.units, plan.strategies(), strict=True)):
        if strategy.levels != wanted.levels:
            fix = f"give {wanted} or {wanted}-ckpt: batch.shares has {replicas} replicas of the whole model"
            raise InputError("", f"units[{position}].{unit.field}", f"is {str(unit.strategy)!r}", fix)
    if batch.micro_batches != max(shares):
        fix = f"give {max(shares)}, the largest of batch.shares"
        raise InputError("", "batch.micro_batches", f"is {batch.micro_batches}", fix)
    if batch.global_samples % total:
        works = max(1, batch.global_samples // total) * total
        fix = f"give a multiple of the {total} micro-batches in batch.shares, such as {works}"
        raise InputError("", "batch.global_samples", f"is {batch.global_samples}", fix)


def _check_sliced(plan: Plan) -> None:
    """Raise InputError if a plan slices more first micro-batches into halves than its schedule can, or if the samples of half
    a micro-batch cannot be divided over the ranks of some unit.
    """
    problem, shares, parts = f"is {plan.sliced}", plan.batch.shares, plan.batch.micro_batches
    if not SCHEDULES[plan.schedule].sliced:
        raise InputError("", "sliced", problem, f"leave it out, or give schedule 1f1b in place of {plan.schedule}")
    if plan.sliced > (most := most_sliced(len(plan.stages), parts)):
        fix = f"give at most {most}: {len(plan.stages)} stages with {parts} micro-batches can use no more"
        raise InputError("", "sliced", problem, fix)
    samples = plan.batch.global_samples // (parts if shares is None else sum(shares))
    apart = 1 if shares else lcm(*(strategy.data_degree for strategy in plan.strategies()))
    if samples % (2 * apart):
        works = -(-samples // (2 * apart)) * 2 * apart
        fix = f"leave it out, or give micro-batches of {works} samples: each half is laid out over {apart} ranks by itself"
        raise InputError("", "sliced", f"{problem}, with micro-batches of {samples} samples", fix)


def _check_host(plan: Plan) -> None:
    """Raise InputError if a plan keeps something on the host that compiled programs cannot: the optimizer without the
    gradients and optimizer states that it works on; the input of a unit that is not recomputed; or H3T's orders of copies
    in a step that does not run segment by segment.
    """
    if not plan.uses_host and plan.nvlink is not None:
        fix = "leave it out: no sub-layer has states or hidden states on the host"
        raise InputError("", "nvlink", f"is {str(plan.nvlink).lower()}", fix)
    if plan.uses_host and plan.nvlink is None:
        raise InputError("", "nvlink", "is missing", "give true or false, with states or hidden states on the host")
    for position, unit in enumerate(plan.units):
        field, states = f"units[{position}]", unit.states
        works = "works there" if states.optimizer == "host" else "works on the device"
        if states.optimizer == "host" and states.zero in (1, 2):
            fix = "give 3, or optimizer 'device': the host has shards of all states"
            raise InputError("", f"{field}.states.zero", f"is {states.zero}, with the optimizer on the host", fix)
        if states.optimizer == "host" and states.gradients == "device":
            raise InputError("", f"{field}.states.gradients", "is 'device'", f"give 'host': the optimizer {works}")
        for name in ("parameters", "gradients"):
            if states.optimizer == "device" and getattr(states, name) == "host":
                fix = f"give 'device', or optimizer and gradients 'host': the optimizer {works}"
                raise InputError("", f"{field}.states.{name}", "is 'host'", fix)
        if unit.activations.hidden == "host" and not unit.strategy.ckpt:
            fix = f"give 'device', or recompute 'full' ({replace(unit.strategy, ckpt=True)}): a graph holds its input"
            raise InputError("", f"{field}.activations.hidden", "is 'host'", fix)
    for position, unit in enumerate(plan.units if plan.switches() is None else ()):
        for name in () if unit.order is None else ("eco_forward", "eco_backward", "synchronised"):
            if getattr(unit.order, name):
                fix = "leave it out: only one stage, one micro-batch, and sharded states on the host go by segments"
                raise InputError("", f"units[{position}].order.{name}", "is true", fix)


def _check_precision(plan: Plan, model: Model) -> None:
    """Raise InputError if a plan's dtypes of model states do not go together: a master copy of the parameters that is not
    wider than the model's dtype, or that is for states on the host; or gradients in another dtype than the model's without
    a master copy, since the optimizer works on the parameters' dtype.
    """
    precision = plan.precision
    if precision.master is None:
        if precision.gradients != "model":
            fix = f"leave it out, or give precision.master {shown(precision.gradients)}: the optimizer works on what it steps"
            raise InputError("", "precision.gradients", f"is {shown(precision.gradients)}", fix)
        return
    problem = f"is {shown(precision.master)}"
    if precision.for_model(model) != precision:
        raise InputError("", "precision.master", problem, f"leave precision out: the model is in {model.dtype}")
    if any(unit.states.on_host for unit in plan.units):
        fix = "leave precision out, or leave all states on the device"
        raise InputError("", "precision.master", f"{problem}, with states on the host", fix)


def _check_optimizer(plan: Plan) -> None:
    """Raise InputError where the optimizer does not support a unit's ZeRO stage, or where an optimizer of whole matrices, such
    as Muon, cannot step a unit: some rank has to have all gradients of a matrix on its device."""
    spec = OPTIMIZERS[plan.optimizer]
    problem = f"is {shown(plan.optimizer)}"
    for position, unit in enumerate(plan.units):
        if unit.states.zero not in spec.zero:
            stages = "1, in which ranks have gradients of whole matrices"
            stages = stages if spec.whole_matrices else " or ".join(map(str, spec.zero))
            fix = f"give 'adamw', or units[{position}].states.zero {stages}"
            raise InputError("", "optimizer", f"{problem}, with units[{position}].states.zero {unit.states.zero}", fix)
        if not spec.whole_matrices:
            continue
        if unit.states.zero and unit.strategy.copies > 1:
            fix = "give 'adamw', or a dp or an sdp level: whole tensors are dealt to all data-parallel ranks"
            raise InputError("", "optimizer", f"{problem}, with {str(unit.strategy)!r} of units[{position}]", fix)
        if unit.states.on_host:
            fix = "give 'adamw', or leave all states on the device"
            raise InputError("", "optimizer", f"{problem}, with states of units[{position}] on the host", fix)


def _check_stages(plan: Plan, units: int) -> None:
    """Raise InputError if a plan's stages do not cover its units in order, or if a rank is not in exactly one stage (or one
    group of interleaved stages). units: the number of units."""
    count, begin = len(plan.stages), 0
    if count > units:
        raise InputError("", "stages", f"are {count}", f"give at most {units}: every stage needs a sub-layer")
    stage_of: dict[int, int] = {}
    depth = plan.depth
    for index, stage in enumerate(plan.stages):
        field = f"stages[{index}]"
        if index >= depth and stage.ranks != (before := plan.stages[index - depth].ranks):
            fix = f"give {shown(before)}, as stages[{index - depth}] has"
            raise InputError("", f"{field}.ranks", f"is {shown(stage.ranks)}", fix)
        for position, rank in enumerate(stage.ranks if index < depth else ()):
            if not 0 <= rank < plan.world or rank in stage_of:
                problem = f"is {rank}" + (f", which is in stages[{stage_of[rank]}]" if rank in stage_of else "")
                raise InputError(
                    "", f"{field}.ranks[{position}]", problem, f"give each of the ranks 0 to {plan.world - 1} once"
                )
            stage_of[rank] = index
        if stage.ranks != sorted(stage.ranks):
            raise InputError("", f"{field}.ranks", f"is {shown(stage.ranks)}", f"give {shown(sorted(stage.ranks))}")
        if stage.first_unit != begin:
            raise InputError("", f"{field}.first_unit", f"is {stage.first_unit}", f"give {begin}, the first sub-layer left")
        end = units - (count - index)  # the stages after this one need a unit each
        if not begin <= stage.last_unit <= end or (index == count - 1 and stage.last_unit != end):
            fix = f"give {end}" if index == count - 1 else f"give {begin} to {end}"
            raise InputError("", f"{field}.last_unit", f"is {stage.last_unit}", fix)
        begin = stage.last_unit + 1
    if len(stage_of) < plan.world:
        left = next(rank for rank in range(plan.world) if rank not in stage_of)
        raise InputError("", "stages", f"leave rank {left} out", f"give each of the ranks 0 to {plan.world - 1} once")


def _check_interleaved(plan: Plan) -> None:
    """Raise InputError if a plan's interleaved stages do not take the groups of ranks in turn, or if its number of
    micro-batches is no multiple of the number of groups."""
    depth, count, problem = plan.depth, len(plan.stages), f"is {plan.schedule!r}"
    if depth < 2 or count % depth or count == depth:
        fix = "give 1f1b, or stages of which each rank has as many, at least 2, and the next one always lies on other ranks"
        raise InputError("", "schedule", f"{problem}, with {count} stages on {depth} groups of ranks", fix)
    if plan.batch.shares is not None:
        raise InputError("", "batch.shares", "is there, with interleaved stages", "leave it out, or give schedule 1f1b")
    if (parts := plan.batch.micro_batches) % depth:
        fix = f"give a multiple of the {depth} groups of ranks, such as {-(-parts // depth) * depth}"
        raise InputError("", "batch.micro_batches", f"is {parts}, with interleaved stages", fix)
