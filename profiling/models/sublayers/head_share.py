"""Attention whose context-parallel ranks exchange heads (DeepSpeed-Ulysses, Jacobs et al., 2023).

Each of c ranks has the queries, keys and values of its part of a sample's tokens. An all-to-all gives it those of all tokens
for its c-th of the heads, on which attention's core works as on a whole sample; another one gives results back. Where there are
fewer heads of keys than ranks, ranks have copies: one head each.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Sublayer
from trainplan.profiling.models.sublayers.parallel import attention_of


@dataclass(frozen=True)
class HeadShare:
    """What one of `ranks` context-parallel ranks has of an attention's heads, of those that one of `tp` tensor-parallel ranks
    has."""

    part: Attention
    tp: int
    ranks: int

    @property
    def why_not(self) -> str | None:
        """What keeps the ranks from sharing the heads, in words; None where they can."""
        queries, keys = self.part.heads // self.tp, max(1, self.part.kv_heads // self.tp)
        among = f" on each of {self.tp} tensor-parallel ranks" if self.tp > 1 else ""
        if queries % self.ranks:
            return f"{self.ranks} does not divide the {queries} heads of attention{among}"
        if keys % self.ranks and self.ranks % keys:
            return f"{self.ranks} is neither a divisor nor a multiple of the {keys} heads of keys{among}"
        return None

    @property
    def queries(self) -> int:
        """Heads of queries on one rank."""
        return self.part.heads // self.tp // self.ranks

    @property
    def keys(self) -> int:
        """Heads of keys on one rank."""
        return max(1, self.part.kv_heads // self.tp // self.ranks)

    @property
    def copies(self) -> int:
        """Heads of keys of all ranks that are copies of others'."""
        return self.keys * self.ranks - max(1, self.part.kv_heads // self.tp)

    def queries_of(self, rank: int) -> list[int]:
        """The heads of queries of one of the ranks, among those of all."""
        return list(range(rank * self.queries, (rank + 1) * self.queries))

    def entering_of(self, rank: int) -> list[int]:
        """The heads of queries, keys and values of one of the ranks, among those of all, which come in this order."""
        heads, keys = self.part.heads // self.tp, self.part.kv_heads // self.tp
        first = rank * keys // self.ranks
        own = range(first, first + self.keys)
        return [*self.queries_of(rank), *(heads + head for head in own), *(heads + keys + head for head in own)]

    def entering_bytes(self, rows: int, element_bytes: int) -> int:
        """Queries, keys and values of all tokens of so many samples, for one rank's heads."""
        part = self.part
        of_keys = (part.memory_tokens or part.tokens * part.pieces) * 2 * self.keys
        return rows * (part.tokens * part.pieces * self.queries + of_keys) * part.width * element_bytes

    def leaving_bytes(self, rows: int, element_bytes: int) -> int:
        """The core's results of all tokens of so many samples, for one rank's heads."""
        return rows * self.part.tokens * self.part.pieces * self.queries * self.part.width * element_bytes


def why_no_head_share(part: Sublayer, tp: int, ranks: int) -> str | None:
    """What keeps context-parallel ranks from sharing the heads of a sub-layer, in words; None where they can."""
    attention = attention_of(part)
    return None if attention is None else HeadShare(attention, tp, ranks).why_not
