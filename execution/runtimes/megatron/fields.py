"""Arguments of Megatron-LM that correspond to properties of a plan, each declared once: `megatron.reader` reads them by these
declarations and `megatron.export` writes them.

Names, kinds and defaults as of `megatron/training/arguments.py` (core 0.15, 2025; for Muon core 0.16, 2026). Tables are in the
order in which arguments are written. Arguments for features that no plan has are in `megatron.refused`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from trainplan.execution.launch_files.fields import Field, anything, by_name, flag, number, text, values_of, whole
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Exchange, Module, Strategy
from trainplan.profiling.clusters.recipes import Recipe, RecipeName
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import ITERATIONS, OPTIMIZERS, OptimizerName
from trainplan.profiling.models.sublayers import Attention, FeedForward, TokenEmbedding

SCALINGS: dict[str, RecipeName] = {
    "tensorwise": "fp8-current",
    "delayed": "fp8",
    "mxfp8": "mxfp8",
    "blockwise": "fp8-blockwise",
}
MODULES: dict[str, Module] = {"core_attn": "attention", "layernorm": "norms"}  # that can be recomputed by themselves
EXCHANGES: dict[str, Exchange] = {"p2p": "keys", "allgather": "keys", "a2a": "heads"}  # without underlines
POSITIONS = ("learned_absolute", "rope", "alibi", "none", "rotary")  # the last one is BigScience's name of rope
SHARDED: dict[str, Literal[0, 1, 2, 3]] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
# Optimizers of plans by Megatron-LM's words, and whether a word deals whole tensors to data-parallel ranks (ZeRO stage 1).
STEPPED: dict[str, tuple[OptimizerName, bool]] = {
    "adam": ("adamw", False),
    "adamw": ("adamw", False),
    "muon": ("muon", False),
    "dist_muon": ("muon", True),
}
HYBRID_SPEC = "megatron.core.models.hybrid.hybrid_layer_specs"


@dataclass(frozen=True)
class ModelParts:
    """The sub-layers of a model that Megatron Core's GPTModel can run, from which the export computes the arguments on the
    model. layers: the number of transformer layers; None if a layer pattern gives it instead."""

    model: Model
    embedding: TokenEmbedding
    attention: Attention
    ffn: FeedForward
    layers: int | None


@dataclass(frozen=True)
class ExportedValues:
    """The properties of a plan from which the export computes Megatron-LM's arguments on parallelism and batch.

    plan: the plan. strategy: the levels of parallelism of all units. micro_samples: samples per micro-batch on one rank.
    exchange: how context-parallel ranks communicate, in Megatron-LM's terms (p2p, all_gather, a2a); None without context
    parallelism. recomputes: if all of a layer is recomputed, Megatron-LM's method and number of layers; None if none are.
    modules: Megatron-LM's names of modules that are recomputed without the rest of their layer."""

    plan: Plan
    strategy: Strategy
    micro_samples: int
    exchange: str | None
    recomputes: tuple[str, int] | None
    modules: list[str]

    @property
    def ranks(self) -> int:
        """Number of ranks that share the optimizer's states: data-parallel times context-parallel ranks."""
        return self.strategy.data_degree * self.strategy.degree("cp")

    @property
    def distributed(self) -> bool:
        """Whether the distributed optimizer is used, which has no whole matrices as Muon needs them."""
        return bool(self.strategy.zero_stage) and not self.whole_matrices

    @property
    def whole_matrices(self) -> bool:
        """Whether the optimizer updates whole matrices, as Muon does."""
        return OPTIMIZERS[self.plan.optimizer].whole_matrices

    @property
    def optimizer(self) -> str | None:
        """Megatron-LM's word for the plan's optimizer; None for AdamW, its default."""
        if self.plan.optimizer == "adamw":
            return None
        dealt = bool(self.strategy.zero_stage) and self.whole_matrices
        return next(word for word, (name, deals) in STEPPED.items() if (name, deals) == (self.plan.optimizer, dealt))


@dataclass(frozen=True)
class StageCuts:
    """How a plan's pipeline is divided into stages, as values for Megatron-LM's arguments; each field is None if it is not
    used.

    layers: BERT's number of layers, whose other arguments the user gives. pattern: stages of sub-layers, which may begin within
    a layer. layout: stages of whole layers. first, last: numbers of layers of the first and last stage if the other stages are
    equal.
    """

    layers: int | None = None
    pattern: str | None = None
    layout: str | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class PrecisionValues:
    """The dtypes of a plan, from which the export computes Megatron-LM's arguments on precision. dtype: the model's dtype.
    recipe: the low-precision recipe of matrix multiplications; None without. sharded: whether data-parallel ranks shard states
    in the exported run."""

    plan: Plan
    dtype: str
    recipe: Recipe | None
    sharded: bool

    @property
    def scaling(self) -> str | None:
        """The name of the recipe of 8-bit matrix multiplications; None if they are not in 8 bits."""
        return None if self.recipe is None or self.recipe.name == "nvfp4" else self.recipe.name

    @property
    def four(self) -> bool:
        """Whether matrix multiplications are in 4 bits."""
        return self.recipe is not None and self.recipe.name == "nvfp4"

    @property
    def gathered(self) -> bool:
        """Whether data-parallel ranks gather parameters in 8 bits."""
        return self.sharded and self.recipe is not None and not self.recipe.keeps_weights


MODEL = (
    whole("--num-layers", written=lambda v: v.layers, says="model"),
    whole("--hidden-size", written=lambda v: v.embedding.hidden),
    whole("--ffn-hidden-size", written=lambda v: v.ffn.inner),
    whole("--num-attention-heads", written=lambda v: v.attention.heads),
    whole("--kv-channels", written=lambda v: v.attention.width),
    whole("--seq-length", written=lambda v: v.model.tokens, says="sequence"),
    whole("--max-position-embeddings", written=lambda v: v.embedding.positions or v.model.tokens),
    text("--normalization", "LayerNorm", lambda v: v.embedding.norm, words={"RMSNorm": "rms", "LayerNorm": "layer"}),
    number("--norm-epsilon", 1e-5, lambda v: v.embedding.epsilon),
    number("--attention-dropout", 0.1, lambda v: v.attention.attention_dropout),
    number("--hidden-dropout", 0.1, lambda v: v.attention.dropout),
    flag("--group-query-attention", lambda v: v.attention.kv_heads != v.attention.heads),
    whole("--num-query-groups", 1, lambda v: None if v.attention.kv_heads == v.attention.heads else v.attention.kv_heads),
    text("--position-embedding-type", POSITIONS[0], lambda v: POSITIONS[bool(v.attention.rotary)], choices=POSITIONS),
    whole("--rotary-base", 10000, lambda v: round(v.attention.rotary) or None),
    number("--rotary-percent", 1.0, lambda v: _rotated(v.attention, v.attention.rotary_width / v.attention.width)),
    flag("--rotary-interleaved", lambda v: _rotated(v.attention, v.attention.interleaved)),
    flag("--use-rope-scaling", lambda v: _rotated(v.attention, v.attention.scaling)),
    number("--rope-scaling-factor", 8.0, lambda v: _rotated(v.attention, getattr(v.attention.scaling, "factor", None))),
    flag("--swiglu", lambda v: (v.ffn.activation, v.ffn.gated) == ("silu", True)),
    flag("--squared-relu", lambda v: (v.ffn.activation, v.ffn.gated) == ("relu2", False)),
    flag("--disable-bias-linear", lambda v: not v.ffn.bias),
    flag("--add-qkv-bias", lambda v: v.attention.bias and not v.attention.out_bias),
    flag("--qk-layernorm", lambda v: v.attention.normed_heads),
    text("--window-size", "", lambda v: f"{v.attention.sliding - 1},0" if v.attention.sliding else None),  # before, after
    flag("--untie-embeddings-and-output-weights", lambda v: not v.model.tied),
)
PARALLEL = (
    whole("--pipeline-model-parallel-size", 1, lambda v: v.plan.depth, says="pp"),
    whole("--tensor-model-parallel-size", 1, lambda v: v.strategy.degree("tp"), says="tp"),
    whole("--micro-batch-size", 1, lambda v: v.micro_samples, says="micro_samples"),
    whole("--global-batch-size", None, lambda v: v.plan.batch.global_samples, says="samples"),
    whole("--make-vocab-size-divisible-by", 128, lambda v: 1),
    whole("--context-parallel-size", 1, lambda v: v.strategy.degree("cp") if v.exchange else None, says="cp"),
    anything("--cp-comm-type", lambda v: v.exchange, says="exchange"),
    flag("--overlap-grad-reduce", lambda v: v.ranks > 1 and not v.whole_matrices),
    flag("--use-distributed-optimizer", lambda v: v.distributed),
    flag("--overlap-param-gather", lambda v: v.distributed),
    whole("--num-distributed-optimizer-instances", 1, lambda v: _copies(v), says="copies"),
    flag("--sequence-parallel", lambda v: v.strategy.sequence_parallel),
    text(
        "--recompute-granularity", "none", lambda v: "full" if v.recomputes else "selective" if v.modules else None,
        choices=("none", "full", "selective"),
    ),
    text("--recompute-method", "uniform", lambda v: v.recomputes and v.recomputes[0], choices=("uniform", "block")),
    whole("--recompute-num-layers", 1, lambda v: v.recomputes and v.recomputes[1], says="group"),
    anything("--recompute-modules", lambda v: None if v.recomputes else v.modules or None),
)  # fmt: skip
STAGES = (
    whole("--num-layers", written=lambda v: v.layers),
    anything("--spec", lambda v: [HYBRID_SPEC, "hybrid_stack_spec"] if v.pattern else None),
    anything("--hybrid-layer-pattern", lambda v: v.pattern),
    anything("--pipeline-model-parallel-layout", lambda v: v.layout),
    whole("--decoder-first-pipeline-num-layers", written=lambda v: v.first),
    whole("--decoder-last-pipeline-num-layers", written=lambda v: v.last),
)
PRECISION = (
    flag("--bf16", lambda v: v.dtype == "bfloat16"),
    flag("--fp16", lambda v: v.dtype == "float16"),
    flag("--accumulate-allreduce-grads-in-fp32", lambda v: v.plan.precision.gradients == "float32"),
    flag("--grad-reduce-in-bf16", lambda v: v.plan.precision.gradients != "float32" and v.dtype == "bfloat16"),
    anything("--fp8-format", lambda v: v.scaling and ("e4m3" if v.recipe.name in ("fp8-blockwise", "mxfp8") else "hybrid")),
    text("--fp8-recipe", "delayed", lambda v: v.scaling, choices=tuple(SCALINGS), words=SCALINGS),
    anything("--fp4-format", lambda v: "e2m1" if v.four else None),
    text("--fp4-recipe", "nvfp4", lambda v: "nvfp4" if v.four else None, choices=("nvfp4",)),
    flag("--fp8-param-gather", lambda v: v.gathered),
    flag("--reuse-grad-buf-for-mxfp8-param-ag", lambda v: v.gathered and v.recipe.name == "mxfp8"),
)
OPTIMIZER = (text("--optimizer", "adam", lambda v: v.optimizer),)  # by STEPPED
# Muon as torch's that matches AdamW's updates (Liu et al., 2025), each rank of tensor parallelism on its own part.
MUON = (
    anything("--muon-momentum", lambda v: 0.95),
    flag("--muon-use-nesterov", lambda v: True),
    whole("--muon-num-ns-steps", ITERATIONS, lambda v: ITERATIONS),
    anything("--muon-scale-mode", lambda v: "spectral"),
    anything("--muon-extra-scale-factor", lambda v: 0.2),
    text("--muon-tp-mode", "blockwise", lambda v: "blockwise", choices=("blockwise", "duplicated", "distributed")),
)
# Only read: other spellings of the same settings, and settings that no export uses.
READ = (
    *map(flag, ("--no-pipeline-parallel", "--torch-fsdp2-no-reshard-after-forward", "--use-torch-fsdp2")),
    *map(flag, ("--use-megatron-fsdp", "--use-custom-fsdp", "--embed-layernorm", "--first-last-layers-bf16")),
    *map(flag, ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")),
    *map(flag, ("--recompute-activations", "--use-rotary-position-embeddings")),
    *map(whole, ("--vocab-size", "--padded-vocab-size", "--extra-vocab-size", "--sliding-window")),
    *map(whole, ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")),
    text("--data-parallel-sharding-strategy", "no_shard", choices=tuple(SHARDED), words=SHARDED),  # of Megatron's FSDP alone
    text("--tokenizer-type"),
    text("--attention-backend", "auto", choices=("auto", "flash", "fused", "unfused", "local")),
    text("--transformer-impl", "transformer_engine"),
    flag("--cross-entropy-loss-fusion"),
    text("--cross-entropy-fusion-impl", "native", choices=("native", "te")),
    *map(flag, ("--deepspeed", "--deepspeed-activation-checkpointing", "--cpu-optimizer")),  # of Megatron-DeepSpeed
    whole("--zero-stage", 1),
)
ARGUMENTS = by_name(MODEL, PARALLEL, STAGES, PRECISION, OPTIMIZER, MUON, READ)


def _rotated(attention: Attention, value: Any) -> Any:
    """The value that the export writes for an argument on rotary positions: the given value if it is not zero and the
    attention has such positions; otherwise None, so that the argument is left out."""
    return value if attention.rotary and value else None


def _copies(exported_values: ExportedValues) -> int | None:
    """The number of copies of the distributed optimizer's states if there are several; otherwise None, so that the argument
    is left out."""
    copies = exported_values.strategy.degree("dp")
    return copies if exported_values.distributed and copies > 1 else None


def words_of(table: Iterable[Field], values: Any) -> list[str]:
    """The arguments of a table of declarations as words of a command: each argument that has a value, followed by its
    values, such as ["--bf16", "--seq-length", "4096"]. values: the record from which the table's fields compute their
    values, such as ExportedValues. Flags that are off are left out."""
    words = list[str]()
    for name, value in values_of(table, values).items():
        if value is False:
            continue
        items = [] if value is True else value if isinstance(value, list) else [value]
        words += [name, *(f"{item:g}" if isinstance(item, float) else str(item) for item in items)]
    return words
