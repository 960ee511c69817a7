"""Attention: of a sequence to itself, of a decoder to an encoder, within windows."""

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

ROW_BYTES = 12  # of a mask's row: its words


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary positions are stretched beyond the `positions` that a model was first trained on, `factor` times or less.

    low, high: of llama3 and yarn, the turns of a pair within these positions up to which its rate is stretched by the whole
    factor, and from which it is not stretched. amplitude: of the turned pairs. whole_pairs: yarn rounds low and high to pairs.
    factors: of longrope, by how much each pair's rate is stretched.
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
    """Rows, heads and queries whose probabilities are made at once where some are dropped: up to DRAWN_AT_ONCE numbers."""
    if (head := queries * keys) * heads <= DRAWN_AT_ONCE:
        return min(rows, DRAWN_AT_ONCE // (head * heads)), heads, queries
    return 1, max(1, min(heads, DRAWN_AT_ONCE // head)), min(queries, max(1, DRAWN_AT_ONCE // keys))


@dataclass(frozen=True, kw_only=True)
class Attention(Sublayer):
    """Norm, projections, scaled dot-product attention, output projection, residual.

    normed_heads: norms of each query and key, one weight for all heads. head_weights: `each` head has its own, or one
    norm is over `all` heads (OLMo 2), of which tensor-parallel ranks would exchange one number a token. turned_first: the norms
    come behind the rotation. rotary: base of rotary positions (0: none), which
    turn the first `rotary_width` numbers of each head (0: all), neighbours where interleaved. sliding: a query meets the last
    so many keys, its own among them (0: all). softcap: scores are c tanh(score / c) (0: as they are). alibi: the exponent of
    two by which the last head's slope is below 1 (Press et al., 2022; 0: no slopes).

    memory_tokens: of the sequence that a cross-attention reads (0: self-attention). window: side of Swin's square windows,
    `shift` their offset; the tokens then form a square. relative: learned position biases, of T5 (`buckets` of them;
    both directions or backwards only) or of Swin's windows; holds_table: this layer owns the table (in T5 a stack's first).
    post_norm: the residual is the normed input (BERT: a norm is written here with the unit after it).
    scaling: of its rotary positions. attention_dropout: the probability with which each of its probabilities is dropped.
    by_heads: of a piece of samples that are cut, whether its core works on whole samples for a part of its heads, and is a
    computation of its own (see `sublayers.head_share`).
    input_dropout: that of the normed input, as BERT's first block has it behind the embedding's norm; sub-layers that differ in
    nothing else count as one.
    """

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
    head_weights: Literal["shared", "each", "all"] = "shared"
    turned_first: bool = False
    sliding: int = 0
    softcap: float = 0.0
    alibi: float = 0.0
    attention_dropout: float = 0.0
    by_heads: bool = False
    input_dropout: float = field(default=0.0, compare=False)

    @property
    def draws(self) -> bool:
        """Whether its forward pass drops numbers, and so needs to know the samples that it works on."""
        return max(self.dropout, self.attention_dropout, self.input_dropout) > 0

    @property
    def unexecuted(self) -> str:
        """As of all sub-layers; or norms of heads of other kinds."""
        if self.normed_heads and (self.head_weights != "shared" or self.turned_first or self.norm == "layer"):
            return "norms of heads that are not RMS norms with one weight before the rotation"
        return super().unexecuted

    @property
    def packed(self) -> bool:
        """Query, key and value come from one product."""
        split = self.memory_tokens or self.kv_heads != self.heads or self.rotary or self.normed_heads or self.norm == "rms"
        return not split

    @property
    def rotated(self) -> int:
        """Numbers of each head that rotary positions turn."""
        return (self.rotary_width or self.width) if self.rotary else 0

    @property
    def slopes(self) -> tuple[float, ...]:
        """ALiBi's, of each head: powers of two; none without it. Between powers of two, every second of twice as many first."""
        if not self.alibi:
            return ()
        count = 1 << (self.heads - 1).bit_length()
        each = tuple(2.0 ** (-self.alibi * (i + 1) / count) for i in range(count))
        return each if count == self.heads else (*each[1::2], *each[::2])[: self.heads]

    @property
    def blockwise(self) -> bool:
        """Whether torch's fused kernels leave out something of it, besides dropout (see `models.blockwise`)."""
        return bool(self.alibi or self.softcap or (self.sliding and self.sliding < self.tokens * self.pieces))

    @property
    def in_halves(self) -> bool:
        """Whether each half of a piece of a sample meets other keys (see `sublayers.pieces`)."""
        return self.pieces > 1 and (self.causal or self.blockwise or self.attention_dropout > 0)

    @property
    def mean_keys(self) -> int:
        """The keys that a query meets in the mean: half of them where it meets none after its own, fewer where they slide."""
        keys = min(self.keys, self.sliding or self.keys)
        return keys - keys * keys // (2 * self.keys) if self.causal else keys

    @property
    def keys(self) -> int:
        """The number of keys that one query meets."""
        return self.window**2 or self.memory_tokens or self.tokens * self.pieces

    @property
    def keeps_scores(self) -> bool:
        """Learned biases need the probabilities' gradient: the fused kernels do not give it."""
        return self.unfused or bool(self.relative)

    def splits_into(self, tp: int) -> bool:
        """Whole heads go to each rank, queries' as well as keys'."""
        return self.heads % tp == 0 and self.kv_heads % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections of queries, keys and values (one tensor where `packed`), output, table of position biases, norm."""
        h, q, kv = self.hidden, self.heads * self.width, self.kv_heads * self.width
        if self.packed:
            parameters = [Parameter("qkv.weight", (3, q, h), 1)]
            parameters += [Parameter("qkv.bias", (3, q), 1)] * self.bias
        else:
            parameters = [Parameter("q.weight", (q, h), 0), Parameter("kv.weight", (2, kv, h), 1)]
            parameters += [Parameter("q.bias", (q,), 0), Parameter("kv.bias", (2, kv), 1)] * self.bias
        parameters.append(Parameter("out.weight", (h, q), 1))
        parameters += [Parameter("out.bias", (h,))] * self.out_bias
        if self.holds_table:
            rows = (2 * self.window - 1) ** 2 if self.relative == "swin" else self.buckets
            parameters.append(Parameter("relative.weight", (rows, self.heads), 1))
        if self.normed_heads:
            parameters += [*self._head_norm("q_norm", self.heads), *self._head_norm("k_norm", self.kv_heads)]
        return (*parameters, *self._norm_parameters())

    def _head_norm(self, name: str, heads: int) -> list[Parameter]:
        if self.head_weights == "shared":
            biased = self.norm == "layer" and self.norm_bias
            return [Parameter(f"{name}.{what}", (self.width,)) for what in ("weight", "bias")[: 1 + biased]]
        return [Parameter(f"{name}.weight", (heads, self.width), 0)]

    def _sizes(self, rows: int, tp: int) -> tuple[int, int, int, int, int, int]:
        """n, tokens that give keys and values, h, and on one rank: heads, q, and the width of all its keys."""
        heads, m = self.heads // tp, rows * (self.memory_tokens or self.tokens)
        return rows * self.tokens, m, self.hidden, heads, heads * self.width, self.kv_heads // tp * self.width

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Norm, moves into windows, projections, scores, probabilities, their use, output projection, residual."""
        n, m, h, _, q, kv = self._sizes(rows, tp)
        before = [self._stream(n * h)] * self.operators_before
        before += [self._stream(n * h)] * (2 if self.window else 0)  # into windows, and back
        if self.packed:
            before.append(Operator(m=n, n=3 * q, k=h))
        else:
            before += [Operator(m=n, n=q, k=h), Operator(m=m, n=2 * kv, k=h)]
        before += [self._stream(n * q + m * kv, 4)] * ((self.rotary > 0) + self.normed_heads)
        core = self.core_operators(rows, tp)
        out = Operator(m=n, n=h, k=q)
        dropped = [self._stream(n * h)] * (self.unfused and self.dropout > 0)
        dropped += [self._stream(n * h)] * (2 * self.sandwich)
        return [*before, *core, self._stream(n * q), out, *dropped, self._stream(n * h, 3, 1.0)]

    @property
    def operators_before(self) -> int:
        """The norm."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    def core_operators(self, rows: int, tp: int) -> list[Operator]:
        """Scores, probabilities, their use."""
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
        """What is kept of the core: scores with their masks, or a fused kernel's one number a query and head."""
        n, heads = rows * self.tokens, self.heads // tp
        scores = n * heads * self.keys
        if self.unfused:
            return scores * ((3 if self.attention_dropout else 2) * self.element_bytes + (self.attention_dropout > 0))
        return 0 if self.attention_dropout or self.blockwise else (scores if self.relative else n * heads) * self.element_bytes

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Norm, queries, keys, values and result; and scores, or a fused kernel's one number a query and head.

        Where some of the probabilities are dropped, neither: the backward pass makes them again from queries and keys.
        """
        n, m, h, heads, q, kv = self._sizes(rows, tp)
        if self.by_heads:  # what comes before the core is kept with queries, keys and values; a residual is the normed input
            return self.norm_elements(n) * self.element_bytes * self.post_norm
        scores = n * heads * self.keys
        elements = self.entry_elements(n) + 2 * n * q + 2 * m * kv + self.sandwich_bytes(rows) // self.element_bytes
        if self.pieces > 1:  # keys and values are kept apart (see `pieces.KeyShare`); results of both halves are put together
            elements += n * q * self.in_halves - 2 * m * kv
            m = 0
        if self.normed_heads:  # the queries before their norm, and inverse deviations
            elements += n * q + (n * q + m * kv) // self.width
        if not self.unfused:
            # Rotated keys beside the product that the values are a part of, and the angles.
            elements += m * kv + self.tokens * self.rotated if self.rotary else 0
            indices = INDEX_BYTES * (self.tokens if self.relative != "swin" else self.window**2) * self.keys
            if not (self.attention_dropout or self.blockwise):
                elements += scores if self.relative else n * heads
            return elements * self.element_bytes + indices * self.holds_table
        masks = scores * (self.attention_dropout > 0) + n * h * (self.dropout > 0)
        return (elements + scores * (3 if self.attention_dropout else 2)) * self.element_bytes + masks

    def block_bytes(self, rows: int, tp: int, backward: bool = False) -> int:
        """Of a block of probabilities: themselves beside scores or what their mask is drawn from; backward also beside mask and
        gradients, and queries, keys, values or their gradients, which products of several rows copy once more."""
        heads, e = self.heads // tp, self.element_bytes
        block_rows, block_heads, queries = attention_block(rows, heads, self.tokens // (1 + self.in_halves), self.keys)
        elements, words = block_rows * block_heads * queries * self.keys, rows * self.tokens * heads * ROW_BYTES
        masked, copies = self.attention_dropout > 0, 2 + (self.softcap > 0)
        beside = block_rows * block_heads * max(queries, self.keys) * self.width * (2 + masked + (block_rows > 1))
        most = elements * (copies * e + masked) + beside * e if backward else 0
        if not masked:
            return max(elements * 2 * e, most)
        return max(elements * (e + DRAWING_BYTES), most) + words

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Scores that are not kept, copies of keys and values, and expanded biases; or the copy out of windows; or a block of
        probabilities, of which some are dropped."""
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
        """The largest of: the output's mask, what the matrices need, and an RMS norm's moment."""
        outer = self._drawing_bytes(rows) if self.by_heads else self.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        return max(0, outer, *self.matrices_backward_bytes(rows, tp))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """The larger of: the output projection's gradients (beside what dropout leaves of the output's), and the attention
        kernel's; and those of the first projections."""
        n, m, h, heads, q, kv = self._sizes(rows, tp)
        if self.by_heads:  # of the output projection alone
            return (h * q + n * h * self._drops) * self.element_bytes, 0
        scores = n * heads * self.keys if self.keeps_scores else 0
        projected = n * q + 2 * m * kv
        of_keys = 2 * m * kv * self.pieces if self.pieces > 1 else 0  # the gradients of all keys and values
        if of_keys:
            projected = n * q + of_keys
        weights = 3 * q * h if self.packed else max(q, 2 * kv) * h
        moments, first = [n * q + h * q + n * h * self._drops], n * h - n * q + weights - scores
        if not (self.packed or self.memory_tokens or self.pieces > 1):  # two products, each with its gradient of the input
            keys, queries = n * q + 2 * m * kv + 2 * kv * h, n * h + n * q + q * h
            kept = self.kept_bytes(rows, tp) - self.sandwich_bytes(rows)
            first = n * h + max(keys, queries) - kept // self.element_bytes + self.entry_elements(n)
        if scores:
            moments.append(2 * scores - n * q)
        elif self.attention_dropout or self.blockwise:
            halved = of_keys * self.in_halves  # beside one half's gradients the other's, of all keys, too
            moments.append(projected + halved + self.block_bytes(rows, tp, backward=True) // self.element_bytes)
        else:
            moments.append(n * q + projected + 2 * min(self.tokens, 64) * min(self.keys, 512))
        later = (
            n * h + (m * h if self.memory_tokens else 0) + self.sandwich_bytes(rows) // self.element_bytes
        )  # input gradients, which none of these moments holds yet
        if of_keys:  # at last put together from keys and values, once the core's inputs and results have gone
            moments.append(2 * of_keys - n * q - n * heads)
            later += of_keys
        copies = n * h if self.window else 0
        return (max(moments) - later + copies) * self.element_bytes, (first - later + copies) * self.element_bytes
