"""Shards of parameters and gradients over a group of ranks, as the executor gathers and sums them.

In H3T's step a group may be one rank: what is gathered is then a copy, and what is scattered too.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from trainplan.execution.program import Instruction
from trainplan.execution.run.rank_state import RankState
from trainplan.execution.run.unit_state import fill_storage, gradient_dtype
from trainplan.profiling.models.sublayers import shard_bounds


class Sharding(RankState):
    """Methods of the executor that gather parameters and sum gradients. A unit is a sub-layer of the model, whose parameters
    on a rank are one flat tensor, of which the rank may keep a shard; an instruction names the unit, the group of ranks and
    the buffers."""

    def _gather_parameters(self, instruction: Instruction) -> None:
        """All-gather a unit's sharded parameters into its flat tensor of whole parameters, whose memory is allocated first."""
        unit = self.unit(instruction)
        fill_storage(unit.whole)
        if len(instruction.group) > 1:
            self.collective(dist.all_gather_into_tensor, instruction, unit.whole.data, unit.flat_shard.detach())
        else:
            unit.whole.data.copy_(unit.flat_shard.detach())

    def _gather_updated(self, instruction: Instruction) -> None:
        """All-gather a unit's parameters, which every rank keeps whole but of which it has stepped only its shard."""
        unit = self.unit(instruction)
        self.collective(dist.all_gather_into_tensor, instruction, unit.whole.data, unit.flat_shard.detach())

    def _gradient_buffer(self, name: str) -> Tensor:
        """The flat gradient, in the buffer called `name`, to which backward passes add: one that lives from step to step, or a
        temporary on the device."""
        buffer: Tensor = self.values[name] if name in self.values else self.units[int(name.split(".")[1])].summed
        return buffer

    def _shard_of_gradient(self, name: str) -> Tensor:
        """The rank's shard of the flat gradient in the buffer called `name`, which the optimizer works on."""
        buffer: Tensor = self.values[name] if name in self.values else self.units[int(name.split(".")[1])].gradient
        return buffer

    def _reduce_replicated(self, instruction: Instruction) -> None:
        """All-reduce the gradients of replicated parameters over tensor-parallel ranks, in place."""
        unit, buffer = self.unit(instruction), self._gradient_buffer(instruction.reads[0])
        self.collective(dist.all_reduce, instruction, buffer[unit.replicated_start : unit.layout[-1][2]])

    def _reduce_scatter_gradients(self, instruction: Instruction) -> None:
        """Reduce-scatter a unit's gradient over the group into the rank's shard of it, added to what the shard holds if the
        instruction reads that, too; into a temporary on the device if the optimizer works on the host."""
        unit, name = self.unit(instruction), instruction.writes[0]
        whole = self._gradient_buffer(instruction.reads[0])
        adds, aside = name in instruction.reads[1:], name not in self.program.persistent
        piece = whole.new_empty(unit.gradient.shape) if adds or aside else unit.gradient
        if len(instruction.group) > 1:
            self.collective(dist.reduce_scatter_tensor, instruction, piece, whole)
        else:
            piece.copy_(whole)
        if adds:
            self._gradient_buffer(name).add_(piece)
        elif aside:
            self.values[name] = piece

    def _all_reduce_gradients(self, instruction: Instruction) -> None:
        """All-reduce the rank's shard of a unit's gradient over data-parallel ranks, in place."""
        self.collective(dist.all_reduce, instruction, self._shard_of_gradient(instruction.writes[0]))

    def _reduce_tied(self, instruction: Instruction) -> None:
        """Sum the gradients of both copies of a tied matrix (embedding and head) over the ranks that hold parts of them, in
        place; each element of a copy is contributed by one rank."""
        model, dtype = self.model, gradient_dtype(self.program)
        if kept := [self.host[name] for name in instruction.writes if name in self.host]:
            table = kept[0].view(dtype).zero_()
        else:
            table = torch.zeros(model.tied_elements, dtype=dtype, device=self.device)
        slices, width = [], model.units[-1].sublayer.hidden
        for name in instruction.reads:
            position, gradient = int(name.split(".")[1]), self._shard_of_gradient(name)
            strategy, unit = self.program.strategies[position], self.units[position]
            low, high = shard_bounds(model.vocabulary, unit.shard.tp, unit.shard.index)
            first = strategy.index(self.index_in_stage, "sdp") * gradient.numel()
            # The matrix is the first in the flat buffer; this rank may hold a slice of it, or none.
            length = max(0, min(gradient.numel(), (high - low) * width - first))
            start = low * width + first
            slices.append((gradient[:length], start, start + length))
            if strategy.is_first_copy(self.index_in_stage):
                table[start : start + length] += gradient[:length]
        if len(instruction.group) > 1:
            self.collective(dist.all_reduce, instruction, table)
        for gradient, start, end in slices:
            gradient.copy_(table[start:end])
