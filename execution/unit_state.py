"""The parameters of a unit on one rank.

They lie in one flat buffer (split ones first, then the replicated ones), of which sharded data parallelism keeps a slice. A
gathered buffer is one tensor whose storage is emptied between uses: views into it, also those that a graph saved, see the
parameters again once they are gathered back. It is filled through `.data`, so that autograd's version counters take no offence
at contents that are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from trainplan.execution.program import Program
from trainplan.execution.reference import LEARNING_RATE
from trainplan.profiling import torch_units


@dataclass
class UnitState:
    """A unit on this rank: its place, flat shard, gradient shard, optimizer, and views of its whole parameters."""

    shard: torch_units.Shard
    layout: list[tuple[str, int, int, tuple[int, ...]]]
    own: Tensor
    gradient: Tensor
    optimizer: torch.optim.Optimizer
    whole: Tensor
    views: dict[str, Tensor]
    sharded: bool
    replicated_start: int


def make_unit(program: Program, position: int, seed: int, device: torch.device) -> UnitState:
    """A unit as this rank begins with it: its part of the values that the seed gives."""
    model, strategy = program.model, program.strategies[position]
    part = model.units[position].sublayer
    shard = torch_units.Shard(strategy.degree("tp"), strategy.index(program.place, "tp"))
    layout = torch_units.flat_layout(part, shard)
    values = torch_units.whole_parameters(part, torch_units.unit_seed(model, position, seed))
    specification = {parameter.name: parameter for parameter in part.parameters()}
    degree, size = strategy.degree("sdp"), layout[-1][2]
    piece = -(-size // degree)
    whole = torch.zeros(piece * degree, dtype=torch_units.DTYPES[model.dtype], device=device)
    for name, start, end, _ in layout:
        whole[start:end] = torch_units.sharded(specification[name], values[name], shard).reshape(-1)
    index = strategy.index(program.place, "sdp")
    own = whole if degree == 1 else whole[index * piece : (index + 1) * piece].clone()
    gradient = torch.zeros_like(own)
    views = {name: whole[start:end].view(shape).detach().requires_grad_() for name, start, end, shape in layout}
    if degree > 1:
        whole.untyped_storage().resize_(0)
    else:
        for name, start, end, shape in layout:
            views[name].grad = gradient[start:end].view(shape)
    own = own.detach().requires_grad_()
    own.grad = gradient
    optimizer = torch.optim.AdamW([own], lr=LEARNING_RATE, fused=True)
    replicated = [start for name, start, _, _ in layout if specification[name].split is None]
    return UnitState(shard, layout, own, gradient, optimizer, whole, views, degree > 1, replicated[0] if replicated else size)
