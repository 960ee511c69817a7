"""Shards of parameters and gradients over a group of ranks, as the executor gathers and sums them.

With memory switches a group may be one rank: what is gathered is then a copy, and what is scattered too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from trainplan.execution.program import Instruction, Op
from trainplan.execution.run.rank_state import RankState
from trainplan.execution.run.unit_state import fill_storage
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.sublayers import shard_bounds


def _gather_parameters(state: RankState, instruction: Instruction) -> None:
    unit = state.unit(instruction)
    fill_storage(unit.whole)
    if len(instruction.group) > 1:
        state.collective(dist.all_gather_into_tensor, instruction, unit.whole.data, unit.own.detach())
    else:
        unit.whole.data.copy_(unit.own.detach())


def _gradient_buffer(state: RankState, name: str) -> Tensor:
    kind, place = name.split(".")
    buffer: Tensor = state.units[int(place)].gradient if kind == "gradient" else state.values[name]
    return buffer


def _reduce_replicated(state: RankState, instruction: Instruction) -> None:
    unit, buffer = state.unit(instruction), _gradient_buffer(state, instruction.reads[0])
    state.collective(dist.all_reduce, instruction, buffer[unit.replicated_start : unit.layout[-1][2]])


def _reduce_scatter_gradients(state: RankState, instruction: Instruction) -> None:
    """To a buffer of its own, or added to the gradient that it reads."""
    unit, whole, name = state.unit(instruction), state.values[instruction.reads[0]], instruction.writes[0]
    piece = whole.new_empty(unit.gradient.shape)
    if len(instruction.group) > 1:
        state.collective(dist.reduce_scatter_tensor, instruction, piece, whole)
    else:
        piece.copy_(whole)
    if name in instruction.reads:
        unit.gradient += piece
    else:
        state.values[name] = piece


def _all_reduce_gradients(state: RankState, instruction: Instruction) -> None:
    state.collective(dist.all_reduce, instruction, state.unit(instruction).gradient)


def _reduce_tied(state: RankState, instruction: Instruction) -> None:
    """Sum the gradients of the two copies of one matrix: of each copy, one owner puts in each element."""
    model, dtype = state.model, torch_units.DTYPES[state.model.dtype]
    if kept := [state.host[name] for name in instruction.writes if name in state.host]:
        table = kept[0].view(dtype).zero_()
    else:
        table = torch.zeros(model.tied_elements, dtype=dtype, device=state.device)
    places, width = [], model.units[-1].sublayer.hidden
    for position in (int(name.split(".")[1]) for name in instruction.reads):
        strategy, unit = state.program.strategies[position], state.units[position]
        low, high = shard_bounds(model.vocabulary, unit.shard.tp, unit.shard.index)
        first = strategy.index(state.place, "sdp") * unit.gradient.numel()
        # The matrix is the first in the flat buffer; this rank may hold a slice of it, or none.
        length = max(0, min(unit.gradient.numel(), (high - low) * width - first))
        start = low * width + first
        places.append((unit.gradient[:length], start, start + length))
        if strategy.index(state.place, "dp") == 0:
            table[start : start + length] += unit.gradient[:length]
    if len(instruction.group) > 1:
        state.collective(dist.all_reduce, instruction, table)
    for gradient, start, end in places:
        gradient.copy_(table[start:end])


SHARDING: dict[Op, Callable[[RankState, Instruction], None]] = {
    Op.GATHER_PARAMETERS: _gather_parameters,
    Op.REDUCE_REPLICATED: _reduce_replicated,
    Op.REDUCE_SCATTER_GRADIENTS: _reduce_scatter_gradients,
    Op.ALL_REDUCE_GRADIENTS: _all_reduce_gradients,
    Op.REDUCE_TIED: _reduce_tied,
}
