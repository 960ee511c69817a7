"""Which heads each rank has when context-parallel ranks exchange heads (DeepSpeed-Ulysses, Jacobs et al., 2023).

Each of c context-parallel ranks computes queries, keys and values for its part of a sample's tokens. An all-to-all then gives
it those of all tokens for 1 / c of the heads, on which attention's core works as on a whole sample; a second all-to-all gives
the results back by token. With fewer heads of keys than ranks, every rank has a copy of one head of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Sublayer
from trainplan.profiling.models.sublayers.parallel import attention_of


@dataclass(frozen=True)
class HeadShare:
    """Division of the heads of an attention among `ranks` context-parallel ranks that exchange heads (DeepSpeed-Ulysses).

    Each rank computes queries, keys and values for its part of a sample's tokens. A first all-to-all gives it the queries, keys
    and values of all tokens for its own heads; a second one gives the attention's results back by token. All counts and indices
    are of the heads that one of `tp` tensor-parallel ranks has. sublayer: the attention.
    """

    sublayer: Attention
    tp: int
    ranks: int

    @property
    def why_not(self) -> str | None:
        """The reason, for users, why this number of context-parallel ranks cannot share the heads; None if they can."""
        queries, keys = self.sublayer.heads // self.tp, max(1, self.sublayer.kv_heads // self.tp)
        among = f" on each of {self.tp} tensor-parallel ranks" if self.tp > 1 else ""
        if queries % self.ranks:
            return f"{self.ranks} does not divide the {queries} heads of attention{among}"
        if keys % self.ranks and self.ranks % keys:
            return f"{self.ranks} is neither a divisor nor a multiple of the {keys} heads of keys{among}"
        return None

    @property
    def query_heads(self) -> int:
        """Number of heads of queries that one context-parallel rank computes."""
        return self.sublayer.heads // self.tp // self.ranks

    @property
    def key_heads(self) -> int:
        """Number of heads of keys (and as many of values) that one context-parallel rank computes with, at least 1."""
        return max(1, self.sublayer.kv_heads // self.tp // self.ranks)

    @property
    def copied_key_heads(self) -> int:
        """Number of heads of keys, over all context-parallel ranks, that are copies of a head that another rank has, because
        there are fewer heads of keys than ranks.
        """
        return self.key_heads * self.ranks - max(1, self.sublayer.kv_heads // self.tp)

    def query_heads_of(self, rank: int) -> list[int]:
        """Indices of the heads of queries that the context-parallel rank with index `rank` computes."""
        return list(range(rank * self.query_heads, (rank + 1) * self.query_heads))

    def entering_heads_of(self, rank: int) -> list[int]:
        """Indices of the heads of queries, keys and values that context-parallel rank `rank` gets in the first all-to-all.

        Indices count through all heads of queries, then all heads of keys, then all heads of values. For example, with 4 heads
        of queries, 2 of keys and 2 ranks, rank 1 gets [2, 3, 5, 7].
        """
        heads, keys = self.sublayer.heads // self.tp, self.sublayer.kv_heads // self.tp
        first = rank * keys // self.ranks
        own = range(first, first + self.key_heads)
        return [*self.query_heads_of(rank), *(heads + head for head in own), *(heads + keys + head for head in own)]

    def entering_bytes(self, rows: int, element_bytes: int) -> int:
        """Bytes that one rank has after the first all-to-all: queries, keys and values of all tokens for its own heads.

        rows: whole samples. element_bytes: bytes of one number.
        """
        sublayer = self.sublayer
        of_keys = (sublayer.memory_tokens or sublayer.tokens * sublayer.pieces) * 2 * self.key_heads
        return rows * (sublayer.tokens * sublayer.pieces * self.query_heads + of_keys) * sublayer.width * element_bytes

    def leaving_bytes(self, rows: int, element_bytes: int) -> int:
        """Bytes that one rank sends in the second all-to-all: the attention's results of all tokens for its own heads.

        rows: whole samples. element_bytes: bytes of one number.
        """
        return rows * self.sublayer.tokens * self.sublayer.pieces * self.query_heads * self.sublayer.width * element_bytes


def why_no_head_share(sublayer: Sublayer, tp: int, ranks: int) -> str | None:
    """The reason, for users, why `ranks` context-parallel ranks cannot exchange a sub-layer's heads; None if they can.

    None, too, for a sub-layer that has no attention. tp: tensor-parallel degree; only the heads of one tensor-parallel rank are
    exchanged.
    """
    attention = attention_of(sublayer)
    return None if attention is None else HeadShare(attention, tp, ranks).why_not
