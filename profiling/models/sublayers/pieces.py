"""Context parallelism: sub-layers on samples that are cut along their tokens (as in Llama Team, 2024, Section 3.3.2).

For p ranks a sample is cut into 2 p parts of equal length; piece k of p consists of the parts k and 2 p - 1 - k. So under a
causal mask the queries of all pieces see equally many keys. Everything but the core of attention works on each token by itself.
The core needs the keys and values of all tokens: each rank computes those of its own tokens, and all-gathers the others. What
was gathered is not kept for the backward pass, but gathered again; gradients of keys and values are reduce-scattered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Sublayer
from trainplan.profiling.models.sublayers.embeddings import TokenEmbedding
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.heads import LanguageHead
from trainplan.profiling.models.sublayers.modules import SelectiveRecomputation


def why_not_cut(sublayer: Sublayer, pieces: int) -> str | None:
    """The reason, for users, why context parallelism cannot cut the samples of a sub-layer into `pieces` pieces; None if it
    can.
    """
    if not isinstance(sublayer, Attention | FeedForward | LanguageHead | TokenEmbedding) or sublayer.carried_tokens:
        return f"a sub-layer of this {sublayer.kind} kind cannot work on a part of a sample"
    if isinstance(sublayer, Attention) and (sublayer.window or sublayer.memory_tokens or sublayer.relative or sublayer.unfused):
        return "its attention has windows, position biases, a second sequence or kernels that are not fused"
    if isinstance(sublayer, Attention) and sublayer.input_dropout:
        return "it drops numbers of its input"
    if sublayer.tokens * sublayer.pieces % (2 * pieces):
        return f"{2 * pieces} does not divide its {sublayer.tokens * sublayer.pieces} tokens"
    return None


def cut(sublayer: Sublayer, pieces: int, by_heads: bool = False) -> Sublayer:
    """A copy of a sub-layer that works on one of `pieces` equal pieces of each sample, as under context parallelism.

    by_heads: whether the ranks that have the pieces of a sample exchange heads of attention (as in Ulysses), and not keys and
    values.
    """
    on_piece = replace(sublayer, tokens=sublayer.tokens * sublayer.pieces // pieces, pieces=pieces)
    return replace(on_piece, by_heads=by_heads) if isinstance(on_piece, Attention) else on_piece


def halves(piece: int, pieces: int, tokens: int) -> tuple[range, range]:
    """The two ranges of token indices in a whole sample that one piece of it has under context parallelism.

    A sample is cut into 2 x `pieces` equal parts; piece k has part k and part 2 x pieces - 1 - k, so that under a causal mask
    all pieces have equal work. piece: index of the piece. tokens: the number of tokens of a piece. For example, piece 0 of 2
    with 4 tokens is (range(0, 2), range(6, 8)).
    """
    half = tokens // 2
    first, second = piece * half, (2 * pieces - 1 - piece) * half
    return range(first, first + half), range(second, second + half)


@dataclass(frozen=True)
class KeyShare:
    """Memory of the keys and values that context-parallel ranks exchange in an attention: each rank computes keys and values
    of its own tokens and all-gathers the keys and values of other ranks.

    sublayer: the attention on one piece of each sample, on one of `tp` tensor-parallel ranks. shared: whether these ranks
    divide the tokens among themselves outside of the matrix multiplications (sequence parallelism). modules: names of the
    modules (such as norms) that are recomputed in the backward pass. All methods return bytes on one rank. rows: number of
    pieces of samples on the rank.
    """

    sublayer: Attention
    tp: int
    shared: bool = False
    modules: tuple[str, ...] = ()

    @property
    def recomputes_projections(self) -> bool:
        """Whether the result of the norm is not kept, so that the backward pass computes norm, keys and values of its own
        tokens again."""
        return not self.shared and SelectiveRecomputation(self.sublayer, self.modules).has("norms")

    def own_bytes(self, rows: int) -> int:
        """Bytes of the keys and values of the rank's own tokens. rows: pieces of samples on the rank."""
        return (
            rows
            * self.sublayer.tokens
            * 2
            * (self.sublayer.kv_heads // self.tp)
            * self.sublayer.width
            * self.sublayer.element_bytes
        )

    def whole_bytes(self, rows: int) -> int:
        """Bytes of the keys and values of all tokens of the samples, which are also the bytes of their gradients.

        rows: pieces of samples on the rank.
        """
        return self.own_bytes(rows) * self.sublayer.pieces

    def graph_bytes(self, rows: int) -> int:
        """Bytes that the projections of the rank's own tokens keep for the backward pass, in addition to input and result.

        They are the norm before the projections, and keys before their own norm. rows: pieces of samples on the rank.
        """
        n, own = rows * self.sublayer.tokens, self.own_bytes(rows)
        normed = own + own // (2 * self.sublayer.width) if self.sublayer.normed_heads else 0
        return normed + (0 if self.shared else self.sublayer.entry_elements(n) * self.sublayer.element_bytes)

    def forward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the projections' forward pass, in addition to the input, the result, and the bytes kept
        for the backward pass.

        They are keys and values before rotation and norm; 0 without both. rows: pieces of samples on the rank.
        """
        turned = self.sublayer.rotary or self.sublayer.normed_heads
        return self.own_bytes(rows) * 3 // 2 if turned else 0

    def backward_workspace_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries of the projections' backward pass, in addition to the input, the bytes kept for the
        backward pass, and gradients.

        They are gradients of the projections' results, of the weights (of the whole matrix if queries, keys and values have
        one) and of the input; or the temporaries of a norm's gradient. rows: pieces of samples on the rank.
        """
        sublayer, e = self.sublayer, self.sublayer.element_bytes
        weights = (
            (3 * sublayer.heads if sublayer.packed else 2 * sublayer.kv_heads) // self.tp * sublayer.width * sublayer.hidden
        )
        hidden = rows * sublayer.tokens * sublayer.hidden
        return max(self.own_bytes(rows) + (weights + hidden * (not sublayer.packed)) * e, 3 * hidden * e)
