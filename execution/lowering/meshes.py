"""The device meshes of a plan, and where hidden states lie on them.

A rank of a stage is numbered in mixed radix over the levels of a unit's strategy, the first level outermost. So the ranks of
all stages, as an array with a dimension for the stage and one for each level, are a `DeviceMesh`, and each group that a unit
communicates in is a slice of it. Dimensions are put in one order whatever that of the levels: stage, dp, sdp, tp.

Two neighbours with unlike levels need a mesh that can express both: the ranks of a stage, cut at every stride of either. On it
hidden states are `Shard(0)` (rows) along what dp or sdp split, `Shard(1)` (tokens) along tp with sequence parallelism,
`Replicate()` along tp without. Rows are split from the outermost dimension to the innermost, as DTensor splits them.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.rank_grid import Digits, common_digits
from trainplan.formulations.plan.strategy import DATA, Strategy

Ranks = tuple[tuple[int, ...], ...]  # of each stage that has ranks of its own
AXES = ("dp", "sdp", "tp")


def stage_ranks(plan: Plan) -> Ranks:
    """The ranks of each stage that has ranks of its own, ascending."""
    return tuple(tuple(stage.ranks) for stage in plan.stages[: plan.depth])


@cache
def pipeline_mesh(device: str, ranks: Ranks) -> DeviceMesh:
    """The mesh (stages, indices in a stage): the ranks of one index are a pipeline."""
    return DeviceMesh(device, torch.tensor(ranks), mesh_dim_names=("stage", "place"))


@cache
def level_mesh(device: str, ranks: Ranks, levels: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """The mesh (stages, dp, sdp, tp) of all ranks, for a strategy with these levels."""
    names, degrees = [axis for axis, _ in levels], dict(levels)
    grid = torch.tensor(ranks).view(len(ranks), *degrees.values())
    order = [1 + names.index(axis) for axis in AXES if axis in degrees]
    grid = grid.permute(0, *order).reshape(len(ranks), *(degrees.get(axis, 1) for axis in AXES))
    return DeviceMesh(device, grid, mesh_dim_names=("stage", *AXES))


@cache
def relay_mesh(device: str, ranks: Ranks, digits: Digits) -> DeviceMesh:
    """The mesh (stages, *degrees of the digits, the outermost first) of all ranks, which can express the unlike layouts of two
    neighbouring units."""
    degrees = digits.degrees[::-1]
    names = tuple(f"d{index}" for index in range(len(degrees)))
    return DeviceMesh(device, torch.tensor(ranks).view(len(ranks), *degrees), mesh_dim_names=("stage", *names))


def placements(strategy: Strategy, digits: Digits) -> tuple[Placement, ...]:
    """How a unit's hidden states, (rows, tokens, hidden), are split along each dimension of a relay mesh."""
    strides, found = strategy.strides(), list[Placement]()
    for low in reversed(digits.strides):
        axis = next(axis for axis, degree in strategy.levels if strides[axis] <= low < strides[axis] * degree)
        if axis in DATA:
            found.append(Shard(0))
        else:
            found.append(Shard(1) if strategy.sequence_parallel else Replicate())
    return tuple(found)


def local_shape(strategy: Strategy, rows: int, tokens: int, hidden: int) -> tuple[int, int, int]:
    """The shape of one rank's part of the hidden states of a micro-batch of `rows` rows."""
    parts = strategy.degree("tp") if strategy.sequence_parallel else 1
    return rows // strategy.data_degree, tokens // parts, hidden


def make_meshes(plan: Plan, device: str) -> None:
    """Create every mesh of a plan, in one order on all ranks: creating one is a collective of all."""
    ranks, strategies = stage_ranks(plan), plan.strategies()
    pipeline_mesh(device, ranks)
    for strategy in strategies:
        level_mesh(device, ranks, strategy.levels)
    for before, after in pairwise(strategies):
        if relays(before, after):
            digits = common_digits([before, after])
            assert digits is not None and digits.size == before.group
            relay_mesh(device, ranks, digits)


def relays(before: Strategy, after: Strategy) -> bool:
    """Whether hidden states lie differently under two strategies of one group of ranks."""
    return (before.layout, before.token_digit) != (after.layout, after.token_digit)
