"""Memory of attention under context parallelism whose ranks exchange heads, computation by computation (see `head_share`).

A rank projects its own tokens to queries, keys and values, and receives those of all tokens for its heads; it computes the
core for these heads, and keeps inputs and results of the core until their gradients are computed. It sends the results back by
token and receives those of all heads for its own tokens, on which the output projection works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.head_share import HeadShare
from trainplan.profiling.models.sublayers.pieces import KeyShare


@dataclass(frozen=True)
class HeadPieces(KeyShare):
    """Memory of queries, keys and values, and of the core, of an attention whose context-parallel ranks exchange heads.

    The core is scores, softmax and weighted values. A rank projects its own tokens to queries, keys and values of all heads;
    an all-to-all then gives it the queries, keys and values of all tokens for its own heads, on which it computes the core; a
    second all-to-all gives the results back by token. sublayer: the attention on one piece of each sample. tp:
    tensor-parallel degree. shared: whether tensor-parallel ranks divide the tokens among themselves outside of the matrices
    (sequence parallelism). modules: names of the modules (such as norms) that are recomputed in the backward pass. All
    methods return bytes on one rank. rows: pieces of samples on a rank, which are as many as the whole samples for which it
    computes its heads.
    """

    @cached_property
    def share(self) -> HeadShare:
        """The division of the attention's heads among the context-parallel ranks that exchange them."""
        return HeadShare(self.sublayer, self.tp, self.sublayer.pieces)

    @cached_property
    def core(self) -> Attention:
        """The attention with one rank's heads alone, on whole samples: its memory is the memory of the core on this rank."""
        sublayer = self.sublayer
        tokens, heads = sublayer.tokens * sublayer.pieces, self.share.query_heads
        return replace(sublayer, tokens=tokens, pieces=1, by_heads=False, heads=heads, kv_heads=self.share.key_heads)

    @property
    def recomputes_projections(self) -> bool:
        """Whether the result of the norm is not kept, so that the backward pass computes norm, queries, keys and values
        again."""
        return not self.shared and "norms" in self.modules

    @property
    def recomputes_core(self) -> bool:
        """Whether the backward pass computes the core (scores, softmax, weighted values) again without the rest of the
        sub-layer, as selective recomputation of attention does.
        """
        return "attention" in self.modules

    @property
    def projected_heads(self) -> int:
        """Number of heads to which a tensor-parallel rank projects its own tokens: heads of queries, keys and values
        together."""
        return (self.sublayer.heads + 2 * self.sublayer.kv_heads) // self.tp

    def own_bytes(self, rows: int) -> int:
        """Bytes of the queries, keys and values, in all heads, of the rank's own tokens.

        rows: pieces of samples on the rank.
        """
        return rows * self.sublayer.tokens * self.projected_heads * self.sublayer.width * self.sublayer.element_bytes

    def whole_bytes(self, rows: int) -> int:
        """Bytes of the queries, keys and values, in the rank's heads, of all tokens. rows: pieces of samples on the rank."""
        return self.share.entering_bytes(rows, self.sublayer.element_bytes)

    def mixed_bytes(self, rows: int) -> int:
        """Bytes of the core's results, in the rank's heads, of all tokens. rows: pieces of samples on the rank."""
        return self.share.leaving_bytes(rows, self.sublayer.element_bytes)

    def results_bytes(self, rows: int) -> int:
        """Bytes of the core's results, in all heads, of the rank's own tokens. rows: pieces of samples on the rank."""
        return (
            rows * self.sublayer.tokens * (self.sublayer.heads // self.tp) * self.sublayer.width * self.sublayer.element_bytes
        )

    def graph_bytes(self, rows: int) -> int:
        """Bytes that the projections of the rank's own tokens keep for the backward pass, in addition to their input and
        result: the norm before the projections, and queries and keys before their own norms.

        rows: pieces of samples on the rank.
        """
        sublayer, n = self.sublayer, rows * self.sublayer.tokens
        queries, keys = (count // self.tp * sublayer.width for count in (sublayer.heads, sublayer.kv_heads))
        normed = n * (queries + 2 * keys + (queries + keys) // sublayer.width) if sublayer.normed_heads else 0
        return (normed + (0 if self.shared else sublayer.entry_elements(n))) * sublayer.element_bytes

    def core_graph_bytes(self, rows: int) -> int:
        """Bytes that the core keeps for the backward pass, in addition to its input and its result.

        rows: pieces of samples on the rank.
        """
        return self.core.core_bytes(rows, 1)

    def core_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the core's forward pass, in addition to the input, the result, and the bytes kept for
        the backward pass.

        rows: pieces of samples on the rank.
        """
        core = self.core
        blocks = core.attention_dropout or core.blockwise
        return core.block_bytes(rows, 1) if blocks else 0

    def core_backward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the core's backward pass, in addition to the input, the bytes kept for the backward
        pass, and gradients.

        They are separate gradients of queries, keys and values, until they are concatenated, or a block of probabilities.
        rows: pieces of samples on the rank.
        """
        core, separate = self.core, self.whole_bytes(rows)
        blocks = core.attention_dropout or core.blockwise
        return max(separate, core.block_bytes(rows, 1, backward=True) if blocks else 0)

    def forward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the projections' forward pass, in addition to the input, the result, and the bytes kept
        for the backward pass.

        They are separate queries, keys and values, until they are concatenated; 0 if one matrix multiplication gives all
        three. rows: pieces of samples on the rank.
        """
        return 0 if self.sublayer.packed else self.own_bytes(rows)

    def backward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the projections' backward pass, in addition to the input, the bytes kept for the
        backward pass, and gradients.

        They are separate gradients of the projections' results, of the weights and of the input; or the temporaries of a
        norm's gradient. rows: pieces of samples on the rank.
        """
        sublayer, e = self.sublayer, self.sublayer.element_bytes
        n, h, q, kv = (
            rows * sublayer.tokens,
            sublayer.hidden,
            sublayer.heads // self.tp * sublayer.width,
            sublayer.kv_heads // self.tp * sublayer.width,
        )
        weights = 3 * q * h if sublayer.packed else max(q, 2 * kv) * h
        apart = 0 if sublayer.packed else self.own_bytes(rows) // e
        return max(apart + weights + n * h * (1 + (not sublayer.packed)), 3 * n * h) * e
