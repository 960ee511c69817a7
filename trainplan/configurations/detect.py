"""Whose file a YAML or JSON file is, by keys that no other tool's files have. A file of none of them is refused, never taken
for another's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.configurations import nemo
from trainplan.configurations.documented import DEEPSPEED, DEEPSPEED_TABLES
from trainplan.configurations.documented_bridge import SECTIONS
from trainplan.configurations.megatron_bridge import is_one
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.families.fields import names

READ = {
    "Megatron-Bridge": "megatron-bridge",
    "Accelerate": "accelerate",
    "axolotl": "axolotl",
    "LLaMA-Factory": "llama-factory",
    "transformers": "transformers",
    "DeepSpeed": "deepspeed",
    "NeMo 1": "nemo",
}
OF_THESE = f"give a file of Megatron-LM, torchtitan or {', '.join(list(READ)[:-1])} or {list(READ)[-1]}"


class Mark(NamedTuple):
    """What tells a tool's files: all of some keys, and any of others where there are some. Keys within others are joined by
    dots; `*.name` is a key anywhere."""

    tool: str
    every: tuple[str, ...]
    some: tuple[str, ...] = ()


def _mark(tool: str, every: str, some: str = "") -> Mark:
    return Mark(tool, tuple(every.split()), tuple(some.split()))


BRIDGE = tuple(f"{section}.{field}" for section, fields in SECTIONS.items() for field in fields if section != "optimizer")
# The first that holds is whose file it is.
MARKS = (
    _mark("torchtune", "*._component_"),
    _mark("OLMo-core", "*._CLASS_"),
    _mark("veRL", "actor_rollout_ref"),
    _mark("Megatron-LM (--yaml-cfg)", "language_model model_parallel"),
    _mark("NeMo AutoModel", "", "step_scheduler *.nemo_automodel"),
    _mark("NeMo", "", "exp_manager trainer.num_nodes trainer.precision model.restore_from_path run.results_dir"),
    _mark("Levanter", "trainer", "trainer.mp trainer.train_batch_size trainer.num_train_steps"),
    _mark("Lightning", "", "*.class_path trainer.max_epochs trainer.strategy"),
    _mark("nanotron", "parallelism", "parallelism.dp parallelism.pp parallelism.tp tokens.micro_batch_size"),
    _mark("NeMo", "*._factory_"),
    _mark("Hydra (_target_)", "*._target_"),
    _mark("fairseq", "optimization task", "common distributed_training dataset"),
    _mark("GPT-NeoX", "", "pipe_parallel_size pipe-parallel-size model_parallel_size model-parallel-size"),
    _mark("MaxText", "", "base_emb_dim ici_fsdp_parallelism dcn_data_parallelism per_device_batch_size"),
    _mark("LLM Foundry", "", "train_loader variables.global_seq_len max_seq_len eval_gauntlet icl_tasks"),
    _mark("OLMo", "model.d_model", "global_train_batch_size device_train_microbatch_size"),
    _mark("LLM Foundry", "", "device_train_microbatch_size max_duration"),
    _mark("LitGPT", "train", "train.global_batch_size train.micro_batch_size"),
    _mark("OpenRLHF", "", "zero_stage actor_num_nodes"),
    _mark("LLaMA-Factory 1 (dist_config)", "model", "dist_config kernel_config model_class"),
    _mark("mergekit", "", "merge_method slices"),
    _mark("SkyPilot", "resources", "run setup"),
    _mark("Kubernetes", "apiVersion kind"),
    _mark("Docker Compose", "services"),
    _mark("GitHub Actions", "jobs"),
    _mark("ms-swift", "", "train_type tuner_type sft_type rlhf_type swift_version"),
    _mark("Accelerate", "", "distributed_type compute_environment main_training_function"),
    _mark(
        "axolotl", "base_model", "sequence_len micro_batch_size datasets pretraining_dataset adapter sample_packing fsdp_config"
    ),
    _mark("LLaMA-Factory", "model_name_or_path", "finetuning_type cutoff_len dataset_dir template"),
    _mark("transformers", "", "per_device_train_batch_size per_gpu_train_batch_size num_train_epochs training_args"),
    _mark("transformers", "model_name_or_path", "dataset_name output_dir learning_rate"),
    _mark("a model (config.json)", "model_type", "architectures hidden_size num_hidden_layers text_config"),
)


def tool_of(data: Mapping[str, Any]) -> str | None:
    """The tool whose file holds this value; None where nothing tells it."""
    found = set(_names(data))
    if is_one(data) and not found.isdisjoint(BRIDGE):
        return "Megatron-Bridge"
    if nemo.is_one(data):
        return "NeMo 1"
    for mark in MARKS:
        if found.issuperset(mark.every) and (not mark.some or not found.isdisjoint(mark.some)):
            return mark.tool
    if not found.isdisjoint(BRIDGE):
        return "Megatron-Bridge"
    if not found.isdisjoint(LAUNCHED) or any(name.startswith(("fsdp_config.fsdp_", "deepspeed_config.")) for name in found):
        return "Accelerate"
    deepspeed = {*DEEPSPEED, *OWN} | {table.rstrip(".") for table in DEEPSPEED_TABLES if table not in COMMON}
    return "DeepSpeed" if not found.isdisjoint(deepspeed) else None


LAUNCHED = names("num_processes mixed_precision machine_rank main_process_ip parallelism_config megatron_lm_config")
OWN = names(
    """
    zero_optimization bf16.enabled bfloat16.enabled fp16.enabled train_batch_size train_micro_batch_size_per_gpu
    communication_data_type
    """
)
COMMON = names("checkpoint. compile. optimizer. pipeline. scheduler. tensorboard. timers. wandb.")


def reader_of(path: Path, data: Any) -> str:
    """The name of the reader of a file that holds this value. Raises InputError naming the tool whose files are not read."""
    if path.parent.name == ".hydra" and path.name in ("overrides.yaml", "hydra.yaml"):
        problem = "is Hydra's, and has what overrides a configuration alone" if "over" in path.name else "is Hydra's own"
        raise InputError(str(path), "", problem, f"give {path.parent / 'config.yaml'}, the run's")
    if not isinstance(data, Mapping):
        raise InputError(str(path), "", f"holds {shown(data)}", "give an object, as configurations are")
    tool = tool_of(data)
    if tool is None:
        keys = ", ".join(list(data)[:4]) + (", .." if len(data) > 4 else "")
        raise InputError(str(path), "", f"has no key of a tool that is read ({keys or 'it is empty'})", OF_THESE)
    if tool == "a model (config.json)":
        raise InputError(str(path), "", "describes a model, and no run", "give it as --model, beside the file of a run")
    if tool == "DeepSpeed" and path.suffix.lower() != ".json":
        raise InputError(str(path), "", "has keys of DeepSpeed, whose files are JSON", "write it as a .json file")
    if tool not in READ:
        raise InputError(str(path), "", f"is a file of {tool}, whose files are not read", OF_THESE)
    return READ[tool]


def _names(value: Any, prefix: str = "") -> Iterator[str]:
    """Keys, joined by dots with those around them, and alone after a star."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield f"{prefix}{key}"
            yield f"*.{key}"
            yield from _names(each, f"{prefix}{key}.")
            if key == "_target_" and "nemo_automodel" in str(each):
                yield "*.nemo_automodel"
    elif isinstance(value, list):
        for each in value:
            yield from _names(each, prefix)
