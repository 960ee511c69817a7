"""Reader of transformers' TrainingArguments as YAML or JSON, as scripts of transformers (5.x, 2026) and of TRL take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    with_precision,
)
from trainplan.profiling.base.errors import COMMAND_LINE, InputError

KNOWN = known_keys(__file__).more(names=FSDP)
DEFAULTS = "default of transformers 5"
ADAPTERS = "runs with adapters or quantized weights are not planned, full fine-tuning is"
OTHERS = "steps with other models, or that generate texts, are not planned"
REFUSED = {
    "use_peft": ADAPTERS,
    "use_lora": ADAPTERS,
    "lora_enable": ADAPTERS,
    "q_lora": ADAPTERS,
    "use_qlora": ADAPTERS,
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
    **dict.fromkeys(("max_prompt_length", "precompute_ref_log_probs", "ref_model", "reference_free", "rpo_alpha"), OTHERS),
    **dict.fromkeys(
        ("desirable_weight", "undesirable_weight", "cpo_alpha", "simpo_gamma", "num_ppo_epochs", "use_vllm"), OTHERS
    ),
    **dict.fromkeys(("steps_per_generation", "center_rewards_coefficient", "lmbda"), OTHERS),
    "auto_find_batch_size": "give per_device_train_batch_size",
    "use_cpu": "plans are for accelerators",
    "no_cuda": "plans are for accelerators",
    "adafactor": "plans keep two moments of every parameter",
    "mp_parameters": "SageMaker's model parallelism is not planned",
}
# Keys that TRL alone has, whose scripts load models in float32 where nothing says otherwise.
TRL = (
    "max_length", "max_seq_length", "packing", "packing_strategy", "padding_free", "dataset_text_field", "assistant_only_loss",
    "completion_only_loss", "chat_template_path", "model_init_kwargs", "dataset_kwargs", "loss_type",
)  # fmt: skip
LOADED = ("torch_dtype", "dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")
FLOAT32 = (
    "dtype is not given: parameters are loaded in float32, as TRL's scripts and transformers before 5 load them; transformers "
    "5 loads them as they are stored, often in bfloat16: less memory"
)
ALL_LOGITS = (
    "loss_type is not given: all logits are held, as in transformers' own loss; newer versions of TRL take chunked_nll "
    "(--loss chunked): less memory"
)
PADDED = "samples are padded to the longest of each batch: the plan's are all as long as the longest; more time"
UNSAID = "how samples are cut or padded is not given: the plan's are all full; more time where they are shorter"
SEQUENCES = ("max_length", "max_seq_length", "block_size", "model_max_length", "max_source_length")
NAMES = {
    "micro_samples": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "samples": "--batch",
    "model": "model_name_or_path",
    "dtype": "bf16",
    "optimizer": "optim",
}


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a YAML or JSON file of TrainingArguments. user: the settings that the user gives in addition to
    the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    data, keys = tables_and_keys(path, user, DEFAULTS)
    return of_keys(data, keys, path, user)


def of_keys(data: Mapping[str, Any], keys: KeyReader, path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of transformers' TrainingArguments. data: the arguments as nested tables. keys: reads the same
    arguments under dotted keys. path: the file that they come from; files that the arguments name are looked up from there.
    user: the settings that the user gives in addition to the file. Raises InputError for a key or value that is invalid or that
    no plan can have."""
    notes = list[str]()
    user = with_precision(user, keys, ("bf16", "fp16"))
    refuse_all(keys, REFUSED)
    keys.refuse("bits", ("16", "32"), ADAPTERS)
    dtype = half_of(keys, ("bf16",), ("fp16",), user, None)
    flags = [key for key in ("gradient_checkpointing", "activation_checkpointing") if keys.values.get(key) is not None]
    recomputes = any(list(map(keys.flag, flags)))
    if flags and user.recompute not in (None, "full" if recomputes else "none"):
        raise InputError(
            COMMAND_LINE, "--recompute", f"is {user.recompute}, and {path} says otherwise", "leave it out, or change the file"
        )
    lengths = [(key, length) for key in SEQUENCES if (length := keys.whole(key)) is not None]
    if len({length for _, length in lengths}) > 1:
        (first, tokens), (other, most) = lengths[:2]
        raise keys.error(other, f"is {most}, and {first} is {tokens}", "give one of them: what cuts samples is not known")
    written = [str(keys.get(key)).rpartition(".")[2] for key in LOADED if keys.get(key) is not None]
    loaded = written[0] if written else "float32"
    pure = dtype == "float32" and loaded in ("bfloat16", "float16") and data.get("deepspeed") is None
    if keys.flag("activation_offloading"):
        notes.append("activations on the host (activation_offloading): the plan keeps them on the device; more memory")
    fused = keys.flag("use_liger_kernel") or keys.flag("use_liger")
    if keys.values.get("liger_kernel_config.fused_linear_cross_entropy") is False:
        fused = False
    loss: Literal["full", "chunked", "fused"] | None = "fused" if fused else _loss(keys)
    if loss is None and any(key in keys.values for key in TRL):
        notes.append(ALL_LOGITS)
    kernels = keys.get("attn_implementation") or keys.get("model_init_kwargs.attn_implementation")
    if keys.flag("use_flash_attention_2"):
        kernels = "flash_attention_2"
    if "block_size" in dict(lengths):  # run_clm.py puts samples end to end, and cuts that into blocks (`group_texts`)
        keys.read.add("packing")
    elif not keys.flag("packing"):
        notes.append(PADDED if lengths else UNSAID)
    words = "compile " * keys.flag("torch_compile") + "chunked_nll" * (loss == "chunked")
    trainer = TrainerSettings(
        tool="transformers", model=keys.text("model_name_or_path", "") or None, sequence=lengths[0][1] if lengths else None,
        micro=keys.whole("per_device_train_batch_size") or keys.whole("per_gpu_train_batch_size", 8),
        accumulation=keys.whole("gradient_accumulation_steps", 1), 
        dtype=loaded if pure else dtype, masters=loaded == "float32", mixed=not pure,
        recomputes=recomputes or user.recompute == "full", optimizer=optimizer_of(keys, "optim", "adamw_torch_fused", notes),
        attention=attention_of(kernels), loss=loss, sizes=_sizes(keys), tp=_size(keys, "tp"),
        cp=_size(keys, "cp"), version=2, names={**NAMES, "sequence": lengths[0][0]} if lengths else NAMES,
        words=words,
    )  # fmt: skip
    run = configured(keys, data, path, user, trainer, notes)
    if not flags and user.recompute is None and run.recomputed.of == "none":  # FSDP's own key is not set, either
        fix = "give full or none, or gradient_checkpointing in the file: transformers and TRL have other defaults"
        raise InputError(COMMAND_LINE, "--recompute", f"is missing, and {path} does not say it", fix)
    if not written and run.zero == 0 and run.runtime == "accelerate" and dtype != "float32":
        run = replace(run, notes=(*run.notes, FLOAT32))
    return finished(run, keys, KNOWN)


def _loss(keys: KeyReader) -> Literal["full", "chunked"] | None:
    """How TRL's loss holds the logits: all at once (full) or in chunks; None if `loss_type` is not given. keys: gives the
    values of the file's keys, and records which keys have been read. Raises InputError for losses of other trainers."""
    if keys.get("loss_type") is None:
        return None
    return "chunked" if keys.text("loss_type", "nll", ("nll", "chunked_nll", "dft")) == "chunked_nll" else "full"


def _size(keys: KeyReader, name: str) -> int:
    """A degree of parallelism in TrainingArguments' `parallelism_config`; 1 if it is not given. name: the dimension, such as
    tp. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for a key or value
    that is invalid or that no plan can have."""
    return keys.whole(f"parallelism_config.{name}_size", 1) or 1


def _sizes(keys: KeyReader) -> dict[str, int]:
    """The sizes of the mesh dimensions `dp_shard` and `dp_replicate` in TrainingArguments' `parallelism_config`, by name. keys:
    gives the values of the file's keys, and records which keys have been read."""
    return {name: _size(keys, name) for name in ("dp_shard", "dp_replicate")}
