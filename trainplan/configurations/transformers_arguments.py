"""transformers' TrainingArguments as YAML or JSON, as its scripts and TRL's take them (5.x, 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trainplan.configurations.configuration import Configuration, Keys, Said
from trainplan.configurations.documented_trainers import TRAINING_ARGUMENTS, TRAINING_TABLES
from trainplan.configurations.trainers import (
    Arguments,
    attention_of,
    configured,
    finished,
    half_of,
    opened,
    optimizer_of,
    refuse_all,
)
from trainplan.profiling.base.errors import COMMAND_LINE, InputError

DEFAULTS = "default of transformers 5"
ADAPTERS = "runs with adapters or quantized weights are not planned, full fine-tuning is"
OTHERS = "steps with other models, or that generate texts, are not planned"
REFUSED = {
    "use_peft": ADAPTERS,
    "load_in_4bit": ADAPTERS,
    "load_in_8bit": ADAPTERS,
    "peft_config": ADAPTERS,
    "quantization_config": ADAPTERS,
    "num_generations": OTHERS,
    "max_completion_length": OTHERS,
    "reward_funcs": OTHERS,
    "reward_model_path": OTHERS,
    "ref_model_name_or_path": OTHERS,
    "teacher_model_name_or_path": OTHERS,
    "beta": OTHERS,
    "predict_with_generate": OTHERS,
    "auto_find_batch_size": "give per_device_train_batch_size",
    "use_cpu": "plans are for accelerators",
    "no_cuda": "plans are for accelerators",
    "adafactor": "plans keep two moments of every parameter",
    "mp_parameters": "SageMaker's model parallelism is not planned",
}
SEQUENCES = ("max_length", "max_seq_length", "block_size", "model_max_length", "max_source_length")
NAMES = {
    "micro_samples": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "samples": "--batch",
    "model": "model_name_or_path",
    "dtype": "bf16",
    "optimizer": "optim",
}


def read(path: Path, said: Said) -> Configuration:
    """The configuration of a YAML or JSON file. Raises InputError."""
    data, keys = opened(path, said, DEFAULTS)
    return of_keys(data, keys, path, said)


def of_keys(data: Mapping[str, Any], keys: Keys, path: Path, said: Said) -> Configuration:
    """The configuration of arguments, as tables and as keys. path: where they stand, from which files are found. Raises
    InputError."""
    notes = list[str]()
    refuse_all(keys, REFUSED)
    dtype = half_of(keys, ("bf16",), ("fp16",), said, None)
    flags = [key for key in ("gradient_checkpointing", "activation_checkpointing") if keys.values.get(key) is not None]
    again = any(list(map(keys.flag, flags)))
    if not flags and said.recompute is None and not keys.values.get("fsdp_config.activation_checkpointing"):
        fix = "give full or none, or gradient_checkpointing in the file: transformers and TRL have other defaults"
        raise InputError(COMMAND_LINE, "--recompute", f"is missing, and {path} does not say it", fix)
    if flags and said.recompute not in (None, "full" if again else "none"):
        raise InputError(
            COMMAND_LINE, "--recompute", f"is {said.recompute}, and {path} says otherwise", "leave it out, or change the file"
        )
    lengths = [(key, length) for key in SEQUENCES if (length := keys.whole(key)) is not None]
    loaded = str(keys.get("torch_dtype") or keys.get("dtype") or "float32").rpartition(".")[2]
    fused = keys.flag("use_liger_kernel") or keys.flag("use_liger")
    if keys.values.get("liger_kernel_config.fused_linear_cross_entropy") is False:
        fused = False
    loss: Literal["full", "chunked", "fused"] = "fused" if fused else _loss(keys)
    kernels = keys.get("attn_implementation")
    if keys.flag("use_flash_attention_2"):
        kernels = "flash_attention_2"
    if not keys.flag("packing"):
        notes.append("samples are padded to the longest of each batch: the plan's are all as long as the longest; more time")
    words = "compile " * keys.flag("torch_compile") + "chunked_nll" * (loss == "chunked")
    has = Arguments(
        tool="transformers", model=keys.text("model_name_or_path", "") or None, sequence=lengths[0][1] if lengths else None,
        micro=keys.whole("per_device_train_batch_size") or keys.whole("per_gpu_train_batch_size", 8),
        accumulation=keys.whole("gradient_accumulation_steps", 1), dtype=dtype, masters=loaded == "float32",
        again=again or said.recompute == "full", optimizer=optimizer_of(keys, "optim", "adamw_torch_fused", notes),
        attention=attention_of(kernels), loss=loss, sizes=_sizes(keys), tp=_size(keys, "tp"),
        cp=_size(keys, "cp"), version=2, names={**NAMES, "sequence": lengths[0][0]} if lengths else NAMES,
        words=words,
    )  # fmt: skip
    made = configured(keys, data, path, said, has, notes)
    return finished(made, keys, TRAINING_ARGUMENTS, TRAINING_TABLES)


def _loss(keys: Keys) -> Literal["full", "chunked"]:
    """How TRL's loss goes through the logits. Raises InputError for the losses of other trainers."""
    return "chunked" if keys.text("loss_type", "nll", ("nll", "chunked_nll", "dft")) == "chunked_nll" else "full"


def _size(keys: Keys, name: str) -> int:
    """A degree of `parallelism_config`. Raises InputError."""
    return keys.whole(f"parallelism_config.{name}_size", 1) or 1


def _sizes(keys: Keys) -> dict[str, int]:
    return {name: _size(keys, name) for name in ("dp_shard", "dp_replicate")}
