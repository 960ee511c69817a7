"""Keys and values of cut samples, as the executor computes, gathers and scatters them (see `sublayers.pieces`).

What was gathered is freed after the forward pass, and gathered again into the same memory, as in `token_sharing`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from trainplan.execution.program import Instruction
from trainplan.execution.run.token_sharing import TokenSharing
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.sublayers import Attention


class KeySharing(TokenSharing):
    """Methods of the executor for the keys and values of context-parallel ranks, each of which has a piece of every sample's
    tokens. An instruction names the buffers, held in `values`, that a method reads and writes, and the unit (sub-layer) that
    it is about."""

    def by_piece(self, x: Tensor) -> Tensor:
        """Cut token ids of whole samples, (samples, tokens), into context-parallel pieces: (samples x pieces, tokens /
        pieces); x itself without context parallelism."""
        return x if self.model.pieces == 1 else cut(x, self.model.pieces).flatten(0, 1)

    def whole_keys(self, instruction: Instruction) -> Tensor | None:
        """The gathered keys and values that an instruction reads (or the results of attention's core, if ranks exchange
        heads), as a leaf of an autograd graph; None if it reads none."""
        names = [name for name in instruction.reads if name.startswith(("keys-whole", "results."))]
        return self.values[names[0]].detach().requires_grad_() if names else None

    def _keys(self, instruction: Instruction) -> None:
        """Compute keys and values of the rank's own tokens, and keep their autograd graph."""
        x = self.values[instruction.reads[0]].detach().requires_grad_()
        y = self._own_keys(instruction, x)
        own, graph = instruction.writes
        self.values[own], self.values[graph] = y.detach(), (get_gradient_edge(y), x)

    def _keys_without_graph(self, instruction: Instruction) -> None:
        """Compute keys and values of the rank's own tokens without keeping an autograd graph."""
        with torch.no_grad():
            self.values[instruction.writes[0]] = self._own_keys(instruction, self.values[instruction.reads[0]])

    def _own_keys(self, instruction: Instruction, x: Tensor) -> Tensor:
        """Keys and values of x, the hidden states of the rank's own tokens, in one tensor; with queries if ranks exchange
        heads."""
        part, unit = self.sublayer(instruction), self.unit(instruction)
        assert isinstance(part, Attention)
        compute = torch_units.queries_keys_and_values if part.by_heads else torch_units.keys_and_values
        return compute(part, unit.views, x, unit.shard, self.program.shares_tokens(instruction.unit or 0))

    def _gather_keys(self, instruction: Instruction) -> None:
        """All-gather the keys and values of all tokens over context-parallel ranks, in order of tokens."""
        own, pieces, name = self.values[instruction.reads[0]].contiguous(), len(instruction.group), instruction.writes[0]
        whole = self.filled(name, own, (own.shape[0], pieces * own.shape[1], *own.shape[2:]))
        gathered = own.new_empty((pieces, *own.shape))
        self.collective(dist.all_gather_into_tensor, instruction, gathered.view(-1), own.view(-1))
        put_together(gathered.transpose(0, 1), whole.data)
        self.values[name] = whole

    def _scatter_keys(self, instruction: Instruction) -> None:
        """Reduce-scatter the gradients of keys and values over context-parallel ranks; the rank keeps the sum for its own
        tokens."""
        pieces = cut(self.values[instruction.reads[0]], len(instruction.group)).transpose(0, 1).contiguous()
        own = torch.empty_like(pieces[0])
        self.collective(dist.reduce_scatter_tensor, instruction, own.view(-1), pieces.view(-1))
        self.values[instruction.writes[0]] = own

    def _keys_backward(self, instruction: Instruction) -> None:
        """Run the backward pass of the projections to keys and values, which adds to the gradients of a unit's input and
        parameters."""
        edge, x = self.values.pop(instruction.reads[0])
        torch.autograd.backward([edge], [self.values[instruction.reads[2]]])
        self.values[instruction.writes[0]] += x.grad


def cut(x: Tensor, pieces: int) -> Tensor:
    """Cut the tokens of samples into context-parallel pieces: (rows, tokens, ...) -> (rows, pieces, tokens / pieces, ...), a
    copy. Piece k is chunk k and chunk 2 pieces - 1 - k of 2 pieces chunks, so that causal attention is balanced."""
    first, second = x.unflatten(1, (2, pieces, -1)).unbind(1)
    return torch.cat((first, second.flip(1)), 2)


def put_together(pieces: Tensor, whole: Tensor) -> None:
    """Copy the context-parallel pieces of samples, (rows, pieces, tokens / pieces, ...), to their tokens in `whole`, (rows,
    tokens, ...), which is written to: the inverse of `cut`."""
    first, second = whole.unflatten(1, (2, pieces.shape[1], -1)).unbind(1)
    half = pieces.shape[2] // 2
    first.copy_(pieces[:, :, :half])
    second.copy_(pieces[:, :, half:].flip(1))
