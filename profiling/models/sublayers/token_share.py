"""Sub-layers whose tensor-parallel ranks also share the tokens (sequence parallelism; Korthikanti et al., 2022, Section 4.2.2).

Hidden states lie on the ranks split along the tokens. What comes before a sub-layer's matrices (a norm, a head's transform) and
behind them (dropout, residual) works on a rank's own tokens. In front of the matrices the tokens are all-gathered; behind
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
from trainplan.profiling.models.sublayers.modules import Selective


def why_not_shared(part: Sublayer, tp: int) -> str | None:
    """What keeps `tp` ranks from sharing the tokens of a sub-layer, in words; None where they can."""
    if isinstance(part, Attention) and (part.window or part.memory_tokens or part.relative):
        return "its attention has windows, position biases or a second sequence"
    if not isinstance(part, Attention | FeedForward | LanguageHead | TokenEmbedding) or part.carried_tokens:
        return f"a sub-layer of this {part.kind} kind cannot share its tokens"
    if part.sandwich:
        return "it has a norm after its matrices"
    if part.tokens % tp:
        return f"{tp} does not divide its {part.tokens} tokens"
    return None


@dataclass(frozen=True)
class TokenShare:
    """Bytes of a sub-layer whose `tp` ranks share the tokens, piece by piece. modules: those that are recomputed. rows: samples
    of a rank."""

    part: Sublayer
    tp: int
    modules: tuple[str, ...] = ()

    @cached_property
    def own(self) -> Sublayer:
        """The same sub-layer on the tokens of one rank."""
        return replace(self.part, tokens=self.part.tokens // self.tp)

    @property
    def enters(self) -> bool:
        """Whether something comes before its matrices."""
        return self.part.kind != "embedding"

    @property
    def adds_residual(self) -> bool:
        """Whether a residual joins its output."""
        return isinstance(self.part, Attention | FeedForward)

    @property
    def drops_output(self) -> bool:
        """Whether numbers of its output are dropped."""
        return self.part.kind != "head" and self.part.dropout > 0

    @property
    def leaves(self) -> bool:
        """Whether something comes behind its matrices and their sum."""
        return self.adds_residual or self.drops_output

    @property
    def post_norm(self) -> bool:
        """Whether the residual is what its matrices work on, not its input."""
        return bool(getattr(self.part, "post_norm", False))

    @property
    def draws_before(self) -> bool:
        """Whether numbers are dropped before its matrices."""
        return bool(getattr(self.part, "input_dropout", 0.0))

    @property
    def draws_inside(self) -> bool:
        """Whether numbers are dropped between its matrices."""
        return bool(getattr(self.part, "attention_dropout", 0.0))

    @cached_property
    def enters_again(self) -> bool:
        """Whether what comes before its matrices keeps nothing, and is computed again in the backward pass."""
        return Selective(self.part, self.modules).has("norms")

    @cached_property
    def _matrices(self) -> Selective:
        return Selective(replace(self.part, dropout=0.0), self.modules)

    def whole_bytes(self, rows: int) -> int:
        """Hidden states of all tokens, as they are gathered or reduced."""
        return rows * self.part.tokens * self.part.hidden * self.part.element_bytes

    def own_bytes(self, rows: int) -> int:
        """Hidden states of the rank's tokens."""
        return self.whole_bytes(rows) // self.tp

    def entry_graph_bytes(self, rows: int) -> int:
        """What the graph of the piece before the matrices keeps, besides its input and its result."""
        if isinstance(self.own, LanguageHead):
            return self.own.kept_bytes(rows, self.tp) - self.own.capped_bytes(rows, self.tp) - self.own_bytes(rows)
        return self._norm_bytes(rows, self.own) - self.own_bytes(rows)

    def graph_bytes(self, rows: int) -> int:
        """What the graph of the matrices keeps, besides what was gathered for them."""
        if isinstance(self.part, Attention) and self.part.by_heads:
            return 0
        kept = self.part.kept_bytes(rows, self.tp) - self._matrices.dropped_inside(rows, self.tp)
        if isinstance(self.part, LanguageHead):
            return self.part.capped_bytes(rows, self.tp)
        return kept - self._norm_bytes(rows, self.part) if self.enters else kept

    def enter_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in the piece before the matrices, beyond its input, kept and result."""
        return self._drawing_bytes(rows) if self.draws_before else 0

    def forward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in the matrices' forward pass, beyond their input, kept and partial sum."""
        return self._matrices.inside_workspace_bytes(rows, self.tp)

    def backward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in the matrices' backward pass, beyond input, kept and gradients."""
        again = self.part.output_bytes(rows, self.tp) if self._matrices.has("loss") else 0
        return again + self._matrices.inside_backward_bytes(rows, self.tp)

    def leave_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive behind the matrices, beyond the sum and the residual; and when its gradient is made."""
        return self._drawing_bytes(rows) if self.drops_output else 0

    def enter_backward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in the backward pass of the piece before the matrices, beyond input, kept and gradients."""
        hidden, element = self.own_bytes(rows), self.part.element_bytes
        norm = hidden if self.part.norm == "rms" else 0
        transform = 2 * hidden + self.part.hidden**2 * element if getattr(self.part, "transform", None) else 0
        return max(norm, transform, self.enter_workspace_bytes(rows))

    def operators_again(self, rows: int) -> list[Operator]:
        """What is computed again in the backward pass, kernel by kernel."""
        operators = Selective(self.part, self.modules).operators(rows, self.tp)
        if not self.enters_again:
            return operators
        return self.own.operators(rows, self.tp)[: self.part.operators_before] + operators[self.part.operators_before :]

    def costs_bytes(self, rows: int) -> dict[str, int]:
        """What a rank keeps besides its input, and the most that it needs for a while beyond input, kept and output on its own
        tokens: while tokens are gathered, twice those of all, and of gradients once more."""
        whole = self.whole_bytes(rows)
        keeps = self.enters and not self.enters_again
        entered = self.own_bytes(rows) + self.entry_graph_bytes(rows) if keeps else 0
        again = self.own_bytes(rows) + self.entry_graph_bytes(rows) if self.enters_again else 0
        pieces = (self.backward_workspace_bytes(rows), self.enter_backward_workspace_bytes(rows))
        return {
            "kept_bytes": entered + self.graph_bytes(rows),
            "forward_workspace_bytes": 2 * whole + self.forward_workspace_bytes(rows) + again,
            "backward_workspace_bytes": 3 * whole + max(*pieces, self.leave_workspace_bytes(rows)) + again,
        }

    def _norm_bytes(self, rows: int, part: Sublayer) -> int:
        return part.entry_elements(rows * part.tokens) * part.element_bytes

    def _drawing_bytes(self, rows: int) -> int:
        return min(rows * self.own.tokens * self.part.hidden, DRAWN_AT_ONCE) * DRAWING_BYTES
