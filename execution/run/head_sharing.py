"""Heads of cut samples, as the executor exchanges them, and the cores that work on these (see `sublayers.head_pieces`)."""

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
    """What exchanges heads between the ranks that work on pieces of the same samples, and works on all tokens of its own."""

    def _pieces(self, instruction: Instruction) -> HeadPieces:
        assert instruction.unit is not None
        share = self.program.key_share(instruction.unit)
        assert isinstance(share, HeadPieces)
        return share

    def _heads_of(self, instruction: Instruction, name: str) -> list[list[int]]:
        """The heads of each rank among those of all, in a buffer of all heads: those of results, or of queries, keys and
        values."""
        share = self._pieces(instruction).share
        of_rank = share.queries_of if name.startswith("results") else share.entering_of
        return [of_rank(rank) for rank in range(share.ranks)]

    def _exchange_heads(self, instruction: Instruction) -> None:
        own, ranks = self.values[instruction.reads[0]], len(instruction.group)
        heads = torch.tensor(self._heads_of(instruction, instruction.reads[0]), device=self.device)
        sent = own[:, :, heads.flatten()].unflatten(2, heads.shape).movedim(2, 0).contiguous()
        came = torch.empty_like(sent)
        self.collective(dist.all_to_all_single, instruction, came.view(-1), sent.view(-1))
        del sent
        rows, tokens, count, width = came.shape[1:]
        whole = came.new_empty((rows, ranks * tokens, count, width))
        put_together(came.transpose(0, 1), whole)
        self.values[instruction.writes[0]] = whole

    def _exchange_tokens(self, instruction: Instruction) -> None:
        whole, ranks, name = self.values[instruction.reads[0]], len(instruction.group), instruction.writes[0]
        rows, tokens, _, width = whole.shape
        sent = _by_piece(whole, ranks)
        came = torch.empty_like(sent)
        self.collective(dist.all_to_all_single, instruction, came.view(-1), sent.view(-1))
        del sent
        heads = self._heads_of(instruction, name)
        own = whole.new_zeros((rows, tokens // ranks, 1 + max(map(max, heads)), width))
        for indices, part in zip(heads, came, strict=True):  # what copies of keys have comes several times
            own.index_add_(2, torch.tensor(indices, device=self.device), part)
        self.values[name] = own

    def _core(self, instruction: Instruction) -> None:
        mixed, leaves = self._mixed(instruction)
        self.values[instruction.writes[0]], self.values[instruction.writes[1]] = (
            mixed.detach(),
            (get_gradient_edge(mixed), leaves),
        )

    def _core_without_graph(self, instruction: Instruction) -> None:
        with torch.no_grad():
            self.values[instruction.writes[0]] = self._mixed(instruction)[0]

    def _core_backward(self, instruction: Instruction) -> None:
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
    """(rows, tokens, ...) as (pieces, rows, tokens / pieces, ...), a copy: of all rows their pieces, as `sublayers.halves` has
    them."""
    rows, tokens, *others = whole.shape
    made = whole.new_empty((pieces, rows, tokens // pieces, *others))
    first, second = whole.unflatten(1, (2, pieces, -1)).unbind(1)
    made[:, :, : tokens // pieces // 2].copy_(first.movedim(1, 0))
    made[:, :, tokens // pieces // 2 :].copy_(second.flip(1).movedim(1, 0))
    return made
