"""What stands between stacks and stages: a norm, patch merging, upsampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class Norm(Sublayer):
    """A norm between two stacks (T5's encoder); rank 0 computes it whole."""

    kind: ClassVar[Kind] = "norm"

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight and, unless it is an RMS norm, bias."""
        return self._norm_parameters()

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """One pass over the hidden states."""
        return [self._stream(rows * self.tokens * self.hidden)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Of each token the inverse deviation and, unless it is an RMS norm, the mean."""
        n = rows * self.tokens
        return (self.norm_elements(n) - n * self.hidden) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Nothing for a layer norm; the intermediate hidden states of an RMS norm's gradient."""
        return max(0, self._norm_moment(self.kept_bytes(rows, tp) + self.output_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class PatchMerging(Sublayer):
    """Swin's: four neighbours of `hidden` / 2 each are put together, normed, and projected to one token of `hidden`."""

    kind: ClassVar[Kind] = "merge"

    @property
    def gathered(self) -> int:
        """Numbers of four neighbours put together."""
        return 2 * self.hidden

    def parameters(self) -> tuple[Parameter, ...]:
        """The projection, split over the gathered numbers, and the norm of these."""
        reduction = Parameter("reduction.weight", (self.hidden, self.gathered), 1)
        return (reduction, *self._norm_parameters(self.gathered))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Gathering, norm, and the projection."""
        n = rows * self.tokens
        return [*[self._stream(n * self.gathered)] * 2, Operator(m=n, n=self.hidden, k=self.gathered // tp)]

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Four times the tokens, of half the hidden size."""
        return (rows, 4 * self.tokens, self.hidden // 2)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """The gathered neighbours, and what their norm keeps."""
        n = rows * self.tokens
        return (n * self.gathered + self.norm_elements(n, self.gathered)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The gradient of one rank's part of the projection."""
        return self.gathered * self.hidden // tp * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class Upsample(Sublayer):
    """TransGAN's: twice the side, by pixel shuffle (a quarter of the channels) or interpolation, plus learned positions."""

    kind: ClassVar[Kind] = "upsample"
    from_hidden: int

    def parameters(self) -> tuple[Parameter, ...]:
        """Learned positions, which every rank holds."""
        return (Parameter("positions.weight", (self.tokens, self.hidden)),)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """The image written at twice its side, and the positions added to it."""
        return [self._stream(rows * self.tokens * self.hidden)] * 2

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """A quarter of the tokens, of `from_hidden` numbers each."""
        return (rows, self.tokens // 4, self.from_hidden)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Nothing: the gradients need no result of the forward pass."""
        return 0

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The upsampled image before positions are added."""
        return rows * self.tokens * self.hidden * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The interpolation's gradient; a pixel shuffle's is a view."""
        interpolated = self.from_hidden == self.hidden
        return rows * self.tokens * self.hidden * self.element_bytes if interpolated else 0
