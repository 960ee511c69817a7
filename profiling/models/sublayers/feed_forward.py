"""The feed-forward network of a transformer layer, plain or gated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Activation, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class FeedForward(Sublayer):
    """A feed-forward network as a sub-layer: norm, up-projection, activation, down-projection, residual.

    inner: output size of the up-projection. gated: whether the activation is applied to a second up-projection, whose result
    multiplies the first (Shazeer, 2020). activation: name of the activation function; xielu has two parameters (Huang and
    Schlag, 2025) and is not computed by a fused kernel. bias: whether projections have a bias. inner_dropout: whether numbers
    are also dropped after the activation. post_norm: whether the residual is the normed input.
    """

    kind: ClassVar[Kind] = "ffn"
    inner: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    inner_dropout: bool = False
    post_norm: bool = False

    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the projections (their inner dimension is split by tensor parallelism), their biases, the norm, and
        two of xielu."""
        h, f = self.hidden, self.inner
        parameters = [Parameter("up.weight", (f, h), 0)]
        parameters += [Parameter("gate.weight", (f, h), 0)] * self.gated
        parameters += [Parameter("up.bias", (f,), 0)] * self.bias
        parameters += [Parameter("gate.bias", (f,), 0)] * (self.gated and self.bias)
        parameters.append(Parameter("down.weight", (h, f), 1))
        parameters += [Parameter("down.bias", (h,))] * self.bias
        parameters += [Parameter(f"activation.{name}", (1,)) for name in ("positive", "negative") if self.activation == "xielu"]
        return (*parameters, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, up-projections, activation
        and gate, down-projection, dropout, residual."""
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        up = [Operator(m=n, n=f, k=h)] * (2 if self.gated else 1)
        inner = self.activation_operators(rows, tp)
        inner += [self._stream(n * f)] * (self.unfused and self.dropout > 0 and self.inner_dropout)
        norms = [self._stream(n * h)] * self.operators_before
        dropped = [self._stream(n * h)] * (self.unfused and self.dropout > 0)
        dropped += [self._stream(n * h)] * (2 * self.sandwich)
        return [*norms, *up, *inner, Operator(m=n, n=h, k=f), *dropped, self._stream(n * h, 3, 1.0)]

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the up-projection: the norm's."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    @property
    def unexecuted_feature(self) -> str:
        """Name, for users, of a feature that can be planned but not yet executed, such as the activation xielu; empty if
        there is none."""
        return "xielu" if self.activation == "xielu" else super().unexecuted_feature

    def activation_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass between the projections: the activation and, if the network is gated, the product with
        the gate.

        rows: samples on the rank. tp: tensor-parallel degree; the result has the kernels of one rank.
        """
        n, f = rows * self.tokens, self.inner // tp
        return [self._stream(n * f)] + [self._stream(n * f, 3)] * self.gated

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input.

        They are the norm's result, the inputs and results of activation and gate, and dropout masks if the network is unfused.
        """
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        # Relu's backward pass reads its result, as does a square's, which gives another one.
        copies = 3 if self.gated else 1 if self.activation == "relu" else 2
        masks = 0
        if self.unfused and self.dropout:
            copies += self.inner_dropout
            masks = n * h + n * f * self.inner_dropout
        return (self.entry_elements(n) + copies * n * f) * self.element_bytes + masks + self.sandwich_bytes(rows)

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the input of
        relu, until its result replaces it, or the random numbers of a dropout mask."""
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        replaced = self.activation in ("relu", "relu2") and not self.gated
        return max(self._drawing_bytes(rows), (n * f - n * h) * self.element_bytes if replaced else 0)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the largest
        of the bytes that dropout, projections, activation and norm need.
        """
        outer = self.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        return max(0, outer, *self.matrices_backward_bytes(rows, tp))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """Peak bytes of temporaries of the backward pass of the projections, for `rows` samples on one of `tp` tensor-parallel
        ranks.

        Two numbers: the peak during the down-projection (with dropout, together with the gradient of the output with its mask
        applied) and the activation; and the peak during the up-projections. Memory freed before is subtracted, so a number
        may be negative.
        """
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        peaks, first = [n * f + h * f - n * h + n * h * self._drops], h * f - n * f
        if self.gated:
            peaks.append(3 * n * f - n * h)
            first = h * f
        elif self.activation == "relu":
            peaks.append(2 * n * f - n * h)
        elif self.activation == "relu2":
            peaks.append(3 * n * f - n * h)
        gone = self.sandwich_bytes(rows)  # what the norm after the matrices kept is freed before their gradients are computed
        return max(peaks) * self.element_bytes - gone, first * self.element_bytes - gone
