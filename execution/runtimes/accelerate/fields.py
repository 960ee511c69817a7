"""Keys of Accelerate's YAML that say something of a plan, each declared once for reading and writing.

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
class Laid:
    """What is written of a plan. copies, shard: ranks with copies of states, and those that share them; reshards: whether
    parameters are let go of after the forward pass; again: whether layers are recomputed."""

    plan: Plan
    copies: int
    shard: int
    reshards: bool
    again: bool

    @property
    def nodes(self) -> int:
        """Machines, of PER_NODE devices each where there are as many."""
        return -(-self.plan.world // min(PER_NODE, self.plan.world))

    @property
    def kind(self) -> str:
        """What states are shared by."""
        return "FSDP" if self.shard > 1 else "MULTI_GPU" if self.plan.world > 1 else "NO"

    def sharded(self, value: Any) -> Any:
        """A value of FSDP, where ranks share states."""
        return value if self.shard > 1 else None

    def hybrid(self, value: Any) -> Any:
        """A value of a mesh of ranks, where there are copies of shards."""
        return value if self.shard > 1 and self.copies > 1 else None


KEYS = (
    anything("compute_environment", lambda of: "LOCAL_MACHINE"),
    text("distributed_type", "", lambda of: of.kind, choices=KINDS),
    text("mixed_precision", "", lambda of: of.plan.planned_model().dtype, choices=tuple(DTYPES), words=DTYPES, says="dtype"),
    whole("num_machines", None, lambda of: of.nodes),
    whole("num_processes", None, lambda of: of.plan.world, says="devices"),
    anything("machine_rank", lambda of: 0),
    anything("main_training_function", lambda of: "main"),
    anything("rdzv_backend", lambda of: "static"),
    anything("same_network", lambda of: True),
    anything("use_cpu", lambda of: False),
    whole("fsdp_config.fsdp_version", None, lambda of: of.sharded(2)),
    flag("fsdp_config.fsdp_reshard_after_forward", lambda of: of.sharded(of.reshards)),
    text("fsdp_config.fsdp_auto_wrap_policy", "", lambda of: of.sharded("TRANSFORMER_BASED_WRAP")),
    anything(
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
        lambda of: of.sharded(LAYERS.get(of.plan.planned_model().family)),
    ),
    flag("fsdp_config.fsdp_activation_checkpointing", lambda of: of.sharded(of.again)),
    anything("fsdp_config.fsdp_cpu_ram_efficient_loading", lambda of: of.sharded(False)),
    flag("fsdp_config.fsdp_offload_params", lambda of: of.sharded(False)),
    anything("fsdp_config.fsdp_state_dict_type", lambda of: of.sharded("SHARDED_STATE_DICT")),
    whole(f"{DEGREE}dp_replicate_size", 1, lambda of: of.hybrid(of.copies)),
    whole(f"{DEGREE}dp_shard_size", 1, lambda of: of.hybrid(of.shard)),
    whole(f"{DEGREE}tp_size", 1, lambda of: of.hybrid(1)),
    whole(f"{DEGREE}cp_size", 1, lambda of: of.hybrid(1)),
    whole(f"{DEGREE}sp_size", 1),
    whole("gradient_accumulation_steps", says="accumulation"),
)
FIELDS = by_name(KEYS)
