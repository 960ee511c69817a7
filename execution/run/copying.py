"""Copies between device and host, as the executor runs them.

On the host everything has its place from the start. On a GPU a copy is only issued here: whoever runs the instructions sees to
it that what reads the copy comes after it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from trainplan.execution.program import Instruction, Op
from trainplan.execution.run.rank_state import RankState
from trainplan.execution.run.unit_state import fill_storage


def _prefetch_shard(state: RankState, instruction: Instruction) -> None:
    unit = state.unit(instruction)
    fill_storage(unit.own)
    unit.own.copy_(unit.master.detach(), non_blocking=True)


def _offload_hidden(state: RankState, instruction: Instruction) -> None:
    (name,), (copy,) = instruction.reads, instruction.writes
    hidden = state.values[name]
    kept = state.host[copy].view(hidden.dtype).view(hidden.shape)
    kept.copy_(hidden, non_blocking=True)
    state.values[copy] = kept


def _prefetch_hidden(state: RankState, instruction: Instruction) -> None:
    kept = state.values[instruction.reads[0]]
    hidden = torch.empty(kept.shape, dtype=kept.dtype, device=state.device)
    hidden.copy_(kept, non_blocking=True)
    state.values[instruction.writes[0]] = hidden


def _offload_gradient(state: RankState, instruction: Instruction) -> None:
    state.unit(instruction).gradient.copy_(state.values[instruction.reads[0]], non_blocking=True)


COPYING: dict[Op, Callable[[RankState, Instruction], None]] = {
    Op.PREFETCH_SHARD: _prefetch_shard,
    Op.OFFLOAD_HIDDEN: _offload_hidden,
    Op.PREFETCH_HIDDEN: _prefetch_hidden,
    Op.OFFLOAD_GRADIENT: _offload_gradient,
}
