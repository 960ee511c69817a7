"""Parameters of a model's sub-layers in torch: their initial values, and the slices that tensor-parallel ranks hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import Parameter, Sublayer, shard_bounds

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
Parameters = dict[str, Tensor]  # a sub-layer's parameter tensors, or a rank's slices of them, by name


@dataclass(frozen=True)
class Shard:
    """The part of a sub-layer that one rank computes.

    tp: number of ranks of the rank's tensor-parallel group. index: the rank's index in this group. piece: the index of the
    piece of each sample that the rank works on, if context parallelism cuts samples along their tokens; else 0.
    """

    tp: int = 1
    index: int = 0
    piece: int = 0

    @property
    def first(self) -> bool:
        """Whether this rank has index 0 in its tensor-parallel group. Rank 0 alone adds biases and residuals, so that the sum
        over the ranks has them once.
        """
        return self.index == 0


def whole_parameters(sublayer: Sublayer, seed: int) -> Parameters:
    """Draw initial values of all parameters of a sub-layer, unsplit and on the CPU; every rank draws equal values for the same
    seed.

    Values are normal with mean 0 (1 for the weights of norms) and standard deviation 0.02. Biases and norms have this noise,
    too, so that tests never compare gradients at a special point only.
    """
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for parameter in sublayer.parameters():
        value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).mul_(0.02)
        if "norm.weight" in parameter.name:
            value += 1.0
        values[parameter.name] = value.to(DTYPES[sublayer.dtype])
    return values


def unit_seed(model: Model, position: int, seed: int) -> int:
    """Seed for the initial values of the unit (sub-layer) at index `position` of a model's chain, derived from `seed`, the
    run's seed.

    The last unit of a model with tied embeddings has the first unit's seed, so that both draw equal values for the shared
    matrix.
    """
    return seed * 100_003 + (0 if model.tied and position == len(model.units) - 1 else position)


def sharded(parameter: Parameter, value: Tensor, shard: Shard) -> Tensor:
    """View of the slice of a parameter tensor that a tensor-parallel rank holds; of the whole tensor if the parameter is
    replicated.

    parameter: states which dimension is split. value: the whole tensor. shard: the rank's index in its tensor-parallel group,
    and the group's size.
    """
    if parameter.split is None:
        return value
    low, high = shard_bounds(parameter.shape[parameter.split], shard.tp, shard.index)
    return value.narrow(parameter.split, low, high - low)


def flat_layout(sublayer: Sublayer, shard: Shard) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """The layout of the flat buffer in which a tensor-parallel rank holds all parameters of a sub-layer.

    Returns (name, start, end, shape) per parameter, start and end counted in numbers; split parameters come before replicated
    ones, so that the gradients to be summed over the tensor-parallel ranks are contiguous.
    """
    layout, start = [], 0
    for parameter in sorted(sublayer.parameters(), key=lambda p: p.split is None):
        shape = parameter.shard_shape(shard.tp, shard.index)
        layout.append((parameter.name, start, start + prod(shape), shape))
        start += prod(shape)
    return layout
