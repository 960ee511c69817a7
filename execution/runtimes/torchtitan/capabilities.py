"""What torchtitan runs.

One strategy for all units, sharded by FSDP2 (ZeRO stage 3, or 2 where parameters stay gathered) or copied, tensor parallelism
with the tokens shared, recomputation of whole layers, 1F1B and GPipe with stages of whole layers, context parallelism that
exchanges keys. Gradients are in float32, as its mixed precision reduces and keeps them. Recipes are those of torchao that its
configurations name.
"""

from __future__ import annotations

from trainplan.execution.support import products_by
from trainplan.formulations.runtimes import Runtime

RECIPES = ("fp8-current", "mxfp8")
CAPABILITIES = Runtime(
    ("1f1b", "gpipe"),
    (0, 2, 3),
    shares_tokens=True,
    exchanges=("keys",),
    families=("llama", "qwen3"),
    tied=False,
    wide_gradients=("bfloat16", "float16"),
    narrow_gradients=False,
    recipes=RECIPES,
    features=(
        *("master weights", "ZeRO stage 2", "sequence parallelism", "context parallelism"),
        *map(products_by, RECIPES),
    ),
)
