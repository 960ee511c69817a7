"""The loss of a layer that predicts further tokens (multi-token prediction, DeepSeek-AI, 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.models.sublayers.base import Operator, Parameter
from trainplan.profiling.models.sublayers.heads import LanguageHead


@dataclass(frozen=True, kw_only=True)
class FurtherHead(LanguageHead):
    """The head of a layer that predicts further tokens: its loss is one more pass of the model's head, whose matrix it shares.

    Before the layer, the hidden states and the embedding of the next token are each normed, and projected together from twice
    the hidden size to it: that projection and the norms are its own, and counted here.
    """

    def parameters(self) -> tuple[Parameter, ...]:
        """The projection that joins hidden states with embeddings, and the norms of both and of the result; the logits' matrix
        is the model's head's."""
        norms = [norm for name in ("hidden_norm", "next_norm", "norm") for norm in self._norm_parameters(name=name)]
        return (Parameter("joined.weight", (self.hidden, 2 * self.hidden)), *norms)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: those of the head, and before the
        layer two norms and the projection, which every rank has."""
        n, h = rows * self.tokens, self.hidden
        before = [self._stream(n * h), self._stream(n * h), Operator(m=n, n=h, k=2 * h)]
        return [*super().operators(rows, tp), *before]
