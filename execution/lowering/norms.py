"""The global norm of a step's gradients, each parameter counted once, and gradients scaled by it.

A parameter's gradient lies in parts on the ranks of a stage, or as a whole on several of them. Of each rank's part the square
counts where the rank is the first along every level that has copies of the part: dp always has; tp has where the gradient is no
DTensor that tp splits; sdp never has, since `fully_shard` splits what it shares. The table that embedding and head share and
that is there twice counts as the embedding's alone. Sums are in float64, whatever the gradients are in."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from trainplan.execution.lowering.blocks import Unit
from trainplan.formulations.plan.strategy import Strategy


def counts(parameter: nn.Parameter, strategy: Strategy, index_in_stage: int) -> bool:
    """Whether a rank adds its part of this parameter's gradient to the global norm, such that over all ranks every element
    counts exactly once. strategy: the parallel layout of the parameter's sub-layer. index_in_stage: the rank's index among its
    stage's ranks."""
    split = set[str]()
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        split = {name for name, placement in zip(names, parameter.placements, strict=True) if not placement.is_replicate()}
    first = all(axis in split or strategy.index(index_in_stage, axis) == 0 for axis in ("sdp", "tp"))
    return first and strategy.is_first_copy(index_in_stage)


def local_of(gradient: Tensor) -> Tensor:
    """This rank's part of a gradient, if it is a DTensor; else the gradient itself."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


@torch.no_grad()
def global_square(units: Iterable[Unit], index_in_stage: int, second: nn.Parameter | None, device: torch.device) -> Tensor:
    """The square of this rank's part of the gradients' global norm: a scalar in float64 on `device`. Summed over all ranks it
    is the square of the norm, in which every parameter counts once.

    units: the modules of the rank's sub-layers, with gradients. index_in_stage: the rank's index among its stage's ranks.
    second: the head's copy of a tied table, which is left out; None if there is none.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for unit in units:
        for parameter in unit.parameters():
            if parameter.grad is None or parameter is second or not counts(parameter, unit.strategy, index_in_stage):
                continue
            total += torch.linalg.vector_norm(local_of(parameter.grad), dtype=torch.float64).square()
    return total


@torch.no_grad()
def scale(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply the gradients of all these parameters by a factor, in place."""
    for parameter in parameters:
        if parameter.grad is not None:
            local_of(parameter.grad).mul_(factor)
