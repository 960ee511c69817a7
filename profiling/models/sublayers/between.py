"""Sub-layers between the stacks of layers of a model: a norm, Swin's patch merging, TransGAN's upsampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class Norm(Sublayer):
    """A norm between two stacks of layers, such as after T5's encoder; every tensor-parallel rank computes all of it."""

    kind: ClassVar[Kind] = "norm"

    def parameters(self) -> tuple[Parameter, ...]:
        """The norm's weight and, for a layer norm, its bias; both replicated."""
        return self._norm_parameters()

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """The kernels of the forward pass: one pass over the hidden states of `rows` samples. tp: unused, because every
        tensor-parallel rank computes the whole norm.
        """
        return [self._stream(rows * self.tokens * self.hidden)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks: per token the inverse
        deviation, and for a layer norm the mean."""
        n = rows * self.tokens
        return (self.norm_elements(n) - n * self.hidden) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        0 for a layer norm; an RMS norm has intermediate hidden states. They come in addition to the input, the bytes kept for
        the backward pass, and gradients.
        """
        return max(0, self._norm_peak_bytes(self.kept_bytes(rows, tp) + self.output_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class PatchMerging(Sublayer):
    """Patch merging of Swin Transformers (Liu et al., 2021): 2 x 2 neighbouring tokens of size `hidden` / 2 are concatenated,
    normed, and projected to one token of size `hidden`."""

    kind: ClassVar[Kind] = "merge"

    @property
    def gathered(self) -> int:
        """Size of the four input tokens that are concatenated to one: twice `hidden`."""
        return 2 * self.hidden

    def parameters(self) -> tuple[Parameter, ...]:
        """The projection, whose inputs tensor parallelism splits, and the norm before it, of which every rank holds a full
        copy."""
        reduction = Parameter("reduction.weight", (self.hidden, self.gathered), 1)
        return (reduction, *self._norm_parameters(self.gathered))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: concatenation, norm and
        projection."""
        n = rows * self.tokens
        return [*[self._stream(n * self.gathered)] * 2, Operator(m=n, n=self.hidden, k=self.gathered // tp)]

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the input for `rows` samples: four times the tokens of the output, of half the hidden size."""
        return (rows, 4 * self.tokens, self.hidden // 2)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks: the concatenated tokens,
        and the result and statistics of their norm."""
        n = rows * self.tokens
        return (n * self.gathered + self.norm_elements(n, self.gathered)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the gradient
        of one rank's part of the projection."""
        return self.gathered * self.hidden // tp * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class Upsample(Sublayer):
    """Upsampling of TransGAN (Jiang et al., 2021): an image of twice the side, plus learned positions.

    from_hidden: size of an input token. If it equals `hidden` the image is interpolated; else it is four times as large, and a
    pixel shuffle gives four tokens for one.
    """

    kind: ClassVar[Kind] = "upsample"
    from_hidden: int

    def parameters(self) -> tuple[Parameter, ...]:
        """The learned positions, one vector per token, of which every tensor-parallel rank holds a full copy."""
        return (Parameter("positions.weight", (self.tokens, self.hidden)),)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the image written at twice its
        side, and the positions added to it."""
        return [self._stream(rows * self.tokens * self.hidden)] * 2

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the input for `rows` samples: a quarter of the tokens of the output, of size `from_hidden`."""
        return (rows, self.tokens // 4, self.from_hidden)

    def kept_bytes(self, rows: int, tp: int) -> int:
        """0 bytes: the gradients of upsampling and positions need no result of the forward pass.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        return 0

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the upsampled
        image before positions are added."""
        return rows * self.tokens * self.hidden * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the gradient
        of the interpolation; 0 for a pixel shuffle, a view."""
        interpolated = self.from_hidden == self.hidden
        return rows * self.tokens * self.hidden * self.element_bytes if interpolated else 0
