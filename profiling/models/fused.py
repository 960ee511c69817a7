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
    """RMS norm: x / sqrt(mean(x^2) + epsilon) x weight, along the last dimension (Zhang and Sennrich, 2019); of the shape of x.

    weight: a vector of the length of x's last dimension. It is computed in at least 32 bits, and rounded to the dtype of x
    before and after the multiplication by the weight. On a GPU it is torch's kernel.
    """
    if x.is_cuda:
        return F.rms_norm(x, weight.shape, weight, epsilon)
    normed: Tensor = _RMSNorm.apply(x, weight, epsilon)
    return normed


def gated(activation: Activation, up: Tensor, gate: Tensor) -> Tensor:
    """Gated activation: activation(gate) x up, elementwise (Shazeer, 2020); only gate and up are kept for the backward pass.

    activation: an elementwise function. up and gate: results of two matrix multiplications of a feed-forward network's input,
    of equal shape.
    """
    product: Tensor = _Gated.apply(activation, up, gate)
    return product


class _RMSNorm(torch.autograd.Function):
    """The autograd function of `rms_norm` on CPUs, which keeps its input and one number per token for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Compute x / sqrt(mean(x^2) + epsilon) x weight, along the last dimension. Saves x, and the inverse root per token,
        in ctx, autograd's context.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        inverse = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and of the weight, followed by None for epsilon. gradient: the gradient of the result, of the
        shape of x. ctx: autograd's context with the saved tensors.
        """
        x, weight, inverse = ctx.saved_tensors
        normed, wide_weight = x * inverse, weight.to(inverse.dtype)
        product = gradient * normed
        weight_gradient = product.flatten(0, -2).sum(0).to(weight.dtype)
        along = (product @ wide_weight).div_(x.shape[-1]).unsqueeze(-1)
        del product
        x_gradient = (gradient * wide_weight).sub_(normed.mul_(along)).mul_(inverse)
        return x_gradient.to(x.dtype), weight_gradient, None


class _Gated(torch.autograd.Function):
    """The autograd function of `gated`, which computes the activation again in its backward pass."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, up: Tensor, gate: Tensor) -> Tensor:
        """Compute activation(gate) x up, elementwise, for tensors of equal shape. Saves up and gate in ctx, autograd's
        context, for the backward pass.
        """
        ctx.activation = activation
        ctx.save_for_backward(up, gate)
        return activation(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """None for the activation, followed by the gradients of `up` and of `gate`. gradient: the gradient of the result. ctx:
        autograd's context with the saved tensors.
        """
        up, gate = ctx.saved_tensors
        with torch.enable_grad():
            leaf = gate.detach().requires_grad_()
            activated = ctx.activation(leaf)
        (gate_gradient,) = torch.autograd.grad(activated, leaf, gradient * up)
        return None, activated.detach().mul_(gradient), gate_gradient
