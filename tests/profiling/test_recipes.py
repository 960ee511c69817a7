"""Recipes of products in few bits: their formats, and which devices have which."""

from __future__ import annotations

from typing import get_args

import pytest
from trainplan.profiling.base.files import parse
from trainplan.profiling.clusters.cluster import DeviceKind, load_cluster
from trainplan.profiling.clusters.recipes import RECIPES, RecipeName
from trainplan.profiling.clusters.sheets import sheet, sheets

from tests.helpers.refusals import refused

PER_TENSOR = ["fp8", "fp8-current"]
OF_ARCHITECTURES = {  # by the documentation of both Transformer Engines
    "ada": PER_TENSOR,
    "hopper": [*PER_TENSOR, "fp8-blockwise"],
    "blackwell": [*PER_TENSOR, "fp8-blockwise", "mxfp8", "nvfp4"],
    "cdna3": PER_TENSOR,
    "cdna4": [*PER_TENSOR, "mxfp8"],
}


def test_every_recipe_has_a_record() -> None:
    assert tuple(RECIPES) == get_args(RecipeName)
    assert all(name == recipe.name for name, recipe in RECIPES.items())


@pytest.mark.parametrize(
    ("name", "operand_bits", "cast_bytes"),
    [
        ("fp8", 8, 2 + 2),
        ("fp8-current", 8, 2 * 2 + 2),
        ("fp8-blockwise", 8 + 32 / 128, 2 + 2 + 2 * 4 / 128),
        ("mxfp8", 8 + 8 / 32, 2 + 2 + 2 / 32),
        ("nvfp4", 4 + 8 / 16, 2 * 2 + 1 + 2 / 16),
    ],
)
def test_bits_of_numbers_and_bytes_of_casts(name: str, operand_bits: float, cast_bytes: float) -> None:
    """From bfloat16: read once or twice, written along rows and along columns with scale factors."""
    recipe = RECIPES[name]
    assert 8 * recipe.operand_bytes == pytest.approx(operand_bits)
    assert recipe.cast_bytes(2) == pytest.approx(cast_bytes)
    assert recipe.precision == ("float4" if operand_bits < 8 else "float8")


@pytest.mark.parametrize(
    ("name", "alone", "in_place"),
    [
        ("fp8", 2, 0),
        ("fp8-current", 2, 0),
        ("fp8-blockwise", 2 + 8 / 128**2, 2 + 8 / 128**2),
        ("mxfp8", 2 + 2 / 32, 2 / 32),
        ("nvfp4", 1 + 2 / 16, 1 + 2 / 16),
    ],
)
def test_copies_of_weights(name: str, alone: float, in_place: float) -> None:
    """In both orientations, in addition to a weight in bfloat16, or what 8 bits need more in its place."""
    assert RECIPES[name].copied_bytes(2, False) == pytest.approx(alone)
    assert RECIPES[name].copied_bytes(2, True) == pytest.approx(in_place)


@pytest.mark.parametrize("name", sorted(sheets()))
def test_devices_have_the_recipes_of_their_architecture(name: str) -> None:
    described = sheet(name)
    of_architecture = OF_ARCHITECTURES.get(described.architecture, [])
    if name == "rtx5090":  # of compute capability 12.0, for which Transformer Engine has no block scaling
        of_architecture = [entry for entry in of_architecture if entry in ("fp8", "fp8-current")]
    assert described.recipes == of_architecture
    assert load_cluster(f"{name}:8").kinds[0].recipes == described.recipes


def test_a_recipe_needs_a_rate() -> None:
    about = {"name": "new", "memory_bytes": 2**34, "flops_per_s": {"bfloat16": 1e15}, "memory_bytes_per_s": 1e12}
    with refused("recipes", problem="fp8", fix="flops_per_s.float8"):
        parse({**about, "recipes": ["fp8"]}, DeviceKind)
