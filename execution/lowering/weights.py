"""Parameters by the names that profiles and programs have, and by those of the modules: filled from one seed, and gathered.

A packed parameter (queries, keys and values in one tensor) is several matrices here, in order along its first dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from trainplan.execution.lowering.blocks import Unit
from trainplan.profiling.models import torch_units

PACKED = {"qkv": ("q", "k", "v"), "kv": ("k", "v")}
INTO = ("q", "k", "v", "up", "gate")


def module_names(unit: Unit, name: str) -> list[str]:
    """The names, in a unit's torch module, of the parameters that together hold one parameter of its sub-layer; a packed one
    is several: 'qkv.weight' -> ['project.q.weight', 'project.k.weight', 'project.v.weight']."""
    first, dot, rest = name.partition(".")
    names = []
    for matrix in PACKED.get(first, (first,)):
        into = "project_up" if matrix in ("up", "gate") and hasattr(unit, "project_up") else "project"
        names.append(f"{into}.{matrix}{dot}{rest}" if matrix in INTO else matrix + dot + rest)
    if name == "tokens.weight" and hasattr(unit, "table"):
        return ["table.tokens.weight"]
    return ["bias"] if name == "logits.bias" else names


def borrows(unit: Unit, name: str) -> bool:
    """Whether the parameter called `name` of a unit's sub-layer belongs to another unit: the output matrix of a head that uses
    the embedding's table."""
    return name == "logits.weight" and not hasattr(unit, "logits")


def fill(unit: Unit, position_seed: int) -> None:
    """Set the parameters of a sub-layer, which has memory, to the initial values that `position_seed`, the seed of its index
    in the model, gives on every rank."""
    write_unit(unit, torch_units.whole_parameters(unit.part, position_seed))


def write_unit(unit: Unit, values: Mapping[str, Tensor]) -> None:
    """Write the rank's parts of whole values into a unit's parameters. values: by the sub-layer's names of parameters, all of
    them except borrowed ones."""
    parameters = dict(unit.named_parameters())
    for name, value in values.items():
        if borrows(unit, name):
            continue
        names = module_names(unit, name)
        for target, piece in zip(names, value.unbind(0) if len(names) > 1 else [value], strict=True):
            write(parameters.pop(target), piece)
    assert not parameters, f"without a value: {sorted(parameters)}"


@torch.no_grad()
def write(parameter: nn.Parameter, value: Tensor) -> None:
    """Write the rank's part of a whole value into a parameter, in place."""
    if isinstance(parameter, DTensor):
        parameter.to_local().copy_(local_part(value, parameter))
    else:
        parameter.copy_(value)


def local_part(value: Tensor, like: DTensor) -> Tensor:
    """This rank's part of a whole value, for a parameter laid out as `like` is. The innermost mesh dimension (tensor
    parallelism) is split first; each part is then sharded over data-parallel ranks."""
    coordinates = like.device_mesh.get_coordinate()
    assert coordinates is not None
    for axis in reversed(range(like.device_mesh.ndim)):
        placement = like.placements[axis]
        if isinstance(placement, Replicate):
            continue
        dim = placement.dim  # a shard of any kind
        size = -(-value.shape[dim] // like.device_mesh.size(axis))
        start = min(value.shape[dim], size * coordinates[axis])
        value = value.narrow(dim, start, min(size, value.shape[dim] - start))
    return value


def gathered(unit: Unit, gradients: bool) -> Iterator[tuple[str, Tensor]]:
    """(name, whole value) of each parameter of a unit or, if `gradients`, of its gradient, by the sub-layer's names. A
    collective of the unit's ranks."""
    parameters = dict(unit.named_parameters())
    for parameter in unit.part.parameters():
        if borrows(unit, parameter.name):
            continue
        values = []
        for name in module_names(unit, parameter.name):
            one: Tensor | None = parameters[name].grad if gradients else parameters[name].detach()
            one = torch.zeros_like(parameters[name]) if one is None else one
            values.append(one.full_tensor() if isinstance(one, DTensor) else one)
        yield parameter.name, torch.stack(values) if len(values) > 1 else values[0]
