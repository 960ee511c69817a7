"""Fields of Megatron-Bridge's ConfigContainer that correspond to arguments of Megatron-LM, for reading and for writing.

As of megatron-bridge 0.3.1 on megatron-core 0.16.1 (2026): `GPTModelProvider` (section model), `TrainingConfig` (train),
`DistributedDataParallelConfig` (ddp), `OptimizerConfig`, `MixedPrecisionConfig` (mixed_precision) and `GPTDatasetConfig`
(dataset). Kinds and defaults are those of the argument (see `megatron.fields`), except for those in DEFAULTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.execution.runtimes.megatron.experts import NAMES

# The field, with its section, that says what an argument of Megatron-LM says; or several that say it.
FIELDS: dict[str, tuple[str, ...]] = {
    "--num-layers": ("model.num_layers",),
    "--hidden-size": ("model.hidden_size",),
    "--ffn-hidden-size": ("model.ffn_hidden_size",),
    "--num-attention-heads": ("model.num_attention_heads",),
    "--kv-channels": ("model.kv_channels",),
    "--num-query-groups": ("model.num_query_groups",),
    "--seq-length": ("model.seq_length", "dataset.seq_length"),
    "--normalization": ("model.normalization",),
    "--norm-epsilon": ("model.layernorm_epsilon",),
    "--attention-dropout": ("model.attention_dropout",),
    "--hidden-dropout": ("model.hidden_dropout",),
    "--position-embedding-type": ("model.position_embedding_type",),
    "--rotary-base": ("model.rotary_base",),
    "--rotary-percent": ("model.rotary_percent",),
    "--rotary-interleaved": ("model.rotary_interleaved",),
    "--use-rope-scaling": ("model.rope_scaling",),
    "--rope-scaling-factor": ("model.rope_scaling_factor",),
    "--swiglu": ("model.gated_linear_unit",),
    "--add-qkv-bias": ("model.add_qkv_bias",),
    "--qk-layernorm": ("model.qk_layernorm",),
    "--window-size": ("model.window_size",),
    "--make-vocab-size-divisible-by": ("model.make_vocab_size_divisible_by",),
    "--tensor-model-parallel-size": ("model.tensor_model_parallel_size",),
    "--pipeline-model-parallel-size": ("model.pipeline_model_parallel_size",),
    "--pipeline-model-parallel-layout": ("model.pipeline_model_parallel_layout",),
    "--num-virtual-stages-per-pipeline-rank": ("model.virtual_pipeline_model_parallel_size",),
    "--sequence-parallel": ("model.sequence_parallel",),
    "--context-parallel-size": ("model.context_parallel_size",),
    "--cp-comm-type": ("model.cp_comm_type",),
    "--recompute-granularity": ("model.recompute_granularity",),
    "--recompute-method": ("model.recompute_method",),
    "--recompute-num-layers": ("model.recompute_num_layers",),
    "--recompute-modules": ("model.recompute_modules",),
    "--micro-batch-size": ("train.micro_batch_size",),
    "--global-batch-size": ("train.global_batch_size",),
    "--overlap-grad-reduce": ("ddp.overlap_grad_reduce",),
    "--overlap-param-gather": ("ddp.overlap_param_gather",),
    "--use-distributed-optimizer": ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    "--optimizer": ("optimizer.optimizer",),
    "--muon-momentum": ("optimizer.muon_momentum",),
    "--muon-use-nesterov": ("optimizer.muon_use_nesterov",),
    "--muon-num-ns-steps": ("optimizer.muon_num_ns_steps",),
    "--muon-scale-mode": ("optimizer.muon_scale_mode",),
    "--muon-extra-scale-factor": ("optimizer.muon_extra_scale_factor",),
    "--muon-tp-mode": ("optimizer.muon_tp_mode",),
    "--num-distributed-optimizer-instances": ("ddp.num_distributed_optimizer_instances",),
    "--bf16": ("mixed_precision.bf16",),
    "--fp16": ("mixed_precision.fp16",),
    "--fp8-format": ("mixed_precision.fp8",),
    "--fp8-recipe": ("mixed_precision.fp8_recipe",),
    "--fp8-param-gather": ("mixed_precision.fp8_param_gather",),
    "--reuse-grad-buf-for-mxfp8-param-ag": ("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",),
    "--fp4-format": ("mixed_precision.fp4",),
    "--fp4-recipe": ("mixed_precision.fp4_recipe",),
}
# Arguments that a field says by its contrary.
CONTRARY = {
    "--disable-bias-linear": "model.add_bias_linear",
    "--untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights",
}
ACTIVATIONS = {"--swiglu": "silu", "--squared-relu": "squared_relu"}  # by argument; gelu without
# Those of fields that are read alone.
OTHERS = {
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--num-experts": "model.num_moe_experts",
    "--mtp-num-layers": "model.mtp_num_layers",
    "--multi-latent-attention": "model.multi_latent_attention",
    "--cpu-offloading": "model.cpu_offloading",
    "--rampup-batch-size": "train.rampup_batch_size",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "--use-custom-fsdp": "ddp.use_custom_fsdp",
    "--use-torch-fsdp2": "dist.use_torch_fsdp2",
    "--optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "--cross-entropy-loss-fusion": "model.cross_entropy_loss_fusion",
    "--cross-entropy-fusion-impl": "model.cross_entropy_fusion_impl",
    "--first-last-layers-bf16": "mixed_precision.first_last_layers_bf16",
}
ARGUMENTS = {**{name: fields[0] for name, fields in FIELDS.items()}, **OTHERS}
DEFAULTS: dict[str, Any] = {  # where Megatron-LM's arguments have others
    "model.seq_length": 1024,
    "model.rope_scaling_factor": 1.0,
    "model.cross_entropy_loss_fusion": True,
    "mixed_precision.grad_reduce_in_fp32": True,
    "mixed_precision.fp8_recipe": "tensorwise",
}


def experts_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The fields of Megatron-Bridge's ConfigContainer that say the settings of a mixture of experts, by setting. Most are
    TransformerConfig's, under the argument's name; the overlap of exchanges may be said by the section comm_overlap, too, which
    sets the model's. values: the file's values under keys joined by dots."""
    fields = {
        setting: ARGUMENTS.get(name) or f"model.{name.removeprefix('--').replace('-', '_')}" for setting, name in NAMES.items()
    }
    for setting in ("exchange_overlap", "delayed_weights"):
        other = fields[setting].replace("model.", "comm_overlap.")
        fields[setting] = other if values.get(other) is not None else fields[setting]
    return fields
