"""The sub-layers of Transformers: parameters, operators and bytes of each, from its shapes alone.

Symbols: h hidden size, a heads, w width of a head, q = a w, f inner size of the FFN, V vocabulary, s tokens of a sample,
r rows (samples on one device), n = r s tokens, t tensor-parallel degree, e bytes of an element.

Every sub-layer is a *sum of t partial functions*: each tensor-parallel rank computes a partial output (rank 0 adds the
residual and the bias), and one all-reduce gives the whole; in the backward pass the partial input gradients are summed the
same way. So a sub-layer costs one all-reduce of its output forward and one of its input backward, and tensor parallelism is
exact. The head instead leaves its logits split over the vocabulary, and the loss is computed on the shards.

Bytes are those of trainplan's own sub-layers, checked against torch's allocations, or, where `unfused` is set, those that
published code with separate attention kernels keeps: 2 score matrices a head, or 3 and a mask of bytes with dropout. That
count gives Galvatron-BMW's Table I within a few per cent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

Kind = Literal["embedding", "attention", "ffn", "head", "norm", "merge", "upsample"]
DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
INDEX_BYTES = 8


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor: full shape, and the dimension that tensor parallelism splits (None: replicated)."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None

    def shard_shape(self, tp: int, index: int) -> tuple[int, ...]:
        if self.split is None:
            return self.shape
        low, high = shard_bounds(self.shape[self.split], tp, index)
        return (*self.shape[: self.split], high - low, *self.shape[self.split + 1 :])


def shard_bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Half-open bounds of one of `parts` nearly equal slices."""
    return index * size // parts, (index + 1) * size // parts


@dataclass(frozen=True)
class Operator:
    """One kernel of a forward pass: `count` products of (m, k) by (k, n), or, with m = 0, `touched_bytes` read and written.

    backward: its backward pass, in multiples of the forward one's work (two products for one; fused attention also recomputes).
    """

    m: int = 0
    n: int = 0
    k: int = 0
    count: int = 1
    touched_bytes: int = 0
    backward: float = 2.0

    @property
    def flops(self) -> int:
        """Multiply-adds count 2."""
        return 2 * self.count * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """What all sub-layers share. tokens: of one sample, those it works on. carried_tokens: of one sample, hidden states of
    another stream that pass it by (an encoder's, beside a decoder)."""

    kind: ClassVar[Kind]

    tokens: int
    hidden: int
    dtype: str = "float32"
    carried_tokens: int = 0
    norm: Literal["layer", "rms"] = "layer"
    epsilon: float = 1e-5
    unfused: bool = False
    dropout: bool = False

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    def parameters(self) -> tuple[Parameter, ...]:
        raise NotImplementedError

    def parameter_count(self, tp: int = 1, index: int = 0) -> int:
        return sum(prod(p.shard_shape(tp, index)) for p in self.parameters())

    @property
    def replicated_count(self) -> int:
        """Parameters that every tensor-parallel rank holds, and whose gradients are summed over the ranks."""
        return sum(prod(p.shape) for p in self.parameters() if p.split is None)

    def splits_into(self, tp: int) -> bool:
        """Whether tensor parallelism of this degree is possible."""
        del tp
        return True

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """The forward pass, kernel by kernel."""
        raise NotImplementedError

    def forward_flops(self, rows: int, tp: int) -> int:
        """Of the matrix products. Attention scores and their use are 4 n s q (halved where causal kernels skip half)."""
        return sum(operator.flops for operator in self.operators(rows, tp))

    def input_shape(self, rows: int) -> tuple[int, ...]:
        return (rows, self.tokens, self.hidden)

    def input_bytes(self, rows: int) -> int:
        """What the unit reads, and what is held for it under recomputation."""
        return prod(self.input_shape(rows)) * self.element_bytes

    def output_bytes(self, rows: int, tp: int) -> int:
        del tp
        return rows * self.tokens * self.hidden * self.element_bytes

    def carried_bytes(self, rows: int) -> int:
        return rows * self.carried_tokens * self.hidden * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        """The hidden states that pass to the next unit: the output and what is carried past it."""
        return self.output_bytes(rows, 1) + self.carried_bytes(rows)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """What the graph holds from forward to backward, besides the unit's input."""
        raise NotImplementedError

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Most bytes alive during the forward pass beyond input, kept and output."""
        del rows, tp
        return 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Most bytes alive during the backward pass beyond input, kept, output gradient, input and parameter gradients.

        Each term is one operation's moment: the gradients that it makes (a weight's is a temporary before it is added to the
        buffer that it belongs to), less what earlier ones have freed. Checked against torch's allocations in the tests.
        """
        raise NotImplementedError

    def _norm_parameters(self, width: int | None = None, name: str = "norm") -> tuple[Parameter, ...]:
        shape = (width or self.hidden,)
        weight = (Parameter(f"{name}.weight", shape),)
        return weight if self.norm == "rms" else (*weight, Parameter(f"{name}.bias", shape))

    def _norm_elements(self, tokens: int, width: int | None = None) -> int:
        """What a norm keeps: its result, and mean and inverse deviation; an RMS norm also its result before the weight."""
        width = width or self.hidden
        return tokens + 2 * tokens * width if self.norm == "rms" else 2 * tokens + tokens * width

    def _norm_moment(self, kept_bytes: int, rows: int) -> int:
        """Workspace while an RMS norm's gradient is made: four hidden states and the norm's own part of what was kept."""
        if self.norm == "layer":
            return 0
        n = rows * self.tokens
        return (4 * n * self.hidden + n) * self.element_bytes - kept_bytes

    def _stream(self, elements: int, passes: int = 2, backward: float = 1.5) -> Operator:
        return Operator(touched_bytes=passes * elements * self.element_bytes, backward=backward)


@dataclass(frozen=True, kw_only=True)
class TokenEmbedding(Sublayer):
    """Rows of a (vocabulary, hidden) table, plus learned positions and token types where the model has them."""

    kind: ClassVar[Kind] = "embedding"
    vocabulary: int
    positions: int = 0
    token_types: int = 0

    def splits_into(self, tp: int) -> bool:
        return tp <= self.vocabulary

    def parameters(self) -> tuple[Parameter, ...]:
        h = self.hidden
        found = [Parameter("tokens.weight", (self.vocabulary, h), 0)]
        if self.positions:
            found.append(Parameter("positions.weight", (self.positions, h)))
        if self.token_types:
            found.append(Parameter("types.weight", (self.token_types, h)))
        return tuple(found)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        tables = 1 + (self.positions > 0) + (self.token_types > 0) + (tp > 1)
        return [self._stream(rows * self.tokens * self.hidden, backward=1.0)] * tables

    def input_bytes(self, rows: int) -> int:
        return rows * self.tokens * INDEX_BYTES

    def kept_bytes(self, rows: int, tp: int) -> int:
        n = rows * self.tokens
        positions = INDEX_BYTES * self.tokens if self.positions else 0
        types = INDEX_BYTES * n if self.token_types else 0
        mask = n * self.hidden if self.unfused and self.dropout else 0
        return positions + types + mask + ((INDEX_BYTES + 1) * n if tp > 1 else 0)  # local indices and mask

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        tokens = rows * self.tokens if self.token_types else self.tokens if self.positions else 0
        return tokens * self.hidden * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        positions = self.tokens * h + self.positions * h if self.positions else 0
        return max(positions, (n * h if tp > 1 else 0) + v * h) * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class InputProjection(Sublayer):
    """Patches of an image, or a latent vector, as tokens: one product with (features, hidden); rank 0 computes it whole.

    groups: input vectors of one sample, each of `features` numbers and giving tokens / groups tokens. class_token: one more
    token before them. positions: learned ones. normed: a norm at the end.
    """

    kind: ClassVar[Kind] = "embedding"
    features: int
    groups: int
    class_token: bool = False
    positions: bool = False
    normed: bool = False
    bias: bool = True

    @property
    def made_tokens(self) -> int:
        return self.tokens - self.class_token

    @property
    def width(self) -> int:
        """Numbers made of one input vector."""
        return self.made_tokens // self.groups * self.hidden

    def parameters(self) -> tuple[Parameter, ...]:
        h = self.hidden
        found = [Parameter("patches.weight", (self.width, self.features))]
        if self.bias:
            found.append(Parameter("patches.bias", (self.width,)))
        if self.class_token:
            found.append(Parameter("class.weight", (1, h)))
        if self.positions:
            found.append(Parameter("positions.weight", (self.tokens, h)))
        return (*found, *(self._norm_parameters() if self.normed else ()))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        n = rows * self.tokens
        extra = [self._stream(n * self.hidden)] * (self.class_token + self.positions + self.normed)
        # No gradient of the input is made, so the backward pass is one product, not two.
        return [Operator(m=rows * self.groups, n=self.width, k=self.features, backward=1.0), *extra]

    def input_shape(self, rows: int) -> tuple[int, ...]:
        return (rows, self.groups, self.features)

    def kept_bytes(self, rows: int, tp: int) -> int:
        n = rows * self.tokens
        stats = 2 * n + n * self.hidden if self.normed else 0  # the normed projection, mean and inverse deviation
        return stats * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        return rows * self.tokens * self.hidden * self.element_bytes if self.class_token or self.positions else 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        weight = self.width * self.features
        n = rows * self.tokens
        made = n * self.hidden if self.class_token or self.normed else 0
        return (made + weight) * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class Attention(Sublayer):
    """Norm, projections, scaled dot-product attention, output projection, residual.

    memory_tokens: of the sequence that a cross-attention reads (0: self-attention). window: side of Swin's square windows,
    `shift` their offset; the tokens then form a square. relative: learned position biases, of T5 (`buckets` of them;
    both directions or backwards only) or of Swin's windows; holds_table: this layer owns the table (in T5 a stack's first).
    post_norm: the residual is the normed input (BERT: a norm is written here with the unit after it).
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

    @property
    def packed(self) -> bool:
        """Query, key and value come from one product."""
        return not self.memory_tokens and self.kv_heads == self.heads and not self.rotary and self.norm == "layer"

    @property
    def keys(self) -> int:
        """Keys that one query meets."""
        return self.window**2 or self.memory_tokens or self.tokens

    @property
    def keeps_scores(self) -> bool:
        """Learned biases need the probabilities' gradient: the fused kernels do not give it."""
        return self.unfused or bool(self.relative)

    def splits_into(self, tp: int) -> bool:
        return self.heads % tp == 0 and self.kv_heads % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        h, q, kv = self.hidden, self.heads * self.width, self.kv_heads * self.width
        if self.packed:
            found = [Parameter("qkv.weight", (3, q, h), 1)]
            found += [Parameter("qkv.bias", (3, q), 1)] * self.bias
        else:
            found = [Parameter("q.weight", (q, h), 0), Parameter("kv.weight", (2, kv, h), 1)]
            found += [Parameter("q.bias", (q,), 0), Parameter("kv.bias", (2, kv), 1)] * self.bias
        found.append(Parameter("out.weight", (h, q), 1))
        found += [Parameter("out.bias", (h,))] * self.out_bias
        if self.holds_table:
            rows = (2 * self.window - 1) ** 2 if self.relative == "swin" else self.buckets
            found.append(Parameter("relative.weight", (rows, self.heads), 1))
        return (*found, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        n, h, heads = rows * self.tokens, self.hidden, self.heads // tp
        q, kv, m = heads * self.width, self.kv_heads // tp * self.width, rows * (self.memory_tokens or self.tokens)
        found = [self._stream(n * h)] * (2 if self.norm == "rms" else 1)
        found += [self._stream(n * h)] * (2 if self.window else 0)  # into windows, and back
        if self.packed:
            found.append(Operator(m=n, n=3 * q, k=h))
        else:
            found += [Operator(m=n, n=q, k=h), Operator(m=m, n=2 * kv, k=h)]
        found += [self._stream(n * q + m * kv, 4)] * (self.rotary > 0)
        blocks, queries = rows * self.tokens // (self.window**2 or self.tokens), self.window**2 or self.tokens
        keys = self.keys // 2 if self.causal and not self.keeps_scores else self.keys
        work = 2.0 if self.keeps_scores else 2.5
        scores = Operator(m=queries, n=max(1, keys), k=self.width, count=blocks * heads, backward=work)
        use = Operator(m=queries, n=self.width, k=max(1, keys), count=blocks * heads, backward=work)
        between = []
        if self.keeps_scores:
            passes = 2 + 2 * bool(self.relative or self.causal) + (3 if self.unfused and self.dropout else 0)
            between = [self._stream(n * heads * self.keys, passes)]
        out = Operator(m=n, n=h, k=q)
        dropped = [self._stream(n * h)] * (self.unfused and self.dropout)
        return [*found, scores, *between, use, self._stream(n * q), out, *dropped, self._stream(n * h, 3, 1.0)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        n, h, heads = rows * self.tokens, self.hidden, self.heads // tp
        q, kv, m = heads * self.width, self.kv_heads // tp * self.width, rows * (self.memory_tokens or self.tokens)
        scores = n * heads * self.keys
        kept = self._norm_elements(n) + 2 * n * q + 2 * m * kv
        if not self.unfused:
            # Rotated keys beside the product that the values are a part of, and the angles.
            kept += m * kv + self.tokens * self.width if self.rotary else 0
            places = INDEX_BYTES * (self.tokens if self.relative != "swin" else self.window**2) * self.keys
            kept += scores if self.relative else n * heads
            return kept * self.element_bytes + places * self.holds_table
        masks = scores + n * h if self.dropout else 0
        return (kept + scores * (3 if self.dropout else 2)) * self.element_bytes + masks

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        n, e = rows * self.tokens, self.element_bytes
        h, kv = self.hidden, self.kv_heads // tp * self.width
        scores = n * self.heads // tp * self.keys
        back = n * h if self.window else 0  # out of the windows again
        if not self.keeps_scores:
            return back * e
        m = rows * (self.memory_tokens or self.tokens)
        biases = scores // rows if self.shift else self.heads // tp * (self.window**2 or self.tokens) * self.keys
        return max(back, scores + 2 * m * kv + biases * bool(self.relative)) * e

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        n, h, heads = rows * self.tokens, self.hidden, self.heads // tp
        q, kv, m = heads * self.width, self.kv_heads // tp * self.width, rows * (self.memory_tokens or self.tokens)
        scores = n * heads * self.keys if self.keeps_scores else 0
        projected = n * q + 2 * m * kv
        weights = 3 * q * h if self.packed else max(q, 2 * kv) * h
        moments = [n * q + h * q, n * h - n * q + weights - scores]
        if scores:
            moments.append(2 * scores - n * q)
        else:
            moments.append(n * q + projected + 2 * min(self.tokens, 64) * min(self.keys, 512))
        later = n * h + (m * h if self.memory_tokens else 0)  # input gradients, which none of these moments holds yet
        copies = n * h if self.window else 0
        most = max(0, *(moment - later + copies for moment in moments)) * self.element_bytes
        return max(most, self._norm_moment(self.kept_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class FeedForward(Sublayer):
    """Norm, up-projection (two of them where gated), activation, down-projection, residual."""

    kind: ClassVar[Kind] = "ffn"
    inner: int
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    gated: bool = False
    bias: bool = True
    inner_dropout: bool = False
    post_norm: bool = False

    def splits_into(self, tp: int) -> bool:
        return tp <= self.inner

    def parameters(self) -> tuple[Parameter, ...]:
        h, f = self.hidden, self.inner
        found = [Parameter("up.weight", (f, h), 0)]
        found += [Parameter("gate.weight", (f, h), 0)] * self.gated
        found += [Parameter("up.bias", (f,), 0)] * self.bias
        found += [Parameter("gate.bias", (f,), 0)] * (self.gated and self.bias)
        found.append(Parameter("down.weight", (h, f), 1))
        found += [Parameter("down.bias", (h,))] * self.bias
        return (*found, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        up = [Operator(m=n, n=f, k=h)] * (2 if self.gated else 1)
        inner = [self._stream(n * f)] + [self._stream(n * f, 3)] * self.gated
        inner += [self._stream(n * f)] * (self.unfused and self.dropout and self.inner_dropout)
        norms = [self._stream(n * h)] * (2 if self.norm == "rms" else 1)
        dropped = [self._stream(n * h)] * (self.unfused and self.dropout)
        return [*norms, *up, *inner, Operator(m=n, n=h, k=f), *dropped, self._stream(n * h, 3, 1.0)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        copies = 4 if self.gated else 1 if self.activation == "relu" else 2  # relu's backward reads its result
        masks = 0
        if self.unfused and self.dropout:
            copies += self.inner_dropout
            masks = n * h + n * f * self.inner_dropout
        return (self._norm_elements(n) + copies * n * f) * self.element_bytes + masks

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        replaced = self.activation == "relu" and not self.gated  # what relu read is there until its result is
        return max(0, n * f - n * h) * self.element_bytes if replaced else 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        moments = [n * f + h * f - n * h, h * f - n * f]
        if self.gated:
            moments += [2 * n * f - n * h, h * f]
        elif self.activation == "relu":
            moments.append(2 * n * f - n * h)
        return max(0, max(moments) * self.element_bytes, self._norm_moment(self.kept_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class Norm(Sublayer):
    """A norm between two stacks (T5's encoder); rank 0 computes it whole."""

    kind: ClassVar[Kind] = "norm"

    def parameters(self) -> tuple[Parameter, ...]:
        return self._norm_parameters()

    def operators(self, rows: int, tp: int) -> list[Operator]:
        return [self._stream(rows * self.tokens * self.hidden)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        n = rows * self.tokens
        return (self._norm_elements(n) - n * self.hidden) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        return max(0, self._norm_moment(self.kept_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class PatchMerging(Sublayer):
    """Swin's: four neighbours of `hidden` / 2 each are put together, normed, and projected to one token of `hidden`."""

    kind: ClassVar[Kind] = "merge"

    @property
    def gathered(self) -> int:
        return 2 * self.hidden

    def parameters(self) -> tuple[Parameter, ...]:
        reduction = Parameter("reduction.weight", (self.hidden, self.gathered), 1)
        return (reduction, *self._norm_parameters(self.gathered))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        n = rows * self.tokens
        return [*[self._stream(n * self.gathered)] * 2, Operator(m=n, n=self.hidden, k=self.gathered // tp)]

    def input_shape(self, rows: int) -> tuple[int, ...]:
        return (rows, 4 * self.tokens, self.hidden // 2)

    def kept_bytes(self, rows: int, tp: int) -> int:
        n = rows * self.tokens
        return (n * self.gathered + self._norm_elements(n, self.gathered)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        return self.gathered * self.hidden // tp * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class Upsample(Sublayer):
    """TransGAN's: twice the side, by pixel shuffle (a quarter of the channels) or interpolation, plus learned positions."""

    kind: ClassVar[Kind] = "upsample"
    from_hidden: int

    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("positions.weight", (self.tokens, self.hidden)),)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        return [self._stream(rows * self.tokens * self.hidden)] * 2

    def input_shape(self, rows: int) -> tuple[int, ...]:
        return (rows, self.tokens // 4, self.from_hidden)

    def kept_bytes(self, rows: int, tp: int) -> int:
        return 0

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        return rows * self.tokens * self.hidden * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        interpolated = self.from_hidden == self.hidden
        return rows * self.tokens * self.hidden * self.element_bytes if interpolated else 0


@dataclass(frozen=True, kw_only=True)
class LanguageHead(Sublayer):
    """Norm, BERT's transform where there is one, logits over the vocabulary; and the cross-entropy on them.

    scale: factor on the hidden states (T5 with tied embeddings).
    """

    kind: ClassVar[Kind] = "head"
    vocabulary: int
    transform: bool = False
    bias: bool = False
    scale: float = 1.0

    def splits_into(self, tp: int) -> bool:
        return tp <= self.vocabulary

    def parameters(self) -> tuple[Parameter, ...]:
        h, v = self.hidden, self.vocabulary
        found = [Parameter("logits.weight", (v, h), 0)]
        found += [Parameter("logits.bias", (v,), 0)] * self.bias
        found += self._norm_parameters()
        if self.transform:
            found += [Parameter("dense.weight", (h, h)), Parameter("dense.bias", (h,))]
            found += self._norm_parameters(name="dense_norm")
        return tuple(found)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        found = [self._stream(n * h)]
        if self.transform:
            found += [Operator(m=n, n=h, k=h), self._stream(n * h), self._stream(n * h)]
        loss = [self._stream(n * v, 4, 0.5)]  # largest, exponentials, their sum; backward one pass
        return [*found, Operator(m=n, n=v, k=h), *loss]

    def output_bytes(self, rows: int, tp: int) -> int:
        return rows * self.tokens * -(-self.vocabulary // tp) * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        return 0

    def kept_bytes(self, rows: int, tp: int) -> int:
        n, h = rows * self.tokens, self.hidden
        norm = self._norm_elements(n)
        kept = 2 * norm + 2 * n * h if self.transform else norm
        if self.scale != 1:
            kept += 0 if self.norm == "rms" else n * h
        logits = 2 * n * -(-self.vocabulary // tp) if self.unfused else 0  # logits and their log-softmax
        return (kept + logits) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        weight = -(-self.vocabulary // tp) * self.hidden * self.element_bytes
        return max(weight, self._norm_moment(self.kept_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class ValueHead(Sublayer):
    """Norm, then one product: of a pooled token with (classes, hidden) (ViT, Swin), or of every token with its colours.

    pool: `first` token, `mean` of all, or `none`.
    """

    kind: ClassVar[Kind] = "head"
    values: int
    pool: Literal["first", "mean", "none"] = "first"

    def splits_into(self, tp: int) -> bool:
        return tp <= self.values

    def _outputs(self, rows: int) -> int:
        return rows * (self.tokens if self.pool == "none" else 1)

    def parameters(self) -> tuple[Parameter, ...]:
        v = self.values
        weight, bias = Parameter("values.weight", (v, self.hidden), 0), Parameter("values.bias", (v,), 0)
        return (weight, bias, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        norm = self._stream(rows * self.tokens * self.hidden)
        return [norm, Operator(m=self._outputs(rows), n=-(-self.values // tp), k=self.hidden)]

    def output_bytes(self, rows: int, tp: int) -> int:
        return self._outputs(rows) * -(-self.values // tp) * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        return 0

    def kept_bytes(self, rows: int, tp: int) -> int:
        n = rows * self.tokens
        pooled = self._outputs(rows) * self.hidden
        whole = 0 if self.pool == "mean" else n * self.hidden
        return (2 * n + max(pooled, whole)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        spread = rows * self.tokens * self.hidden if self.pool == "mean" else 0
        return (spread + -(-self.values // tp) * self.hidden) * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        return rows * self.tokens * self.hidden * self.element_bytes if self.pool == "mean" else 0
