"""A mixture of experts in place of a feed-forward network: a router, routed experts, and experts that all tokens share.

Symbols: E routed experts, k of them a token, c = n k token copies, f inner size of an expert, d the size that experts work on
(the hidden size h, unless a smaller latent is computed before them).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from trainplan.profiling.models.sublayers.base import INDEX_BYTES, Activation, Kind, Operator, Parameter, Sublayer

LOGIT_BYTES = 4  # routers compute probabilities in float32


@dataclass(frozen=True, kw_only=True)
class Experts(Sublayer):
    """A mixture of experts as a sub-layer: norm, router, routed experts and shared experts, residual.

    experts: number of routed experts. chosen: number of them that work on each token. inner: output size of an expert's
    up-projection. gated, activation: of the experts, as of a feed-forward network. bias: whether the experts' projections have
    biases. router_bias: whether the router's projection has one. balanced: whether a number per expert, which balances the load
    and has no gradient, is added to the router's scores before experts are chosen (Wang et al., 2024); it is no parameter here.
    scoring: the function that turns the router's logits into probabilities. groups, chosen_groups: experts form `groups` groups
    of equal size, and a token's experts are in at most `chosen_groups` of them (DeepSeek's node-limited routing; 1 and 1: no
    groups). capacity: most token copies of an expert over their mean number; what is above is dropped (0: nothing is).
    weighted: where probabilities multiply: an expert's output, or its input (Llama 4). latent: the size that routed experts
    work on, to and from which two projections lead (0: the hidden size, without projections); latent_bias: whether these have
    biases.

    shared_inner: inner size of all shared experts together, which work on every token (0: none). shared_gate: whether their
    output is multiplied by a gate of its own (Qwen2-MoE). shared_bias: whether their projections have biases.
    """

    kind: ClassVar[Kind] = "experts"
    experts: int
    chosen: int
    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    balanced: bool = False
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    capacity: float = 0.0
    weighted: Literal["output", "input"] = "output"
    latent: int = 0
    latent_bias: bool = False
    shared_inner: int = 0
    shared_gate: bool = False
    shared_bias: bool = False

    @property
    def unplanned_feature(self) -> str:
        """A text for users: plans of mixtures of experts are not made yet."""
        return f"mixtures of experts ({self.experts}, {self.chosen} a token)"

    @property
    def unexecuted_feature(self) -> str:
        """A text for users: mixtures of experts are not executed."""
        return "a mixture of experts"

    @property
    def width(self) -> int:
        """The size that routed experts work on: the latent's, or else the hidden size."""
        return self.latent or self.hidden

    @property
    def ups(self) -> int:
        """Number of projections of an expert from its input: two if it is gated, else one."""
        return 2 if self.gated else 1

    def copies(self, rows: int) -> int:
        """Number of token copies that `rows` samples send to routed experts: one for each token and each of its experts."""
        return rows * self.tokens * self.chosen

    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of router, routed experts (one tensor of all of them for each projection), shared experts and norm.

        Tensor parallelism splits the inner size of the experts; the router is whole on every rank.
        """
        e, h, f, d = self.experts, self.hidden, self.inner, self.width
        parameters = [Parameter("router.weight", (e, h)), *[Parameter("router.bias", (e,))] * self.router_bias]
        for name in ("up", "gate")[: self.ups]:
            parameters.append(Parameter(f"experts.{name}.weight", (e, f, d), 1, routed=True))
            parameters += [Parameter(f"experts.{name}.bias", (e, f), 1, routed=True)] * self.bias
        parameters.append(Parameter("experts.down.weight", (e, d, f), 2, routed=True))
        parameters += [Parameter("experts.down.bias", (e, d), routed=True)] * self.bias
        if self.latent:
            for name, sizes in (("latent_down", (d, h)), ("latent_up", (h, d))):
                parameters.append(Parameter(f"{name}.weight", sizes))
                parameters += [Parameter(f"{name}.bias", sizes[:1])] * self.latent_bias
        if shared := self.shared_inner:
            for name in ("up", "gate")[: self.ups]:
                parameters.append(Parameter(f"shared.{name}.weight", (shared, h), 0))
                parameters += [Parameter(f"shared.{name}.bias", (shared,), 0)] * self.shared_bias
            parameters.append(Parameter("shared.down.weight", (h, shared), 1))
            parameters += [Parameter("shared.down.bias", (h,))] * self.shared_bias
            parameters += [Parameter("shared_gate.weight", (1, h))] * self.shared_gate
        return (*parameters, *self._norm_parameters())

    def routed_count(self, tp: int = 1, index: int = 0) -> int:
        """Number of parameters of all routed experts together that rank `index` of `tp` tensor-parallel ranks holds."""
        return sum(prod(parameter.shard_shape(tp, index)) for parameter in self.parameters() if parameter.routed)

    def active_count(self, tp: int = 1, index: int = 0) -> int:
        """Number of parameters of rank `index` of `tp` tensor-parallel ranks that one token uses: all but those of the routed
        experts that are not chosen for it."""
        unused = self.routed_count(tp, index) // self.experts * (self.experts - self.chosen)
        return self.parameter_count(tp, index) - unused

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the router: the norm's."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks that hold a share of every
        expert: norm, router, shared experts, permutation, routed experts, permutation back, residual.

        Without an exchange between ranks: all experts are on the rank."""
        n, h = rows * self.tokens, self.hidden
        norms = [self._stream(n * h)] * self.operators_before
        after = [self._stream(n * h)] * (2 * self.sandwich)
        shared, copies = self.shared_operators(rows, tp), self.copies(rows)
        moved = [self._stream(copies * self.width)]
        routed = self.routed_operators(copies, self.experts, tp)
        inside = [*self.router_operators(rows), *shared, *self.latent_operators(rows)[:1], *moved, *routed, *moved]
        return [*norms, *inside, *self.latent_operators(rows)[1:], *after, self._stream(n * h, 3, 1.0)]

    def router_operators(self, rows: int) -> list[Operator]:
        """Kernels of the router's forward pass for `rows` samples: its projection, and the passes over its logits that score
        and choose."""
        n = rows * self.tokens
        return [Operator(m=n, n=self.experts, k=self.hidden), Operator(touched_bytes=4 * n * self.experts * LOGIT_BYTES)]

    def latent_operators(self, rows: int) -> list[Operator]:
        """The projections of `rows` samples to and from the latent that routed experts work on; empty without one."""
        n, h, d = rows * self.tokens, self.hidden, self.width
        return [Operator(m=n, n=d, k=h), Operator(m=n, n=h, k=d)] if self.latent else []

    def routed_operators(self, copies: int, experts: int, tp: int = 1) -> list[Operator]:
        """Kernels of the forward pass of routed experts on a rank: grouped products, activation and gate.

        copies: token copies that the rank's experts work on. experts: number of experts whose weights the rank has. tp: number
        of ranks that each have a share of every expert's inner size.
        """
        f, d = self.inner // tp, self.width
        up = [Operator(m=copies, n=f, k=d, groups=experts)] * self.ups
        inner = [self._stream(copies * f), *[self._stream(copies * f, 3)] * self.gated]
        weighted = self._stream(copies * d)
        return [*up, *inner, Operator(m=copies, n=d, k=f, groups=experts), weighted]

    def shared_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of the shared experts for `rows` samples on one of `tp` ranks that split their inner
        size; empty without shared experts."""
        n, h, f = rows * self.tokens, self.hidden, self.shared_inner // tp
        if not self.shared_inner:
            return []
        up = [Operator(m=n, n=f, k=h)] * self.ups
        inner = [self._stream(n * f), *[self._stream(n * f, 3)] * self.gated]
        gate = [Operator(m=n, n=1, k=h), self._stream(n * h)] * self.shared_gate
        return [*up, *inner, Operator(m=n, n=h, k=f), *gate]

    def copy_elements(self, tp: int = 1) -> int:
        """Count of numbers that routed experts keep for the backward pass for one token copy: its input, the results of the
        up-projections, that of activation and gate, and, where probabilities multiply it, its output.

        tp: number of ranks that each have a share of every expert's inner size.
        """
        return self.width * (2 if self.weighted == "output" else 1) + (self.ups + 1) * (self.inner // tp)

    def token_bytes(self, tp: int = 1) -> int:
        """Bytes kept for the backward pass for one token whatever its experts: the norm's result, the router's probabilities
        with the chosen experts and their rows, the latents, and what shared experts keep.

        tp: number of ranks that split the inner size of the shared experts.
        """
        shared = (self.ups + 1) * (self.shared_inner // tp) + (self.hidden + 1) * self.shared_gate
        elements = self.entry_elements(1) + shared + 2 * self.latent
        return elements * self.element_bytes + self.experts * LOGIT_BYTES + self.chosen * (2 * INDEX_BYTES + LOGIT_BYTES)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input,
        with evenly loaded experts that are all on the rank."""
        copies = self.copies(rows) * self.copy_elements(tp) * self.element_bytes
        return copies + rows * self.tokens * self.token_bytes(tp) + self.sandwich_bytes(rows)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the gradients
        of an up-projection's results and of its weights, and of the copies' inputs.
        """
        copies, f = self.copies(rows), self.inner // tp
        inner = copies * (self.ups * f + self.width) + self.experts * f * self.width
        return inner * self.element_bytes
