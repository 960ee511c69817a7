"""Finds out which tool a YAML or JSON file belongs to, by keys that no other tool's files have. A file of none of the known
tools is refused, and never taken for another tool's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.execution.runtimes.accelerate.fsdp_options import OPTIONS as FSDP_OPTIONS
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.execution.runtimes.megatron_bridge.reader import KNOWN as OF_BRIDGE
from trainplan.execution.runtimes.megatron_bridge.reader import is_one
from trainplan.execution.runtimes.nemo import reader as nemo_reader
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
COMMAND = "give the command that it runs by --command, or the file that this command reads"
# Tools that start commands of other tools, and tools for reinforcement learning.
STARTING = (
    "SkyPilot", "Kubernetes", "Docker Compose", "GitHub Actions", "Ray", "Beaker", "dstack", "MosaicML's platform",
)  # fmt: skip
REINFORCED = ("veRL", "OpenRLHF", "NeMo RL", "slime", "ROLL", "AReaL")
# Files that are known by their names: those that may start commands, and others.
NAMED = {
    r"(?:.*\.)?(?:docker|container)file(?:\..*)?": "a Dockerfile",
    r"(?:gnu)?makefile(?:\..*)?|.*\.mk": "a Makefile",
    r"\.?justfile|jenkinsfile|snakefile|.*\.nf": "a file of rules",
    r".*\.ipynb": "a notebook",
}
OTHERS = {
    r".*\.(?:md|rst|html?|pdf)": "a page of text",
    r".*\.(?:safetensors|bin|pt|pth|ckpt|gguf|nemo|distcp|h5|onnx)": "a file of weights",
    r".*\.(?:tar|gz|tgz|zip|whl)": "an archive",
}
EXPORTED = ("ds_config.json", "accelerate.yaml")  # files of exports to DeepSpeed and Accelerate, which are next to a run.json
MOST_KEYS = 1000  # in a file whose tool is to be recognised: vocabularies have keys of all names
OF_THESE = f"give a file of Megatron-LM, torchtitan or {', '.join(list(READ)[:-1])} or {list(READ)[-1]}"


class Mark(NamedTuple):
    """The keys by which configuration files of one tool are recognised: a file of the tool has all keys of `every`, and at
    least one key of `some`, if `some` is not empty.

    Nested keys are joined by dots ("train.seed"); "*.name" is a key at any depth, "@name" the package of a class that the
    file names.
    """

    tool: str
    every: tuple[str, ...]
    some: tuple[str, ...] = ()


def _mark(tool: str, every: str, some: str = "") -> Mark:
    """A mark of the tool's files, from texts of keys separated by blanks: _mark("NeMo", "a b", "c") -> Mark("NeMo", ("a",
    "b"), ("c",)). every: the keys that each file has. some: keys of which a file has at least one.
    """
    return Mark(tool, tuple(every.split()), tuple(some.split()))


# Fields of Megatron-Bridge that no other file with sections such as model and train has.
ONLY = re.compile(
    r"model\.(\w*parallel\w*|recompute_\w+|ffn_hidden_size|num_query_groups|kv_channels|normalization|\w+_fusion|bias_linear\w*"
    r"|add_bias_linear|layernorm_epsilon|\w*_dtype)|train\.(\w+_iters|global_batch_size|micro_batch_size|manual_gc\w*)"
    r"|(ddp|mixed_precision|comm_overlap|rerun_state_machine)\.\w+|scheduler\.lr_\w+_iters"
)
BRIDGE = frozenset(filter(ONLY.fullmatch, OF_BRIDGE.names))
# The first mark that a file has decides its tool.
MARKS = (
    _mark("trainplan (run.json of an export)", "model.model_type micro_batch_samples micro_batches"),
    _mark("torchtune", "*._component_"),
    _mark("OLMo-core", "*._CLASS_"),
    _mark("veRL", "", "actor_rollout_ref @verl critic.ppo_mini_batch_size"),
    _mark("NeMo RL", "policy", "grpo dpo sft distillation policy.generation"),
    _mark("ROLL", "", "actor_train actor_infer"),
    _mark("AReaL", "", "allocation_mode rollout.max_concurrent_rollouts"),
    _mark("Megatron-LM (--yaml-cfg)", "language_model model_parallel"),
    _mark("NeMo AutoModel", "", "step_scheduler @nemo_automodel"),
    _mark("NeMo", "", "exp_manager trainer.num_nodes trainer.precision model.restore_from_path run.results_dir"),
    _mark("Levanter", "model.type", "model.seq_len model.hidden_dim"),
    _mark("Levanter", "trainer", "trainer.mp trainer.train_batch_size trainer.num_train_steps"),
    _mark("LitGPT", "train", "train.global_batch_size train.micro_batch_size train.max_tokens"),
    _mark("Lightning", "", "*.class_path trainer.max_epochs trainer.strategy"),
    _mark("nanotron", "parallelism", "parallelism.dp parallelism.pp parallelism.tp tokens.micro_batch_size"),
    _mark("NeMo", "", "*._factory_ @nemo"),
    _mark("Hydra (_target_)", "*._target_"),
    _mark("fairseq", "optimization task", "common distributed_training dataset"),
    _mark(
        "GPT-NeoX",
        "",
        "pipe_parallel_size pipe-parallel-size model_parallel_size model-parallel-size train_data_paths train-data-paths"
        " global_num_gpus attention_config data_impl data-impl eval_tasks text_gen_type",
    ),
    _mark("GPT-NeoX", "vocab_file data_path"),
    _mark("GPT-NeoX", "vocab-file data-path"),
    _mark("MaxText", "base_config", "logical_axis_rules model_name use_sft sharding_strategy"),
    _mark("MaxText", "", "base_emb_dim ici_fsdp_parallelism dcn_data_parallelism per_device_batch_size"),
    _mark("LLM Foundry", "", "train_loader variables.global_seq_len max_seq_len eval_gauntlet icl_tasks"),
    _mark("OLMo", "model.d_model", "global_train_batch_size device_train_microbatch_size"),
    _mark("LLM Foundry", "", "device_train_microbatch_size max_duration"),
    _mark("OpenRLHF", "", "zero_stage actor_num_nodes"),
    _mark("LLaMA-Factory 1 (dist_config)", "model", "dist_config kernel_config model_class"),
    _mark("mergekit", "", "merge_method slices"),
    _mark("SkyPilot", "", "resources.accelerators resources.cloud resources.infra resources.use_spot file_mounts"),
    _mark("MosaicML's platform", "command", "integrations compute image gpu_num"),
    _mark("Ray", "", "head_start_ray_commands available_node_types runtime_env scaling_config"),
    _mark("Beaker", "tasks", "tasks.image tasks.command tasks.resources"),
    _mark("dstack", "type", "commands"),
    _mark("Kubernetes", "apiVersion kind"),
    _mark("Docker Compose", "services"),
    _mark("GitHub Actions", "", "jobs runs.using runs.steps"),
    _mark("Hydra", "defaults"),
    _mark("diffusers", "", "pretrained_model_name_or_path network_module"),
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
    """The name of the tool whose configuration file has this content; None if no tool is recognised. data: the file's keys and
    values."""
    if len(data) > MOST_KEYS:
        return None
    found = set(_names(data))
    if is_one(data) and not found.isdisjoint(BRIDGE) and not found.issuperset(MARKS[0].every):
        return "Megatron-Bridge"
    if nemo_reader.is_one(data):
        return "NeMo 1"
    for mark in MARKS:
        if found.issuperset(mark.every) and (not mark.some or not found.isdisjoint(mark.some)):
            return mark.tool
    if not found.isdisjoint(BRIDGE):
        return "Megatron-Bridge"
    if "fsdp" in found:
        return FSDP
    if not found.isdisjoint(LAUNCHED) or any(name.startswith(("fsdp_config.fsdp_", "deepspeed_config.")) for name in found):
        return "Accelerate"
    if found & OWN or len(found & deepspeed_reader.KNOWN.names - COMMON) > 1 or any(name.startswith(TABLES) for name in found):
        return "DeepSpeed"
    return FSDP if len(found & {"fsdp_config", *OPTIONS, *(f"fsdp_{name}" for name in OPTIONS)}) > 1 else None


LAUNCHED = names("num_processes mixed_precision machine_rank main_process_ip parallelism_config megatron_lm_config")
OWN = names(
    """
    zero_optimization bf16.enabled bfloat16.enabled fp16.enabled train_batch_size train_micro_batch_size_per_gpu
    communication_data_type
    """
)
# Keys and tables of DeepSpeed that files of other tools have, too.
COMMON = names("seed log_level dump_state vocabulary_size dataloader_drop_last memory_breakdown sparse_gradients log_level")
SHARED = names("checkpoint. compile. optimizer. pipeline. scheduler. tensorboard. timers. wandb.")
TABLES = tuple(table for table in deepspeed_reader.KNOWN.starts if table not in SHARED)
FSDP = "transformers (what fsdp_config names)"
OPTIONS = FSDP_OPTIONS | names(
    "auto_wrap_policy reshard_after_forward activation_checkpointing cpu_offload offload_params sharding_strategy version"
)


def by_name(path: Path) -> str:
    """The name of the reader for a file `path` that is neither YAML nor JSON, judged by the file's name: "torchtitan" for
    TOML, otherwise "megatron", whose reader takes scripts of all tools.

    Raises InputError if the name shows that the file is neither a configuration nor a script, such as a notebook.
    """
    for kinds, fix in ((NAMED, COMMAND), (OTHERS, f"{OF_THESE}, or a log of the run")):
        for name, what in kinds.items():
            if re.fullmatch(name, path.name.lower()):
                raise InputError(str(path), "", f"is {what}, and no configuration of a run", fix)
    return "torchtitan" if path.suffix.lower() == ".toml" else "megatron"


def reader_of(path: Path, data: Any) -> str:
    """The name of the reader for a YAML or JSON file. path: the file, for errors. data: its content. Raises InputError if no
    tool is recognised, or, with the tool's name, if the tool's files are not read.
    """
    if path.parent.name == ".hydra" and path.name in ("overrides.yaml", "hydra.yaml"):
        problem = "is Hydra's, and has what overrides a configuration alone" if "over" in path.name else "is Hydra's own"
        raise InputError(str(path), "", problem, f"give {path.parent / 'config.yaml'}, the run's")
    if not isinstance(data, Mapping):
        raise InputError(str(path), "", f"holds {shown(data)}", "give an object, as configurations are")
    tool = tool_of(data)
    if tool is None:
        raise InputError(str(path), "", f"has no key of a tool that is read ({listed(data)})", OF_THESE)
    if tool == "a model (config.json)":
        raise InputError(str(path), "", "describes a model, and no run", "give it as --model, with the file of a run")
    if tool == MARKS[0].tool:
        file = next((name for name in EXPORTED if (path.parent / name).is_file()), f"one of {', '.join(EXPORTED)}")
        fix = f"give {file}, next to it, with --model and --sequence {data.get('sequence')}"
        raise InputError(str(path), "", f"is a file of {tool}, which says no layout", fix)
    if tool == FSDP:
        fix = "give the file or the command of the trainer that names it, or write it into the file as fsdp_config"
        raise InputError(str(path), "", f"is a file of {tool}: options of FSDP, and no run", fix)
    if tool == "DeepSpeed" and path.suffix.lower() != ".json":
        raise InputError(str(path), "", "has keys of DeepSpeed, whose files are JSON", "write it as a .json file")
    if tool not in READ:
        fix = COMMAND if tool in STARTING else OF_THESE
        if tool in REINFORCED:
            fix = "give a run of pre-training or full fine-tuning: reinforcement learning is not planned"
        raise InputError(str(path), "", f"is a file of {tool}, whose files are not read", fix)
    return READ[tool]


def listed(data: Mapping[str, Any]) -> str:
    """The first four keys of a file as a text for an error: "model, train, data, seed, ..", or "it is empty"."""
    return ", ".join(list(data)[:4]) + (", .." if len(data) > 4 else "") or "it is empty"


def _names(value: Any, prefix: str = "") -> Iterator[str]:
    """All names that occur in a file's nested values and by which a tool may be recognised: keys with their path
    ("train.seed"), keys at any depth ("*.seed"), and packages of classes that values name ("@nemo").

    value: the file's content, or a part of it. prefix: the path to that part, with a dot at its end.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{prefix}{key}"
            yield f"*.{key}"
            yield from _names(inner, f"{prefix}{key}.")
            if key in ("_target_", "class_path") and isinstance(inner, str):
                yield f"@{inner.partition('.')[0]}"
    elif isinstance(value, list):
        for item in value:
            yield from _names(item, prefix)
