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
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.rank_grid import Digits, common_digits
from trainplan.formulations.plan.strategy import COPIES, DATA, Strategy

Ranks = tuple[tuple[int, ...], ...]  # of each stage that has ranks of its own
AXES: dict[str, tuple[str, ...]] = {"dp": COPIES, "sdp": ("sdp",), "tp": ("tp",)}  # dimensions of meshes, of these levels


def stage_ranks(plan: Plan) -> Ranks:
    """The ranks of each stage, ascending. Under interleaved schedules, where several stages have the same ranks, each set of
    ranks comes once."""
    return tuple(tuple(stage.ranks) for stage in plan.stages[: plan.depth])


@cache
def pipeline_mesh(device: str, ranks: Ranks) -> DeviceMesh:
    """The device mesh (stages, index in the stage) of all ranks: ranks with one index form a pipeline. device: 'cpu' or
    'cuda'. ranks: the ranks of each stage. Cached."""
    return DeviceMesh(device, torch.tensor(ranks), mesh_dim_names=("stage", "place"))


@cache
def level_mesh(device: str, ranks: Ranks, levels: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """The device mesh of all ranks, cached: always (stages, copies of states, ranks that shard states as ZeRO does, tensor
    parallelism), whatever the order of the levels. device: 'cpu' or 'cuda'. ranks: the ranks of each stage. levels: a
    strategy's levels, such as dp (copies), sdp (shards) and tp, with their degrees, outermost first, so that the ranks of the
    last one are neighbours; a level that is missing has degree 1."""
    names, degrees = [axis for axis, _ in levels], dict(levels)
    grid = torch.tensor(ranks).view(len(ranks), *degrees.values())
    order = [1 + names.index(axis) for of_axis in AXES.values() for axis in of_axis if axis in degrees]
    sizes = [prod(degrees.get(axis, 1) for axis in of_axis) for of_axis in AXES.values()]
    grid = grid.permute(0, *order).reshape(len(ranks), *sizes)
    return DeviceMesh(device, grid, mesh_dim_names=("stage", *AXES))


@cache
def relay_mesh(device: str, ranks: Ranks, digits: Digits) -> DeviceMesh:
    """The device mesh (stages, one dimension per digit, outermost first) of all ranks, fine enough to express the different
    layouts of two neighbouring sub-layers. device: 'cpu' or 'cuda'. ranks: the ranks of each stage. digits: the mixed-radix
    numbering of a stage's ranks that both sub-layers have in common. Cached."""
    degrees = digits.degrees[::-1]
    names = tuple(f"d{index}" for index in range(len(degrees)))
    return DeviceMesh(device, torch.tensor(ranks).view(len(ranks), *degrees), mesh_dim_names=("stage", *names))


def placements(strategy: Strategy, digits: Digits) -> tuple[Placement, ...]:
    """How the hidden states of a sub-layer with this strategy, (rows, tokens, hidden), are split along each dimension of a
    relay mesh: Shard(0) by rows, Shard(1) by tokens, Replicate() not at all. digits: the mixed-radix numbering of a stage's
    ranks, one mesh dimension per digit."""
    strides, found = strategy.strides(), list[Placement]()
    for low in reversed(digits.strides):
        axis = next(axis for axis, degree in strategy.levels if strides[axis] <= low < strides[axis] * degree)
        if axis in DATA:
            found.append(Shard(0))
        else:
            found.append(Shard(1) if strategy.sequence_parallel else Replicate())
    return tuple(found)


def local_shape(strategy: Strategy, rows: int, tokens: int, hidden: int) -> tuple[int, int, int]:
    """The shape (rows, tokens, hidden) of one rank's part of a micro-batch's hidden states. rows, tokens, hidden: the sizes of
    the whole."""
    parts = strategy.degree("tp") if strategy.sequence_parallel else 1
    return rows // strategy.data_degree, tokens // parts, hidden


def make_meshes(plan: Plan, device: str) -> None:
    """Create every device mesh that a plan needs, in the same order on all ranks, since creating one is a collective of all.
    device: 'cpu' or 'cuda'. The meshes are cached by the functions that make them."""
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
    """Whether hidden states have to be moved between the layouts of two neighbouring sub-layers' strategies on one group of
    ranks. before, after: the two strategies."""
    return (before.layout, before.token_digit) != (after.layout, after.token_digit)
