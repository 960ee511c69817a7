"""Lightning attention: linear attention with decay, computed block by block (Qin et al., 2024), as in MiniMax-01.

Symbols: a heads, w width of a head, q = a w, B tokens of a block. Within a block queries meet keys as in plain attention; all
earlier blocks are in one state of w by w numbers a head, so that work and memory are linear in a sample's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class LightningAttention(Sublayer):
    """A lightning attention as a sub-layer: norm, projection of queries, keys and values with an activation, core, a norm of
    its
    result, an output gate, output projection, residual.

    heads: number of heads. width: size of a head. block: tokens of the blocks in which the core is computed. post_norm: whether
    the residual is the normed input.
    """

    kind: ClassVar[Kind] = "attention"
    heads: int
    width: int
    block: int = 256
    post_norm: bool = False

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values: as many as of queries."""
        return self.heads

    @property
    def unplanned_feature(self) -> str:
        """A text for users: plans of linear attention are not made yet."""
        return "linear attention"

    @property
    def unexecuted_feature(self) -> str:
        """A text for users: linear attention is not executed."""
        return "linear attention"

    def splits_into(self, tp: int) -> bool:
        """Whether every one of `tp` tensor-parallel ranks gets the same number of whole heads."""
        return self.heads % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections of queries, keys and values, output gate, norm of the core's result, output projection and norm."""
        h, q = self.hidden, self.heads * self.width
        inside = [
            Parameter("qkv.weight", (3, q, h), 1),
            Parameter("gate.weight", (q, h), 0),
            Parameter("out.weight", (h, q), 1),
        ]
        return (*inside, Parameter("core_norm.weight", (q,), 0), *self._norm_parameters())

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the projections: the norm's."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, projections, core, its norm
        and gate, output projection, residual."""
        n, h, q = rows * self.tokens, self.hidden, self.heads // tp * self.width
        norms = [self._stream(n * h)] * self.operators_before
        inside = [Operator(m=n, n=3 * q, k=h), self._stream(3 * n * q), *self.core_operators(rows, tp)]
        gated = [self._stream(n * q, 2), Operator(m=n, n=q, k=h), self._stream(n * q, 3)]
        return [*norms, *inside, *gated, Operator(m=n, n=h, k=q), self._stream(n * h, 3, 1.0)]

    def core_operators(self, rows: int, tp: int) -> list[Operator]:
        """The products of the core's forward pass, for `rows` samples on one of `tp` ranks: within each block scores and
        weighted values, and between blocks the state, which queries read and keys with values update."""
        block, width = min(self.block, self.tokens), self.width
        count = rows * (self.heads // tp) * -(-self.tokens // block)
        inside = [Operator(m=block, n=block, k=width, count=count), Operator(m=block, n=width, k=block, count=count)]
        return [*inside, *[Operator(m=block, n=width, k=width, count=count), Operator(m=width, n=width, k=block, count=count)]]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input:
        the norm's result, queries, keys and values before and after their activation, the core's result with its norm, the gate
        and what it gives, and the states of the blocks."""
        n, heads = rows * self.tokens, self.heads // tp
        q = heads * self.width
        states = rows * -(-self.tokens // self.block) * heads * self.width**2
        return (self.entry_elements(n) + n * (6 * q + 4 * q + 1) + states) * self.element_bytes + self.sandwich_bytes(rows)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the gradients
        of queries, keys, values and of their projection's weights."""
        n, q = rows * self.tokens, self.heads // tp * self.width
        return (2 * 3 * n * q + 3 * q * self.hidden) * self.element_bytes
