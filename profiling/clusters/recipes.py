"""Recipes by which the matrix products of transformer layers are computed in 8 or 4 bits.

Formats, scale factors, and the bytes read and written to cast an operand are those of NVIDIA's Transformer Engine (its
documentation, Low Precision Training, 2026), NVFP4's with the training recipe of NVIDIA (2025, arXiv 2509.25149). The data
sheets of devices list the recipes that they support.

Every operand, whether an input, a weight or an output's gradient, is used along its rows in one product and along its columns
in another, so that it is written in few bits twice. Per-tensor recipes do with one of the two on devices that read in both
orders. Products with a scale factor for each block of numbers reach less of the device's rate: its tensor cores also read and
apply the factors (on Blackwell those in blocks of 128 numbers are computed as MXFP8's; Hopper, whose tensor cores have none, is
taken to lose as much). Small costs that are not known better take no time of their own: maxima reduced over ranks, the 16 x 16
Hadamard transform of the operands of NVFP4's gradients of weights (32 FLOPs of tensor cores per number read from memory),
stochastic rounding (an instruction), and the casts of weights, one time per step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Precision

RecipeName = Literal["fp8", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4"]
ORIENTATIONS = 2  # along rows, and along columns
# From two pairs of published runs of Llama 3 8B, on B200 and on GB200, that differ in the recipe alone; a third pair, of Llama
# 3.1 405B on 128 B200, has 0.91.
BLOCK_RATE = 0.93


@dataclass(frozen=True)
class Recipe:
    """A recipe by which matrix multiplications are computed in low precision (8 or 4 bits per number).

    about: a description for users. precision: the precision whose rate its matrix multiplications have. multiple: sizes of
    matrices must be multiples of it. number_bytes: bytes of a number in low precision. block: count of numbers along a row or
    column that share a scale factor of scale_bytes; weight_block: this count for weights, whose blocks may be squares. A
    scale factor of a whole tensor counts as no bytes (block 0). reads: how often an operand is read to be cast: twice if its
    maximum must be known first. keeps_weights: whether the weights in the model's dtype are kept in addition to those in low
    precision; otherwise low-precision weights replace them where an optimizer shards its states (`--fp8-param-gather` of
    Megatron-LM, as in Megatron-Bridge's recipes). base: the only dtype that operands can be cast from; None if every dtype
    can be. product_rate: the rate of its products over that of products in its precision without scale factors of blocks.
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
    keeps_weights: bool = False
    base: Precision | None = None
    product_rate: float = 1.0

    @property
    def operand_bytes(self) -> float:
        """Bytes per number of an operand in low precision, including its share of the scale factors."""
        return self.number_bytes + (self.scale_bytes / self.block if self.block else 0.0)

    def cast_bytes(self, element_bytes: int, transposes: bool = True) -> float:
        """Bytes read and written to cast one number of an operand to low precision.

        element_bytes: bytes of the number before the cast. transposes: whether it is written both along rows and along columns;
        else once.
        """
        return self.reads * element_bytes + (ORIENTATIONS if transposes else 1) * self.operand_bytes

    def copied_bytes(self, element_bytes: int, in_place: bool) -> float:
        """Bytes per weight for its two low-precision copies, along rows and along columns.

        element_bytes: bytes of the weight in the model's dtype. in_place: whether the copies may replace the weight in the
        model's dtype, so that only the bytes beyond `element_bytes` count.
        """
        scale = self.scale_bytes / self.weight_block if self.weight_block else 0.0
        both = ORIENTATIONS * (self.number_bytes + scale)
        return max(0.0, both - element_bytes) if in_place and not self.keeps_weights else both


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
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
            keeps_weights=True,
            product_rate=BLOCK_RATE,
        ),
        Recipe(
            "mxfp8",
            "FP8 in blocks of 32 numbers, with scale factors in E8M0",
            "float8",
            multiple=32,
            block=32,
            weight_block=32,
            scale_bytes=1,
            product_rate=BLOCK_RATE,
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
            keeps_weights=True,
            base="bfloat16",  # of the Hadamard transform
        ),
    )
}


def check_rates(recipes: Iterable[str], rates: Collection[str]) -> None:
    """Raise InputError if a device is listed with a low-precision recipe but has no rate for the recipe's precision.

    recipes: names of recipes for matrix multiplications, such as "mxfp8". rates: the precisions for which the device has a
    rate.
    """
    for name in recipes:
        if (precision := RECIPES[name].precision) not in rates:
            raise InputError("", "recipes", f"has {name}", f"leave it out, or give flops_per_s.{precision}")
