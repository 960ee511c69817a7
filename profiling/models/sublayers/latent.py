"""Latent attention (multi-head latent attention, DeepSeek-AI, 2024): keys and values, and mostly queries, are computed from
small latents, which are all that a cache holds.

Symbols: a heads, q and c sizes of the latents of queries and of keys and values, d_n and d_r parts of a head of queries and
keys without and with rotary positions (the keys' d_r are shared by all heads), d_v size of a head of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.attention import RotaryScaling
from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True)
class Indexer:
    """Choice of the keys that sparse attention sees (DeepSeek-V3.2), by scores of small heads of its own.

    heads, width: number and size of the indexer's heads of queries; its one head of keys has the same size. keys: largest
    number of keys that a query of the attention sees. borrowed: whether the attention has no indexer of its own, but sees the
    keys that the last one before it chose (GLM 5).
    """

    heads: int
    width: int
    keys: int
    borrowed: bool = False


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Sublayer):
    """A causal latent attention as a sub-layer: norm, projections to latents, their norms, projections to heads, core (scores,
    softmax, weighted values), output projection, residual.

    heads: number of heads. query_latent: size of the latent of queries (0: queries are projected from the hidden states).
    latent: size of the latent of keys and values. plain, turned: sizes of the parts of a head of queries and keys without and
    with rotary positions. value_width: size of a head of values. bias: whether the projections to the latents, and the output
    projection, have biases. rotary: base of rotary positions (0: none), stretched by `scaling`, in pairs of adjacent numbers if
    `interleaved`. scale: factor on scores (0: 1 / sqrt of a head's size). attention_dropout: probability that an attention
    probability is dropped. indexer: the choice of keys of sparse attention; None for attention to all earlier keys.
    """

    kind: ClassVar[Kind] = "attention"
    heads: int
    latent: int
    plain: int
    turned: int
    value_width: int
    query_latent: int = 0
    bias: bool = False
    rotary: float = 0.0
    scaling: RotaryScaling | None = None
    interleaved: bool = False
    scale: float = 0.0
    attention_dropout: float = 0.0
    indexer: Indexer | None = None

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values: as many as of queries."""
        return self.heads

    @property
    def width(self) -> int:
        """Size of a head of queries and keys: the part without and the part with rotary positions."""
        return self.plain + self.turned

    @property
    def unplanned_feature(self) -> str:
        """A text for users: plans of latent attention are not made yet."""
        return "latent attention"

    @property
    def unexecuted_feature(self) -> str:
        """A text for users: latent attention is not executed."""
        return "latent attention"

    @property
    def keys(self) -> int:
        """Number of keys of a sample, masked ones included."""
        return self.tokens * self.pieces

    @property
    def mean_keys(self) -> int:
        """Mean number of keys that a query sees: about half of all, or as many as the indexer chooses at most."""
        most = min(self.keys, self.indexer.keys) if self.indexer else self.keys
        return most - most * most // (2 * self.keys)

    def splits_into(self, tp: int) -> bool:
        """Whether every one of `tp` tensor-parallel ranks gets the same number of whole heads."""
        return self.heads % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections to the latents (whole on every tensor-parallel rank) with their norms, projections from them to heads,
        output projection, indexer and norm."""
        h, a, q, c = self.hidden, self.heads, self.query_latent, self.latent
        parameters = []
        if q:
            parameters += [Parameter("q_down.weight", (q, h)), *[Parameter("q_down.bias", (q,))] * self.bias]
            parameters += [Parameter("q_norm.weight", (q,)), Parameter("q_up.weight", (a * self.width, q), 0)]
        else:
            parameters.append(Parameter("q.weight", (a * self.width, h), 0))
        both = c + self.turned
        parameters += [Parameter("kv_down.weight", (both, h)), *[Parameter("kv_down.bias", (both,))] * self.bias]
        parameters += [
            Parameter("kv_norm.weight", (c,)),
            Parameter("kv_up.weight", (a * (self.plain + self.value_width), c), 0),
        ]
        parameters += [Parameter("out.weight", (h, a * self.value_width), 1), *[Parameter("out.bias", (h,))] * self.bias]
        if self.indexer is not None and not self.indexer.borrowed:
            heads, width = self.indexer.heads, self.indexer.width
            parameters += [Parameter("index.q.weight", (heads * width, q or h)), Parameter("index.k.weight", (width, h))]
            parameters += [Parameter("index.k_norm.weight", (width,)), Parameter("index.k_norm.bias", (width,))]
            parameters.append(Parameter("index.heads.weight", (heads, h)))
        return (*parameters, *self._norm_parameters())

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the projections: the norm's."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, projections, rotation,
        indexer, core, output projection, residual."""
        n, h, heads = rows * self.tokens, self.hidden, self.heads // tp
        norms = [self._stream(n * h)] * self.operators_before
        turned = [self._stream(n * heads * 2 * self.width, 3)]  # rotation, and both parts of a head written side by side
        core, out = self.core_operators(rows, tp), Operator(m=n, n=h, k=heads * self.value_width)
        inside = [*self.down_operators(rows), *self.up_operators(rows, tp), *turned, *self.index_operators(rows), *core]
        return [*norms, *inside, out, *[self._stream(n * h)] * (2 * self.sandwich), self._stream(n * h, 3, 1.0)]

    def down_operators(self, rows: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples that compute the latents and their norms; every tensor-parallel rank
        runs all of them."""
        n, h, q, c = rows * self.tokens, self.hidden, self.query_latent, self.latent
        queries = [Operator(m=n, n=q, k=h), self._stream(n * q)] if q else []
        return [*queries, Operator(m=n, n=c + self.turned, k=h), self._stream(n * c)]

    def up_operators(self, rows: int, tp: int) -> list[Operator]:
        """The products of the forward pass of `rows` samples on one of `tp` ranks that compute queries, keys and values."""
        n, heads = rows * self.tokens, self.heads // tp
        queries = Operator(m=n, n=heads * self.width, k=self.query_latent or self.hidden)
        return [queries, Operator(m=n, n=heads * (self.plain + self.value_width), k=self.latent)]

    def index_operators(self, rows: int) -> list[Operator]:
        """Kernels of the indexer's forward pass for `rows` samples, which has no backward pass; empty without one of its own.

        It scores all earlier keys, also those that it does not choose.
        """
        if self.indexer is None or self.indexer.borrowed:
            return []
        n, h, heads, width = rows * self.tokens, self.hidden, self.indexer.heads, self.indexer.width
        seen = max(1, self.keys // 2)
        queries = Operator(m=n, n=heads * width, k=self.query_latent or h, backward=0.0)
        own = [Operator(m=n, n=width, k=h, backward=0.0), Operator(m=n, n=heads, k=h, backward=0.0)]
        scores = Operator(m=self.tokens, n=seen, k=width, count=rows * heads, backward=0.0)
        return [queries, *own, scores, self._stream(n * seen, 2, 0.0)]

    def core_operators(self, rows: int, tp: int) -> list[Operator]:
        """The products of the core's forward pass, scores and weighted values, for `rows` samples on one of `tp` ranks."""
        queries, keys, count = self.tokens, max(1, self.mean_keys), rows * (self.heads // tp)
        scores = Operator(m=queries, n=keys, k=self.width, count=count, backward=2.5, core="scores")
        return [scores, Operator(m=queries, n=self.value_width, k=keys, count=count, backward=2.5, core="values")]

    def latent_elements(self) -> int:
        """Count of numbers of one token's latents, before and after their norms, and of the keys' rotated part, all kept for
        the backward pass."""
        statistics = 1 + (self.query_latent > 0)
        return 2 * self.query_latent + 2 * self.latent + self.turned + statistics

    def head_elements(self, tp: int = 1) -> int:
        """Count of numbers of one token's queries, keys and values in the heads of one of `tp` ranks, which recomputation of
        the projections from the latents does not keep."""
        return self.heads // tp * (2 * self.width + self.value_width)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input:
        the norm's result, latents, queries, keys, values, and the core's result with one number per query and head."""
        n, heads = rows * self.tokens, self.heads // tp
        core = n * heads * (self.value_width + 1)
        elements = self.entry_elements(n) + n * (self.latent_elements() + self.head_elements(tp)) + core
        return elements * self.element_bytes + self.sandwich_bytes(rows)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the gradients
        of queries, keys, values and of the core's result, and that of the output projection's weights."""
        n, heads = rows * self.tokens, self.heads // tp
        inner = n * (self.head_elements(tp) + heads * self.value_width)
        return (inner + self.hidden * heads * self.value_width) * self.element_bytes
