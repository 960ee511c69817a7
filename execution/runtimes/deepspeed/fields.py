"""Keys of DeepSpeed's JSON that correspond to properties of a plan, each declared once: `deepspeed.reader` reads them by these
declarations and `deepspeed.export` writes them.

Keys and defaults as of DeepSpeed 0.19 (2026; its page on the JSON configuration, `runtime/zero/config.py`), in the order in
which they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.launch_files.fields import anything, by_name, flag, number, text, whole
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.optimizers import OptimizerName

WIDTHS = {  # dtypes of gradients by DeepSpeed's spellings
    name: width
    for width, names in {
        "float32": ("fp32", "float32", "float", "torch.float32"),
        "float16": ("fp16", "float16", "half", "torch.float16"),
        "bfloat16": ("bf16", "bfloat16", "torch.bfloat16"),
    }.items()
    for name in names
}
# Optimizers of plans by DeepSpeed's words, which it compares in lower case.
STEPPED: dict[str, OptimizerName] = {"AdamW": "adamw", "Adam": "adamw", "Lamb": "adamw", "Muon": "muon"}
PLACES = ("none", "cpu", "nvme")  # where states are offloaded to


@dataclass(frozen=True)
class ExportedValues:
    """The properties of a plan from which the export computes DeepSpeed's keys. plan: the plan. stage: the ZeRO stage.
    micro_samples: samples per micro-batch on one rank. gradients: the dtype in which gradients are summed, as DeepSpeed
    spells it."""

    plan: Plan
    stage: int
    micro_samples: int
    gradients: str

    @property
    def dtype(self) -> str:
        """The dtype of the plan's model, such as bfloat16."""
        return self.plan.planned_model().dtype

    @property
    def reduced(self) -> str | None:
        """The dtype in which data-parallel ranks reduce gradients, if it is float32 and therefore not the model's; otherwise
        None, so that the key is left out."""
        return self.gradients if self.plan.precision.gradients == "float32" else None

    def offloaded(self, states: str, value: Any) -> Any:
        """The value that the export writes for a key on offloading: the given value if these states are on the host,
        otherwise None, so that the key is left out. states: "optimizer" or "parameters"."""
        return value if getattr(self.plan.units[0].states, states) == "host" else None


KEYS = (
    whole("train_batch_size", None, lambda v: v.plan.batch.global_samples, says="samples"),
    whole("train_micro_batch_size_per_gpu", None, lambda v: v.micro_samples, says="micro_samples"),
    whole("gradient_accumulation_steps", None, lambda v: v.plan.batch.micro_batches, says="accumulation"),
    whole("zero_optimization.stage", 0, lambda v: v.stage),
    flag("zero_optimization.overlap_comm", lambda v: True),
    text("zero_optimization.offload_optimizer.device", "none", lambda v: v.offloaded("optimizer", "cpu"), choices=PLACES),
    anything("zero_optimization.offload_optimizer.pin_memory", lambda v: v.offloaded("optimizer", True)),
    text("zero_optimization.offload_param.device", "none", lambda v: v.offloaded("parameters", "cpu"), choices=PLACES),
    anything("zero_optimization.offload_param.pin_memory", lambda v: v.offloaded("parameters", True)),
    flag("bf16.enabled", lambda v: v.dtype == "bfloat16"),
    flag("fp16.enabled", lambda v: v.dtype == "float16"),
    anything("data_types.grad_accum_dtype", lambda v: v.gradients, words=WIDTHS),
    anything("communication_data_type", lambda v: v.reduced, words=WIDTHS),
    anything("optimizer.type", lambda v: v.plan.optimizer, words=STEPPED),
    anything("optimizer.params", lambda v: {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}),
    anything("gradient_clipping", lambda v: 1.0),
    anything("steps_per_print", lambda v: 1),
    anything("wall_clock_breakdown", lambda v: False),
    # Only read.
    whole("zero_optimization.mics_shard_size", -1, says="shard"),
    whole("tensor_parallel.autotp_size", 0, says="tp"),
    whole("tensor_parallel.tp.tp_size", 1),
    whole("sequence_parallel_size", 1, says="cp"),
    number("zero_optimization.offload_optimizer.ratio", 1.0),
    flag("zero_optimization.contiguous_gradients", default=True),
)
FIELDS = by_name(KEYS)
