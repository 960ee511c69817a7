"""Reader of the file of `accelerate config`, with its FSDP, DeepSpeed and plain data-parallel parts (1.15, 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.lines import text_sources
from trainplan.execution.launch_files.run_configuration import (
    Host,
    KeyReader,
    RecomputedLayers,
    RunConfiguration,
    UserSettings,
    flattened,
)
from trainplan.execution.launch_files.settings import read_with_settings
from trainplan.execution.runtimes.accelerate.fields import DEGREE, DTYPES, FIELDS, KINDS
from trainplan.execution.runtimes.accelerate.fsdp_options import Sharding, fsdp, refuse_denied
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.precision import MASTERS, PLAIN

KNOWN = known_keys(__file__)
PARTS = ("fsdp", "deepspeed", "megatron_lm")  # whose tables are read where they are the kind
ZERO_STAGE = "zero_optimization.stage"
DEEPSPEED = {  # of the YAML's own keys, what DeepSpeed's file calls them
    "zero_stage": ZERO_STAGE,
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
LAUNCHING = {
    "zero3_init_flag",
    "deepspeed_multinode_launcher",
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_config_file",
    "seq_parallel_communication_data_type",
}
COUNTS = ("num_processes", "num_machines")
KIND_OPTIONS = {"multi_gpu": "MULTI_GPU", "use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM"}
DEFAULTS = "default of Accelerate 1.15"
FLOAT32 = (
    "mixed_precision: no is float32 throughout; where the program has its own --bf16, as transformers' Trainer has, "
    "give --dtype bfloat16"
)
ON_HOST = "master weights on the host: the plan's states there are in the model's dtype; less memory and time"


def read(
    path: Path, user: UserSettings, brought: Mapping[str, tuple[Any, str]] | None = None, text: str | None = None
) -> RunConfiguration:
    """The run configuration of Accelerate's YAML or JSON file. brought: values that the training program fills into DeepSpeed's
    configuration, as (value, source) by key; None if no program is known. text: the file's content, if a script writes the
    file, which then need not exist; None to read the file. user: the settings that the user gives in addition to the file.
    Raises InputError for a key or value that is invalid or that no plan can have."""
    data, sources = read_with_settings(path, user, (), text)
    where = str(path)
    if not isinstance(data, Mapping):
        raise InputError(where, "", f"holds {shown(data)}", "give a mapping, as `accelerate config` writes it")
    no = {"mixed_precision": "no", "distributed_type": "NO"}  # which YAML takes for false
    own = {key: no.get(key, value) if value is False else value for key, value in flattened(data).items()}
    if own.pop("fp16", None) is True and own.get("mixed_precision") is None:  # of before 0.12
        own["mixed_precision"] = "fp16"
    called = {_whole_key(key): key for key in own}
    values = {key: own[old] for key, old in called.items()}
    values |= {key: value for key, (value, _) in user.launched.items()}
    lines = sources if text is None else text_sources(text, str(path))
    sources = {key: lines[old] for key, old in called.items() if old in lines}
    sources |= {key: source for key, (_, source) in user.launched.items()}
    keys = KeyReader(where, values, (None, "null"), sources, DEFAULTS, user.ignored, called, fields=FIELDS)
    kind = _kind(keys)
    devices = keys.whole("num_processes", 1 if kind == "NO" else None)
    precision = keys.text("mixed_precision")
    if kind == "DEEPSPEED":
        return _deepspeed(keys, _with_options(data, user), path, devices, precision, user, brought or {})
    notes = list[str]()
    dtype, recipe = _dtype(keys, precision, user, notes)
    sizes = {name: keys.whole(f"{DEGREE}{name}_size") or 1 for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    if sizes["sp"] > 1:
        raise keys.error(
            f"{DEGREE}sp_size", f"is {sizes['sp']}", "give 1, or distributed_type: DEEPSPEED: sequences are cut by DeepSpeed"
        )
    machines = keys.whole("num_machines")
    node = None if None in (devices, machines) else max(1, (devices or 1) // (machines or 1))
    shared = Sharding(0, None, None)
    if kind == "FSDP":
        shared = fsdp(keys, _fsdp_key, sizes, node, 1, notes, "NO_WRAP")
    if brought is None:
        refuse_denied(shared.recomputes, user, where)
    recomputes = shared.recomputes or user.recompute == "full"
    host: tuple[Host, ...] = ("optimizer", "parameters") if shared.offloads else ()
    if host and dtype != "float32":
        notes.append(ON_HOST)
    accumulation = keys.whole("gradient_accumulation_steps")
    compiled = str(keys.get("dynamo_config.dynamo_backend") or keys.get("dynamo_backend") or "no").upper() == "INDUCTOR"
    unread, unknown = keys.left(KNOWN.more(starts=[f"{name}_config." for name in PARTS if name != kind.lower()]))
    names = {field.says: name for name, field in FIELDS.items() if field.says} | {"recipe": "mixed_precision"}
    names |= {
        name: f"{DEGREE}{key}_size"
        for name, key in (("shard", "dp_shard"), ("copies", "dp_replicate"), ("tp", "tp"), ("cp", "cp"))
    }
    if kind == "NO" and devices != 1:
        notes.append(f"distributed_type: NO starts one process, whatever num_processes ({devices}) is: on one device")
        devices = 1
    return RunConfiguration(
        where=where, runtime="accelerate", software="PyTorch FSDP (Accelerate)", dtype=dtype, devices=devices,
        flags="compile" * compiled,
        precision=PLAIN if dtype == "float32" or host else MASTERS, accumulation=accumulation, tp=sizes["tp"], cp=sizes["cp"],
        copies=shared.copies, shard=shared.shard, within_nodes=shared.within_nodes,
        zero=shared.zero, recomputed=RecomputedLayers("full" if recomputes else "none"), cuts=(),
        host=host, keys=names, notes=tuple(notes), unread=unread, unknown=unknown, recipe=recipe, taken=keys.taken,
    )  # fmt: skip


def _whole_key(key: str) -> str:
    """A key as `accelerate config` writes it: fsdp_config.version -> fsdp_config.fsdp_version. Names within tables may lack
    the prefix that `accelerate launch` puts in front of them."""
    table, dot, name = key.partition(".")
    prefix = {"fsdp_config": "fsdp", "dynamo_config": "dynamo_"}.get(table)
    if prefix is not None and dot and not name.startswith(prefix):
        return f"{table}.{prefix.rstrip('_')}_{name}"
    return f"fp8_config.{name.removeprefix('fp8_')}" if table == "fp8_config" and dot else key


def key_of_option(name: str) -> str | None:
    """The key of Accelerate's file that an option of `accelerate launch` overrides: "fsdp_version" ->
    "fsdp_config.fsdp_version"; None if the option does not affect plans. name: the option with underscores. Options take
    precedence over the file (Accelerate's `commands/launch.py`)."""
    if name in (*COUNTS, "mixed_precision", "use_cpu"):
        return name
    if name in KIND_OPTIONS:
        return "distributed_type"
    if name in DEEPSPEED or name in LAUNCHING:
        return f"deepspeed_config.{name}"
    tables = {"fsdp_": "fsdp_config.", "dynamo_": "dynamo_config.", "fp8_": "fp8_config."}
    tables |= {"parallelism_config_": "parallelism_config."}
    table = next((table for start, table in tables.items() if name.startswith(start)), None)
    return None if table is None else _whole_key(table + name)


def _with_options(data: Mapping[str, Any], user: UserSettings) -> dict[str, Any]:
    """The tables of Accelerate's file, in which options of `accelerate launch` on DeepSpeed replace values. data: the file's
    tables. user: has these options, in `launched`."""
    inner = data.get("deepspeed_config")
    start = "deepspeed_config."
    given = {key.removeprefix(start): value for key, (value, _) in user.launched.items() if key.startswith(start)}
    if not given or not (inner is None or isinstance(inner, Mapping)):
        return dict(data)
    return {**data, "deepspeed_config": {**(inner or {}), **given}}


def _fsdp_key(name: str) -> str:
    """The key of Accelerate's file for an FSDP option: "version" -> "fsdp_config.fsdp_version"."""
    return f"fsdp_config.fsdp_{name}"


def _kind(keys: KeyReader) -> str:
    """The kind of run that Accelerate's `distributed_type` gives, such as FSDP, MULTI_GPU or DEEPSPEED. keys: gives the values
    of the file's keys, and records which keys have been read. Raises InputError for kinds of runs that no plan has, and if the
    key is missing."""
    kind = keys.get("distributed_type")
    if kind == "MEGATRON_LM":
        fix = "give the script with Megatron-LM's own arguments: its part of Accelerate's file is not read"
        raise keys.error("distributed_type", "is 'MEGATRON_LM'", fix)
    keys.refuse("compute_environment", ["LOCAL_MACHINE"], "runs in SageMaker are not read")
    keys.refuse("use_cpu", ["false"], "plans are for accelerators")
    keys.refuse("tpu_use_cluster", ["false"], "plans are for GPUs")
    if kind is None:
        fix = f"give one of {', '.join(KINDS)}: Accelerate takes no file without it"
        raise keys.error("distributed_type", "is missing", fix)
    if isinstance(kind, str) and (kind.startswith("MULTI_") or kind in ("TPU", "XLA")) and kind not in KINDS:
        raise keys.error("distributed_type", f"is {shown(kind)}", "give MULTI_GPU, FSDP or DEEPSPEED: plans are for GPUs")
    return keys.text("distributed_type")


def _dtype(keys: KeyReader, precision: str, user: UserSettings, notes: list[str]) -> tuple[str, RecipeName | None]:
    """The dtype of matrix multiplications, and the name of their low-precision recipe (None without). precision: the file's
    `mixed_precision`; empty if it is missing. If it reduces no precision (`no`), the user's --dtype takes precedence, as a
    trainer's --bf16 does. notes: a line is appended if the run stays in float32. keys: gives the values of the file's keys, and
    records which keys have been read. user: the settings that the user gives in addition to the file. Raises InputError for a
    key or value that is invalid or that no plan can have."""
    if not precision and user.dtype is None:
        fix = f"give it, such as {user.half}, or mixed_precision in the file"
        raise InputError(COMMAND_LINE, "--dtype", f"is missing, and {keys.where} has no mixed_precision", fix)
    dtype = DTYPES.get(precision, "float32")
    if dtype == "float32" and user.dtype not in (None, "float32"):
        keys.take("mixed_precision", user.dtype, "--dtype")
        dtype = str(user.dtype)
    elif dtype == "float32" and user.dtype is None:
        notes.append(FLOAT32)
    backend = keys.text("fp8_config.backend", "TE", ("TE", "AO", "MSAMP"))
    if precision == "fp8" and backend == "MSAMP":
        raise keys.error("fp8_config.backend", "is 'MSAMP'", "give TE or AO: states of optimizers in 8 bits are not planned")
    return dtype, None if precision != "fp8" else "fp8-current" if backend == "AO" else "fp8"


def _deepspeed(
    keys: KeyReader,
    data: Mapping[str, Any],
    path: Path,
    devices: int | None,
    precision: str,
    user: UserSettings,
    brought: Mapping[str, tuple[Any, str]],
) -> RunConfiguration:
    """The run configuration of the DeepSpeed part of Accelerate's file, including DeepSpeed's own file if one is named. data:
    the tables of Accelerate's file. path: this file. devices: number of devices of the run; None if unknown. precision: the
    file's `mixed_precision`. brought: values that the training program fills in for what the file does not specify, as (value,
    source) by key. keys: gives the values of the file's keys, and records which keys have been read. user: the settings that
    the user gives in addition to the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    inner = data.get("deepspeed_config")
    if inner is not None and not isinstance(inner, Mapping):
        raise keys.error("deepspeed_config", f"is {shown(inner)}", "give a mapping, such as zero_stage: 3")
    inner = inner or {}
    keys.refuse("deepspeed_config.deepspeed_moe_layer_cls_names", [""], "mixtures of experts are not planned")
    if precision == "fp8":
        raise keys.error("mixed_precision", "is 'fp8'", "give bf16: plans for DeepSpeed have no matrix multiplications in FP8")
    for key in inner:
        if key in DEEPSPEED or key in LAUNCHING:
            keys.get(f"deepspeed_config.{key}")
    given, source = dict(brought), f"mixed_precision ({keys.source('mixed_precision')})"
    if precision in ("bf16", "fp16"):
        given |= {f"{name}.enabled": (name == precision, source) for name in ("bf16", "fp16")}
    elif precision and user.dtype is None:  # Accelerate fills in false for both
        given |= {f"{name}.enabled": (False, source) for name in ("bf16", "fp16")}
    named = inner.get("deepspeed_config_file")
    if named is not None:
        for key in DEEPSPEED:
            if inner.get(key) is not None:
                fix = "leave it out: Accelerate takes it from deepspeed_config_file, and refuses both"
                raise keys.error(f"deepspeed_config.{key}", f"is {shown(inner[key])}", fix)
        file = find_named_file(path, str(named), keys, "deepspeed_config.deepspeed_config_file")
        run = deepspeed_reader.read_filled(file, replace(user, variables={}), given | {"stage": (2, DEFAULTS)})
    else:
        values: dict[str, Any] = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", ZERO_STAGE: 2}
        values |= {DEEPSPEED[key]: value for key, value in inner.items() if key in DEEPSPEED}
        sources = {DEEPSPEED[key]: keys.source(f"deepspeed_config.{key}") for key in inner if key in DEEPSPEED}
        sources = {ZERO_STAGE: DEFAULTS} | sources
        called = {key: f"deepspeed_config.{name}" for name, key in DEEPSPEED.items()}
        run = deepspeed_reader.of_values(values, str(path), user, sources, called, given)
    sizes = {name: keys.whole(f"{DEGREE}{name}_size") or 1 for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    for name in ("dp_replicate", "tp", "cp"):
        keys.refuse(f"{DEGREE}{name}_size", ["1"], "give DeepSpeed's own keys for it")
    if sizes["dp_shard"] > 1 and devices not in (None, sizes["dp_shard"] * sizes["sp"]):
        fix = f"give it and parallelism_config_sp_size a product of {devices} devices"
        raise keys.error(f"{DEGREE}dp_shard_size", f"is {sizes['dp_shard']}", fix)
    if sizes["sp"] > 1:
        run = replace(run, cp=sizes["sp"], exchange="heads", keys={**run.keys, "cp": f"{DEGREE}sp_size"})
    if precision == "no" and run.dtype == "float32":
        run = replace(run, notes=(FLOAT32, *run.notes))
    unread, others = keys.left(KNOWN.more(starts=[f"{name}_config." for name in PARTS if name != "deepspeed"]))
    return replace(
        run,
        where=str(path),
        devices=devices,
        unread=(*unread, *run.unread),
        unknown=(*others, *run.unknown),
        taken=(*keys.taken, *run.taken),
    )


def find_named_file(path: Path, name: str, keys: KeyReader, key: str) -> Path:
    """Find a file that another file names: as written, then in the folder of the other file and in all folders above, since
    tools look it up from where they are started. path: the naming file. name: the name that it gives. key: the key that gives
    it, for errors. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError if there
    is no such file."""
    folders = (Path(), *path.resolve().parents)
    try:
        found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    except (OSError, ValueError):  # a name that no file can have
        found = None
    if found is None:
        raise keys.error(key, f"is {shown(name)}, which is not there", f"put it next to {path.name}, or give where it is")
    return found
