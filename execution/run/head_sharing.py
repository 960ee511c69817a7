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
    """Methods of the executor for the exchange of heads between ranks that work on pieces of the same samples, and for the core
    of attention on all tokens of the rank's heads."""

    def _pieces(self, instruction: Instruction) -> HeadPieces:
        """The bytes and heads of an instruction's unit."""
        assert instruction.unit is not None
        share = self.program.key_share(instruction.unit)
        assert isinstance(share, HeadPieces)
        return share

    def _heads_of(self, instruction: Instruction, name: str) -> list[list[int]]:
        """For each rank, the indices of its heads among those of a buffer of all heads: of results, or of queries, keys and
        values."""
        share = self._pieces(instruction).share
        of_rank = share.queries_of if name.startswith("results") else share.entering_of
        return [of_rank(rank) for rank in range(share.ranks)]

    def _exchange_heads(self, instruction: Instruction) -> None:
        """All-to-all: from all heads of the rank's tokens to all tokens of the rank's heads."""
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
        """All-to-all: from all tokens of the rank's heads to all heads of the rank's tokens; parts of heads with copies are
        summed."""
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
        """Compute attention's core, and keep its graph."""
        mixed, leaves = self._mixed(instruction)
        self.values[instruction.writes[0]], self.values[instruction.writes[1]] = (
            mixed.detach(),
            (get_gradient_edge(mixed), leaves),
        )

    def _core_without_graph(self, instruction: Instruction) -> None:
        """Compute attention's core without a graph."""
        with torch.no_grad():
            self.values[instruction.writes[0]] = self._mixed(instruction)[0]

    def _core_backward(self, instruction: Instruction) -> None:
        """Gradients of the core's queries, keys and values, in one tensor."""
        edge, leaves = self.values.pop(instruction.reads[0])
        torch.autograd.backward([edge], [self.values[instruction.reads[3]]])
        self.values[instruction.writes[0]] = torch.cat([leaf.grad.transpose(1, 2) for leaf in leaves], 2)

    def _mixed(self, instruction: Instruction) -> tuple[Tensor, list[Tensor]]:
        """The core's results, and queries, keys and values as leaves of its graph."""
        share, unit = self._pieces(instruction).share, self.unit(instruction)
        counts = (share.queries, share.keys, share.keys)
        parts = self.values[instruction.reads[0]].transpose(1, 2).split(counts, 1)
        leaves = [part.detach().requires_grad_() for part in parts]
        index = unit.shard.index * share.ranks + unit.shard.piece
        shard, draw = torch_units.Shard(unit.shard.tp * share.ranks, index), self.draw(instruction)
        whole = None if draw is None else Draw(draw.seed, draw.step, draw.unit, draw.whole)
        queries, keys, values = leaves
        return torch_units.core_of_heads(share.part, queries, keys, values, shard, whole), leaves


def _by_piece(whole: Tensor, pieces: int) -> Tensor:
    """(rows, tokens, ...) as (pieces, rows, tokens / pieces, ...), a copy: the pieces of all rows, as `sublayers.halves` cuts
    them."""
    rows, tokens, *others = whole.shape
    result = whole.new_empty((pieces, rows, tokens // pieces, *others))
    first, second = whole.unflatten(1, (2, pieces, -1)).unbind(1)
    result[:, :, : tokens // pieces // 2].copy_(first.movedim(1, 0))
    result[:, :, tokens // pieces // 2 :].copy_(second.flip(1).movedim(1, 0))
    return result
