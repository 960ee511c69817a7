"""Gated delta nets (Yang et al., 2025), as in Qwen3-Next: a state that each token decays, corrects and reads.

Symbols: a heads of values of v numbers, queries and keys of w numbers in fewer heads; Q tokens of a chunk. Its kernels are
those of flash-linear-attention (github.com/fla-org/flash-linear-attention, commit bc3b101, ops/gated_delta_rule/chunk.py),
which transformers and Megatron-Core call, with chunks of 64 tokens. Multiplications of the forward pass, for each chunk and
each head of values:

    K K'                  blocks of 16 on or below the diagonal, 10 of 16: 5/8 Q Q w       (`chunk_fwd.py`)
    inverse               of (1 + K K') by blocks of 16: 16 products of 16^3               (`chunk_fwd.py`)
    corrected keys, values    inverse times keys and values: Q Q w + Q Q v                  (`wy_fast.py`)
    states                corrected keys times state, keys times values: 2 Q w v            (`common/chunk_delta_h.py`)
    output                queries times state, Q K', that times values: Q w v + Q Q w + Q Q v    (`common/chunk_o.py`)

The backward pass computes corrected keys and values and the states again. With their gradients it has 8 products of Q w v
(forward 3), 9 of Q Q w (forward 2 5/8), 5 of Q Q v (forward 2) and 2 of Q^3 for the inverse. The inverse's own products are in
registers; its time is that of the memory that it moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter
from trainplan.profiling.models.sublayers.mixers import WIDE_BYTES, TokenMixer, small_product

BLOCK = 16  # tokens of a block of the inverse
STATES, KEYS, VALUES = 8 / 3, 9 / 2.625, 5 / 2  # products of the backward pass over those of the forward pass, by size


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(TokenMixer):
    """A gated delta net as a sub-layer: norm, input projections, convolution, scan by chunks, gated norm, output projection,
    residual.

    key_heads, value_heads: number of heads of queries and of keys, and of values. key_width, value_width: size of such a head.
    chunk: tokens of a chunk, 64 in flash-linear-attention.
    """

    kind: ClassVar[Kind] = "delta_net"
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    chunk: int = 64

    @property
    def keys(self) -> int:
        """Count of numbers of a token's keys in all heads together."""
        return self.key_heads * self.key_width

    @property
    def inner(self) -> int:
        """Count of numbers of a token's values in all heads together."""
        return self.value_heads * self.value_width

    @property
    def convolved(self) -> int:
        """Count of numbers of a token that the convolution mixes: queries, keys and values."""
        return 2 * self.keys + self.inner

    @property
    def projected(self) -> int:
        """Count of numbers of a token that the input projections give: queries, keys, values, gates of values, and a decay
        and a strength of each head of values."""
        return self.convolved + self.inner + 2 * self.value_heads

    def splits_into(self, tp: int) -> bool:
        """Whether `tp` tensor-parallel ranks can split the sub-layer: `tp` divides the heads of keys and of values."""
        return self.key_heads % tp == 0 and self.value_heads % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections, convolution, decay (A) and step of every head, split over tensor-parallel ranks by heads; the norm of a
        head's result, which all heads share, and the norm before."""
        more = [Parameter("conv.taps", (self.convolved, self.taps), 0)]
        more += [Parameter(name, (self.value_heads,), 0) for name in ("A_log", "step_bias")]
        more.append(Parameter("gated_norm.scale", (self.value_width,)))
        return (*self._products(), *more, *self._norm_parameters())

    def scan_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the scan's forward pass of `rows` samples on one of `tp` tensor-parallel ranks; see the module."""
        q, w, v, count = self.chunk_tokens, self.key_width, self.value_width, self.chunks(rows) * self.value_heads // tp
        n = rows * self.tokens
        return [
            self._stream(n * 2 * self.keys // tp),  # queries and keys are normed
            small_product(q, max(1, q * 5 // 8), w, count, KEYS),
            self._pass(2 * count * q * q, self.element_bytes, 2.0),  # the inverse
            small_product(q, w, q, count, KEYS),
            small_product(q, v, q, count, VALUES),
            small_product(q, v, w, count, STATES),
            small_product(w, v, q, count, STATES),
            small_product(q, v, w, count, STATES),
            small_product(q, q, w, count, KEYS),
            small_product(q, v, q, count, VALUES),
        ]

    def forward_flops(self, rows: int, tp: int) -> int:
        """Floating-point operations of the products of the forward pass of `rows` samples on one of `tp` tensor-parallel
        ranks, with those of the inverse, 16 products of blocks for each 64 tokens."""
        blocks = -(-self.chunk_tokens // BLOCK)
        products = sum((blocks - below) * (below + 1) for below in range(1, blocks))  # of a block so far below the diagonal
        inverse = 2 * self.chunks(rows) * self.value_heads // tp * products * BLOCK**3
        return super().forward_flops(rows, tp) + inverse

    def inside_bytes(self, tokens: float, tp: int, element_bytes: int) -> float:
        """Bytes kept for the backward pass on one of `tp` tensor-parallel ranks: what was projected; queries and keys after
        their norm, values, the inverse of each chunk; decay and strength in fp32; the scan's result and that of its norm.

        tokens: tokens on the rank. element_bytes: bytes of a number of the activations.
        """
        numbers = self.projected + 2 * self.keys + 3 * self.inner + self.value_heads * self.chunk
        wide = 2 * self.key_heads + 3 * self.value_heads  # inverse deviations, decay, strength
        return tokens * (numbers * element_bytes + wide * WIDE_BYTES) / tp

    def scan_workspace_bytes(self, rows: int, tp: int, backward: bool) -> int:
        """Peak bytes of temporaries of convolution and scan of `rows` samples on one of `tp` tensor-parallel ranks.

        Forward: the convolved numbers, corrected keys and values, states of all chunks, and new values. backward: the same,
        with the gradients of queries, keys and corrected keys of every head of values, of values and of states.
        """
        n, e = rows * self.tokens, self.element_bytes
        keys = self.value_heads * self.key_width
        states = self.chunks(rows) * self.value_heads * self.key_width * self.value_width
        forward = n * (self.convolved + keys + 2 * self.inner) + states
        return (forward + (n * (3 * keys + 2 * self.inner) + states) * backward) * e // tp
