"""Reader of LLaMA-Factory's YAML files, which have transformers' arguments and its own (`llamafactory/hparams`, 0.9, 2026)."""

from __future__ import annotations

from pathlib import Path

from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.execution.runtimes.transformers.trainer import (
    TrainerSettings,
    attention_of,
    configured,
    finished,
    half_of,
    optimizer_of,
    refuse_all,
    tables_and_keys,
    with_precision,
)  # fmt: skip
from trainplan.profiling.base.errors import shown

KNOWN = known_keys(__file__).more(*transformers_reader.KNOWN)
DEFAULTS = "default of LLaMA-Factory 0.9"
MEGATRON = "give Megatron-LM's own arguments: its part of LLaMA-Factory's files is not read"
STATES = "plans keep two moments of every parameter"
REFUSED = {
    "adapter_name_or_path": "runs with adapters are not planned, full fine-tuning is",
    "quantization_bit": "runs with quantized weights are not planned",
    "use_galore": STATES, "use_apollo": STATES, "use_badam": STATES, "use_adam_mini": STATES,
    "use_llama_pro": "plans train all parameters", "mixture_of_depths": "plans run every layer for every token",
    "shift_attn": "plans have no shifted attention", "use_unsloth": "unsloth's kernels are not planned",
    "use_kt": "KTransformers' layers on the host are not planned", "use_mca": MEGATRON, "use_megatron_bridge": MEGATRON,
    "use_hyper_parallel": "its layouts are not read", "hyper_parallel_args": "its layouts are not read",
    "auto_find_batch_size": "give per_device_train_batch_size",
    "use_asft_loss": "steps with a second model are not planned",
    "predict_with_generate": "steps that generate texts are not planned",
}  # fmt: skip
NAMES = {
    "micro_samples": "per_device_train_batch_size", "accumulation": "gradient_accumulation_steps", "optimizer": "optim",
    "samples": "--batch", "sequence": "cutoff_len", "model": "model_name_or_path", "dtype": "bf16", "recipe": "fp8",
}  # fmt: skip


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a YAML or JSON file of LLaMA-Factory. user: the settings that the user gives in addition to the
    file. Raises InputError for a key or value that is invalid or that no plan can have."""
    data, keys = tables_and_keys(path, user, DEFAULTS)
    notes = list[str]()
    refuse_all(keys, REFUSED)
    for kind in ("tensor_model", "pipeline_model", "expert_model", "context"):
        keys.refuse(f"{kind}_parallel_size", ["1"], MEGATRON)
    stage, kind = keys.text("stage", "sft"), keys.text("finetuning_type", "lora")
    if kind != "full":
        raise keys.error("finetuning_type", f"is {shown(kind)}", "give full: runs that train a part are not planned")
    if stage not in ("sft", "pt"):
        fix = "give sft or pt: steps with other models, or of rewards, are not planned"
        raise keys.error("stage", f"is {shown(stage)}", fix)
    user = with_precision(user, keys, ("bf16", "pure_bf16", "fp16"))
    dtype = half_of(keys, ("bf16", "pure_bf16"), ("fp16",), user, None)
    fp8 = keys.flag("fp8")
    if keys.flag("use_unsloth_gc"):
        notes.append("checkpoints on the host (use_unsloth_gc): the plan keeps them on the device; more memory")
    if not (keys.flag("packing") or keys.flag("neat_packing")) and stage == "sft":
        notes.append("samples are padded to the longest of each batch: the plan's all have cutoff_len tokens; more time")
    muon = keys.flag("use_muon")
    trainer = TrainerSettings(
        tool="LLaMA-Factory", model=keys.text("model_name_or_path", "") or None, sequence=keys.whole("cutoff_len", 2048),
        micro=keys.whole("per_device_train_batch_size", 8), accumulation=keys.whole("gradient_accumulation_steps", 1),
        dtype=dtype, masters=not keys.flag("pure_bf16"), recomputes=not keys.flag("disable_gradient_checkpointing"),
        optimizer="muon" if muon else optimizer_of(keys, "optim", "adamw_torch_fused", notes),
        attention=attention_of(keys.text("flash_attn", "auto")), loss="fused" if keys.flag("enable_liger_kernel") else "full",
        recipe="fp8-current" if fp8 else None, sizes={}, version=2, names=NAMES, words="compile" * keys.flag("torch_compile"),
    )  # fmt: skip
    keys.get("gradient_checkpointing")  # its own key wins over transformers'
    run = configured(keys, data, path, user, trainer, notes)
    return finished(run, keys, KNOWN)
