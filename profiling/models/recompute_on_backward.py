"""Results that a graph does not keep: computed again, each once, when the backward pass first needs them.

`again` gives the result of a function of which its graph keeps the inputs alone. What comes behind would still save the result
for its own gradients: inside `forgetting`, it saves the recipe in its place.
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
class Recipe:
    """A function and its inputs; while the backward pass needs them, its result, and where the graph of that ends."""

    function: Function
    inputs: Sequence[Tensor]
    storage: int = 0
    leaves: list[Tensor] = field(default_factory=list)
    result: Tensor | None = None
    edge: GradientEdge | None = None

    def made(self) -> Tensor:
        """The result, made anew unless it is there."""
        if self.result is None:
            with torch.enable_grad():
                self.leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self.inputs]
                result = self.function(*self.leaves)
            self.edge, self.result = get_gradient_edge(result), result.detach()
        return self.result

    def gradients(self, gradient: Tensor) -> list[Tensor | None]:
        """Of the inputs, given that of the result, which is then gone."""
        self.made()
        assert self.edge is not None
        edge, leaves = self.edge, self.leaves
        self.result, self.edge, self.leaves, self.inputs = None, None, [], ()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        made = iter(torch.autograd.grad([edge], wanted, [gradient]))
        return [next(made) if leaf.requires_grad else None for leaf in leaves]


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: Recipe, *inputs: Tensor) -> Tensor:
        ctx.recipe = recipe
        result = recipe.function(*inputs)
        recipe.storage = result.untyped_storage().data_ptr()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.recipe.gradients(gradient))


def again(function: Function, *inputs: Tensor) -> tuple[Tensor, Recipe]:
    """The result of a function of tensors, which its backward pass computes again from these; and how."""
    recipe = Recipe(function, inputs)
    result: Tensor = _Again.apply(recipe, *inputs)
    return result, recipe


@contextmanager
def forgetting(recipe: Recipe | None) -> Iterator[None]:
    """What is computed inside does not save the recipe's result for its gradients, nor views of it, but gets it anew."""
    if recipe is None:
        yield
        return

    def pack(tensor: Tensor) -> Any:
        if tensor.untyped_storage().data_ptr() != recipe.storage:
            return tensor
        return tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(saved: Any) -> Tensor:
        return saved if isinstance(saved, Tensor) else recipe.made().as_strided(*saved)

    with saved_tensors_hooks(pack, unpack):
        yield
