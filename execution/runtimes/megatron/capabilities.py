"""The plans that Megatron-LM's GPTModel can run.

One strategy for all units, with copies of states or its distributed optimizer (ZeRO stage 1), sequence parallelism,
recomputation of whole layers or of attention and norms, 1F1B and interleaved stages of whole layers; tensor-parallel ranks are
neighbours. The recomputed layers may be the first n of every stage. Context parallelism of GPTModel exchanges keys or heads;
for the latter Transformer Engine cannot copy keys. Transformer Engine has all low-precision recipes. Gradients of bfloat16
models are summed in float32 unless --grad-reduce-in-bf16 is given (megatron/training/arguments.py). Muon runs with ZeRO stages
0 and 1.
"""

from __future__ import annotations

from trainplan.execution.support import products_by
from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.plan.strategy import EXCHANGES
from trainplan.formulations.runtimes import DECODERS, Runtime
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.models.optimizers import OPTIMIZERS

OVERLAPS = ("overlap-grad-reduce", "overlap-param-gather")  # which the export sets
GATHERED = "fp8-param-gather"
FUSED_LOSS, TE_LOSS = "cross-entropy-loss-fusion", "cross-entropy-fusion-impl te"  # the latter by Transformer Engine's kernels


def settings_of(plan: Plan) -> tuple[str, ...]:
    """The settings that the export of a plan turns on, by Megatron-LM's names: overlap of communication, which there is none of
    with Muon, and parameters that data-parallel ranks gather in 8 bits where they share states (`fields.PrecisionValues`)."""
    overlaps = () if OPTIMIZERS[plan.optimizer].whole_matrices else OVERLAPS
    recipes = [RECIPES[name] for name in {unit.precision for unit in plan.units} - {"model"}]
    gathers = bool(plan.units[0].strategy.zero_stage) and any(not recipe.keeps_weights for recipe in recipes)
    return (*overlaps, GATHERED) if gathers else overlaps


def run_by(plan: Plan) -> RunBy:
    """The settings with which Megatron-LM runs what is exported of a plan."""
    return RunBy(name="megatron", software="megatron-core", flags=" ".join((*settings_of(plan), plan.optimizer)))


CAPABILITIES = Runtime(
    ("1f1b", "interleaved"),
    (0, 1),
    ("attention", "norms"),
    exchanges=EXCHANGES,
    copies_keys=False,
    cut_families=DECODERS,
    families=(*DECODERS, "bert"),  # those of GPTModel and BertModel
    first_layers=True,
    wide_gradients=("bfloat16",),
    optimizers={"muon": (0, 1)},
    recipes=tuple(RECIPES),
    features=(
        *("master weights", "ZeRO stage 1", "ZeRO stage 2", "sequence parallelism", "recomputation of modules"),
        *map(products_by, RECIPES),
        *("context parallelism", "exchange of heads"),
    ),
    title="Megatron-LM",
    short="Megatron",
    run_by=run_by,
    vocabulary_keys="--vocab-size, or --padded-vocab-size with what is added to it,",
)
