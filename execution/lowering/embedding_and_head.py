"""The units at both ends of a model: the embedding, the head with its loss, and a table that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional as F
from trainplan.execution.lowering.blocks import (
    AttentionUnit,
    FeedForwardUnit,
    ParallelUnit,
    Unit,
    dropped,
    gathering,
    norm_of,
    recomputed_call,
)
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    LanguageHead,
    ParallelBlock,
    Sublayer,
    TokenEmbedding,
)


class Table(nn.Module):
    """A tied table, used as embedding and as output matrix: a module of its own, so that `fully_shard` gathers it for each
    use."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.logits = tokens, nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False)
        self.tie()

    def tie(self) -> None:
        """Let the output matrix be the embedding's parameter again, after the modules have been given new parameters."""
        self.logits.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """The embeddings of x if it holds token ids (integers); the logits of x if it holds hidden states (floating point)."""
        result: Tensor = self.logits(x) if x.is_floating_point() else self.tokens(x)
        return result


class EmbeddingUnit(Unit):
    """The torch module of the embedding: rows of the table of tokens, plus learned positions and token types if the model has
    them. tied: whether the head uses the table, too. Rows are samples; under sequence parallelism a rank keeps only its own
    tokens of each."""

    def __init__(self, part: TokenEmbedding, strategy: Strategy, tied: bool) -> None:
        super().__init__(part, strategy)
        tokens = nn.Embedding(part.vocabulary, part.hidden, part.padding if strategy.degree("tp") == 1 else None)
        if tied:
            self.table = Table(tokens)
        else:
            self.tokens = tokens
        if part.positions:
            self.positions = nn.Embedding(part.positions, part.hidden)
        if part.token_types:
            self.types = nn.Embedding(part.token_types, part.hidden)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """Embed token ids: x is (rows, all tokens of a sample); returns the hidden states (rows, own tokens, hidden size) of
        the tokens that this rank holds under sequence parallelism (without it, all). draw: the random numbers for dropout;
        None without dropout. targets: unused; part of the signature that all units share."""
        part, (number, parts) = self.part, self.rank_part.share
        own = slice(number * part.tokens // parts, (number + 1) * part.tokens // parts)
        y = self.table(x) if hasattr(self, "table") else self.tokens(x)
        if part.padding is not None and self.rank_part.tp is not None:  # a shard of the table does not know the padding's row
            y = torch.where((x[:, own] == part.padding).unsqueeze(-1), y.detach(), y)
        if part.scale != 1:
            y = y * part.scale
        if part.positions:
            positions = torch.arange(part.first_position, part.first_position + part.tokens, device=x.device)
            y = y + self._of_all(self.positions(positions))[own]
        if part.token_types:
            y = y + self._of_all(self.types(positions.new_zeros(1)))
        return dropped(y, draw, part.dropout)

    def _of_all(self, rows: Tensor) -> Tensor:
        """The looked-up rows of a table (`rows`), unchanged. Every rank has a whole copy of the table, but under sequence
        parallelism looks up only its own tokens: so `rows` is given a backward pass that sums the gradients over
        tensor-parallel ranks."""
        if self.rank_part.share == (0, 1):
            return rows
        return DTensor.from_local(rows, self.rank_part.tp, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


class HeadUnit(Unit):
    """The torch module of the head: norm, BERT's transform if the model has one, logits over the vocabulary, and the
    cross-entropy on them. tokens_in_step: number of tokens in all samples of a step, by which the loss is divided, once, so
    that gradients are only summed. tied: whether the matrix of the logits is the embedding's table, whose module is then set
    as `borrowed`."""

    def __init__(self, part: LanguageHead, strategy: Strategy, tokens_in_step: int, tied: bool) -> None:
        super().__init__(part, strategy)
        self.tokens_in_step, self.borrowed = tokens_in_step, list[Table]()  # a list: no submodule of this one
        if part.transform:
            self.dense, self.dense_norm = nn.Linear(part.hidden, part.hidden), norm_of(part)
        if not tied:
            self.logits = nn.Linear(part.hidden, part.vocabulary, bias=False)
        if part.bias:
            self.bias = nn.Parameter(torch.empty(part.vocabulary))

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """The loss of this rank's samples as a scalar: cross-entropies, summed and divided by the tokens of the whole step. x:
        hidden states (rows, tokens, hidden). draw: unused; part of the signature that all units share. targets: ids of the
        tokens to predict, (rows, all tokens); never None here."""
        part = self.part

        def entered(x: Tensor) -> Tensor:
            inside = self.norm(x)
            if part.transform:
                inside = self.dense_norm(torch_units.ACTIVATIONS[part.transform](self.dense(inside)))
            return inside * part.scale if part.scale != 1 else inside

        matrix: nn.Module = self.borrowed[0] if self.borrowed else self.logits

        def logits(x: Tensor) -> Tensor:
            return gathering(self, matrix, entered(x))

        def loss(logits: Tensor) -> Tensor:
            logits = logits + self.bias if part.bias else logits
            if part.softcap:
                logits = (logits / part.softcap).tanh() * part.softcap
            wide = logits if logits.dtype.itemsize >= 4 else logits.float()
            assert targets is not None
            total = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum") / self.tokens_in_step
            return total.full_tensor() if isinstance(total, DTensor) else total

        if "loss" not in self.recomputed:
            return loss(self.recomputing("norms", logits, x))
        if "norms" in self.recomputed:
            return recomputed_call(lambda x: loss(logits(x)), x)
        return recomputed_call(lambda inside: loss(matrix(inside)), entered(x))


def unit_of(part: Sublayer, strategy: Strategy, tokens_in_step: int, tied: bool) -> Unit:
    """The torch module of a sub-layer; created under `torch.device("meta")`, it takes no memory yet. strategy: its parallel
    layout and recomputation. tokens_in_step: number of tokens in all samples of a step, by which a head divides its loss.
    tied: whether embedding and head share a table that is one parameter."""
    if isinstance(part, LanguageHead):
        return HeadUnit(part, strategy, tokens_in_step, tied)
    if isinstance(part, TokenEmbedding):
        return EmbeddingUnit(part, strategy, tied)
    return UNITS[type(part)](part, strategy)


UNITS: dict[type[Sublayer], Callable[[Any, Strategy], Unit]] = {
    Attention: AttentionUnit,
    FeedForward: FeedForwardUnit,
    ParallelBlock: ParallelUnit,
}
