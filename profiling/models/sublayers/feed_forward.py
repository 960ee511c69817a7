"""The feed-forward network of a block, plain or gated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Activation, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class FeedForward(Sublayer):
    """Norm, up-projection (two of them where gated), activation, down-projection, residual.

    xielu has two parameters (Huang and Schlag, 2025), and no fused kernel here."""

    kind: ClassVar[Kind] = "ffn"
    inner: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    inner_dropout: bool = False
    post_norm: bool = False

    def parameters(self) -> tuple[Parameter, ...]:
        """Up-projection and gate, split by their outputs; down-projection, split by its inputs; norm."""
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
        """Norm, up-projections, activation and gate, down-projection, residual."""
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
        """The norm."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    @property
    def unexecuted(self) -> str:
        """As of all sub-layers; or xielu."""
        return "xielu" if self.activation == "xielu" else super().unexecuted

    def activation_operators(self, rows: int, tp: int) -> list[Operator]:
        """The activation, and where there is one, the gate."""
        n, f = rows * self.tokens, self.inner // tp
        return [self._stream(n * f)] + [self._stream(n * f, 3)] * self.gated

    def kept_bytes(self, rows: int, tp: int) -> int:
        """The norm's result, what the activation and the gate need for their gradients, and dropout's masks."""
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        # Relu's backward pass reads its result, as does a square's, which gives another one.
        copies = 3 if self.gated else 1 if self.activation == "relu" else 2
        masks = 0
        if self.unfused and self.dropout:
            copies += self.inner_dropout
            masks = n * h + n * f * self.inner_dropout
        return (self.entry_elements(n) + copies * n * f) * self.element_bytes + masks + self.sandwich_bytes(rows)

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """What relu read, until its result replaces it; what a mask is drawn from."""
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        replaced = self.activation in ("relu", "relu2") and not self.gated  # what relu read is there until its result is
        return max(self._drawing_bytes(rows), (n * f - n * h) * self.element_bytes if replaced else 0)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The largest of: the output's mask, what the matrices need, and an RMS norm's moment."""
        outer = self.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        return max(0, outer, *self.matrices_backward_bytes(rows, tp))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """The larger of: the down-projection's gradients (beside what dropout leaves of the output's), the activation's; and
        those of the up-projections."""
        n, h, f = rows * self.tokens, self.hidden, self.inner // tp
        moments, first = [n * f + h * f - n * h + n * h * self._drops], h * f - n * f
        if self.gated:
            moments.append(3 * n * f - n * h)
            first = h * f
        elif self.activation == "relu":
            moments.append(2 * n * f - n * h)
        elif self.activation == "relu2":
            moments.append(3 * n * f - n * h)
        gone = self.sandwich_bytes(rows)  # what the norm behind them has kept, when their gradients are made
        return max(moments) * self.element_bytes - gone, first * self.element_bytes - gone
