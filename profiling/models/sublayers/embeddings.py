"""The first sub-layer of a model: it turns token ids, patches of an image, or a latent vector into hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import INDEX_BYTES, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class TokenEmbedding(Sublayer):
    """Embedding of token ids: rows of a (vocabulary, hidden) table, plus learned positions and token types if the model has
    them.

    positions, token_types: number of rows of the tables of positions and of token types (0: no such table). padding: the
    token id whose row gets no gradient. scale: factor on the rows of the table of tokens. first_position: row of the table of
    positions for the first token (2 in OPT). normed: whether a norm follows, as in BLOOM.
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
    def unexecuted_feature(self) -> str:
        """Name, for users, of a feature that can be planned but not yet executed, such as a norm after the embedding; empty
        if there is none."""
        return "a norm after the embedding" if self.normed else super().unexecuted_feature

    def parameters(self) -> tuple[Parameter, ...]:
        """The table of tokens, which tensor parallelism splits over the vocabulary, and the parameters of which every rank
        holds a full copy: other tables and a norm."""
        h = self.hidden
        parameters = [Parameter("tokens.weight", (self.vocabulary, h), 0)]
        parameters += [Parameter("positions.weight", (self.positions, h))] * bool(self.positions)
        parameters += [Parameter("types.weight", (self.token_types, h))] * bool(self.token_types)
        return (*parameters, *self._norm_parameters() * self.normed)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks, each a pass over the hidden
        states.

        There is one for a look-up in every table, for scaling, for a norm, and with tp > 1 for the masking of other ranks'
        tokens.
        """
        tables = 1 + (self.positions > 0) + (self.token_types > 0) + (tp > 1) + (self.scale != 1) + self.normed
        return [self._stream(rows * self.tokens * self.hidden, backward=1.0)] * tables

    def input_bytes(self, rows: int) -> int:
        """Bytes of the token ids of `rows` samples."""
        return rows * self.tokens * INDEX_BYTES

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the token
        ids.

        They are ids for the gradients of other tables, an unfused dropout mask, a norm's result, and with tp > 1 the ids within
        the rank's part of the vocabulary with their mask.
        """
        n = rows * self.tokens
        positions = INDEX_BYTES * self.tokens if self.positions else 0
        types = INDEX_BYTES * n if self.token_types else 0
        mask = n * self.hidden if self.unfused and self.dropout else 0
        normed = self.norm_elements(n) * self.element_bytes * self.normed
        return positions + types + mask + normed + ((INDEX_BYTES + 1) * n if tp > 1 else 0)  # local indices and mask

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the result
        of a second look-up before it is added, or the random numbers of a dropout mask."""
        tokens = rows * self.tokens if self.token_types else self.tokens if self.positions else 0
        return max(self._drawing_bytes(rows), tokens * self.hidden * self.element_bytes)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They are the gradient of the table of positions, or the gradient of the table of tokens, together (if tp > 1, or with
        scaling or dropout) with the gradient of the output with its mask applied.
        """
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        positions = self.tokens * h + self.positions * h if self.positions else 0
        masked = n * h if tp > 1 or self._drops or self.scale != 1 else 0
        return max(masked * self.element_bytes + self._drawing_bytes(rows), max(positions, masked + v * h) * self.element_bytes)


@dataclass(frozen=True, kw_only=True)
class InputProjection(Sublayer):
    """Embedding of patches of an image, or of a latent vector, by one linear map; every tensor-parallel rank computes all of
    it.

    groups: number of input vectors per sample; each has `features` numbers and gives tokens / groups tokens. class_token:
    whether a learned token is put before them. positions: whether learned positions are added. normed: whether a norm
    follows.
    """

    kind: ClassVar[Kind] = "embedding"
    features: int
    groups: int
    class_token: bool = False
    positions: bool = False
    normed: bool = False

    @property
    def projected_tokens(self) -> int:
        """Tokens per sample that the linear map gives: all but the class token."""
        return self.tokens - self.class_token

    @property
    def width(self) -> int:
        """Numbers that the linear map gives for one input vector."""
        return self.projected_tokens // self.groups * self.hidden

    def parameters(self) -> tuple[Parameter, ...]:
        """The linear map with its bias, class token, positions, and norm, all replicated."""
        h = self.hidden
        parameters = [Parameter("patches.weight", (self.width, self.features)), Parameter("patches.bias", (self.width,))]
        parameters += [Parameter("class.weight", (1, h))] * self.class_token
        parameters += [Parameter("positions.weight", (self.tokens, h))] * self.positions
        return (*parameters, *self._norm_parameters() * self.normed)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the linear map, and a pass over
        the hidden states for each of class token, positions and norm."""
        n = rows * self.tokens
        extra = [self._stream(n * self.hidden)] * (self.class_token + self.positions + self.normed)
        # No gradient of the input is made, so the backward pass is one product, not two.
        return [Operator(m=rows * self.groups, n=self.width, k=self.features, backward=1.0), *extra]

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the input for `rows` samples: `groups` vectors of `features` numbers a sample."""
        return (rows, self.groups, self.features)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks: the norm's input, mean and
        inverse deviation; 0 without a norm."""
        n = rows * self.tokens
        stats = 2 * n + n * self.hidden if self.normed else 0  # the normed projection, mean and inverse deviation
        return stats * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the result of
        the linear map before class token or positions are added."""
        return rows * self.tokens * self.hidden * self.element_bytes if self.class_token or self.positions else 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They are the gradient of the linear map's weight and, if there is a class token or a norm, the gradient of the map's
        result.
        """
        weight = self.width * self.features
        n = rows * self.tokens
        result = n * self.hidden if self.class_token or self.normed else 0
        return (result + weight) * self.element_bytes
