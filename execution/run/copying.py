"""Copies between device and host, as the executor runs them.

On the host everything has its place from the start. On a GPU a copy is only issued here: whoever runs the instructions sees to
it that what reads the copy comes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from trainplan.execution.program import Instruction, Op
from trainplan.execution.run.unit_state import fill_storage

if TYPE_CHECKING:
    from trainplan.execution.run.executor import Executor


def _prefetch_shard(executor: Executor, instruction: Instruction) -> None:
    unit = executor.unit(instruction)
    fill_storage(unit.own)
    unit.own.copy_(unit.master.detach(), non_blocking=True)


def _offload_hidden(executor: Executor, instruction: Instruction) -> None:
    (name,), (copy,) = instruction.reads, instruction.writes
    hidden = executor.values[name]
    kept = executor.host[copy].view(hidden.dtype).view(hidden.shape)
    kept.copy_(hidden, non_blocking=True)
    executor.values[copy] = kept


def _prefetch_hidden(executor: Executor, instruction: Instruction) -> None:
    kept = executor.values[instruction.reads[0]]
    hidden = torch.empty(kept.shape, dtype=kept.dtype, device=executor.device)
    hidden.copy_(kept, non_blocking=True)
    executor.values[instruction.writes[0]] = hidden


def _offload_gradient(executor: Executor, instruction: Instruction) -> None:
    executor.unit(instruction).gradient.copy_(executor.values[instruction.reads[0]], non_blocking=True)


COPYING: dict[Op, Callable[[Executor, Instruction], None]] = {
    Op.PREFETCH_SHARD: _prefetch_shard,
    Op.OFFLOAD_HIDDEN: _offload_hidden,
    Op.PREFETCH_HIDDEN: _prefetch_hidden,
    Op.OFFLOAD_GRADIENT: _offload_gradient,
}
