"""The plans that torchtitan can run.

One strategy for all units, with states sharded by FSDP2 (ZeRO stage 3, or 2 if parameters stay gathered) or copied, tensor
parallelism with the tokens shared, recomputation of whole layers, 1F1B and GPipe with stages of whole layers, context
parallelism that exchanges keys. Its mixed precision reduces and keeps gradients in float32. Recipes are those of torchao that
its configurations name.
"""

from __future__ import annotations

from trainplan.execution.support import products_by
from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.runtimes import Runtime

RECIPES = ("fp8-current", "mxfp8")


def _run_by(plan: Plan) -> RunBy:
    """The settings with which torchtitan runs a plan: low-precision recipes need `compile`, which fuses the casts."""
    recipe = any(unit.precision != "model" for unit in plan.units)
    return RunBy(name="torchtitan", software="torchtitan", flags="compile" if recipe else "")


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
    run_by=_run_by,
    states_training=True,
)
