"""Exported files, read by a target's own classes; run by an interpreter that has the target and not trainplan.

    PYTHON benchmarks/target_reader.py TARGET FOLDER ... < arguments.json

TARGET: megatron, megatron-bridge, torchtitan, torchtitan-python, deepspeed or accelerate. FOLDER: an export, with its number of
ranks after a colon. arguments.json: of megatron, the sections of its arguments, for each folder; null for others. Prints the
version as JSON, of Megatron-Bridge the `fields` of its sections, and for each folder either `values`, by key, or the `error`
that the target's classes raised.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Values = dict[str, Any]


def megatron(_folder: Path, _world: int, sections: dict[str, Values]) -> Values:
    """megatron-core's TransformerConfig and its configurations of data parallelism and of the optimizer; what of the model
    they do not have, GPTModel does, or it is an error."""
    import inspect

    import torch
    from megatron.core.activations import squared_relu
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    model, known = sections["model"], {field.name for field in dataclasses.fields(TransformerConfig)}
    others = set(inspect.signature(GPTModel.__init__).parameters) | {"seq_length", "make_vocab_size_divisible_by"}
    if unknown := set(model) - known - others:
        raise TypeError(f"neither TransformerConfig nor GPTModel has {', '.join(sorted(unknown))}")
    function = getattr(torch.nn.functional, model["activation_func"], squared_relu)
    made = TransformerConfig(
        **{**{name: value for name, value in model.items() if name in known}, "activation_func": function},
        pipeline_dtype=torch.bfloat16,
    )
    flat = flat_values(made, "model")
    if made.pipeline_model_parallel_layout is not None:
        flat["model.pipeline_model_parallel_layout"] = layers_of(made.pipeline_model_parallel_layout)
    flat |= flat_values(DistributedDataParallelConfig(**sections["ddp"]), "ddp")
    flat |= flat_values(OptimizerConfig(**sections["optimizer"]), "optimizer")
    return flat | {f"train.{name}": value for name, value in sections["train"].items()}


def layers_of(layout: Any) -> list[int]:
    """Layers of each stage, in order of the model: its table is by rank, then by stage of the rank."""
    table, ranks = layout.layout, len(layout.layout)
    chunks = [table[index % ranks][index // ranks] for index in range(ranks * len(table[0]))]
    return [sum(part.name == "decoder" for part in chunk) for chunk in chunks]


def flat_values(made: Any, prefix: str) -> Values:
    """Fields of a dataclass that JSON has."""
    kinds = (bool, int, float, str, list, tuple)
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return {f"{prefix}.{name}": value for name, value in fields.items() if isinstance(value, kinds)}


def module_of(path: Path, name: str) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bridge(folder: Path, world: int, _: Any) -> Values:
    """The ConfigContainer of the exported script, after Megatron-Bridge's own checks and updates."""
    os.environ["WORLD_SIZE"] = str(world)
    from megatron.bridge.training.config import runtime_config_update

    script = module_of(folder / "train.py", "exported")
    made = script.configuration(script.options([]))
    runtime_config_update(made)
    sections = ("model", "train", "ddp", "optimizer", "mixed_precision", "tokenizer", "dataset")
    values = {key: value for name in sections for key, value in flat_values(getattr(made, name), name).items()}
    if made.model.pipeline_model_parallel_layout is not None:
        values["model.pipeline_model_parallel_layout"] = layers_of(made.model.pipeline_model_parallel_layout)
    return values | {"data_parallel_size": made.data_parallel_size}


def stand_in(*stand_ins: str) -> None:
    """Have made-up packages, any attribute of which is there, imported in the places of these."""
    import importlib.abc
    import importlib.machinery
    from unittest.mock import MagicMock

    import torch  # noqa: F401  # before anything that it looks for is made up

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            wanted = any(name == entry or name.startswith(f"{entry}.") for entry in stand_ins)
            return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

        def create_module(self, spec: Any) -> Any:
            return MagicMock(name=spec.name, __path__=[], __name__=spec.name, __spec__=spec, __file__=None)

        def exec_module(self, module: Any) -> None:
            pass

    sys.meta_path.insert(0, Finder())


def load_bridge() -> None:
    """Megatron-Bridge's package imports Transformer Engine, which needs CUDA. Its configuration classes do without: made-up
    packages take the places of that one and of those of Megatron-Bridge's that are no part of what is read."""
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "2.10.0" if name == "transformer-engine" else version(name)
    others = ("models.mamba", "peft", "data", "models.t5_provider", "training.tokenizers.tokenizer")
    stand_in("transformer_engine", *(f"megatron.bridge.{name}" for name in others))
    import megatron.core

    root = Path(megatron.core.__file__).parents[1] / "bridge"
    for name in ("megatron.bridge", "megatron.bridge.models"):
        package: Any = ModuleType(name)
        package.__path__ = [str(root / name.removeprefix("megatron.bridge").strip("."))]
        sys.modules[name] = package
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    package.GPTModelProvider, package.T5ModelProvider = GPTModelProvider, object


def bridge_fields() -> dict[str, list[str]]:
    """The fields of each section of a ConfigContainer that its class takes."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.training import config
    from megatron.bridge.training.mixed_precision import MixedPrecisionConfig

    classes: dict[str, Any] = {
        "model": GPTModelProvider,
        "train": config.TrainingConfig,
        "ddp": config.DistributedDataParallelConfig,
        "optimizer": config.OptimizerConfig,
        "mixed_precision": MixedPrecisionConfig,
        "scheduler": config.SchedulerConfig,
        "dataset": config.GPTDatasetConfig,
        "logger": config.LoggerConfig,
        "tokenizer": config.TokenizerConfig,
        "checkpoint": config.CheckpointConfig,
        "dist": config.DistributedInitConfig,
        "rng": config.RNGConfig,
        "comm_overlap": config.CommOverlapConfig,
    }
    fields = {
        name: {field.name for field in dataclasses.fields(kind) if field.init and not field.name.startswith("_")}
        for name, kind in classes.items()
    }
    fields["dataset"] |= {"seq_length", "skip_getting_attention_mask_from_dataset"}  # of its own __init__
    return {name: sorted(one_field) for name, one_field in fields.items()}


def load_torchtitan() -> None:
    """torchtitan's configuration classes import its mixture of experts, which needs triton: a made-up one stands there."""
    stand_in("torchtitan.models.moe")


def torchtitan(folder: Path, world: int, _: Any) -> Values:
    """The JobConfig of torchtitan 0.2, as its command line reads the TOML file."""
    from torchtitan.config import ConfigManager

    made = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    sections = ("model", "training", "parallelism", "activation_checkpoint")
    return {key: value for name in sections for key, value in flat_values(getattr(made, name), name).items()}


def torchtitan_python(folder: Path, world: int, _: Any) -> Values:
    """The configuration classes of torchtitan 0.3, with what the exported function sets: they have no other fields."""
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig

    made: Any = SimpleNamespace(training=TrainingConfig(), parallelism=ParallelismConfig(), activation_checkpoint="unset")
    module_of(folder / "torchtitan_config.py", "torchtitan_config").apply(made)
    values = flat_values(made.training, "training") | flat_values(made.parallelism, "parallelism")
    return values | {"activation_checkpoint.mode": "none" if made.activation_checkpoint is None else "full"}


def deepspeed(folder: Path, world: int, _: Any) -> Values:
    """DeepSpeedConfig, given that number of ranks."""
    from deepspeed.runtime import config

    config.dist.get_rank, config.dist.get_world_size = lambda *_: 0, lambda *_: world
    made = config.DeepSpeedConfig(str(folder / "ds_config.json"))
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    values = {name: getattr(made, name) for name in names}
    zero = made.zero_config
    offloads = {name: getattr(zero, f"offload_{name}") for name in ("optimizer", "param")}
    values |= {f"offload_{name}": None if offload is None else str(offload.device.value) for name, offload in offloads.items()}
    dtypes = {"bf16": made.bfloat16_config.enabled, "fp16": made.float16_config.enabled}
    return values | dtypes | {"stage": int(zero.stage), "overlap_comm": zero.overlap_comm, "gradients": made.grad_accum_dtype}


def accelerate(folder: Path, world: int, _: Any) -> Values:
    """The arguments that `accelerate launch` hands on, and what the plugins of the processes make of it."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    written = ClusterConfig.from_yaml_file(str(folder / "accelerate.yaml"))
    words = f"--config_file {folder / 'accelerate.yaml'} --num_processes {world} --num_machines 1 --machine_rank 0".split()
    words += ["--main_process_ip", "localhost", "--main_process_port", "29500", "train.py"]
    reported, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
    for name in [name for name in os.environ if name.startswith(("FSDP_", "PARALLELISM_", "ACCELERATE_"))]:
        del os.environ[name]
    environment = {name: str(value) for name, value in prepare_multi_gpu_env(reported).items()}
    os.environ.update(environment)
    values: Values = {
        "num_processes": written.num_processes,
        "num_machines": written.num_machines,
        "distributed_type": str(getattr(written.distributed_type, "value", written.distributed_type)),
        "mixed_precision": environment["ACCELERATE_MIXED_PRECISION"],
        "dp_replicate_size": int(environment.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", 1)),
        "dp_shard_size": int(environment.get("PARALLELISM_CONFIG_DP_SHARD_SIZE", 1)),
    }
    if environment.get("ACCELERATE_USE_FSDP") == "true":
        plugin = FullyShardedDataParallelPlugin()
        names = ("fsdp_version", "reshard_after_forward", "activation_checkpointing", "transformer_cls_names_to_wrap")
        values |= {name: getattr(plugin, name) for name in names}
    return values


READERS = {
    "megatron": (megatron, "megatron-core"),
    "megatron-bridge": (bridge, "megatron-bridge"),
    "torchtitan": (torchtitan, "torchtitan"),
    "torchtitan-python": (torchtitan_python, "torchtitan"),
    "deepspeed": (deepspeed, "deepspeed"),
    "accelerate": (accelerate, "accelerate"),
}
LOAD = {"megatron-bridge": load_bridge, "torchtitan": load_torchtitan}


def main() -> None:
    """Print what was read, as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=READERS)
    parser.add_argument("folders", nargs="*")
    requested = parser.parse_args()
    reader, package = READERS[requested.target]
    given = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr  # what a target prints is no part of the answer
    answer: dict[str, Any] = {"read": []}
    try:
        answer["version"] = importlib.metadata.version(package)
        LOAD.get(requested.target, lambda: None)()
        if requested.target == "megatron-bridge":
            answer["fields"] = bridge_fields()
    except ImportError as error:
        answer["absent"] = f"{type(error).__name__}: {error}"
        requested.folders = []
    for index, folder in enumerate(requested.folders):
        name, _, world = folder.rpartition(":")
        try:
            answer["read"].append({"values": reader(Path(name), int(world), given[index] if given else None)})
        except Exception as error:  # whatever the target's classes raise is their answer
            answer["read"].append({"error": f"{type(error).__name__}: {error}"})
    json.dump(answer, out, default=str)


if __name__ == "__main__":
    main()
