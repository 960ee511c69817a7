"""What all sub-layers share: parameters with their split, operators, and the bytes that every one of them has."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from trainplan.profiling.base.dtypes import DTYPE_BYTES

Kind = Literal["embedding", "attention", "ffn", "head", "norm", "merge", "upsample", "block"]
LAYERED: tuple[Kind, ...] = ("attention", "ffn", "block")  # those of transformer layers
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "relu2", "xielu"]
Core = Literal["scores", "values"] | None
INDEX_BYTES = 8
DRAWN_AT_ONCE = 2**20  # numbers of a dropout mask
DRAWING_BYTES = 8  # two words for each of them


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor: full shape, and the dimension that tensor parallelism splits (None: replicated)."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None

    def shard_shape(self, tp: int, index: int) -> tuple[int, ...]:
        """Shape of the part that rank `index` of `tp` tensor-parallel ranks holds."""
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
    core: of the products of a fused attention core, which one it is: queries (m, k) by keys (k, n), which makes `scores`, or
    scores (m, k) by `values` (k, n). The scores of a fused core are never in memory.
    """

    m: int = 0
    n: int = 0
    k: int = 0
    count: int = 1
    touched_bytes: int = 0
    backward: float = 2.0
    core: Core = None

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass; a multiplication with its addition counts 2."""
        return 2 * self.count * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """What all sub-layers share. tokens: of one sample, those it works on. carried_tokens: of one sample, hidden states of
    another stream that pass it by (an encoder's, beside a decoder). dropout: the probability with which each number of its
    output is dropped, before the residual joins it. norm_bias: whether layer norms have one. sandwich: a norm behind its
    matrices, too, before the residual joins (Ding et al., 2021); with tensor parallelism every rank norms the sum. pre_norm:
    whether there is one before them (OLMo 2 has those behind them alone). norm_weight: whether norms have weights (OLMo's have
    none). residual: factor on what joins the residual (Granite, MiniCPM). pieces: into how many each sample is cut, of which
    `tokens` are one (see `sublayers.pieces`)."""

    kind: ClassVar[Kind]
    replicable: ClassVar[bool] = False  # whether ranks that cannot split it may each hold and compute all of it

    tokens: int
    hidden: int
    dtype: str = "float32"
    carried_tokens: int = 0
    norm: Literal["layer", "rms"] = "layer"
    epsilon: float = 1e-5
    unfused: bool = False
    dropout: float = 0.0
    norm_bias: bool = True
    sandwich: bool = False
    pre_norm: bool = True
    norm_weight: bool = True
    residual: float = 1.0
    pieces: int = 1

    @property
    def draws(self) -> bool:
        """Whether its forward pass drops numbers, and so needs to know the samples that it works on."""
        return self.dropout > 0

    @property
    def unexecuted(self) -> str:
        """What is planned of it, and does not run yet, in words; nothing where it runs."""
        unlike = {
            "no norm before its matrices": not self.pre_norm,
            "norms without weights": not self.norm_weight,
            "a factor on what joins the residual": self.residual != 1,
        }
        return next((what for what, present in unlike.items() if present), "")

    @property
    def element_bytes(self) -> int:
        """Bytes of one number in the dtype."""
        return DTYPE_BYTES[self.dtype]

    def parameters(self) -> tuple[Parameter, ...]:
        """All parameter tensors, each with its split."""
        raise NotImplementedError

    def parameter_count(self, tp: int = 1, index: int = 0) -> int:
        """Numbers in the parameters that rank `index` of `tp` tensor-parallel ranks holds."""
        return sum(prod(p.shard_shape(tp, index)) for p in self.parameters())

    @property
    def replicated_count(self) -> int:
        """Parameters that every tensor-parallel rank holds, and whose gradients are summed over the ranks."""
        return sum(prod(p.shape) for p in self.parameters() if p.split is None)

    def splits_into(self, tp: int) -> bool:
        """Whether tensor parallelism of this degree is possible: each rank gets something of whatever is split."""
        return all(tp <= parameter.shape[parameter.split] for parameter in self.parameters() if parameter.split is not None)

    def degree(self, tp: int) -> int:
        """The ranks of a tensor-parallel group of `tp` that split it among them: all, or 1 where each has the whole of it."""
        return tp if self.splits_into(tp) else 1

    def runs_on(self, tp: int) -> bool:
        """Whether a tensor-parallel group of `tp` ranks can run it: split, or where it may be, whole on every rank."""
        return self.replicable or self.splits_into(tp)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """The forward pass, kernel by kernel."""
        raise NotImplementedError

    def forward_flops(self, rows: int, tp: int) -> int:
        """Of the matrix products. Attention scores and their use are 4 n s q (halved where causal kernels skip half)."""
        return sum(operator.flops for operator in self.operators(rows, tp))

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the input with `rows` samples."""
        return (rows, self.tokens, self.hidden)

    def input_bytes(self, rows: int) -> int:
        """What the unit reads, and what is held for it under recomputation."""
        return prod(self.input_shape(rows)) * self.element_bytes

    def output_bytes(self, rows: int, tp: int) -> int:
        """What one tensor-parallel rank gives: hidden states of all tokens, whatever the degree."""
        return rows * self.tokens * self.hidden * self.element_bytes

    def carried_bytes(self, rows: int) -> int:
        """Hidden states of another stream that pass this sub-layer by."""
        return rows * self.carried_tokens * self.hidden * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        """The hidden states that pass to the next unit: the output and what is carried past it; none follows a head."""
        return 0 if self.kind == "head" else self.output_bytes(rows, 1) + self.carried_bytes(rows)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """What the graph holds from forward to backward, besides the unit's input."""
        raise NotImplementedError

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Most bytes alive during the forward pass beyond input, kept and output."""
        return 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Most bytes alive during the backward pass beyond input, kept, output gradient, input and parameter gradients.

        Each term is one operation's moment: the gradients that it makes (a weight's is a temporary before it is added to the
        buffer that it belongs to), less what earlier ones have freed. Checked against torch's allocations in the tests.
        """
        raise NotImplementedError

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """The same of the backward pass of its matrices alone, without what comes before and behind them; of those that work on
        what comes before, by themselves."""
        return self.backward_workspace_bytes(rows, tp), 0

    def outer_backward_bytes(self, rows: int, kept_bytes: int) -> int:
        """The same of what comes before and behind its matrices, which keep, together with these, so many bytes."""
        return max(self._drawing_bytes(rows), self._norm_moment(kept_bytes, rows), self.sandwich_moment(rows))

    @property
    def operators_before(self) -> int:
        """How many of its kernels (see `operators`) come before its matrices."""
        return 0

    @property
    def _drops(self) -> bool:
        """Whether trainplan's own code drops numbers of the output."""
        return self.dropout > 0 and not self.unfused

    def _drawing_bytes(self, rows: int) -> int:
        """What there is for a while of the mask of the output, or of its gradient."""
        return min(rows * self.tokens * self.hidden, DRAWN_AT_ONCE) * DRAWING_BYTES * self._drops

    def _norm_parameters(self, width: int | None = None, name: str = "norm") -> tuple[Parameter, ...]:
        shape = (width or self.hidden,)
        if not self.norm_weight:
            return ()
        weight: tuple[Parameter, ...] = (Parameter(f"{name}.weight", shape),) * (self.pre_norm or name != "norm")
        weight += (Parameter("post_norm.weight", shape),) * (self.sandwich and name == "norm")
        return weight if self.norm == "rms" or not self.norm_bias else (*weight, Parameter(f"{name}.bias", shape))

    def entry_elements(self, tokens: int) -> int:
        """What the norm before the matrices keeps; nothing without one."""
        return self.norm_elements(tokens) if self.pre_norm else 0

    def norm_elements(self, tokens: int, width: int | None = None) -> int:
        """What a norm keeps: its result, and of each token the inverse deviation and, unless it is an RMS norm, the mean. One
        that is not fused also keeps its result before the weight."""
        width = width or self.hidden
        if self.norm == "layer":
            return tokens * width + 2 * tokens
        return tokens * width * (2 if self.unfused else 1) + tokens

    def sandwich_bytes(self, rows: int) -> int:
        """What the norm behind the matrices keeps: what it norms, besides what any norm does, but its result, which goes on."""
        return self.norm_elements(rows * self.tokens) * self.element_bytes * self.sandwich

    def sandwich_moment(self, rows: int) -> int:
        """Workspace while the gradient of the norm behind the matrices is made, with which the backward pass begins."""
        n = rows * self.tokens
        return (n * self.hidden + n) * self.element_bytes * self.sandwich

    def _norm_moment(self, kept_bytes: int, rows: int) -> int:
        """Workspace while an RMS norm's gradient is made: two hidden states and the norm's own part of what was kept."""
        if self.norm == "layer" or not self.pre_norm:
            return 0
        n = rows * self.tokens
        return (2 * n * self.hidden + n) * self.element_bytes - kept_bytes

    def _stream(self, elements: int, passes: int = 2, backward: float = 1.5) -> Operator:
        return Operator(touched_bytes=passes * elements * self.element_bytes, backward=backward)
