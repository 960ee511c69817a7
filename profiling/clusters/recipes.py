"""Recipes by which the matrix products of transformer layers are computed in 8 or 4 bits.

Formats, scale factors, and what is read and written to cast an operand are those of NVIDIA's Transformer Engine (its
documentation, Low Precision Training, 2026), NVFP4's with the training recipe of NVIDIA (2025, arXiv 2509.25149). Which devices
have which recipe stands in their data sheets.

Every operand, whether an input, a weight or an output's gradient, is used along its rows in one product and along its columns
in another, so that it is written in few bits twice. Per-tensor recipes could do with one of the two on Blackwell, which reads
either way; both are counted there, too, as where efficiencies were fitted. What is small, and not known better, takes nothing
of its own: maxima reduced over ranks, the 16 x 16 Hadamard transform of the operands of NVFP4's gradients of weights (32 FLOPs
of tensor cores for a number that is read from memory), stochastic rounding (an instruction), what block-wise products take
longer on Hopper, which has no scale factors of blocks in hardware, and the casts of weights, once a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Precision

RecipeName = Literal["fp8", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4"]
ORIENTATIONS = 2  # along rows, and along columns


@dataclass(frozen=True)
class Recipe:
    """One recipe. about: it, in words. precision: whose rate products have.

    multiple: what the sizes of products have to be multiples of. number_bytes: of a number in few bits; block: numbers that
    share a scale factor of scale_bytes, along rows or columns;
    weight_block: the same of weights, where their blocks are squares. A scale factor of a whole tensor is no bytes here (block
    0). reads: how often an operand is read to be cast, twice where its maximum has to be known first. beside: whether the
    weights in the model's dtype are kept, too; else those in few bits stand in their place where an optimizer shares its states
    (`--fp8-param-gather` of Megatron-LM, as Megatron-Bridge's recipes have it). base: the only dtype that operands are cast
    from, where not every one is taken.
    """

    name: RecipeName
    about: str
    precision: Precision
    multiple: int = 16
    number_bytes: float = 1.0
    block: int = 0
    weight_block: int = 0
    scale_bytes: int = 0
    reads: int = 1
    beside: bool = False
    base: Precision | None = None

    @property
    def operand_bytes(self) -> float:
        """Bytes of a number of an operand with its part of the scale factors, as it is kept and as products read it."""
        return self.number_bytes + (self.scale_bytes / self.block if self.block else 0.0)

    def cast_bytes(self, element_bytes: int) -> float:
        """Bytes read and written to cast a number of an operand from one of so many bytes."""
        return self.reads * element_bytes + ORIENTATIONS * self.operand_bytes

    def copied_bytes(self, element_bytes: int, in_place: bool) -> float:
        """Bytes of a weight in few bits, in both orientations, beside its element_bytes in the model's dtype. in_place: it may
        stand in their place, so that only what it needs more is beside them."""
        scale = self.scale_bytes / self.weight_block if self.weight_block else 0.0
        both = ORIENTATIONS * (self.number_bytes + scale)
        return max(0.0, both - element_bytes) if in_place and not self.beside else both


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("fp8", "FP8 per tensor, scaled by the maxima of earlier steps (delayed scaling)", "float8"),
        Recipe("fp8-current", "FP8 per tensor, scaled by its own maximum (current scaling)", "float8", reads=2),
        Recipe(
            "fp8-blockwise",
            "FP8 in blocks of 1 x 128 numbers, of weights 128 x 128, with scale factors in FP32",
            "float8",
            multiple=128,
            block=128,
            weight_block=128 * 128,
            scale_bytes=4,
            beside=True,
        ),
        Recipe(
            "mxfp8",
            "FP8 in blocks of 32 numbers, with scale factors in E8M0",
            "float8",
            multiple=32,
            block=32,
            weight_block=32,
            scale_bytes=1,
        ),
        Recipe(
            "nvfp4",
            "FP4 in blocks of 16 numbers, with scale factors in E4M3 and one in FP32 of the tensor",
            "float4",
            number_bytes=0.5,
            block=16,
            weight_block=16,
            scale_bytes=1,
            reads=2,
            beside=True,
            base="bfloat16",  # of the Hadamard transform
        ),
    )
}


def check_rates(recipes: Iterable[str], rates: Collection[str]) -> None:
    """Raises InputError where a device is said to have a recipe, and no rate for its products."""
    for name in recipes:
        if (precision := RECIPES[name].precision) not in rates:
            raise InputError("", "recipes", f"has {name}", f"leave it out, or give flops_per_s.{precision}")
