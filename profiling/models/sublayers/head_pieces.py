"""Bytes of attention on pieces of samples whose ranks exchange heads, computation by computation (see `head_share`).

A rank makes queries, keys and values of its tokens, gets those of all tokens for its heads, and has the core's results of
these, until their gradients are there. It sends results back, on which the output projection works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.head_share import HeadShare
from trainplan.profiling.models.sublayers.pieces import KeyShare


@dataclass(frozen=True)
class HeadPieces(KeyShare):
    """As `KeyShare`, of queries, too. rows: pieces of samples on a rank, as many as whole samples of its heads."""

    @cached_property
    def share(self) -> HeadShare:
        """The heads of the rank."""
        return HeadShare(self.part, self.tp, self.part.pieces)

    @cached_property
    def core(self) -> Attention:
        """An attention of the rank's heads alone, of whole samples."""
        part = self.part
        tokens, heads = part.tokens * part.pieces, self.share.queries
        return replace(part, tokens=tokens, pieces=1, by_heads=False, heads=heads, kv_heads=self.share.keys)

    @property
    def again(self) -> bool:
        """Whether what comes before the products is not kept, so that queries, keys and values are computed again."""
        return not self.shared and "norms" in self.modules

    @property
    def core_again(self) -> bool:
        """Whether the core is computed again by itself."""
        return "attention" in self.modules

    @property
    def heads(self) -> int:
        """Those of queries, keys and values of the rank's own tokens."""
        return (self.part.heads + 2 * self.part.kv_heads) // self.tp

    def own_bytes(self, rows: int) -> int:
        """Queries, keys and values of the rank's own tokens."""
        return rows * self.part.tokens * self.heads * self.part.width * self.part.element_bytes

    def whole_bytes(self, rows: int) -> int:
        """Those of all tokens, for the rank's heads."""
        return self.share.entering_bytes(rows, self.part.element_bytes)

    def mixed_bytes(self, rows: int) -> int:
        """The core's results of all tokens, for the rank's heads."""
        return self.share.leaving_bytes(rows, self.part.element_bytes)

    def results_bytes(self, rows: int) -> int:
        """Those of all heads, of the rank's own tokens."""
        return rows * self.part.tokens * (self.part.heads // self.tp) * self.part.width * self.part.element_bytes

    def graph_bytes(self, rows: int) -> int:
        """What the graph of the own queries, keys and values keeps besides its input and its result: the norm before the
        products, and products that are normed, before their norm."""
        part, n = self.part, rows * self.part.tokens
        queries, keys = (count // self.tp * part.width for count in (part.heads, part.kv_heads))
        normed = n * (queries + 2 * keys + (queries + keys) // part.width) if part.normed_heads else 0
        return (normed + (0 if self.shared else part.entry_elements(n))) * part.element_bytes

    def core_graph_bytes(self, rows: int) -> int:
        """What the graph of the core keeps besides its input and its result."""
        return self.core.core_bytes(rows, 1)

    def core_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in the core's forward pass, beyond input, kept and result."""
        core = self.core
        blocks = core.attention_dropout or core.blockwise
        return core.block_bytes(rows, 1) if blocks else 0

    def core_backward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in its backward pass, beyond input, kept and gradients: those of queries, keys and values by
        themselves, until they are put together; before that a block of probabilities beside them."""
        core, made = self.core, self.whole_bytes(rows)
        blocks = core.attention_dropout or core.blockwise
        return max(made, core.block_bytes(rows, 1, backward=True) if blocks else 0)

    def forward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive while queries, keys and values are made, beyond input, kept and result: the products before they are
        put together."""
        return 0 if self.part.packed else self.own_bytes(rows)

    def backward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in their backward pass, beyond input, kept and gradients: the gradients of their products, of the
        weights and of the input; or what a norm needs."""
        part, e = self.part, self.part.element_bytes
        n, h, q, kv = rows * part.tokens, part.hidden, part.heads // self.tp * part.width, part.kv_heads // self.tp * part.width
        weights = 3 * q * h if part.packed else max(q, 2 * kv) * h
        apart = 0 if part.packed else self.own_bytes(rows) // e
        return max(apart + weights + n * h * (1 + (not part.packed)), 3 * n * h) * e
