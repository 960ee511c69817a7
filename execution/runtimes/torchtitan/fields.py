"""Keys of torchtitan that correspond to properties of a plan, each declared once: `torchtitan.reader` reads them by these
declarations and `torchtitan.export` writes them.

Sections, keys and defaults as of `torchtitan/config/job_config.py` (0.2, 2025), in the order in which they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.launch_files.fields import anything, by_name, flag, text, whole
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.schedule.orders import PlanSchedule
from trainplan.profiling.clusters.recipes import RecipeName

# As torch finds them: in upper or lower case. Those with underlines are names of versions before October 2024.
SCHEDULES: dict[str, PlanSchedule] = {
    "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved-1f1b", "interleaved_1f1b": "interleaved-1f1b",
}  # fmt: skip
CONVERTERS: dict[str, RecipeName] = {  # of linear layers
    **dict.fromkeys(("float8", "quantize.linear.float8", "quantize.dense.float8"), "fp8-current"),
    **dict.fromkeys(("mx", "quantize.linear.mx", "quantize.dense.mx"), "mxfp8"),
}
WRITTEN = {"fp8-current": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}  # those of 0.2
HALF = ("bfloat16", "float32")


@dataclass(frozen=True)
class ExportedValues:
    """The properties of a plan from which the export computes torchtitan's keys.

    plan: the plan. strategy: the levels of parallelism of all units, as torchtitan runs them. flavour: the model's name and
    size in torchtitan, if it has them. samples: samples per micro-batch on one rank. modules: module names of each stage.
    recomputes: whether layers are recomputed. csv: the name of a file with the order of passes, if torchtitan has no such
    schedule. recipe: the recipe of low-precision matrix multiplications. compiled: whether torch.compile fuses its casts.
    tokenizer, dataset, folder, steps, rate (learning rate), warmup (steps): values that a plan does not have.
    """

    plan: Plan
    strategy: Strategy
    flavour: tuple[str, str] | None
    samples: int
    modules: list[list[str]]
    recomputes: bool
    csv: str | None
    recipe: RecipeName | None
    compiled: bool
    tokenizer: str
    dataset: str
    folder: str | None
    steps: int
    rate: float
    warmup: int

    @property
    def pipelined(self) -> bool:
        """Whether the plan has several pipeline stages."""
        return len(self.plan.stages) > 1

    @property
    def local(self) -> int:
        """Samples that a rank loads at once: all of its samples of a step with a pipeline; otherwise those of one
        micro-batch, since gradients are then accumulated."""
        return self.samples * self.plan.batch.micro_batches if self.pipelined else self.samples

    def mixed(self, dtype: str) -> str | None:
        """The value that the export writes for a key on mixed precision: the given dtype if the plan has master weights,
        otherwise None, so that the key is left out."""
        return dtype if self.plan.precision.master is not None else None

    def converter(self, recipe: RecipeName, value: Any) -> Any:
        """The value that the export writes for a key of a low-precision converter: the given value if the plan has this
        recipe, otherwise None, so that the key is left out. recipe: the recipe that the converter implements."""
        return value if self.recipe == recipe else None


KEYS = (
    text("model.name", "llama3", lambda v: v.flavour and v.flavour[0]),
    text("model.flavor", "debugmodel", lambda v: v.flavour and v.flavour[1], says="model"),
    anything("model.converters", lambda v: v.recipe and [WRITTEN[v.recipe]], says="recipe"),
    anything("model.hf_assets_path", lambda v: v.tokenizer),
    anything("optimizer.lr", lambda v: v.rate),
    anything("lr_scheduler.warmup_steps", lambda v: v.warmup),
    anything("training.dataset", lambda v: v.dataset),
    anything("training.dataset_path", lambda v: v.folder),
    anything("training.steps", lambda v: v.steps),
    whole("training.local_batch_size", 8, lambda v: v.local, says="micro_samples"),
    whole("training.global_batch_size", -1, lambda v: v.plan.batch.global_samples, says="samples"),
    whole("training.seq_len", 2048, lambda v: v.plan.planned_model().tokens, says="sequence"),
    text("training.mixed_precision_param", "bfloat16", lambda v: v.mixed(v.plan.planned_model().dtype), choices=HALF),
    text("training.mixed_precision_reduce", "float32", lambda v: v.mixed("float32"), choices=HALF[::-1]),
    whole("parallelism.pipeline_parallel_degree", 1, lambda v: len(v.plan.stages), says="pp"),
    text(
        "parallelism.pipeline_parallel_schedule", "1F1B", lambda v: v.plan.schedule if v.pipelined else None, words=SCHEDULES
    ),
    whole("parallelism.data_parallel_replicate_degree", 1, lambda v: v.strategy.degree("dp"), says="copies"),
    whole("parallelism.data_parallel_shard_degree", -1, lambda v: v.strategy.degree("sdp"), says="shard"),
    text(
        "parallelism.fsdp_reshard_after_forward", "default",
        lambda v: "always" if v.strategy.shares_parameters else "never", choices=("default", "always", "never"),
    ),
    whole("parallelism.tensor_parallel_degree", 1, lambda v: v.strategy.degree("tp"), says="tp"),
    whole(
        "parallelism.context_parallel_degree", 1,
        lambda v: v.strategy.degree("cp") if v.strategy.degree("cp") > 1 else None, says="cp",
    ),
    anything("parallelism.pipeline_parallel_schedule_csv", lambda v: v.csv),
    whole("parallelism.pipeline_parallel_microbatch_size", 1, lambda v: v.samples if v.pipelined else None),
    anything("parallelism.module_fqns_per_model_part", lambda v: v.modules if v.pipelined else None),
    text(
        "activation_checkpoint.mode", "selective", lambda v: "full" if v.recomputes else "none",
        choices=("none", "full", "selective", "memory_budget"),
    ),
    flag("compile.enable", lambda v: v.compiled or None),
    anything("quantize.linear.float8.recipe_name", lambda v: v.converter("fp8-current", "tensorwise")),
    anything("quantize.linear.float8.filter_fqns", lambda v: v.converter("fp8-current", ["output"])),
    anything("quantize.linear.mx.recipe_name", lambda v: v.converter("mxfp8", "mxfp8_cublas")),
    anything("quantize.linear.mx.filter_fqns", lambda v: v.converter("mxfp8", ["output"])),
    # Only read.
    text("training.dtype", "float32", choices=HALF),
    text("model.attn_mask_type", "causal"),
    flag("parallelism.enable_sequence_parallel", default=True),  # of versions that have this key
)  # fmt: skip
FIELDS = by_name(KEYS)
