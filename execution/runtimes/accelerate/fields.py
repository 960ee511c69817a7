"""Keys of Accelerate's YAML that correspond to properties of a plan, each declared once for reading and writing.

Keys as of `accelerate config` (1.15, 2026), in the order in which they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.launch_files.fields import anything, by_name, flag, text, whole
from trainplan.formulations.plan.plan import Plan

KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
DTYPES = {"no": "float32", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
LAYERS = {  # the classes of layers that are wrapped, in transformers 5
    "gpt2": "GPT2Block",
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "glm": "GlmDecoderLayer",
    "nemotron": "NemotronDecoderLayer",
}
DEGREE, PER_NODE = "parallelism_config.parallelism_config_", 8


@dataclass(frozen=True)
class ExportedValues:
    """The properties of a plan from which the export computes the keys of Accelerate's file. plan: the plan. copies: number of
    data-parallel ranks with copies of states (parameters, gradients, optimizer). shard: number of ranks that shard states.
    reshards: whether parameters are freed after the forward pass. recomputes: whether layers are recomputed."""

    plan: Plan
    copies: int
    shard: int
    reshards: bool
    recomputes: bool

    @property
    def nodes(self) -> int:
        """Number of machines of the run, with PER_NODE (8) devices each unless the run has fewer devices."""
        return -(-self.plan.world // min(PER_NODE, self.plan.world))

    @property
    def kind(self) -> str:
        """Accelerate's `distributed_type`: FSDP if ranks shard states, MULTI_GPU for copies, NO for one device."""
        return "FSDP" if self.shard > 1 else "MULTI_GPU" if self.plan.world > 1 else "NO"

    def sharded(self, value: Any) -> Any:
        """The value that the export writes for an FSDP key: the given value if ranks shard states, otherwise None, so that the
        key is left out."""
        return value if self.shard > 1 else None

    def hybrid(self, value: Any) -> Any:
        """The value that the export writes for a key on the sizes of the device mesh: the given value if there are several
        copies of the sharded states, otherwise None, so that the key is left out."""
        return value if self.shard > 1 and self.copies > 1 else None


KEYS = (
    anything("compute_environment", lambda v: "LOCAL_MACHINE"),
    text("distributed_type", "", lambda v: v.kind, choices=KINDS),
    text("mixed_precision", "", lambda v: v.plan.planned_model().dtype, choices=tuple(DTYPES), words=DTYPES, says="dtype"),
    whole("num_machines", None, lambda v: v.nodes),
    whole("num_processes", None, lambda v: v.plan.world, says="devices"),
    anything("machine_rank", lambda v: 0),
    anything("main_training_function", lambda v: "main"),
    anything("rdzv_backend", lambda v: "static"),
    anything("same_network", lambda v: True),
    anything("use_cpu", lambda v: False),
    whole("fsdp_config.fsdp_version", None, lambda v: v.sharded(2)),
    flag("fsdp_config.fsdp_reshard_after_forward", lambda v: v.sharded(v.reshards)),
    text("fsdp_config.fsdp_auto_wrap_policy", "", lambda v: v.sharded("TRANSFORMER_BASED_WRAP")),
    anything(
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
        lambda v: v.sharded(LAYERS.get(v.plan.planned_model().family)),
    ),
    flag("fsdp_config.fsdp_activation_checkpointing", lambda v: v.sharded(v.recomputes)),
    anything("fsdp_config.fsdp_cpu_ram_efficient_loading", lambda v: v.sharded(False)),
    flag("fsdp_config.fsdp_offload_params", lambda v: v.sharded(False)),
    anything("fsdp_config.fsdp_state_dict_type", lambda v: v.sharded("SHARDED_STATE_DICT")),
    whole(f"{DEGREE}dp_replicate_size", 1, lambda v: v.hybrid(v.copies)),
    whole(f"{DEGREE}dp_shard_size", 1, lambda v: v.hybrid(v.shard)),
    whole(f"{DEGREE}tp_size", 1, lambda v: v.hybrid(1)),
    whole(f"{DEGREE}cp_size", 1, lambda v: v.hybrid(1)),
    whole(f"{DEGREE}sp_size", 1),
    whole("gradient_accumulation_steps", says="accumulation"),
)
FIELDS = by_name(KEYS)
