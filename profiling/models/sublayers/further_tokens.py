"""Multi-token prediction (DeepSeek-AI, 2024, Section 2.2): modules at a model's end that each predict one token further.

A module joins the hidden states of each token, as the module before (or the last layer) leaves them, with the embedding of the
next token, runs one layer on them, and norms the result. The head, which the model and all modules share, computes logits and a
loss of each: a set more for each module. The hidden states of the model itself, and of earlier modules, are carried past a
module to the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class TokenJoin(Sublayer):
    """The beginning of a module that predicts one token further: norms of hidden states and of the embeddings of the tokens
    that follow, which are concatenated and projected to one hidden state.

    The embeddings are those of the model's own table, whose parameters are counted there.
    """

    kind: ClassVar[Kind] = "join"

    @property
    def unplanned_feature(self) -> str:
        """A text for users: plans of models with such modules are not made yet."""
        return "layers that predict further tokens"

    def parameters(self) -> tuple[Parameter, ...]:
        """The projection, whose outputs tensor parallelism splits, and both norms, of which every rank holds a full copy."""
        h = self.hidden
        projection = Parameter("projection.weight", (h, 2 * h), 0)
        return (projection, *self._norm_parameters(), *self._norm_parameters(name="embedding_norm"))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: embeddings, both norms,
        concatenation and projection."""
        n, h = rows * self.tokens, self.hidden
        return [*[self._stream(n * h)] * 3, self._stream(2 * n * h), Operator(m=n, n=h // tp, k=2 * h)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input:
        the embeddings, the concatenated results of both norms, and the norms' statistics."""
        n, h = rows * self.tokens, self.hidden
        statistics = self.norm_elements(n) - n * h
        return (n * h + 2 * (n * h + statistics)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: gradients of
        the projection's weights and of what was concatenated."""
        n, h = rows * self.tokens, self.hidden
        return (2 * h * h // tp + 2 * n * h) * self.element_bytes
