"""Copies between device and host, as the executor runs them.

On the host every buffer has its memory from the start. On a GPU a copy is only issued here: whoever runs the instructions sees
to it that what reads the copy comes after it.
"""

from __future__ import annotations

import torch
from trainplan.execution.program import Instruction
from trainplan.execution.run.rank_state import RankState
from trainplan.execution.run.unit_state import fill_storage


class Copying(RankState):
    """Methods of the executor for copies between device and host."""

    def _prefetch_shard(self, instruction: Instruction) -> None:
        """Copy a unit's shard of the parameters from the host to the device."""
        unit = self.unit(instruction)
        fill_storage(unit.flat_shard)
        unit.flat_shard.data.copy_(unit.master.detach(), non_blocking=True)  # as a gathered buffer is filled

    def _offload_hidden(self, instruction: Instruction) -> None:
        """Copy a unit's input from the device to its memory on the host."""
        (name,), (copy,) = instruction.reads, instruction.writes
        hidden = self.values[name]
        kept = self.host[copy].view(hidden.dtype).view(hidden.shape)
        kept.copy_(hidden, non_blocking=True)
        self.values[copy] = kept

    def _prefetch_hidden(self, instruction: Instruction) -> None:
        """Copy a unit's input from the host to new memory of the device."""
        kept = self.values[instruction.reads[0]]
        hidden = torch.empty(kept.shape, dtype=kept.dtype, device=self.device)
        hidden.copy_(kept, non_blocking=True)
        self.values[instruction.writes[0]] = hidden

    def _offload_gradient(self, instruction: Instruction) -> None:
        """Copy a unit's gradient from the device to the host."""
        self.unit(instruction).gradient.copy_(self.values[instruction.reads[0]], non_blocking=True)
