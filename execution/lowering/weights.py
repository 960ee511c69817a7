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
    """The parameters of a unit's module that a parameter of its sub-layer is made of."""
    first, dot, rest = name.partition(".")
    names = []
    for each in PACKED.get(first, (first,)):
        into = "project_up" if each in ("up", "gate") and hasattr(unit, "project_up") else "project"
        names.append(f"{into}.{each}{dot}{rest}" if each in INTO else each + dot + rest)
    if name == "tokens.weight" and hasattr(unit, "table"):
        return ["table.tokens.weight"]
    return ["bias"] if name == "logits.bias" else names


def borrows(unit: Unit, name: str) -> bool:
    """Whether a parameter of a unit's sub-layer is another unit's: a head's table that is the embedding's."""
    return name == "logits.weight" and not hasattr(unit, "logits")


def fill(unit: Unit, position_seed: int) -> None:
    """Give a unit, whose memory is there, the values that its seed gives on every rank."""
    write_unit(unit, torch_units.whole_parameters(unit.part, position_seed))


def write_unit(unit: Unit, values: Mapping[str, Tensor]) -> None:
    """Whole values of all of a unit's parameters, by the sub-layer's names, into what the rank has of them."""
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
    """A whole value into what the rank has of a parameter."""
    if isinstance(parameter, DTensor):
        parameter.to_local().copy_(local_part(value, parameter))
    else:
        parameter.copy_(value)


def local_part(value: Tensor, like: DTensor) -> Tensor:
    """What this rank has of a whole value. The innermost dimension of a mesh is split first: it is that of tensor parallelism,
    whose parts data-parallel ranks then share."""
    coordinates = like.device_mesh.get_coordinate()
    assert coordinates is not None
    for place in reversed(range(like.device_mesh.ndim)):
        placement = like.placements[place]
        if isinstance(placement, Replicate):
            continue
        dim = placement.dim  # a shard of any kind
        size = -(-value.shape[dim] // like.device_mesh.size(place))
        start = min(value.shape[dim], size * coordinates[place])
        value = value.narrow(dim, start, min(size, value.shape[dim] - start))
    return value


def gathered(unit: Unit, gradients: bool) -> Iterator[tuple[str, Tensor]]:
    """The whole of each parameter of a unit, or of its gradient, by the sub-layer's names: a collective of the unit's ranks."""
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
