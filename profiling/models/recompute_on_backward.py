"""Results that are not kept for the backward pass, but computed again, once each, when it first needs them.

`recomputed_on_backward` calls a function so that autograd keeps only the function's inputs. An operation that works on the
result would still save it for its own gradients; inside `without_saving` it saves a reference to the recomputation instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

Function = Callable[..., Tensor]


@dataclass
class Recomputation:
    """A function with its inputs, whose result is computed again in the backward pass; and, while the backward pass needs it,
    the recomputed result with its autograd graph.

    storage: address of the memory of the result of the forward pass, by which tensors that share this memory are recognised.
    leaves: the inputs as leaves of the recomputed graph. result: the recomputed result, detached; None before it is needed.
    edge: the end of the recomputed graph, from which its gradients start.
    """

    function: Function
    inputs: Sequence[Tensor]
    storage: int = 0
    leaves: list[Tensor] = field(default_factory=list)
    result: Tensor | None = None
    edge: GradientEdge | None = None

    def recomputed(self) -> Tensor:
        """The function's result, detached from its graph; the first call computes it from the inputs, later calls return the
        same tensor.
        """
        if self.result is None:
            with torch.enable_grad():
                self.leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self.inputs]
                result = self.function(*self.leaves)
            self.edge, self.result = get_gradient_edge(result), result.detach()
        return self.result

    def gradients(self, gradient: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs, in their order, from `gradient`, the gradient of the result; None for an input that needs
        none.

        Frees the result, its graph and the inputs, so it is called only once.
        """
        self.recomputed()
        assert self.edge is not None
        edge, leaves = self.edge, self.leaves
        self.result, self.edge, self.leaves, self.inputs = None, None, [], ()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        computed = iter(torch.autograd.grad([edge], wanted, [gradient]))
        return [next(computed) if leaf.requires_grad else None for leaf in leaves]


class _RecomputedOnBackward(torch.autograd.Function):
    """The autograd function of `recomputed_on_backward`."""

    @staticmethod
    def forward(ctx: Any, recomputation: Recomputation, *inputs: Tensor) -> Tensor:
        """Call the recomputation's function on the inputs and return its result; autograd saves neither the result nor
        intermediate results. The address of the result's memory is written to `recomputation`. ctx: autograd's context.
        """
        ctx.recomputation = recomputation
        result = recomputation.function(*inputs)
        recomputation.storage = result.untyped_storage().data_ptr()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """None for the recomputation, then the gradients of the inputs, from `gradient`, the gradient of the result. ctx:
        autograd's context.
        """
        return (None, *ctx.recomputation.gradients(gradient))


def recomputed_on_backward(function: Function, *inputs: Tensor) -> tuple[Tensor, Recomputation]:
    """Call a function of tensors so that its result need not be kept for the backward pass, which computes it again from the
    inputs.

    Returns the result, and the recomputation's handle; pass the handle to `without_saving` around the operations that use the
    result.
    """
    recomputation = Recomputation(function, inputs)
    result: Tensor = _RecomputedOnBackward.apply(recomputation, *inputs)
    return result, recomputation


@contextmanager
def without_saving(recomputation: Recomputation | None) -> Iterator[None]:
    """Context manager in which operations on a recomputation's result, or on views of it, do not save it for their gradients;
    when their backward passes need it, it is computed again.

    recomputation: the handle that `recomputed_on_backward` returned; None changes nothing.
    """
    if recomputation is None:
        yield
        return

    def pack(tensor: Tensor) -> Any:
        """Save the shape and strides of a view of the result; any other tensor as it is."""
        if tensor.untyped_storage().data_ptr() != recomputation.storage:
            return tensor
        return tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(saved: Any) -> Tensor:
        """The tensor that `pack` was given."""
        return saved if isinstance(saved, Tensor) else recomputation.recomputed().as_strided(*saved)

    with saved_tensors_hooks(pack, unpack):
        yield
