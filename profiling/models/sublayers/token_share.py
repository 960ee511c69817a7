"""Sequence parallelism: tensor-parallel ranks also share the tokens (Korthikanti et al., 2022, Section 4.2.2).

Hidden states are split over the ranks along the tokens. The computations before a sub-layer's matrices (a norm, a head's dense
layer) and after them (dropout, residual) work on a rank's own tokens. Before the matrices the tokens are all-gathered, after
them the partial sums are reduce-scattered. What was gathered is not kept for the backward pass, but gathered again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import DRAWING_BYTES, DRAWN_AT_ONCE, Operator, Sublayer
from trainplan.profiling.models.sublayers.embeddings import TokenEmbedding
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.heads import LanguageHead
from trainplan.profiling.models.sublayers.mixers import TokenMixer
from trainplan.profiling.models.sublayers.modules import SelectiveRecomputation


def why_not_shared(sublayer: Sublayer, tp: int) -> str | None:
    """The reason, for users, why `tp` ranks cannot divide a sub-layer's tokens among themselves (sequence parallelism); None
    if they can.
    """
    if isinstance(sublayer, Attention) and (sublayer.window or sublayer.memory_tokens or sublayer.relative):
        return "its attention has windows, position biases or a second sequence"
    sharing = Attention | FeedForward | LanguageHead | TokenEmbedding | TokenMixer
    if not isinstance(sublayer, sharing) or sublayer.carried_tokens:
        return f"a sub-layer of this {sublayer.kind} kind cannot share its tokens"
    if sublayer.sandwich:
        return "it has a norm after its matrices"
    if sublayer.tokens % tp:
        return f"{tp} does not divide its {sublayer.tokens} tokens"
    return None


@dataclass(frozen=True)
class TokenShare:
    """Memory and recomputed kernels of a sub-layer under sequence parallelism, where its `tp` tensor-parallel ranks divide the
    tokens among themselves.

    It runs in three parts: the computation before the matrices (a norm or the like) on the rank's own tokens; the matrices,
    that is matrix multiplications with what is computed between them, on all tokens, which are all-gathered before and
    reduce-scattered after; and the computation after them (dropout, residual) on the rank's own tokens. modules: names of the
    modules (such as norms) that are recomputed in the backward pass. All methods return bytes on one rank; rows: number of
    samples on the rank.
    """

    sublayer: Sublayer
    tp: int
    modules: tuple[str, ...] = ()

    @cached_property
    def own(self) -> Sublayer:
        """The sub-layer changed to have only one rank's tokens per sample, tokens / tp, to count memory of the rank's own
        tokens."""
        return replace(self.sublayer, tokens=self.sublayer.tokens // self.tp)

    @property
    def enters(self) -> bool:
        """Whether the sub-layer has a computation before its matrices, such as a norm; all sub-layers except for an embedding
        have one.
        """
        return self.sublayer.kind != "embedding"

    @property
    def adds_residual(self) -> bool:
        """Whether a residual is added to the sub-layer's output."""
        return isinstance(self.sublayer, Attention | FeedForward | TokenMixer)

    @property
    def drops_output(self) -> bool:
        """Whether the sub-layer's output has dropout."""
        return self.sublayer.kind != "head" and self.sublayer.dropout > 0

    @property
    def leaves(self) -> bool:
        """Whether there is a computation after the matrices and the sum of their results over the ranks: dropout or a
        residual."""
        return self.adds_residual or self.drops_output

    @property
    def post_norm(self) -> bool:
        """Whether the residual is the sub-layer's normed input, as in BERT, instead of its input."""
        return bool(getattr(self.sublayer, "post_norm", False))

    @property
    def draws_before(self) -> bool:
        """Whether there is dropout before the matrices, of the sub-layer's normed input."""
        return bool(getattr(self.sublayer, "input_dropout", 0.0))

    @property
    def draws_inside(self) -> bool:
        """Whether there is dropout between the matrices, of attention probabilities."""
        return bool(getattr(self.sublayer, "attention_dropout", 0.0))

    @cached_property
    def recomputes_entry(self) -> bool:
        """Whether the computation before the matrices keeps nothing and is done again in the backward pass."""
        return SelectiveRecomputation(self.sublayer, self.modules).has("norms")

    @cached_property
    def _matrices(self) -> SelectiveRecomputation:
        """The matrices on all tokens, with recomputed modules and without the output's dropout; its methods count their
        memory."""
        return SelectiveRecomputation(replace(self.sublayer, dropout=0.0), self.modules)

    def whole_bytes(self, rows: int) -> int:
        """Bytes of the hidden states of all tokens, the size of the all-gather's result. rows: samples on the rank."""
        return rows * self.sublayer.tokens * self.sublayer.hidden * self.sublayer.element_bytes

    def own_bytes(self, rows: int) -> int:
        """Bytes of the hidden states of the rank's own tokens. rows: samples on the rank."""
        return self.whole_bytes(rows) // self.tp

    def entry_graph_bytes(self, rows: int) -> int:
        """Bytes that the computation before the matrices keeps for its backward pass, in addition to its input and its result.

        rows: samples on the rank.
        """
        if isinstance(self.own, LanguageHead):
            return self.own.kept_bytes(rows, self.tp) - self.own.capped_bytes(rows, self.tp) - self.own_bytes(rows)
        return self._norm_bytes(rows, self.own) - self.own_bytes(rows)

    def graph_bytes(self, rows: int) -> int:
        """Bytes that the matrices keep for their backward pass, in addition to their gathered input.

        rows: samples on the rank.
        """
        if isinstance(self.sublayer, Attention) and self.sublayer.by_heads:
            return 0
        kept = self.sublayer.kept_bytes(rows, self.tp) - self._matrices.unkept_inside_bytes(rows, self.tp)
        if isinstance(self.sublayer, LanguageHead):
            return self.sublayer.capped_bytes(rows, self.tp)
        return kept - self._norm_bytes(rows, self.sublayer) if self.enters else kept

    def enter_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the forward pass before the matrices: the random numbers of a dropout mask, else 0.

        rows: samples on the rank.
        """
        return self._drawing_bytes(rows) if self.draws_before else 0

    def forward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the matrices' forward pass, in addition to the input, the result, and the bytes kept
        for the backward pass.

        rows: samples on the rank.
        """
        return self._matrices.inside_workspace_bytes(rows, self.tp)

    def backward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the matrices' backward pass, in addition to the input, the bytes kept for the backward
        pass, and gradients.

        rows: samples on the rank.
        """
        again = self.sublayer.output_bytes(rows, self.tp) if self._matrices.has("loss") else 0
        return again + self._matrices.inside_backward_bytes(rows, self.tp)

    def leave_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the computation after the matrices, forward or backward: the random numbers of a dropout
        mask, else 0.

        rows: samples on the rank.
        """
        return self._drawing_bytes(rows) if self.drops_output else 0

    def enter_backward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the backward pass of the computation before the matrices.

        They come in addition to the input, the bytes kept for the backward pass, and gradients, and belong to a norm, a
        head's dense layer or a dropout mask. rows: samples on the rank.
        """
        hidden, element = self.own_bytes(rows), self.sublayer.element_bytes
        norm = hidden if self.sublayer.norm == "rms" else 0
        transform = 2 * hidden + self.sublayer.hidden**2 * element if getattr(self.sublayer, "transform", None) else 0
        return max(norm, transform, self.enter_workspace_bytes(rows))

    def recomputed_operators(self, rows: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples that the backward pass runs again for the recomputed modules."""
        operators = SelectiveRecomputation(self.sublayer, self.modules).operators(rows, self.tp)
        if not self.recomputes_entry:
            return operators
        return self.own.operators(rows, self.tp)[: self.sublayer.operators_before] + operators[self.sublayer.operators_before :]

    def costs_bytes(self, rows: int) -> dict[str, int]:
        """Bytes kept for the backward pass, and peak bytes of temporaries of both passes, by the names of these fields in
        profiles.

        The keys are kept_bytes, forward_workspace_bytes and backward_workspace_bytes. The bytes come in addition to the input
        and output on the rank's own tokens. Temporaries have the hidden states of all tokens twice while they are gathered, and
        in the backward pass also their gradients. rows: samples on the rank.
        """
        whole = self.whole_bytes(rows)
        keeps = self.enters and not self.recomputes_entry
        entered = self.own_bytes(rows) + self.entry_graph_bytes(rows) if keeps else 0
        again = self.own_bytes(rows) + self.entry_graph_bytes(rows) if self.recomputes_entry else 0
        pieces = (self.backward_workspace_bytes(rows), self.enter_backward_workspace_bytes(rows))
        return {
            "kept_bytes": entered + self.graph_bytes(rows),
            "forward_workspace_bytes": 2 * whole + self.forward_workspace_bytes(rows) + again,
            "backward_workspace_bytes": 3 * whole + max(*pieces, self.leave_workspace_bytes(rows)) + again,
        }

    def _norm_bytes(self, rows: int, sublayer: Sublayer) -> int:
        """Bytes kept for the backward pass by the norm before the matrices of a sub-layer. rows: samples on the rank."""
        return sublayer.entry_elements(rows * sublayer.tokens) * sublayer.element_bytes

    def _drawing_bytes(self, rows: int) -> int:
        """Bytes of temporaries while a dropout mask of the rank's own tokens is drawn. rows: samples on the rank."""
        return min(rows * self.own.tokens * self.sublayer.hidden, DRAWN_AT_ONCE) * DRAWING_BYTES
