"""Optimizers of plans: which parameters each one steps, how many numbers it keeps of them, and what its step computes.

AdamW (Loshchilov and Hutter, 2019) keeps two moments of every parameter. Muon (Jordan et al., 2024) keeps one momentum of every
matrix within a transformer layer, and steps it by that momentum made orthogonal, in five iterations of Newton and Schulz, each
three matrix products; scaled as Liu et al. (2025, "Muon is scalable for LLM training") have it, it takes AdamW's learning rate.
All else (embeddings, heads, norms, biases, tables of position biases) is stepped by AdamW beside it.

A tensor-parallel rank makes its own part of a matrix orthogonal, by itself, as Megatron-Core does by default
(`--muon-tp-mode blockwise`). In ZeRO's stage 1 whole tensors are dealt to the ranks, as by its layer-wise distributed optimizer
(`dist_muon`; `LayerWiseDistributedOptimizer`, core 0.16, 2026): all ranks sum whole gradients, and each steps what it has been
dealt. Of the many matrices of the layers that is an equal share; the table of an embedding or a head, often larger than that,
is whole on one rank, and counted as on that one, the fullest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, NamedTuple, get_args

from trainplan.profiling.models.sublayers import LAYERED, Operator, Parameter, Sublayer

OptimizerName = Literal["adamw", "muon"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
ADAMW_MOMENTS = 2
MUON_ZERO = (0, 1)  # ZeRO stages in which some rank has a whole matrix's gradient
ITERATIONS = 5  # of Newton and Schulz
TABLES = ("relative.weight",)  # weights that are looked up, not multiplied by
HALF_BYTES = 2  # iterations are in bfloat16, as torch has them


class Matrix(NamedTuple):
    """A matrix, or a tensor-parallel rank's part of one."""

    rows: int
    columns: int


def states_sharing(optimizer: OptimizerName, part: Sublayer, sharing: int) -> int:
    """Among how many ranks, of `sharing` that share states in ZeRO's stage 1, a sub-layer's states are divided, as the fullest
    of them has them."""
    return 1 if optimizer == "muon" and part.kind not in LAYERED else sharing


def is_stepped_by_muon(part: Sublayer, parameter: Parameter) -> bool:
    """Whether Muon steps a parameter of a sub-layer: whether it is a matrix within a transformer layer, or several in one
    tensor."""
    name = parameter.name
    return part.kind in LAYERED and name.endswith(".weight") and len(parameter.shape) > 1 and name not in TABLES


def matrices_of(shape: Sequence[int]) -> list[Matrix]:
    """The matrices in a tensor: one of two dimensions, and one for each place of the dimensions before the last two."""
    *several, rows, columns = shape
    return [Matrix(rows, columns)] * prod(several)


def muon_matrices(part: Sublayer, tp: int = 1, index: int = 0) -> list[Matrix]:
    """What of a sub-layer rank `index` of `tp` tensor-parallel ranks steps by Muon."""
    chosen = [parameter for parameter in part.parameters() if is_stepped_by_muon(part, parameter)]
    return [matrix for each in chosen for matrix in matrices_of(each.shard_shape(tp, index))]


def stepped_by_muon(optimizer: OptimizerName, part: Sublayer, tp: int = 1, index: int = 0, sharing: int = 1) -> int:
    """Parameters of a sub-layer that a rank steps by Muon, of `sharing` ranks that share the states of a tensor-parallel part;
    0 under AdamW."""
    if optimizer == "adamw":
        return 0
    return sum(map(prod, muon_matrices(part, tp, index))) // sharing


def moments_of(parameters: int, by_muon: int) -> int:
    """Numbers that a rank keeps from step to step, beside what it steps: two for each parameter, one where it is stepped by
    Muon."""
    return ADAMW_MOMENTS * parameters - by_muon


def newton_schulz(matrix: Matrix) -> list[Operator]:
    """The matrix products of one iteration on a matrix X, of as many rows as columns at most: X X', its square, and their sum
    times X."""
    short, long = sorted(matrix)
    return [
        Operator(m=short, n=short, k=long),
        Operator(m=short, n=short, k=short),
        Operator(m=short, n=long, k=short),
    ]


def step_workspace_bytes(optimizer: OptimizerName, part: Sublayer, stepped_bytes: int, tp: int = 1, index: int = 0) -> int:
    """Most bytes alive while a rank steps its matrices of a sub-layer by Muon, one after the other, beside states and
    gradients: gradient and momentum mixed, in numbers of so many bytes; in bfloat16 the iteration's X, its next one, and the
    two squares that it is made of. Nothing under AdamW, which is one kernel."""
    largest = 0
    for rows, columns in muon_matrices(part, tp, index) if optimizer == "muon" else ():
        size, square = rows * columns, min(rows, columns) ** 2
        largest = max(largest, size * (stepped_bytes + 2 * HALF_BYTES) + 2 * square * HALF_BYTES)
    return largest
