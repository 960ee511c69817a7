"""Plans with context parallelism, as their programs have them: with pieces of samples as samples (see `sublayers.pieces`).

Except in attention's cores, a rank does with a piece of a sample what a data-parallel rank does with a sample: it adds up
gradients with the same ranks, and shares states with them. So programs are compiled for pieces instead of samples, with the
ranks of cp among those of the innermost level of data parallelism, right outside tp; and keys and values are gathered over
them, or heads exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainplan.formulations.plan.plan import Batch, Plan
from trainplan.formulations.plan.strategy import ORDER, Strategy, without_cp
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import why_not_cut


def in_pieces(plan: Plan, model: Model) -> tuple[tuple[Strategy, ...], Batch, Model]:
    """The strategies (parallel layouts) of a plan's sub-layers, its batch and its model as programs count them: under context
    parallelism, a piece of a sample counts as a sample. Without it they are returned as they are. Raises InputError for plans
    whose samples programs cannot cut. A program is one rank's instructions for a training step."""
    pieces = plan.pieces
    if pieces == 1:
        return tuple(plan.strategies()), plan.batch, model
    for error in _refused(plan, model, pieces):
        raise error
    strategies = tuple(map(without_cp, plan.strategies()))
    batch = plan.batch.changed(global_samples=plan.batch.global_samples * pieces)
    by_heads = any(strategy.exchanges_heads for strategy in plan.strategies())
    return strategies, batch, model.in_pieces(pieces, by_heads)


def _refused(plan: Plan, model: Model, pieces: int) -> Iterator[InputError]:
    """The reasons why programs cannot cut the samples of this plan and model into `pieces` parts each, as errors that name the
    field; nothing if they can. A program is one rank's instructions for a training step."""
    first = next(unit.strategy for unit in plan.units if unit.strategy.degree("cp") > 1)
    for index, (unit, described) in enumerate(zip(plan.units, model.units, strict=True)):
        field, problem = f"units[{index}].{unit.field}", f"is {str(unit.strategy)!r}"
        if (unit.strategy.levels, unit.strategy.exchange) != (first.levels, first.exchange):
            levels = Strategy(first.levels, exchange=first.exchange)
            yield InputError("plan", field, problem, f"give levels {levels}: with cp all sub-layers have the same ones")
        if not unit.strategy.in_rank_order:
            yield InputError("plan", field, problem, f"give levels in the order {', '.join(ORDER)}")
        if why := why_not_cut(described.sublayer, pieces):
            yield InputError("plan", field, f"{problem}: {why}", "give levels of dp, sdp and tp")
    if plan.batch.shares is not None:
        yield InputError("plan", "batch.shares", "are given", "leave them out, or cp: programs do not have both")
