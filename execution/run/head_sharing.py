"""How the executor exchanges heads of cut samples, and runs the cores that work on these (see `sublayers.head_pieces`)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from trainplan.execution.program import Instruction
from trainplan.execution.run.key_sharing import KeySharing, put_together
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.sublayers import HeadPieces


class HeadSharing(KeySharing):
    """Methods of the executor for attention whose context-parallel ranks exchange heads by all-to-all: each rank has a piece
    of every sample's tokens outside attention's core, and all tokens of some heads inside it. An instruction names the
    buffers, held in `values`, that a method reads and writes."""

    def _pieces(self, instruction: Instruction) -> HeadPieces:
        """Sizes and division of heads of the attention that an instruction is about."""
        assert instruction.unit is not None
        share = self.program.key_share(instruction.unit)
        assert isinstance(share, HeadPieces)
        return share

    def _heads_of(self, instruction: Instruction, name: str) -> list[list[int]]:
        """For each context-parallel rank, the indices of its heads in a buffer of all heads. name: the buffer's name; results
        of the core have query heads, others the heads of queries, keys and values."""
        share = self._pieces(instruction).share
        of_rank = share.query_heads_of if name.startswith("results") else share.entering_heads_of
        return [of_rank(rank) for rank in range(share.ranks)]

    def _exchange_heads(self, instruction: Instruction) -> None:
        """All-to-all from all heads of the rank's tokens to all tokens of the rank's heads: (rows, tokens, heads, width) of
        fewer tokens and more heads to more tokens and fewer heads."""
        own, ranks = self.values[instruction.reads[0]], len(instruction.group)
        heads = torch.tensor(self._heads_of(instruction, instruction.reads[0]), device=self.device)
        sent = own[:, :, heads.flatten()].unflatten(2, heads.shape).movedim(2, 0).contiguous()
        received = torch.empty_like(sent)
        self.collective(dist.all_to_all_single, instruction, received.view(-1), sent.view(-1))
        del sent
        rows, tokens, count, width = received.shape[1:]
        whole = received.new_empty((rows, ranks * tokens, count, width))
        put_together(received.transpose(0, 1), whole)
        self.values[instruction.writes[0]] = whole

    def _exchange_tokens(self, instruction: Instruction) -> None:
        """All-to-all from all tokens of the rank's heads to all heads of the rank's tokens, the inverse of the exchange before
        the attention's core; heads of which several ranks have copies are summed (their gradients)."""
        whole, ranks, name = self.values[instruction.reads[0]], len(instruction.group), instruction.writes[0]
        rows, tokens, _, width = whole.shape
        sent = _by_piece(whole, ranks)
        received = torch.empty_like(sent)
        self.collective(dist.all_to_all_single, instruction, received.view(-1), sent.view(-1))
        del sent
        heads = self._heads_of(instruction, name)
        own = whole.new_zeros((rows, tokens // ranks, 1 + max(map(max, heads)), width))
        for indices, part in zip(heads, received, strict=True):  # keys that several ranks have copies of come several times
            own.index_add_(2, torch.tensor(indices, device=self.device), part)
        self.values[name] = own

    def _core(self, instruction: Instruction) -> None:
        """Compute attention's core (softmax of queries and keys, times values), and keep its autograd graph."""
        mixed, leaves = self._mixed(instruction)
        self.values[instruction.writes[0]], self.values[instruction.writes[1]] = (
            mixed.detach(),
            (get_gradient_edge(mixed), leaves),
        )

    def _core_without_graph(self, instruction: Instruction) -> None:
        """Compute attention's core without keeping an autograd graph."""
        with torch.no_grad():
            self.values[instruction.writes[0]] = self._mixed(instruction)[0]

    def _core_backward(self, instruction: Instruction) -> None:
        """Compute the gradients of the core's queries, keys and values, in one tensor, one after the other along the dimension
        of heads."""
        edge, leaves = self.values.pop(instruction.reads[0])
        torch.autograd.backward([edge], [self.values[instruction.reads[3]]])
        self.values[instruction.writes[0]] = torch.cat([leaf.grad.transpose(1, 2) for leaf in leaves], 2)

    def _mixed(self, instruction: Instruction) -> tuple[Tensor, list[Tensor]]:
        """Compute attention's core on the rank's heads. Returns (results, [queries, keys, values]); queries, keys and values
        are leaves of the autograd graph of the results."""
        share, unit = self._pieces(instruction).share, self.unit(instruction)
        counts = (share.query_heads, share.key_heads, share.key_heads)
        parts = self.values[instruction.reads[0]].transpose(1, 2).split(counts, 1)
        leaves = [part.detach().requires_grad_() for part in parts]
        index = unit.shard.index * share.ranks + unit.shard.piece
        shard, draw = torch_units.Shard(unit.shard.tp * share.ranks, index), self.draw(instruction)
        whole = None if draw is None else Draw(draw.seed, draw.step, draw.unit, draw.whole)
        queries, keys, values = leaves
        return torch_units.core_of_heads(share.sublayer, queries, keys, values, shard, whole), leaves


def _by_piece(whole: Tensor, pieces: int) -> Tensor:
    """Cut the tokens of samples into context-parallel pieces: (rows, tokens, ...) -> (pieces, rows, tokens / pieces, ...), a
    copy. Piece k is chunk k and chunk 2 pieces - 1 - k of 2 pieces chunks, so that causal attention is balanced."""
    rows, tokens, *others = whole.shape
    result = whole.new_empty((pieces, rows, tokens // pieces, *others))
    first, second = whole.unflatten(1, (2, pieces, -1)).unbind(1)
    result[:, :, : tokens // pieces // 2].copy_(first.movedim(1, 0))
    result[:, :, tokens // pieces // 2 :].copy_(second.flip(1).movedim(1, 0))
    return result
