"""Norms and gated activations whose graph keeps no more than today's fused kernels do.

An RMS norm keeps its input and one number per token; composed of torch's operations, as on a CPU, it would also keep its result
before the weight, and in half precision both in 32 bits. A gated activation keeps the two products that are its inputs, and
computes the activation again in its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x over the root of the mean of its squares, times a weight; both along the last dimension (Zhang and Sennrich, 2019).

    It is computed in at least 32 bits, and rounded before and after the weight. On GPUs torch has one kernel for it.
    """
    if x.is_cuda:
        return F.rms_norm(x, weight.shape, weight, epsilon)
    normed: Tensor = _RMSNorm.apply(x, weight, epsilon)
    return normed


def gated(activation: Activation, up: Tensor, gate: Tensor) -> Tensor:
    """activation(gate) times up (Shazeer, 2020)."""
    product: Tensor = _Gated.apply(activation, up, gate)
    return product


class _RMSNorm(torch.autograd.Function):
    """The autograd function of `rms_norm` on CPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        inverse = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        normed, wide_weight = x * inverse, weight.to(inverse.dtype)
        product = gradient * normed
        of_weight = product.flatten(0, -2).sum(0).to(weight.dtype)
        along = (product @ wide_weight).div_(x.shape[-1]).unsqueeze(-1)
        del product
        of_x = (gradient * wide_weight).sub_(normed.mul_(along)).mul_(inverse)
        return of_x.to(x.dtype), of_weight, None


class _Gated(torch.autograd.Function):
    """The autograd function of `gated`."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, up: Tensor, gate: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(up, gate)
        return activation(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        up, gate = ctx.saved_tensors
        with torch.enable_grad():
            leaf = gate.detach().requires_grad_()
            activated = ctx.activation(leaf)
        (of_gate,) = torch.autograd.grad(activated, leaf, gradient * up)
        return None, activated.detach().mul_(gradient), of_gate
