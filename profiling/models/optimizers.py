"""The optimizers of plans, in the table `OPTIMIZERS`: which parameters they update, how many numbers they keep per parameter,
and what a step computes. Costs, memory, programs, the executor and screens read this table.

AdamW (Loshchilov and Hutter, 2019) keeps two moments of every parameter. Muon (Jordan et al., 2024) keeps one momentum of every
matrix within a transformer layer, and updates the matrix by that momentum made orthogonal, by five Newton-Schulz iterations of
three matrix products. With the scaling of Liu et al. (2025, "Muon is scalable for LLM training") it has AdamW's learning rate.
AdamW updates all other parameters: embeddings, heads, norms, biases, tables of position biases.

A tensor-parallel rank makes its own part of a matrix orthogonal, by itself, as Megatron-Core does by default (`--muon-tp-mode
blockwise`). In ZeRO's stage 1 whole tensors are distributed over the ranks, as by its layer-wise distributed optimizer
(`dist_muon`; `LayerWiseDistributedOptimizer`, core 0.16, 2026): all ranks sum whole gradients, and every rank updates its own
tensors. The many matrices of the layers are counted as shared equally; the table of an embedding or a head, often larger than
an equal share, as whole on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from trainplan.profiling.models.sublayers import LAYER_KINDS, Operator, Parameter, Sublayer

OptimizerName = Literal["adamw", "muon"]
ADAMW_MOMENTS = 2
ITERATIONS = 5  # of Newton-Schulz
TABLES = ("relative.weight",)  # weights that are looked up, not multiplied by
HALF_BYTES = 2  # Newton-Schulz iterations are in bfloat16, as in torch


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer that plans can use.

    title: its name for users. about: one line for the help of `--optimizer`. summary: which parameters it updates, for the
    screen of a plan; empty for the default optimizer. torch: "module:function" of the function that builds the torch optimizer
    from an `execution.training.optimizer.Optimizer` (rates and decays) and (name, tensor) pairs. moments: how many numbers, 1
    or 2, it keeps per parameter from step to step. whole_matrices: whether it makes the momentum of whole matrices of the
    layers orthogonal, as Muon does, and leaves other parameters to AdamW; otherwise it updates every number of a tensor
    independently of the others, and so works on any shard of a tensor. zero: the ZeRO stages that it supports."""

    title: str
    about: str
    torch: str
    summary: str = ""
    moments: Literal[1, 2] = 2
    whole_matrices: bool = False
    zero: tuple[int, ...] = (0, 1, 2, 3)
    noted: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a number of moments that programs cannot have, whose buffers of optimizer states say how many
        parameters a rank updates; and for stages without 0, which is the stage of states that a rank has alone."""
        if self.moments not in (1, ADAMW_MOMENTS):
            raise ValueError(f"optimizer {self.title}: moments is {self.moments}; give 1 or {ADAMW_MOMENTS}")
        if 0 not in self.zero:
            raise ValueError(f"optimizer {self.title}: zero is {self.zero}; give 0, too")


OPTIMIZERS: dict[OptimizerName, OptimizerSpec] = {
    "adamw": OptimizerSpec("AdamW", "adamw", "trainplan.execution.training.optimizer:adamw"),
    "muon": OptimizerSpec(
        "Muon",
        "muon, with one momentum for each matrix of the layers, in ZeRO 0 and 1",
        "trainplan.execution.training.muon:muon",
        "Muon for matrices of layers, AdamW for all else",
        moments=1,
        whole_matrices=True,
        zero=(0, 1),  # in which some rank has the gradient of a whole matrix
        noted=r"(?:dist[_ -]?)?muon(?:clip|w)?",
    ),
}


class Matrix(NamedTuple):
    """The shape of a weight matrix, or of a tensor-parallel rank's part of one."""

    rows: int
    columns: int


def ranks_sharing_states(optimizer: OptimizerName, sublayer: Sublayer, sharing: int) -> int:
    """Number of ranks over which the optimizer states of a sub-layer are divided, used for the memory of the rank with most of
    them.

    sharing: number of ranks over which optimizer states are sharded (ZeRO stage 1). This is the result, with one exception:
    an optimizer of whole matrices (Muon) gives all states of an embedding or a head to one rank, and the result is 1.
    """
    return 1 if OPTIMIZERS[optimizer].whole_matrices and sublayer.kind not in LAYER_KINDS else sharing


def is_stepped_by_muon(sublayer: Sublayer, parameter: Parameter) -> bool:
    """Whether Muon, not AdamW, updates a parameter: a weight matrix, or several in one tensor, within a transformer layer."""
    name = parameter.name
    return sublayer.kind in LAYER_KINDS and name.endswith(".weight") and len(parameter.shape) > 1 and name not in TABLES


def matrices_of(shape: Sequence[int]) -> list[Matrix]:
    """Shapes of the matrices in a tensor of the given shape: one matrix for each index of the dimensions before the last two.
    For example, (8, 64, 32), the weights of 8 experts in one tensor, is eight matrices of 64 rows and 32 columns.
    """
    *leading, rows, columns = shape
    return [Matrix(rows, columns)] * prod(leading)


def muon_matrices(sublayer: Sublayer, tp: int = 1, index: int = 0) -> list[Matrix]:
    """Shapes of the matrices of a sub-layer that the optimizer Muon updates; of each matrix, only the part on one
    tensor-parallel rank.

    tp: number of tensor-parallel ranks. index: the rank's index among them.
    """
    chosen = [parameter for parameter in sublayer.parameters() if is_stepped_by_muon(sublayer, parameter)]
    return [matrix for parameter in chosen for matrix in matrices_of(parameter.shard_shape(tp, index))]


def muon_parameter_count(optimizer: OptimizerName, sublayer: Sublayer, tp: int = 1, index: int = 0, sharing: int = 1) -> int:
    """Number of parameters of a sub-layer that one rank updates as whole matrices (by Muon); 0 for an optimizer that updates
    every number of a tensor independently of the others.

    tp: number of tensor-parallel ranks. index: the rank's index among them. sharing: number of ranks over which optimizer
    states are sharded; the matrices are counted as divided equally among them, rounded down."""
    if not OPTIMIZERS[optimizer].whole_matrices:
        return 0
    return sum(map(prod, muon_matrices(sublayer, tp, index))) // sharing


def moments_of(optimizer: OptimizerName, parameters: int, by_muon: int = 0) -> int:
    """Total count of moments, the numbers that an optimizer keeps from step to step, for the parameters that one rank updates.

    parameters: number of these parameters. by_muon: how many of them are in whole matrices that Muon updates, if the
    optimizer is Muon; AdamW updates the others.
    """
    return ADAMW_MOMENTS * parameters - round(moments_saved(optimizer, parameters, by_muon))


def moments_saved(optimizer: OptimizerName, parameters: float, by_muon: float = 0) -> float:
    """How many fewer moments (numbers kept from step to step) an optimizer keeps than AdamW, which keeps two per parameter.

    parameters: number of parameters that a rank updates. by_muon: how many of them are in whole matrices that Muon updates.
    """
    spec = OPTIMIZERS[optimizer]
    return (ADAMW_MOMENTS - spec.moments) * (by_muon if spec.whole_matrices else parameters)


def parameters_of_moments(optimizer: OptimizerName, moments: int, by_muon: int = 0) -> int:
    """Number of parameters that a rank updates if its optimizer keeps `moments` numbers for them: the inverse of `moments_of`.

    by_muon: how many of the parameters are in whole matrices that Muon updates.
    """
    spec = OPTIMIZERS[optimizer]
    if spec.whole_matrices:
        return (moments + (ADAMW_MOMENTS - spec.moments) * by_muon) // ADAMW_MOMENTS
    return moments // spec.moments


def newton_schulz(matrix: Matrix) -> list[Operator]:
    """List the matrix multiplications of one Newton-Schulz iteration of Muon (Jordan et al., 2024) on a matrix of this shape,
    in order.

    The matrix X is transposed if it has more rows than columns. They are X X', the square of X X', and the weighted sum of
    these two matrices times X.
    """
    short, long = sorted(matrix)
    return [
        Operator(m=short, n=short, k=long),
        Operator(m=short, n=short, k=short),
        Operator(m=short, n=long, k=short),
    ]


def step_workspace_bytes(optimizer: OptimizerName, sublayer: Sublayer, stepped_bytes: int, tp: int = 1, index: int = 0) -> int:
    """Peak bytes of temporaries while a rank updates its matrices of a sub-layer by Muon, one after the other.

    The temporaries are the mix of gradient and momentum, in numbers of `stepped_bytes` bytes, and, in bfloat16, the matrix of
    the Newton-Schulz iteration, its next value, and two square matrices from which that is computed. States and gradients are
    not counted. tp: number of tensor-parallel ranks; index: the rank's index among them. Returns 0 for an optimizer that
    updates every number of a tensor independently of the others, in one kernel."""
    largest = 0
    for rows, columns in muon_matrices(sublayer, tp, index) if OPTIMIZERS[optimizer].whole_matrices else ():
        size, square = rows * columns, min(rows, columns) ** 2
        largest = max(largest, size * (stepped_bytes + 2 * HALF_BYTES) + 2 * square * HALF_BYTES)
    return largest
