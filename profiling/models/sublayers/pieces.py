"""Sub-layers of samples that are cut along their tokens (context parallelism, as in Llama Team, 2024, Section 3.3.2).

With p ranks a sample is cut into 2 p parts of equal length; its piece k, of p, is part k and part 2 p - 1 - k. So where queries
meet earlier keys alone, all pieces meet equally many. Everything but the core of attention works on each token by itself.
The core needs all keys and values: each rank makes those of its tokens, and gathers the others'. What was gathered is not kept
for the backward pass, but gathered again; the gradients of keys and values are summed, and scattered back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Sublayer
from trainplan.profiling.models.sublayers.embeddings import TokenEmbedding
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.heads import LanguageHead
from trainplan.profiling.models.sublayers.modules import Selective


def why_not_cut(part: Sublayer, pieces: int) -> str | None:
    """What keeps samples of a sub-layer from being cut into so many pieces, in words; None where they can be."""
    if not isinstance(part, Attention | FeedForward | LanguageHead | TokenEmbedding) or part.carried_tokens:
        return f"a sub-layer of this {part.kind} kind cannot work on a part of a sample"
    if isinstance(part, Attention) and (part.window or part.memory_tokens or part.relative or part.unfused):
        return "its attention has windows, position biases, a second sequence or kernels that are not fused"
    if isinstance(part, Attention) and part.input_dropout:
        return "it drops numbers of its input"
    if part.tokens * part.pieces % (2 * pieces):
        return f"{2 * pieces} does not divide its {part.tokens * part.pieces} tokens"
    return None


def cut(part: Sublayer, pieces: int, by_heads: bool = False) -> Sublayer:
    """The sub-layer of one of so many pieces of each whole sample. by_heads: whether the ranks that have pieces of one sample
    exchange heads (see `head_share`)."""
    made = replace(part, tokens=part.tokens * part.pieces // pieces, pieces=pieces)
    return replace(made, by_heads=by_heads) if isinstance(made, Attention) else made


def halves(piece: int, pieces: int, tokens: int) -> tuple[range, range]:
    """The places in its sample of the tokens of a piece, of which it has so many."""
    half = tokens // 2
    first, second = piece * half, (2 * pieces - 1 - piece) * half
    return range(first, first + half), range(second, second + half)


@dataclass(frozen=True)
class KeyShare:
    """Bytes of the keys and values of an attention whose samples are cut. rows: pieces of samples on a rank. shared: whether
    its `tp` ranks share the tokens. modules: those that are recomputed."""

    part: Attention
    tp: int
    shared: bool = False
    modules: tuple[str, ...] = ()

    @property
    def again(self) -> bool:
        """Whether what comes before the products is not kept, so that keys and values are computed again."""
        return not self.shared and Selective(self.part, self.modules).has("norms")

    def own_bytes(self, rows: int) -> int:
        """Keys and values of the rank's own tokens."""
        return rows * self.part.tokens * 2 * (self.part.kv_heads // self.tp) * self.part.width * self.part.element_bytes

    def whole_bytes(self, rows: int) -> int:
        """Those of all tokens, and their gradients."""
        return self.own_bytes(rows) * self.part.pieces

    def graph_bytes(self, rows: int) -> int:
        """What the graph of the own keys and values keeps besides its input and its result: the norm before the products, and
        products that are normed."""
        n, own = rows * self.part.tokens, self.own_bytes(rows)
        normed = own + own // (2 * self.part.width) if self.part.normed_heads else 0
        return normed + (0 if self.shared else self.part.entry_elements(n) * self.part.element_bytes)

    def forward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive while keys and values are made, beyond input, kept and result: the products before they are
        turned."""
        turned = self.part.rotary or self.part.normed_heads
        return self.own_bytes(rows) * 3 // 2 if turned else 0

    def backward_workspace_bytes(self, rows: int) -> int:
        """Most bytes alive in their backward pass, beyond input, kept and gradients: the gradients of their products, of the
        weights (of a packed matrix all of it) and of the input; or what a norm needs."""
        part, e = self.part, self.part.element_bytes
        weights = (3 * part.heads if part.packed else 2 * part.kv_heads) // self.tp * part.width * part.hidden
        hidden = rows * part.tokens * part.hidden
        return max(self.own_bytes(rows) + (weights + hidden * (not part.packed)) * e, 3 * hidden * e)
