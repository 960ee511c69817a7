"""Accelerate: the YAML file of `accelerate config`, with its FSDP, DeepSpeed and plain data-parallel parts (1.15, 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.configurations import deepspeed
from trainplan.configurations.configuration import Configuration, Keys, Recomputed, Said, flattened
from trainplan.configurations.documented import ACCELERATE, ACCELERATE_TABLES
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import read_data
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.precision import MASTERS, PLAIN

KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")  # FSDP1's, by number from 1 on
NODE = 8  # devices that hybrid sharding of FSDP1 shards over
DTYPES = {"no": "float32", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
DEEPSPEED = {  # of the YAML's own keys, what DeepSpeed's file calls them
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
LAUNCHING = {"zero3_init_flag", "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_config_file"}


DEFAULTS = "default of Accelerate 1.15"


def read(path: Path, said: Said) -> Configuration:
    """The configuration of a YAML file. Raises InputError."""
    data, where = read_data(path), str(path)
    if not isinstance(data, Mapping):
        raise InputError(where, "", f"holds {shown(data)}", "give a mapping, as `accelerate config` writes it")
    values = {key: "no" if value is False and key == "mixed_precision" else value for key, value in flattened(data).items()}
    keys = Keys(where, values, defaults=DEFAULTS, ignored=said.ignored)
    kind = keys.text("distributed_type", "NO", KINDS)
    devices = keys.whole("num_processes", 1)
    precision = keys.text("mixed_precision", "no", DTYPES)
    if kind == "DEEPSPEED":
        return _deepspeed(keys, data, path, devices, precision, said)
    dtype, notes = DTYPES[precision], list[str]()
    backend = keys.text("fp8_config.backend", "TE", ("TE", "AO", "MSAMP"))
    recipe: RecipeName | None = None if precision != "fp8" else "fp8-current" if backend == "AO" else "fp8"
    sizes = {
        name: keys.whole(f"parallelism_config.parallelism_config_{name}_size", 1) or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    for name in ("cp", "sp"):
        if sizes[name] > 1:
            key = f"parallelism_config.parallelism_config_{name}_size"
            raise keys.error(key, f"is {sizes[name]}", "give 1: runs with context parallelism are not read yet")
    zero, copies, shard = _sharding(keys, kind, devices or 1, sizes)
    keys.refuse(
        "fsdp_config.fsdp_offload_params", ["false"], "states that FSDP keeps on the host are no option of plans for it"
    )
    again = keys.flag("fsdp_config.fsdp_activation_checkpointing") or said.recompute == "full"
    if keys.flag("fsdp_config.fsdp_activation_checkpointing_offload"):
        notes.append("checkpoints on the host (their offload is asked for): the plan keeps them on the device; more memory")
    accumulation = keys.whole("gradient_accumulation_steps")
    unread, unknown = keys.left(ACCELERATE, ACCELERATE_TABLES)
    names = {"recipe": "mixed_precision", "devices": "num_processes", "accumulation": "gradient_accumulation_steps"}
    names |= {
        "shard": "parallelism_config.parallelism_config_dp_shard_size",
        "tp": "parallelism_config.parallelism_config_tp_size",
    }
    return Configuration(
        where=where, runtime="accelerate", software="PyTorch FSDP (Accelerate)", dtype=dtype,
        precision=PLAIN if dtype == "float32" else MASTERS, devices=devices, accumulation=accumulation, tp=sizes["tp"],
        copies=copies, shard=shard, zero=zero, recomputed=Recomputed("full" if again else "none"), cuts=(), keys=names,
        notes=tuple(notes), unread=unread, unknown=unknown, recipe=recipe, taken=keys.taken,
    )  # fmt: skip


def _sharding(keys: Keys, kind: str, devices: int, sizes: Mapping[str, int]) -> tuple[Any, int | None, int | None]:
    """ZeRO's stage, the copies, and the ranks that share states. Raises InputError."""
    version = keys.whole("fsdp_config.fsdp_version", 1)
    strategy, reshard = keys.get("fsdp_config.fsdp_sharding_strategy"), keys.get("fsdp_config.fsdp_reshard_after_forward")
    if kind != "FSDP":
        return 0, None, None
    if version == 1:
        name = strategy if strategy is not None else reshard if isinstance(reshard, str) else "FULL_SHARD"
        name = STRATEGIES[int(name) - 1] if str(name) in "12345" else str(name)
        if name not in STRATEGIES:
            raise keys.error("fsdp_config.fsdp_sharding_strategy", f"is {shown(name)}", f"give one of {', '.join(STRATEGIES)}")
        zero = 0 if name == "NO_SHARD" else 2 if name in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else 3
        shard = min(devices, NODE) if name.startswith("HYBRID") else None
        return zero, None, shard
    zero = 3 if keys.flag("fsdp_config.fsdp_reshard_after_forward", True) else 2
    shard = sizes["dp_shard"] if sizes["dp_shard"] > 1 else None
    return zero, sizes["dp_replicate"], shard


def _deepspeed(
    keys: Keys, data: Mapping[str, Any], path: Path, devices: int | None, precision: str, said: Said
) -> Configuration:
    """The DeepSpeed part, by its own file where one is named."""
    inner = data.get("deepspeed_config")
    inner = inner if isinstance(inner, Mapping) else {}
    unknown = tuple(f"deepspeed_config.{key}" for key in inner if key not in {*DEEPSPEED, *LAUNCHING})
    for key in inner:
        keys.get(f"deepspeed_config.{key}")
    named = inner.get("deepspeed_config_file")
    if named is not None:
        made = deepspeed.read(path.parent / str(named), said)
    else:
        values = {DEEPSPEED[key]: value for key, value in inner.items() if key in DEEPSPEED}
        if precision in ("bf16", "fp16"):
            values[f"{precision}.enabled"] = True
        made = deepspeed.of_values(values, str(path), said)
    unread, others = keys.left(ACCELERATE, ACCELERATE_TABLES)
    return replace(
        made,
        where=str(path),
        devices=devices,
        unread=(*unread, *made.unread),
        unknown=(*others, *unknown, *made.unknown),
        taken=(*keys.taken, *made.taken),
    )
