"""State-space sub-layers: Mamba-2 (Dao and Gu, 2024) by chunks, and Mamba-1 (Gu and Dao, 2023) by its scan.

Symbols of Mamba-2: a heads of p numbers each, d = a p; g groups that share the vectors B and C of N numbers; Q tokens of a
chunk. Its kernels are those of `mamba_ssm` (github.com/state-spaces/mamba, commit e9594ce, ops/triton/ssd_combined.py), which
Megatron-Core and transformers call. Forward (`_mamba_chunk_scan_combined_fwd`), for each chunk:

    states of the chunk        B' (decay x)             p N Q      per head
    passing of states          in fp32, read and written once each
    C B'                       on whole chunks          Q Q N      per group
    output from the state      C times the state        Q p N      per head
    output inside the chunk    (C B' decay) x           Q p Q/2    per head, causal

Backward (`_mamba_chunk_scan_combined_bwd`): states and C B' are computed again; each of the two products with states has two
gradients, so that 5 products stand against 2 (`chunk_state` again, `bwd_dstates`, `bwd_dx`, `bwd_db`, `bwd_dC`); C B' is
computed again and has two gradients; and inside the chunk there are three (`bwd_dx`, `bwd_dcb`, `bwd_ddAcs_stable`).

The autograd function `MambaSplitConv1dScanCombinedFn` keeps what was projected and the result of the scan before its gate, and
computes all else again. Megatron-Core (`_ssm_training` in its `mamba_mixer.py`) leaves norm and output projection to kernels
of their own, so the gated result and the norm's result are kept, too; transformers gives them to the function, which keeps
neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter
from trainplan.profiling.models.sublayers.mixers import WIDE_BYTES, TokenMixer, small_product

SCAN_FLOPS = 7  # of a channel and a number of its state, as Megatron-LM's `mamba_layer_flops` counts a recurrent scan


@dataclass(frozen=True, kw_only=True)
class StateSpace(TokenMixer):
    """A Mamba-2 sub-layer: norm, input projection, convolution, scan by chunks, gated norm, output projection, residual.

    heads: number of heads. width: size of a head. groups: number of groups of heads that share B and C. state: numbers of the
    state for each number of a head. bias: whether the projections have a bias; taps_bias: whether the convolution has one.
    gated_norm: whether the gated result is normed before the output projection. whole: whether one autograd function computes
    everything from what is projected to the output, as in transformers, and keeps neither the gated nor the normed result.
    """

    kind: ClassVar[Kind] = "state_space"
    heads: int
    width: int
    groups: int
    state: int
    bias: bool = False
    taps_bias: bool = True
    gated_norm: bool = True
    whole: bool = False

    @property
    def inner(self) -> int:
        """Count of numbers of a token in all heads together."""
        return self.heads * self.width

    @property
    def convolved(self) -> int:
        """Count of numbers of a token that the convolution mixes: those of the heads, of B and of C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Count of numbers of a token that the input projection gives: gate, heads, B, C, and a step of each head."""
        return self.inner + self.convolved + self.heads

    def splits_into(self, tp: int) -> bool:
        """Whether `tp` tensor-parallel ranks can split the sub-layer: `tp` divides heads and groups, as Megatron-Core's
        `MambaMixer` requires."""
        return self.heads % tp == 0 and self.groups % tp == 0

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections, convolution, decay (A), skip (D) and step of every head, all split over tensor-parallel ranks by heads
        and groups; the norm of the gated result, split, too, and the norm before."""
        more = [Parameter("conv.taps", (self.convolved, self.taps), 0)]
        more += [Parameter("conv.bias", (self.convolved,), 0)] * self.taps_bias
        more += [Parameter(name, (self.heads,), 0) for name in ("A_log", "D", "step_bias")]
        more += [Parameter("gated_norm.scale", (self.inner,), 0)] * self.gated_norm
        return (*self._products(self.bias), *more, *self._norm_parameters())

    def scan_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the scan's forward pass of `rows` samples on one of `tp` tensor-parallel ranks; see the module."""
        q, p, n, heads, groups = self.chunk_tokens, self.width, self.state, self.heads // tp, self.groups // tp
        chunks = self.chunks(rows)
        states = chunks * heads * p * n
        return [
            small_product(p, n, q, chunks * heads, 2.5),
            self._pass(2 * states, WIDE_BYTES, 3.0),
            small_product(q, q, n, chunks * groups, 3.0),
            small_product(q, p, n, chunks * heads, 2.5),
            small_product(q, p, max(1, q // 2), chunks * heads, 3.0),
        ]

    def inside_bytes(self, tokens: float, tp: int, element_bytes: int) -> float:
        """Bytes kept for the backward pass on one of `tp` tensor-parallel ranks: what was projected and the scan's result;
        with kernels of their own for norm and output projection also the gated result and its norm's.

        The norm keeps an inverse deviation for each group in fp32. tokens: tokens on the rank. element_bytes: bytes of a
        number of the activations.
        """
        copies = 1 if self.whole else 2 + self.gated_norm
        numbers = self.projected + copies * self.inner
        return tokens * (numbers * element_bytes + self.groups * WIDE_BYTES * self.gated_norm) / tp

    def scan_workspace_bytes(self, rows: int, tp: int, backward: bool) -> int:
        """Peak bytes of temporaries of convolution and scan of `rows` samples on one of `tp` tensor-parallel ranks.

        Forward: the convolved numbers, steps and decays in fp32, the states in fp32 and as they are passed on, and C B' in
        fp32. backward: the same again, with the gradients of convolved numbers, states and C B'.
        """
        n, e = rows * self.tokens, self.element_bytes
        tokens = n * (self.convolved * e + 2 * self.heads * WIDE_BYTES)
        states = self.chunks(rows) * self.inner * self.state * (WIDE_BYTES + e)
        scores = self.chunks(rows) * self.groups * self.chunk_tokens**2 * WIDE_BYTES
        return (tokens + states + scores) * (2 if backward else 1) // tp


@dataclass(frozen=True, kw_only=True)
class SelectiveScan(TokenMixer):
    """A Mamba-1 sub-layer, as in Jamba: norm, input projection to channels and their gates, convolution, projection of each
    token's step, B and C from the channels, recurrent scan, gate, output projection, residual.

    channels: number of channels. state: numbers of the state of a channel. rank: size from which the steps of all channels are
    projected. normed: whether steps, B and C are normed (Jamba). bias, taps_bias: whether projections and convolution have a
    bias. Its scan is one kernel (`selective_scan_fn` of `mamba_ssm`) that reads channels, steps, gates, B and C, and keeps
    the states in the device's fast memory; `chunk` is the number of tokens between two states that it writes for the backward
    pass (2048 there). The kernel's exponentials are no products, so its time here, of the memory that it moves, is a lower
    bound. No runtime splits it over tensor-parallel ranks.
    """

    kind: ClassVar[Kind] = "state_space"
    channels: int
    state: int
    rank: int
    normed: bool = False
    bias: bool = False
    taps_bias: bool = True
    chunk: int = 2048

    @property
    def unplanned_feature(self) -> str:
        """A text for users: plans are not made yet, because the time of the recurrent scan is not known."""
        return "state spaces with a recurrent scan (Mamba-1)"

    @property
    def inner(self) -> int:
        """Count of numbers of a token that the output projection reads: the channels."""
        return self.channels

    @property
    def projected(self) -> int:
        """Count of numbers of a token that the input projection gives: channels and gates."""
        return 2 * self.inner

    @property
    def convolved(self) -> int:
        """Count of numbers of a token that the convolution mixes: the channels."""
        return self.inner

    def splits_into(self, tp: int) -> bool:
        """Whether `tp` tensor-parallel ranks can split the sub-layer: only one can hold it."""
        return tp == 1

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections, convolution, projections of steps, B and C, decay (A) and skip (D) of the channels, and the norms."""
        d, n, r = self.inner, self.state, self.rank
        more = [Parameter("conv.taps", (d, self.taps), 0)]
        more += [Parameter("conv.bias", (d,), 0)] * self.taps_bias
        more += [Parameter("selection.weight", (r + 2 * n, d), 1)]
        more += [Parameter("step.weight", (d, r), 0), Parameter("step.bias", (d,), 0)]
        more += [Parameter("A_log", (d, n), 0), Parameter("D", (d,), 0)]
        more += [Parameter(f"{name}_norm.scale", (size,)) for name, size in (("step", r), ("B", n), ("C", n)) if self.normed]
        return (*self._products(self.bias), *more, *self._norm_parameters())

    def scan_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass between convolution and output projection: the projections of steps, B and C, and the
        scan. rows: samples on the rank. tp: tensor-parallel degree, 1."""
        n, d = rows * self.tokens, self.inner
        small = self.rank + 2 * self.state
        norms = [self._stream(n * small)] * self.normed
        products = [Operator(m=n, n=small, k=d), *norms, Operator(m=n, n=d, k=self.rank)]
        return [*products, self._pass(n * (4 * d + 2 * self.state), self.element_bytes, 2.0)]

    def forward_flops(self, rows: int, tp: int) -> int:
        """Floating-point operations of the products of the forward pass of `rows` samples, with those of the recurrent scan.

        tp: tensor-parallel degree, 1.
        """
        return super().forward_flops(rows, tp) + SCAN_FLOPS * rows * self.tokens * self.inner * self.state

    def inside_bytes(self, tokens: float, tp: int, element_bytes: int) -> float:
        """Bytes kept for the backward pass: channels and gates, convolved channels, steps with their smaller form, B, C (and
        these before their norms), the scan's result before and after its gate, and the states between chunks.

        tokens: tokens on the rank. tp: tensor-parallel degree, 1. element_bytes: bytes of a number of the activations.
        """
        small = (self.rank + 2 * self.state) * (1 + self.normed)
        states = self.inner * 2 * self.state * WIDE_BYTES / self.chunk
        return tokens * ((self.projected + 4 * self.inner + small) * element_bytes + states)

    def scan_workspace_bytes(self, rows: int, tp: int, backward: bool) -> int:
        """Peak bytes of temporaries of the scan of `rows` samples: 0 forward, as it keeps what it writes. backward: the
        gradients of convolved channels and steps, and of B and C in fp32. tp: tensor-parallel degree, 1.
        """
        n = rows * self.tokens
        return n * (2 * self.inner * self.element_bytes + 2 * self.state * WIDE_BYTES) * backward
