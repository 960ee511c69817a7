"""Attention sub-layers: self-attention, cross-attention to an encoder's output, and attention within windows of an image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trainplan.profiling.models.sublayers.base import (
    DRAWING_BYTES,
    DRAWN_AT_ONCE,
    INDEX_BYTES,
    Core,
    Kind,
    Operator,
    Parameter,
    Sublayer,
)

ROW_BYTES = 12  # of the words from which one row of a dropout mask is drawn


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary position embedding is stretched to sequences longer than the `positions` tokens that a model was first
    trained on. The embedding rotates pairs of numbers of a head, each pair at a rate of its own.

    kind: the published method; `models.rotary` has its formula. factor: the largest factor by which rates of rotation are
    reduced. low, high: for llama3 and yarn, the numbers of turns within the original positions up to which a pair's rate is
    reduced by the whole factor, and from which on it is not reduced. amplitude: factor on the rotated numbers. whole_pairs:
    whether yarn rounds the pairs that belong to low and high to whole indices. factors: for longrope, the factor of each
    pair.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    positions: int = 0
    low: float = 0.0
    high: float = 0.0
    amplitude: float = 1.0
    whole_pairs: bool = True
    factors: tuple[float, ...] = ()


def attention_block(rows: int, heads: int, queries: int, keys: int) -> tuple[int, int, int]:
    """Size of one block when attention is computed block by block, as a number of rows, heads and queries.

    A block has the probabilities of these queries for all `keys`: at most DRAWN_AT_ONCE numbers, unless one query has more.
    rows: samples on the rank. heads: heads on the rank. queries: tokens per sample that have queries. keys: keys per sample.
    """
    if (head := queries * keys) * heads <= DRAWN_AT_ONCE:
        return min(rows, DRAWN_AT_ONCE // (head * heads)), heads, queries
    return 1, max(1, min(heads, DRAWN_AT_ONCE // head)), min(queries, max(1, DRAWN_AT_ONCE // keys))


@dataclass(frozen=True, kw_only=True)
class Attention(Sublayer):
    """An attention sub-layer: norm, projections, core (scores, softmax and weighted values), output projection, residual.

    heads, kv_heads: number of heads of queries, and of keys and values. width: size of a head. bias, out_bias: whether the
    projections of queries, keys and values have a bias, and whether the output projection has one. scale: factor on scores (0:
    1 / sqrt(width)). causal: whether a query sees no later keys. sliding: number of latest keys that a query sees, including
    its own (0: all). softcap: the bound c of soft-capping, by which a score becomes c tanh(score / c) (0: none). alibi: minus
    the logarithm to base 2 of the last head's ALiBi slope (Press et al., 2022; 0: no slopes). attention_dropout: probability
    that an attention probability is dropped. input_dropout: probability that a number of the normed input is dropped, as after
    BERT's embedding; sub-layers that differ only in it count as equal. post_norm: whether the residual is the normed input, as
    in BERT.

    rotary: base of rotary position embedding (0: none), which rotates the first `rotary_width` numbers of every head (0: all),
    stretched for long sequences by `scaling`, in pairs of adjacent numbers if `interleaved`. normed_heads: whether queries and
    keys are normed. head_weights: how: by one weight "shared" by all heads, a weight of "each" head, or one norm over "all"
    heads (OLMo 2); "none" is a norm without weights (Llama 4). turned_first: whether these norms come after the rotation.
    chunk: tokens of the chunks within which queries see keys (Llama 4; 0: no chunks). sinks: whether every head has a learned
    score of no key (gpt-oss).

    memory_tokens: length of the sequence that a cross-attention reads (0: self-attention). window: side of Swin's square
    windows (0: none), shift: their offset; the tokens then form a square image. relative: the kind of learned position biases:
    T5's for both directions or for earlier keys only, with `buckets` rows, or Swin's for windows. holds_table: whether this
    layer owns the table of biases (in T5 the first layer of a stack does).

    by_heads: whether context-parallel ranks exchange heads, so that the core is computed on whole samples for a part of the
    heads, as a separate computation. gated: whether the core's result is multiplied by the sigmoid of as many numbers, which
    are projected from the same input (Qwen3-Next)."""

    kind: ClassVar[Kind] = "attention"
    heads: int
    kv_heads: int
    width: int
    memory_tokens: int = 0
    window: int = 0
    shift: int = 0
    causal: bool = False
    bias: bool = True
    out_bias: bool = True
    rotary: float = 0.0
    relative: Literal["", "t5", "t5-causal", "swin"] = ""
    buckets: int = 0
    holds_table: bool = False
    scale: float = 0.0
    post_norm: bool = False
    scaling: RotaryScaling | None = None
    rotary_width: int = 0
    interleaved: bool = False
    normed_heads: bool = False
    head_weights: Literal["shared", "each", "all", "none"] = "shared"
    turned_first: bool = False
    sliding: int = 0
    chunk: int = 0
    sinks: bool = False
    softcap: float = 0.0
    alibi: float = 0.0
    attention_dropout: float = 0.0
    by_heads: bool = False
    gated: bool = False
    input_dropout: float = field(default=0.0, compare=False)

    @property
    def draws(self) -> bool:
        """Whether the forward pass has dropout, so that it must know the ids of its samples to draw dropout masks."""
        return max(self.dropout, self.attention_dropout, self.input_dropout) > 0

    @property
    def unexecuted_feature(self) -> str:
        """Name, for users, of a feature that can be planned but not yet executed, such as layer norms on queries and keys;
        empty if there is none.
        """
        if self.normed_heads and (self.head_weights != "shared" or self.turned_first or self.norm == "layer"):
            return "norms of heads that are not RMS norms with one weight before the rotation"
        if self.gated:
            return "a gate of attention's result"
        if self.sinks or self.chunk:
            return "attention sinks" if self.sinks else "attention in chunks"
        return super().unexecuted_feature

    @property
    def packed(self) -> bool:
        """Whether queries, keys and values are computed by one matrix multiplication with one tensor of weights, and not by
        separate projections.
        """
        split = self.memory_tokens or self.kv_heads != self.heads or self.rotary or self.normed_heads or self.norm == "rms"
        return not split

    @property
    def rotated(self) -> int:
        """Count of numbers of every head that rotary positions turn; 0 without rotary positions."""
        return (self.rotary_width or self.width) if self.rotary else 0

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope of every head under ALiBi, by which its scores fall per token of distance between query and key; empty
        without ALiBi (Press et al., 2022).

        If the number of heads is no power of two, they are the slopes for the next lower power, followed by every second one
        of the slopes for the next higher power, as in the published code.
        """
        if not self.alibi:
            return ()
        count = 1 << (self.heads - 1).bit_length()
        slopes = tuple(2.0 ** (-self.alibi * (i + 1) / count) for i in range(count))
        return slopes if count == self.heads else (*slopes[1::2], *slopes[::2])[: self.heads]

    @property
    def blockwise(self) -> bool:
        """Whether a feature other than dropout (ALiBi, soft-capping, a sliding window) keeps torch's fused kernels from
        computing it.

        `models.blockwise` then computes it block by block.
        """
        seen = self.tokens * self.pieces
        return bool(self.alibi or self.softcap or 0 < self.sliding < seen or 0 < self.chunk < seen)

    @property
    def in_halves(self) -> bool:
        """Whether the two halves of a piece of a sample are computed one after the other, because their queries see different
        keys.

        Context parallelism cuts a sample into pieces; a piece has two ranges of tokens (its halves), one from each end of the
        sample.
        """
        return self.pieces > 1 and (self.causal or self.blockwise or self.attention_dropout > 0)

    @property
    def mean_keys(self) -> int:
        """Mean number of keys that a query sees: about half of all under a causal mask, fewer within a sliding window."""
        keys = min(self.keys, self.sliding or self.keys)
        if self.chunk and self.causal and self.chunk < keys:
            return self.chunk - self.chunk // 2
        return keys - keys * keys // (2 * self.keys) if self.causal else keys

    @property
    def keys(self) -> int:
        """Number of keys for which the scores of one query are computed, masked keys included."""
        return self.window**2 or self.memory_tokens or self.tokens * self.pieces

    @property
    def keeps_scores(self) -> bool:
        """Whether the matrix of scores is in memory, as it is without fused kernels, or with learned position biases, whose
        gradient torch's fused kernels do not compute.
        """
        return self.unfused or bool(self.relative)

    def splits_into(self, tp: int) -> bool:
        """Whether every one of `tp` tensor-parallel ranks gets the same number of whole heads, both of queries and of keys."""
        return self.heads % tp == 0 and self.kv_heads % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections of queries, keys and values (one tensor if `packed`), output projection, table of position biases, and
        norms."""
        h, q, kv = self.hidden, self.heads * self.width, self.kv_heads * self.width
        if self.packed:
            parameters = [Parameter("qkv.weight", (3, q, h), 1)]
            parameters += [Parameter("qkv.bias", (3, q), 1)] * self.bias
        else:
            parameters = [Parameter("q.weight", (q, h), 0), Parameter("kv.weight", (2, kv, h), 1)]
            parameters += [Parameter("q.bias", (q,), 0), Parameter("kv.bias", (2, kv), 1)] * self.bias
        parameters += [Parameter("gate.weight", (q, h), 0)] * self.gated
        parameters += [Parameter("gate.bias", (q,), 0)] * (self.gated and self.bias)
        parameters.append(Parameter("out.weight", (h, q), 1))
        parameters += [Parameter("out.bias", (h,))] * self.out_bias
        if self.holds_table:
            rows = (2 * self.window - 1) ** 2 if self.relative == "swin" else self.buckets
            parameters.append(Parameter("relative.weight", (rows, self.heads), 1))
        parameters += [Parameter("sinks", (self.heads,), 0)] * self.sinks
        if self.normed_heads:
            parameters += [*self._head_norm("q_norm", self.heads), *self._head_norm("k_norm", self.kv_heads)]
        return (*parameters, *self._norm_parameters())

    def _head_norm(self, name: str, heads: int) -> list[Parameter]:
        """Parameters of the norm of queries or of keys (with `normed_heads`).

        name: the beginning of their names, "q_norm" or "k_norm". heads: number of heads of the queries or keys.
        """
        if self.head_weights == "none":
            return []
        if self.head_weights == "shared":
            biased = self.norm == "layer" and self.norm_bias
            return [Parameter(f"{name}.{what}", (self.width,)) for what in ("weight", "bias")[: 1 + biased]]
        return [Parameter(f"{name}.weight", (heads, self.width), 0)]

    def _sizes(self, rows: int, tp: int) -> tuple[int, int, int, int, int, int]:
        """Sizes from which the other methods compute, for `rows` samples on one of `tp` tensor-parallel ranks, as a tuple (n,
        m, h, heads, q, kv).

        n: tokens of all samples. m: tokens that give keys and values. h: hidden size. heads: number of the rank's heads of
        queries. q: size of one token's queries in the rank's heads together. kv: size of one token's keys in the rank's heads
        together.
        """
        heads, m = self.heads // tp, rows * (self.memory_tokens or self.tokens)
        return rows * self.tokens, m, self.hidden, heads, heads * self.width, self.kv_heads // tp * self.width

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, moves into windows,
        projections, rotation, core, output projection, residual."""
        n, m, h, _, q, kv = self._sizes(rows, tp)
        before = [self._stream(n * h)] * self.operators_before
        before += [self._stream(n * h)] * (2 if self.window else 0)  # into windows, and back
        if self.packed:
            before.append(Operator(m=n, n=3 * q, k=h))
        else:
            before += [Operator(m=n, n=q, k=h)] * (1 + self.gated) + [Operator(m=m, n=2 * kv, k=h)]
        before += [self._stream(n * q + m * kv, 4)] * ((self.rotary > 0) + self.normed_heads)
        core = self.core_operators(rows, tp)
        out = Operator(m=n, n=h, k=q)
        dropped = [self._stream(n * h)] * (self.unfused and self.dropout > 0)
        dropped += [self._stream(n * h)] * (2 * self.sandwich)
        gate = [self._stream(n * q, 3)] * self.gated
        return [*before, *core, self._stream(n * q), *gate, out, *dropped, self._stream(n * h, 3, 1.0)]

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the projections: the norm's."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    def core_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the core's forward pass: scores, the passes over the scores if they are in memory, and weighted values.

        rows: samples on the rank. tp: tensor-parallel degree; the result has the kernels of one rank.
        """
        n, _, _, heads, _, _ = self._sizes(rows, tp)
        blocks, queries = rows * self.tokens // (self.window**2 or self.tokens), self.window**2 or self.tokens
        keys = self.keys if self.keeps_scores else self.mean_keys
        work = 2.0 if self.keeps_scores else 2.5
        core: tuple[Core, Core] = (None, None) if self.keeps_scores else ("scores", "values")
        scores = Operator(m=queries, n=max(1, keys), k=self.width, count=blocks * heads, backward=work, core=core[0])
        use = Operator(m=queries, n=self.width, k=max(1, keys), count=blocks * heads, backward=work, core=core[1])
        between = []
        if self.keeps_scores:
            passes = 2 + 2 * bool(self.relative or self.causal) + (3 if self.unfused and self.attention_dropout else 0)
            between = [self._stream(n * heads * self.keys, passes)]
        return [scores, *between, use]

    def core_bytes(self, rows: int, tp: int) -> int:
        """Bytes that the core keeps for the backward pass, in addition to queries, keys, values and its result.

        These are scores with their masks, or the one number per query and head of a fused kernel. 0 if it is computed block by
        block, as the backward pass computes probabilities again. rows: samples on the rank. tp: tensor-parallel degree.
        """
        n, heads = rows * self.tokens, self.heads // tp
        scores = n * heads * self.keys
        if self.unfused:
            return scores * ((3 if self.attention_dropout else 2) * self.element_bytes + (self.attention_dropout > 0))
        return 0 if self.attention_dropout or self.blockwise else (scores if self.relative else n * heads) * self.element_bytes

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input:
        results of the norm, queries, keys, values, the result of the core (scores, softmax, weighted values), and what
        `core_bytes` counts.

        Under context parallelism a part is not included: if ranks exchange heads, everything but a residual that is the
        normed input (`HeadPieces` counts the rest); if they exchange keys and values, the keys and values (`KeyShare` counts
        them).
        """
        n, m, h, _, q, kv = self._sizes(rows, tp)
        if self.by_heads:  # what comes before the core is kept with queries, keys and values; a residual is the normed input
            return self.norm_elements(n) * self.element_bytes * self.post_norm
        elements = self.entry_elements(n) + 2 * n * q + 2 * m * kv + self.sandwich_bytes(rows) // self.element_bytes
        if self.pieces > 1:  # keys and values are kept apart (see `pieces.KeyShare`); results of both halves are concatenated
            elements += n * q * self.in_halves - 2 * m * kv
            m = 0
        if self.normed_heads:  # the queries before their norm, and inverse deviations
            elements += n * q + (n * q + m * kv) // self.width
        elements += 2 * n * q * self.gated  # the gate, and the gated result
        if self.unfused:
            return elements * self.element_bytes + self.core_bytes(rows, tp) + n * h * (self.dropout > 0)
        # Rotated keys in addition to the product that has the values, too, and the angles.
        elements += m * kv + self.tokens * self.rotated if self.rotary else 0
        indices = INDEX_BYTES * (self.tokens if self.relative != "swin" else self.window**2) * self.keys
        return elements * self.element_bytes + self.core_bytes(rows, tp) + indices * self.holds_table

    def block_bytes(self, rows: int, tp: int, backward: bool = False) -> int:
        """Peak bytes of temporaries while one block of attention is computed, if it is computed block by block.

        In the forward pass these are the block's probabilities with its scores, or with the random numbers of a dropout mask.
        backward: whether to count the backward pass, which adds the mask, gradients, and parts of queries, keys and values
        (twice for blocks of several rows). rows: samples on the rank. tp: tensor-parallel degree.
        """
        heads, e = self.heads // tp, self.element_bytes
        block_rows, block_heads, queries = attention_block(rows, heads, self.tokens // (1 + self.in_halves), self.keys)
        elements, words = block_rows * block_heads * queries * self.keys, rows * self.tokens * heads * ROW_BYTES
        masked, copies = self.attention_dropout > 0, 2 + (self.softcap > 0)
        parts = block_rows * block_heads * max(queries, self.keys) * self.width * (2 + masked + (block_rows > 1))
        most = elements * (copies * e + masked) + parts * e if backward else 0
        if not masked:
            return max(elements * 2 * e, most)
        return max(elements * (e + DRAWING_BYTES), most) + words

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They come in addition to the input, the output, and the bytes kept for the backward pass: the largest of scores with
        copies of keys, values and biases, the copy out of windows, a block of probabilities, and the random numbers of the
        output's dropout mask.
        """
        n, m, h, heads, q, kv = self._sizes(rows, tp)
        e, scores = self.element_bytes, n * heads * self.keys
        if self.by_heads:
            return self._drawing_bytes(rows)
        back = n * h if self.window else 0  # out of the windows again
        if (self.attention_dropout or self.blockwise) and not self.keeps_scores:
            return max(self._drawing_bytes(rows), self.block_bytes(rows, tp) - n * h * e - self.sandwich_bytes(rows))
        if not self.keeps_scores:
            return max(self._drawing_bytes(rows), back * e)
        biases = scores // rows if self.shift else heads * (self.window**2 or self.tokens) * self.keys
        later = 0 if self.unfused else n * h - n * q  # of the output, which is not there yet
        return max(back, scores + 2 * m * kv + biases * bool(self.relative) - later) * e

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They come in addition to the input, the bytes kept for the backward pass, and gradients: the largest of the bytes that
        dropout, projections, core (scores, softmax, weighted values) and norm need.
        """
        outer = self._drawing_bytes(rows) if self.by_heads else self.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        return max(0, outer, *self.matrices_backward_bytes(rows, tp))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """Peak bytes of temporaries of the backward pass of projections and core, for `rows` samples on one of `tp`
        tensor-parallel ranks.

        Two numbers: the peak during the output projection (with dropout, together with the gradient of the output with its
        mask applied) and the core; and the peak during the projections of queries, keys and values. Memory freed before is
        subtracted, so a number may be negative.
        """
        n, m, h, heads, q, kv = self._sizes(rows, tp)
        if self.by_heads:  # of the output projection alone
            return (h * q + n * h * self._drops) * self.element_bytes, 0
        gathered = 2 * m * kv * self.pieces if self.pieces > 1 else 0  # the gradients of the keys and values of all pieces
        peaks = [n * q + h * q + n * h * self._drops, self._core_backward_elements(rows, tp, gathered)]
        if gathered:  # at last concatenated from keys and values, once the core's inputs and results have gone
            peaks.append(2 * gathered - n * q - n * heads)
        # Gradients of the inputs are counted by the caller, but not in memory yet during any of these operations.
        later = n * h + (m * h if self.memory_tokens else 0) + self.sandwich_bytes(rows) // self.element_bytes + gathered
        copies = n * h if self.window else 0
        projections = self._projections_backward_elements(rows, tp)
        return (max(peaks) - later + copies) * self.element_bytes, (projections - later + copies) * self.element_bytes

    def _core_backward_elements(self, rows: int, tp: int, gathered: int) -> int:
        """Peak count of numbers in temporaries of the core's backward pass, for `rows` samples on one of `tp` tensor-parallel
        ranks.

        gathered: count of numbers in the gradients of the keys and values of all pieces, if context parallelism cuts samples;
        else 0.
        """
        n, m, _, heads, q, kv = self._sizes(rows, tp)
        if self.keeps_scores:
            return 2 * n * heads * self.keys - n * q
        gradients = n * q + (gathered or 2 * m * kv)
        if self.attention_dropout or self.blockwise:  # with the gradients of all keys from the other half of a piece, too
            return gradients + gathered * self.in_halves + self.block_bytes(rows, tp, backward=True) // self.element_bytes
        return n * q + gradients + 2 * min(self.tokens, 64) * min(self.keys, 512)

    def _projections_backward_elements(self, rows: int, tp: int) -> int:
        """Peak count of numbers in temporaries of the backward pass of the projections of queries, keys and values.

        rows: samples on the rank. tp: tensor-parallel degree. What the core has freed before is subtracted.
        """
        n, m, h, heads, q, kv = self._sizes(rows, tp)
        if self.packed or self.memory_tokens or self.pieces > 1:
            weights = 3 * q * h if self.packed else max(q, 2 * kv) * h
            return n * h - n * q + weights - n * heads * self.keys * self.keeps_scores
        # Two products, each with its gradient of the input.
        keys, queries = n * q * (1 + self.gated) + 2 * m * kv + 2 * kv * h, n * h + (n * q + q * h) * (1 + self.gated)
        kept = self.kept_bytes(rows, tp) - self.sandwich_bytes(rows)
        return n * h + max(keys, queries) - kept // self.element_bytes + self.entry_elements(n)
