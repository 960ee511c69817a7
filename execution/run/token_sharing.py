"""The pieces of a unit with sequence parallelism, as the executor runs them, and what passes between them.

What was gathered for the matrices is freed after the forward pass, though the graph has saved views into it: its storage is
emptied, and filled again for the backward pass, through `.data`, as that of gathered parameters is (see `unit_state`).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from trainplan.execution.program import Instruction, draws
from trainplan.execution.run.rank_state import RankState
from trainplan.execution.run.unit_state import empty_storage, fill_storage
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.sublayers import Sublayer


class TokenSharing(RankState):
    """Methods of the executor for sequence parallelism: what a unit (sub-layer) computes before and after its matrices, on the
    rank's own tokens of each sample, and the collectives between. An instruction names the buffers, held in `values`, that a
    method reads and writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = 0  # number of steps that are done
        self.emptied: dict[str, Tensor] = {}

    def free(self, name: str) -> None:
        """Release the memory of the buffer called `name`. Gathered tokens keep their tensor object with an empty storage,
        since an autograd graph has views into it."""
        if name.startswith(("entry-whole", "keys-whole")) and name in self.values:
            self.emptied[name] = self.values[name]
            empty_storage(self.values[name])
        super().free(name)

    def filled(self, name: str, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Uninitialised memory of this shape for gathered tokens. If the buffer called `name` was freed before, its emptied
        tensor object gets memory again and is returned, since an autograd graph has views into that object; otherwise a new
        tensor is returned. like: a tensor of the wanted dtype and device."""
        whole = self.emptied.pop(name, None)
        if whole is None:
            return like.new_empty(shape)
        fill_storage(whole)
        return whole

    def sublayer(self, instruction: Instruction) -> Sublayer:
        """The sub-layer of the model that an instruction is about."""
        assert instruction.unit is not None
        return self.model.units[instruction.unit].sublayer

    def draw(self, instruction: Instruction) -> Draw | None:
        """The random numbers from which an instruction's dropout masks follow; None if it applies no dropout."""
        assert instruction.unit is not None
        strategy = self.program.strategies[instruction.unit]
        if not draws(self.sublayer(instruction), strategy, instruction.op):
            return None
        share = strategy.share(self.index_in_stage)
        return Draw(self.seed, self.steps, instruction.unit, instruction.args["rows"], share, self.model.pieces)

    def _enter(self, instruction: Instruction) -> None:
        """Compute what a unit does before its matrices (such as its norm) on the rank's tokens, and keep its autograd graph."""
        x = self.values[instruction.reads[0]].detach().requires_grad_()
        y = torch_units.enter(self.sublayer(instruction), self.unit(instruction).views, x, self.draw(instruction))
        result, graph = instruction.writes
        self.values[result], self.values[graph] = y.detach(), (get_gradient_edge(y), x)

    def _enter_without_graph(self, instruction: Instruction) -> None:
        """Compute what a unit does before its matrices (such as its norm) on the rank's tokens, without keeping an autograd
        graph."""
        with torch.no_grad():
            x, views = self.values[instruction.reads[0]], self.unit(instruction).views
            self.values[instruction.writes[0]] = torch_units.enter(self.sublayer(instruction), views, x, self.draw(instruction))

    def _leave(self, instruction: Instruction) -> None:
        """Apply a unit's dropout and residual to the sum of its partial outputs on the rank's tokens, in place."""
        y, *residual = (self.values[name] for name in instruction.reads)
        with torch.no_grad():
            torch_units.leave(self.sublayer(instruction), y, residual[0] if residual else None, self.draw(instruction))

    def _leave_backward(self, instruction: Instruction) -> None:
        """Compute the gradient of the input of the dropout that follows a unit's matrices, from the gradient of the unit's
        output."""
        gradient, draw = self.values[instruction.reads[0]], self.draw(instruction)
        self.values[instruction.writes[0]] = torch_units.leave_gradient(self.sublayer(instruction), gradient, draw)

    def _enter_backward(self, instruction: Instruction) -> None:
        """Compute the gradient of a unit's input on the rank's tokens, from the gradient of its matrices' input and of the
        residual."""
        graph, _, entered, *others = instruction.reads
        edge, x = self.values.pop(graph)
        gradient = self.values[entered]
        post_norm = self.program.token_share(instruction.unit or 0).post_norm
        residual = self._of_half(instruction, self.values[others[0]]) if len(others) > 2 else None
        if post_norm and residual is not None:
            gradient += residual
        torch.autograd.backward([edge], [gradient])
        if not post_norm and residual is not None:
            x.grad += residual
        self.values[instruction.writes[0]] = x.grad

    def _of_half(self, instruction: Instruction, gradient: Tensor) -> Tensor:
        """The part of a gradient that belongs to the half of a micro-batch that the instruction is about, if the gradient is
        of both halves; else the gradient itself."""
        if blocks := instruction.args.get("blocks"):
            assert instruction.half is not None
            return gradient.split([len(block) for block in blocks])[instruction.half]
        return gradient

    def _slice_tokens(self, instruction: Instruction) -> None:
        """Copy the rank's own tokens of each sample out of a buffer of all tokens."""
        first, end = instruction.args["tokens"]
        whole = self.values[instruction.reads[0]]
        self.values[instruction.writes[0]] = whole[:, first:end].clone(memory_format=torch.contiguous_format)

    def _gather_tokens(self, instruction: Instruction) -> None:
        """All-gather the tokens of each sample over tensor-parallel ranks: (rows, own tokens, hidden) -> (rows, tokens,
        hidden)."""
        own, parts, name = self.values[instruction.reads[0]].contiguous(), len(instruction.group), instruction.writes[0]
        rows, tokens, hidden = own.shape
        whole = self.filled(name, own, (rows, parts * tokens, hidden))
        by_rank = whole.data.view(rows, parts, tokens, hidden).transpose(0, 1)
        if self.device.type == "cpu":  # gloo takes pieces as they lie
            self.collective(dist.all_gather, instruction, list(by_rank), own)
        elif rows == 1:
            self.collective(dist.all_gather_into_tensor, instruction, by_rank.view(-1), own.view(-1))
        else:
            gathered = torch.empty_like(by_rank, memory_format=torch.contiguous_format)
            self.collective(dist.all_gather_into_tensor, instruction, gathered.view(-1), own.view(-1))
            by_rank.copy_(gathered)
        self.values[name] = whole

    def _reduce_scatter_tokens(self, instruction: Instruction) -> None:
        """Reduce-scatter partial results over tensor-parallel ranks: (rows, tokens, hidden) -> the sum for the rank's own
        tokens."""
        partial, parts = self.values[instruction.reads[0]], len(instruction.group)
        rows, tokens, hidden = partial.shape
        by_rank = partial.view(rows, parts, tokens // parts, hidden).transpose(0, 1)
        own = partial.new_empty((rows, tokens // parts, hidden))
        if self.device.type == "cpu":
            self.collective(dist.reduce_scatter, instruction, own, list(by_rank))
        else:
            self.collective(dist.reduce_scatter_tensor, instruction, own.view(-1), by_rank.contiguous().view(-1))
        self.values[instruction.writes[0]] = own
