"""Reader of axolotl's YAML files, with the keys and defaults of its schemas (`axolotl/utils/schemas`, 0.18, 2026)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UserSettings
from trainplan.execution.runtimes.accelerate.fsdp_options import WRITTEN as FSDP
from trainplan.execution.runtimes.transformers.trainer import (
    TrainerSettings,
    attention_of,
    configured,
    finished,
    half_of,
    optimizer_of,
    refuse_all,
    tables_and_keys,
)  # fmt: skip
from trainplan.profiling.base.errors import shown

KNOWN = known_keys(__file__).more(names=FSDP)
DEFAULTS = "default of axolotl 0.18"
ADAPTERS = "runs with adapters or quantized weights are not planned, full fine-tuning is"
REFUSED = {
    "adapter": ADAPTERS, "lora_model_dir": ADAPTERS, "load_in_8bit": ADAPTERS, "load_in_4bit": ADAPTERS, "relora": ADAPTERS,
    "gptq": ADAPTERS, "use_onebitllms": ADAPTERS, "model_quantization_config": ADAPTERS, "quantize_moe_experts": ADAPTERS,
    "unfrozen_parameters": "plans train all parameters",
    "lisa_n_layers": "plans train all parameters",
    "spectrum_top_fraction": "plans train all parameters",
    "rl": "steps with reference models or generation are not planned",
    "trl": "steps with reference models or generation are not planned",
    "ebft": "steps with generation are not planned",
    "kd_trainer": "steps with a second model are not planned",
    "reward_model": "models with other heads are not planned",
    "process_reward_model": "models with other heads are not planned",
    "num_labels": "models with other heads are not planned",
    "qat": "matrix multiplications of fake-quantized weights are not planned",
    "use_pose": "positions that skip are not planned",
    "auto_find_batch_size": "give micro_batch_size: what is found is not known before the run",
    "layer_offloading": "layers that move to the host are not planned",
    "selective_checkpointing": "plans compute whole layers again, or none",
    "expert_parallel_size": "mixtures of experts are not planned",
    "overrides_of_model_config": "give the model that runs as --model",
    "overrides_of_model_kwargs": "give the model that runs as --model",
    "rope_scaling": "give the model that runs as --model",
    "s2_attention": "plans have no shifted attention",
    "device_map": "layers on several devices of one process are not planned",
    "max_memory": "layers on several devices of one process are not planned",
    "gpu_memory_limit": "layers on several devices of one process are not planned",
    "trainer_cls": "steps of other trainers are not known",
    "diffusion": "plans train next-token prediction",
    "llmcompressor": "compressed layers are not planned",
}  # fmt: skip
ATTENTION = {
    "xformers_attention": "xformers", "sage_attention": "sage", "flex_attention": "flex", "flash_attention": "flash",
    "sdp_attention": "sdpa", "eager_attention": "eager",
}  # fmt: skip
OFFLOADED = ("offload", "offload_disk", "unsloth")  # values of gradient_checkpointing by which checkpoints go to the host
NAMES = {
    "micro_samples": "micro_batch_size", "accumulation": "gradient_accumulation_steps", "samples": "--batch",
    "sequence": "sequence_len",
    "tp": "tensor_parallel_size", "cp": "context_parallel_size", "shard": "dp_shard_size", "copies": "dp_replicate_size",
    "optimizer": "optimizer", "model": "base_model", "dtype": "bf16", "recipe": "fp8",
}  # fmt: skip


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a YAML file of axolotl. user: the settings that the user gives in addition to the file. Raises
    InputError for a key or value that is invalid or that no plan can have."""
    data, keys = tables_and_keys(path, user, DEFAULTS)
    notes = list[str]()
    refuse_all(keys, REFUSED)
    plugins = keys.get("plugins") or []
    if not isinstance(plugins, list):
        raise keys.error("plugins", f"is {shown(plugins)}", "give a list of names of plugins")
    named = " ".join(map(str, plugins)).lower()
    micro, accumulation = _batch(keys)
    width_keys = {"bf16", "float32"} & set(keys.values)  # where bf16 is not there at all, it is "auto"
    dtype = half_of(keys, ("bf16", "bfloat16"), ("fp16", "float16"), user, "float32" if width_keys else user.half)
    fp8 = keys.flag("fp8")
    if fp8 and dtype == "float32":
        dtype = "bfloat16"
        keys.take("bf16", dtype, "matrix multiplications of Accelerate's fp8 leave the others in bfloat16")
    cp = keys.whole("context_parallel_size") or keys.whole("sequence_parallel_degree", 1) or 1
    if not any([keys.flag("sample_packing"), keys.flag("pad_to_sequence_len"), keys.get("pretraining_dataset")]):
        notes.append("samples are padded to the longest of each batch: the plan's all have sequence_len tokens; more time")
    if keys.flag("tiled_mlp"):
        notes.append("feed-forward networks in tiles (tiled_mlp): the plan's are whole; more memory")
    version = keys.whole("fsdp_version", 1) or 1
    words = "compile " * (keys.get("torch_compile") is True) + "cut_cross_entropy" * ("cut_cross_entropy" in named)
    trainer = TrainerSettings(
        tool="axolotl", model=keys.text("base_model", "") or None, sequence=keys.whole("sequence_len", 512), micro=micro,
        accumulation=accumulation, dtype=dtype, masters=False, widened=False, recomputes=_recomputes(keys, notes),
        optimizer=optimizer_of(keys, "optimizer", "adamw_torch_fused", notes), attention=_attention(keys),
        loss=_loss(keys, named), recipe="fp8-current" if fp8 else None,
        tp=keys.whole("tensor_parallel_size", 1) or 1, cp=cp, version=version, names=NAMES,
        sizes={name: keys.whole(f"{name}_size", 1) or 1 for name in ("dp_shard", "dp_replicate")},
        launched=False, words=words,
    )  # fmt: skip
    run = configured(keys, data, path, user, trainer, notes)
    return finished(run, keys, KNOWN)


def _batch(keys: KeyReader) -> tuple[int, int]:
    """Two numbers of axolotl's file: samples per micro-batch on one rank, and micro-batches per step. keys: gives the values of
    the file's keys, and records which keys have been read. Raises InputError if `batch_size` contradicts them."""
    micro = keys.whole("micro_batch_size", 1) or 1
    accumulation, batch = keys.whole("gradient_accumulation_steps"), keys.whole("batch_size")
    if batch is not None and batch != micro * (accumulation or batch // micro):
        fix = "leave it out, or give micro_batch_size times gradient_accumulation_steps"
        raise keys.error("batch_size", f"is {batch}, with micro-batches of {micro}", fix)
    if accumulation is None and batch is None:
        keys.take("gradient_accumulation_steps", 1)
    return micro, accumulation or (1 if batch is None else batch // micro)


def _recomputes(keys: KeyReader, notes: list[str]) -> bool:
    """Whether axolotl recomputes layers in the backward pass (`gradient_checkpointing`). notes: a line is appended if the run
    moves the kept layer inputs to the host. keys: gives the values of the file's keys, and records which keys have been read.
    """
    value = keys.values.get("gradient_checkpointing")
    if value in OFFLOADED:
        keys.get("gradient_checkpointing")
    recomputes = value in OFFLOADED or keys.flag("gradient_checkpointing")
    offloaded = keys.get("activation_offloading")
    if value in OFFLOADED or offloaded not in (None, False):
        notes.append("checkpoints on the host (their offload is requested): the plan keeps them on the device; more memory")
    return recomputes


def _attention(keys: KeyReader) -> Literal["eager", "flash"] | None:
    """How axolotl computes attention, by its newer key or older ones: eager keeps attention scores in memory, flash does not;
    None if no key is set. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    for a key or value that is invalid or that no plan can have."""
    named = keys.get("attn_implementation")
    older = [name for key, name in ATTENTION.items() if keys.flag(key)]
    return attention_of(named if named is not None else next(iter(older), None))


def _loss(keys: KeyReader, plugins: str) -> Literal["full", "chunked", "fused"]:
    """How the loss holds the logits: fused with the kernels of Liger or Apple (cut cross-entropy), which never hold all of
    them, chunked (a part at a time), or full. plugins: the names of axolotl's plugins in one text, in lower case. keys: gives
    the values of the file's keys, and records which keys have been read. Raises InputError for a key or value that is invalid
    or that no plan can have."""
    fused = keys.flag("liger_fused_linear_cross_entropy") and "liger" in plugins
    if fused or ("cut_cross_entropy" in plugins and keys.flag("cut_cross_entropy", True)):
        return "fused"
    value: Any = keys.get("chunked_cross_entropy")
    if value not in (None, True, False):
        raise keys.error("chunked_cross_entropy", f"is {shown(value)}", "give true or false")
    return "chunked" if value else "full"
