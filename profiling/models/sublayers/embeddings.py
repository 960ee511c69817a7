"""The first sub-layer of a chain: token indices, patches of an image, or a latent vector become hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import INDEX_BYTES, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class TokenEmbedding(Sublayer):
    """Rows of a (vocabulary, hidden) table, plus learned positions and token types where the model has them.

    padding: the token whose row no lookup gives a gradient. scale: factor on the tokens' rows. first_position: the row of the
    first token's position (OPT: 2). normed: a norm behind it (BLOOM).
    """

    kind: ClassVar[Kind] = "embedding"
    vocabulary: int
    positions: int = 0
    token_types: int = 0
    padding: int | None = None
    scale: float = 1.0
    first_position: int = 0
    normed: bool = False

    @property
    def unexecuted(self) -> str:
        """As of all sub-layers; or its norm."""
        return "a norm after the embedding" if self.normed else super().unexecuted

    def parameters(self) -> tuple[Parameter, ...]:
        """The table of tokens, split over the vocabulary; tables of positions and token types."""
        h = self.hidden
        parameters = [Parameter("tokens.weight", (self.vocabulary, h), 0)]
        parameters += [Parameter("positions.weight", (self.positions, h))] * bool(self.positions)
        parameters += [Parameter("types.weight", (self.token_types, h))] * bool(self.token_types)
        return (*parameters, *self._norm_parameters() * self.normed)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """A look-up in each table; scaling; with tp > 1 also the masking of other ranks' tokens."""
        tables = 1 + (self.positions > 0) + (self.token_types > 0) + (tp > 1) + (self.scale != 1) + self.normed
        return [self._stream(rows * self.tokens * self.hidden, backward=1.0)] * tables

    def input_bytes(self, rows: int) -> int:
        """Token indices."""
        return rows * self.tokens * INDEX_BYTES

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Indices that the gradients need, dropout's mask, and with tp > 1 local indices with their mask."""
        n = rows * self.tokens
        positions = INDEX_BYTES * self.tokens if self.positions else 0
        types = INDEX_BYTES * n if self.token_types else 0
        mask = n * self.hidden if self.unfused and self.dropout else 0
        normed = self.norm_elements(n) * self.element_bytes * self.normed
        return positions + types + mask + normed + ((INDEX_BYTES + 1) * n if tp > 1 else 0)  # local indices and mask

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """What a second look-up gives before it is added; what a mask is drawn from."""
        tokens = rows * self.tokens if self.token_types else self.tokens if self.positions else 0
        return max(self._drawing_bytes(rows), tokens * self.hidden * self.element_bytes)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The gradient of the positions' table, or that of the tokens' table (with tp > 1, scaling or dropout beside the
        masked gradient), or what dropout's mask of that is drawn from."""
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        positions = self.tokens * h + self.positions * h if self.positions else 0
        masked = n * h if tp > 1 or self._drops or self.scale != 1 else 0
        return max(masked * self.element_bytes + self._drawing_bytes(rows), max(positions, masked + v * h) * self.element_bytes)


@dataclass(frozen=True, kw_only=True)
class InputProjection(Sublayer):
    """Patches of an image, or a latent vector, as tokens: one product with (features, hidden); rank 0 computes it whole.

    groups: input vectors of one sample, each of `features` numbers and giving tokens / groups tokens. class_token: one more
    token before them. positions: learned ones. normed: a norm at the end.
    """

    kind: ClassVar[Kind] = "embedding"
    features: int
    groups: int
    class_token: bool = False
    positions: bool = False
    normed: bool = False

    @property
    def made_tokens(self) -> int:
        """Tokens that the projection makes: all but the class token."""
        return self.tokens - self.class_token

    @property
    def width(self) -> int:
        """Numbers made of one input vector."""
        return self.made_tokens // self.groups * self.hidden

    def parameters(self) -> tuple[Parameter, ...]:
        """The projection, its bias, class token, positions, and norm: none of them is split."""
        h = self.hidden
        parameters = [Parameter("patches.weight", (self.width, self.features)), Parameter("patches.bias", (self.width,))]
        parameters += [Parameter("class.weight", (1, h))] * self.class_token
        parameters += [Parameter("positions.weight", (self.tokens, h))] * self.positions
        return (*parameters, *self._norm_parameters() * self.normed)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """The projection, and a pass for each of class token, positions and norm."""
        n = rows * self.tokens
        extra = [self._stream(n * self.hidden)] * (self.class_token + self.positions + self.normed)
        # No gradient of the input is made, so the backward pass is one product, not two.
        return [Operator(m=rows * self.groups, n=self.width, k=self.features, backward=1.0), *extra]

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """`groups` vectors of `features` numbers a sample."""
        return (rows, self.groups, self.features)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Nothing without a norm: its input, mean and inverse deviation."""
        n = rows * self.tokens
        stats = 2 * n + n * self.hidden if self.normed else 0  # the normed projection, mean and inverse deviation
        return stats * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The projection before class token or positions join it."""
        return rows * self.tokens * self.hidden * self.element_bytes if self.class_token or self.positions else 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The projection's gradient, and that of its result where class token or norm follow."""
        weight = self.width * self.features
        n = rows * self.tokens
        made = n * self.hidden if self.class_token or self.normed else 0
        return (made + weight) * self.element_bytes
