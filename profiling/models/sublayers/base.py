"""The base class of all sub-layers: parameters with their split, kernels, and the memory that every kind counts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from trainplan.profiling.base.dtypes import DTYPE_BYTES

Kind = Literal[
    "embedding", "attention", "state_space", "delta_net", "ffn", "experts", "head", "norm", "merge", "upsample", "block", "join"
]
# Kinds within transformer layers.
LAYER_KINDS: tuple[Kind, ...] = ("attention", "state_space", "delta_net", "ffn", "experts", "block")
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "relu2", "xielu"]
Core = Literal["scores", "values", "chunk"] | None
INDEX_BYTES = 8  # of a token id
DRAWN_AT_ONCE = 2**20  # numbers of a dropout mask that are drawn in one block
DRAWING_BYTES = 8  # alive for each number of such a block: two words of 32 bits


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor of a sub-layer: its name, its whole shape, and the dimension that tensor parallelism splits (None
    if every rank holds the whole tensor).

    routed: whether its first dimension counts routed experts, of which a token uses only some, and which expert parallelism
    splits.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None = None
    routed: bool = False

    def shard_shape(self, tp: int, index: int) -> tuple[int, ...]:
        """Shape of the part of the tensor that rank `index` of `tp` tensor-parallel ranks holds; the whole shape if it is
        replicated."""
        if self.split is None:
            return self.shape
        low, high = shard_bounds(self.shape[self.split], tp, index)
        return (*self.shape[: self.split], high - low, *self.shape[self.split + 1 :])


def shard_bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Bounds of slice `index` when `size` numbers are split into `parts` nearly equal slices: its first index, and the index
    after its last.

    For example, 10 numbers in 3 parts: slice 1 is (3, 6).
    """
    return index * size // parts, (index + 1) * size // parts


@dataclass(frozen=True)
class Operator:
    """One kernel of a forward pass: `count` matrix multiplications of (m, k) by (k, n) matrices, or, if m = 0, a pass that
    reads and writes `touched_bytes` of memory.

    groups: number of weight matrices, of as many experts, among which the m rows are divided; each row meets one of them (a
    grouped product), so that the number of operations is that of one matrix. backward: work of its backward pass in multiples
    of the forward pass (2 for a matrix multiplication; fused attention also recomputes). core: for the two multiplications
    inside a fused attention kernel, which one it is: "scores", queries (m, k) by keys (k, n), or "values", probabilities (m, k)
    by values (k, n). The scores of a fused kernel are never in memory. A "chunk" is one of the small products of a scan over
    tokens, which a recipe of few bits leaves in the model's dtype.
    """

    m: int = 0
    n: int = 0
    k: int = 0
    count: int = 1
    groups: int = 1
    touched_bytes: int = 0
    backward: float = 2.0
    core: Core = None

    @property
    def flops(self) -> int:
        """Floating-point operations of the kernel's forward pass, where a multiplication and an addition count one each; 0
        for a pass over memory."""
        return 2 * self.count * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """Base class of the sub-layers of a model, such as an attention, a feed-forward network or an embedding.

    A sub-layer knows its shapes and dtype; its methods give its parameters, the kernels that it runs, and the memory that it
    needs for `rows` samples on one of `tp` tensor-parallel ranks. Its "matrices" are its matrix multiplications with
    everything that is computed between them; a norm may come before them, and dropout, a norm and the residual after them.
    All sub-layers have these fields:

    tokens: number of tokens per sample that it works on. hidden: hidden size. carried_tokens: number of tokens per sample of
    another stream of hidden states that pass the sub-layer unchanged (such as an encoder's output, while the decoder runs).
    norm: kind of its norms; epsilon: number added to their variance; norm_bias, norm_weight: whether norms have these
    parameters (OLMo's have none). unfused: whether it is computed by separate kernels, as in published code, that keep
    attention scores and dropout masks. dropout: probability with which each number of its output is dropped, before the
    residual is added. pre_norm: whether there is a norm before its matrices. sandwich: whether there is also a norm after
    them, before the residual is added (Ding et al., 2021); with tensor parallelism every rank norms the sum. residual: factor
    on its output before the residual is added (Granite, MiniCPM). pieces: number of pieces that context parallelism cuts each
    sample into; `tokens` are the tokens of one piece.
    """

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
        """Whether the forward pass has dropout, so that it must know the ids of its samples to draw dropout masks."""
        return self.dropout > 0

    @property
    def unexecuted_feature(self) -> str:
        """Name, for users, of a feature of the sub-layer that can be planned but not yet executed; empty if there is none."""
        unlike = {
            "no norm before its matrices": not self.pre_norm,
            "norms without weights": not self.norm_weight,
            "a factor on what joins the residual": self.residual != 1,
        }
        return next((what for what, present in unlike.items() if present), "")

    @property
    def unplanned_feature(self) -> str:
        """Name, for users, of a feature of the sub-layer whose plans trainplan does not make yet, in the plural or without an
        article ("mixtures of experts"); empty if there is none. A model with such a sub-layer can be read and shown."""
        return ""

    @property
    def element_bytes(self) -> int:
        """Bytes of one number in the sub-layer's dtype."""
        return DTYPE_BYTES[self.dtype]

    def parameters(self) -> tuple[Parameter, ...]:
        """All parameter tensors of the sub-layer, each with the dimension that tensor parallelism splits."""
        raise NotImplementedError

    def parameter_count(self, tp: int = 1, index: int = 0) -> int:
        """Total number of parameters that rank `index` of `tp` tensor-parallel ranks holds."""
        return sum(prod(p.shard_shape(tp, index)) for p in self.parameters())

    def active_count(self, tp: int = 1, index: int = 0) -> int:
        """Number of parameters of rank `index` of `tp` tensor-parallel ranks that one token uses; all of them, unless a router
        chooses some of the sub-layer's experts."""
        return self.parameter_count(tp, index)

    @property
    def replicated_count(self) -> int:
        """Number of parameters of which every tensor-parallel rank holds a full copy, so that their gradients are summed over
        the ranks."""
        return sum(prod(p.shape) for p in self.parameters() if p.split is None)

    def splits_into(self, tp: int) -> bool:
        """Whether tensor parallelism of degree `tp` can split the sub-layer: every rank gets a part of every parameter that
        is split."""
        return all(tp <= parameter.shape[parameter.split] for parameter in self.parameters() if parameter.split is not None)

    def degree(self, tp: int) -> int:
        """Number of ranks over which a tensor-parallel group of `tp` ranks splits the sub-layer: `tp`, or 1 if each rank
        holds all of it."""
        return tp if self.splits_into(tp) else 1

    def runs_on(self, tp: int) -> bool:
        """Whether a tensor-parallel group of `tp` ranks can run the sub-layer: either split over the ranks, or, for small
        heads, whole on every rank.
        """
        return self.replicable or self.splits_into(tp)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks, in order."""
        raise NotImplementedError

    def forward_flops(self, rows: int, tp: int) -> int:
        """Floating-point operations of all matrix multiplications of the forward pass of `rows` samples on one of `tp`
        tensor-parallel ranks.

        Attention's two products with scores count 2 operations per query, key and number of a head each; causal kernels skip
        about half.
        """
        return sum(operator.flops for operator in self.operators(rows, tp))

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the input tensor for `rows` samples."""
        return (rows, self.tokens, self.hidden)

    def input_bytes(self, rows: int) -> int:
        """Bytes of the input tensor of `rows` samples; under full recomputation this is all that the sub-layer keeps for the
        backward pass.
        """
        return prod(self.input_shape(rows)) * self.element_bytes

    def output_bytes(self, rows: int, tp: int) -> int:
        """Bytes of the output of one tensor-parallel rank: hidden states of all tokens, a partial sum if the sub-layer is
        split.

        rows: samples on the rank. tp: tensor-parallel degree, on which the hidden states' size does not depend.
        """
        return rows * self.tokens * self.hidden * self.element_bytes

    def carried_bytes(self, rows: int) -> int:
        """Bytes of the hidden states of another stream, such as an encoder's output, that pass this sub-layer unchanged.

        rows: samples on the rank.
        """
        return rows * self.carried_tokens * self.hidden * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        """Bytes sent to the next pipeline stage if a stage ends after this sub-layer: the output, and hidden states of another
        stream that pass the sub-layer unchanged, such as an encoder's; 0 for a head.

        rows: samples on the rank.
        """
        return 0 if self.kind == "head" else self.output_bytes(rows, 1) + self.carried_bytes(rows)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes of activations kept from the forward to the backward pass, in addition to the sub-layer's input.

        rows: samples on the device. tp: tensor-parallel degree; the bytes are per rank.
        """
        raise NotImplementedError

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They come in addition to input, output and the bytes kept for the backward pass. 0 unless a kind of sub-layer counts its
        own.
        """
        return 0

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They come in addition to the input, the bytes kept by the forward pass, and the gradients of output, input and
        parameters. Every term of an implementation is the memory during one operation: the gradients that it computes (a
        weight's is a temporary before it is added to the parameter's gradient), minus what earlier operations have freed.
        Tests check the sum against torch's allocations.
        """
        raise NotImplementedError

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """Peak bytes of temporaries during the backward pass of the matrices alone, without the norm before and the dropout
        after them.

        Two numbers: the peak until only the gradients of the first projections are missing; and the peak while these are
        computed, when a norm that is recomputed is in memory again. They come in addition to the input, the bytes kept for
        the backward pass, and gradients, and may be negative if more has been freed than allocated. rows: samples on the
        rank. tp: tensor-parallel degree.
        """
        return self.backward_workspace_bytes(rows, tp), 0

    def outer_backward_bytes(self, rows: int, kept_bytes: int) -> int:
        """Peak bytes of temporaries during the backward pass of dropout and norms, outside of the matrices.

        rows: samples on the rank. kept_bytes: bytes that the whole sub-layer keeps for its backward pass; most of them are free
        when the norm before the matrices has its turn.
        """
        return max(self._drawing_bytes(rows), self._norm_peak_bytes(kept_bytes, rows), self.sandwich_peak_bytes(rows))

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the matrix multiplications, such as a norm's."""
        return 0

    @property
    def _drops(self) -> bool:
        """Whether the output has dropout whose mask is computed again in the backward pass; unfused code keeps its masks
        instead.
        """
        return self.dropout > 0 and not self.unfused

    def _drawing_bytes(self, rows: int) -> int:
        """Bytes of temporaries while the dropout mask of the output, or of its gradient, is drawn; 0 without dropout.

        rows: samples on the rank.
        """
        return min(rows * self.tokens * self.hidden, DRAWN_AT_ONCE) * DRAWING_BYTES * self._drops

    def _norm_parameters(self, width: int | None = None, name: str = "norm") -> tuple[Parameter, ...]:
        """Parameters of a norm over `width` numbers (default: the hidden size); empty if norms have no weight.

        name: the beginning of their names. For "norm", the sub-layer's main one, the weight of the norm after the matrices is
        included, if there is one.
        """
        shape = (width or self.hidden,)
        if not self.norm_weight:
            return ()
        weight: tuple[Parameter, ...] = (Parameter(f"{name}.weight", shape),) * (self.pre_norm or name != "norm")
        weight += (Parameter("post_norm.weight", shape),) * (self.sandwich and name == "norm")
        return weight if self.norm == "rms" or not self.norm_bias else (*weight, Parameter(f"{name}.bias", shape))

    def entry_elements(self, tokens: int) -> int:
        """Count of numbers kept for the backward pass by the norm before the matrices, on `tokens` tokens; 0 without such a
        norm."""
        return self.norm_elements(tokens) if self.pre_norm else 0

    def norm_elements(self, tokens: int, width: int | None = None) -> int:
        """Count of numbers kept for the backward pass by one norm over `width` numbers (default: the hidden size) of `tokens`
        tokens.

        These are its result, per token the inverse deviation, and for a layer norm the mean; an RMS norm that is not fused also
        keeps its result before the weight.
        """
        width = width or self.hidden
        if self.norm == "layer":
            return tokens * width + 2 * tokens
        return tokens * width * (2 if self.unfused else 1) + tokens

    def sandwich_bytes(self, rows: int) -> int:
        """Bytes kept for the backward pass by the norm after the matrices: its input and statistics; 0 without such a norm.

        rows: samples on the rank.
        """
        return self.norm_elements(rows * self.tokens) * self.element_bytes * self.sandwich

    def sandwich_peak_bytes(self, rows: int) -> int:
        """Peak bytes of temporaries while the gradient of the norm after the matrices is computed, which is the first
        operation of the backward pass; 0 without such a norm. rows: samples on the rank.
        """
        n = rows * self.tokens
        return (n * self.hidden + n) * self.element_bytes * self.sandwich

    def _norm_peak_bytes(self, kept_bytes: int, rows: int) -> int:
        """Peak bytes of temporaries while the gradient of the RMS norm before the matrices is computed, minus the bytes that
        have been freed before, so the result may be negative. 0 for a layer norm, whose kernel needs none, or without a norm.

        kept_bytes: bytes that the sub-layer kept for its backward pass and that have been freed before. rows: samples on the
        rank.
        """
        if self.norm == "layer" or not self.pre_norm:
            return 0
        n = rows * self.tokens
        return (2 * n * self.hidden + n) * self.element_bytes - kept_bytes

    def _stream(self, elements: int, passes: int = 2, backward: float = 1.5) -> Operator:
        """An elementwise kernel, as a pass over memory that reads or writes `elements` numbers `passes` times.

        backward: work of its backward pass in multiples of the forward pass.
        """
        return Operator(touched_bytes=passes * elements * self.element_bytes, backward=backward)
