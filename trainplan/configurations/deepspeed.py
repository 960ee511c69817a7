"""DeepSpeed: its JSON configuration, with keys and defaults as of its documentation (0.19, 2026); "auto" leaves a key open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainplan.configurations.configuration import Configuration, Host, Keys, Recomputed, Said, flattened
from trainplan.configurations.documented import DEEPSPEED, DEEPSPEED_TABLES
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import read_data
from trainplan.profiling.models.precision import PLAIN, Precision

ZERO = "zero_optimization"


DEFAULTS = "default of DeepSpeed 0.19"


def read(path: Path, said: Said) -> Configuration:
    """The configuration of a JSON file. Raises InputError."""
    data = read_data(path)
    if not isinstance(data, Mapping):
        raise InputError(str(path), "", f"holds {shown(data)}", "give an object, as DeepSpeed's configurations are")
    return of_values(data, str(path), said)


def of_values(data: Mapping[str, Any], where: str, said: Said, prefix: str = "") -> Configuration:
    """The configuration of a table of keys. prefix: of keys in errors. Raises InputError."""
    keys = Keys(where, flattened(data), automatic=(None, "auto"), defaults=DEFAULTS, ignored=said.ignored)
    recompute = said.recompute
    stage: Any = keys.whole(f"{ZERO}.stage", 0, least=0)
    if stage is None or stage > 3:
        raise keys.error(f"{prefix}{ZERO}.stage", f"is {stage}", "give 0, 1, 2 or 3")
    notes, shard = list[str](), None
    if (mics := keys.whole(f"{ZERO}.mics_shard_size", -1, least=-1)) not in (None, -1):
        stage, shard = 3, mics
    if (secondary := keys.whole(f"{ZERO}.zero_hpz_partition_size", 1)) not in (None, 1):
        notes.append(
            f"second shards of parameters over {secondary} ranks (zero_hpz_partition_size): not in the plan; less memory"
        )
    host = tuple(_host(keys, stage, notes))
    bf16, fp16 = keys.flag("bf16.enabled") or keys.flag("bfloat16.enabled"), keys.flag("fp16.enabled")
    dtype = "bfloat16" if bf16 else "float16" if fp16 else "float32" if _says_dtype(data) else None
    wide = keys.text("data_types.grad_accum_dtype", "model", ("fp32", "bf16", "fp16", "model")) == "fp32"
    half = dtype in ("bfloat16", "float16")
    precision = Precision(master="float32", gradients="float32" if wide else "model") if half and not host else PLAIN
    if half and host:
        notes.append("master weights on the host: the plan's states there are in the model's dtype; less memory and time")
    pipeline = keys.get("pipeline.stages")
    if pipeline not in (None, 1):
        fix = "leave it out: stages are said by the program (PipelineModule), and plans for DeepSpeed have one"
        raise keys.error("pipeline.stages", f"is {shown(pipeline)}", fix)
    if keys.get("activation_checkpointing.cpu_checkpointing"):
        notes.append("checkpoints on the host (cpu_checkpointing): the plan keeps them on the device; more memory")
    if any(key.startswith(f"{ZERO}.zenflow.") for key in keys.values):
        notes.append("updates behind the steps that follow (zenflow): the plan waits for them; more time")
    if recompute is None:
        notes.append(
            "whether layers are recomputed is said by the model's own code: taken as none; --recompute full changes it"
        )
    names = {
        "samples": "train_batch_size",
        "micro_samples": "train_micro_batch_size_per_gpu",
        "tp": "tensor_parallel.autotp_size",
    }
    names |= {"accumulation": "gradient_accumulation_steps", "shard": f"{ZERO}.mics_shard_size"}
    tp = keys.whole("tensor_parallel.autotp_size", 1) or 1
    batch: dict[str, Any] = {name: keys.whole(names[name]) for name in ("samples", "micro_samples", "accumulation")}
    unread, unknown = keys.left(DEEPSPEED, DEEPSPEED_TABLES)
    return Configuration(
        where=where, runtime="deepspeed", software="deepspeed", dtype=dtype, precision=precision, tp=tp, shard=shard,
        zero=stage, recomputed=Recomputed("full" if recompute == "full" else "none"), host=host, cuts=(), notes=tuple(notes),
        keys={name: f"{prefix}{key}" for name, key in names.items()}, unread=unread, unknown=unknown,
        taken=keys.taken, **batch,
    )  # fmt: skip


def _says_dtype(data: Mapping[str, Any]) -> bool:
    """Whether half precision is spoken of, and so ruled out where it is not enabled."""
    return any(isinstance(data.get(name), Mapping) and data[name].get("enabled") is False for name in ("bf16", "fp16"))


def _host(keys: Keys, stage: int, notes: list[str]) -> list[Host]:
    """What is kept on the host; NVMe is taken for it. Raises InputError."""
    places = ("none", "cpu", "nvme")
    optimizer = keys.text(f"{ZERO}.offload_optimizer.device", "none", places)
    parameters = keys.text(f"{ZERO}.offload_param.device", "none", places)
    if keys.flag(f"{ZERO}.cpu_offload"):
        optimizer = "cpu"
    if keys.flag(f"{ZERO}.cpu_offload_param"):
        parameters = "cpu"
    for name, place in (("optimizer", optimizer), ("param", parameters)):
        if place == "nvme":
            notes.append(f"offload_{name} to NVMe is taken for the host's memory; less time")
    if parameters != "none" and stage < 3:
        raise keys.error(f"{ZERO}.offload_param.device", f"is {shown(parameters)}, in stage {stage}", "give stage 3, or none")
    if optimizer != "none" and stage == 0:
        raise keys.error(
            f"{ZERO}.offload_optimizer.device", f"is {shown(optimizer)}, in stage 0", "give stage 1, 2 or 3, or none"
        )
    if parameters != "none" and optimizer == "none":
        notes.append("parameters on the host, the optimizer on the device: the plan has the optimizer there, too; more time")
    host: list[Host] = ["optimizer"] if (optimizer, parameters) != ("none", "none") else []
    return [*host, "parameters"] if parameters != "none" else host
