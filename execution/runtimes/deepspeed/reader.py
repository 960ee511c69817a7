"""Reader of DeepSpeed's JSON configuration, with keys and defaults as of its code (0.19, 2026).

A value of "auto" is not DeepSpeed's: transformers' Trainer or Accelerate fills it in before DeepSpeed reads it
(`transformers/integrations/deepspeed.py`, 5.x; `accelerate/utils/dataclasses.py`, 1.15). If it depends on the command of the
trainer, such as --bf16, the assumed value is listed among the values taken, with that source; if the file alone cannot decide
it, the user has to give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import (
    Host,
    KeyReader,
    RecomputedLayers,
    RunConfiguration,
    UserSettings,
    flattened,
)
from trainplan.execution.launch_files.settings import read_with_settings
from trainplan.execution.launch_files.trainer_buffers import Buffers
from trainplan.execution.runtimes.deepspeed.experts import refuse_experts
from trainplan.execution.runtimes.deepspeed.fields import FIELDS, STEPPED, WIDTHS
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName
from trainplan.profiling.models.precision import PLAIN, Precision

KNOWN = known_keys(__file__)
ZERO = "zero_optimization"
DEFAULTS = "default of DeepSpeed 0.19"
TRAINER = "transformers' Trainer fills in 'auto'"
BROUGHT = "adamw_torch_fused"  # by a program without an optimizer of its own, and whose default that is
BROUGHT_BY = "default of transformers 5 with torch 2.8 or later (--optim)"
# Keys whose "auto" is filled in, and by what where the file alone says it; others stay open, to be given.
FILLED: dict[str, Any] = {
    "train_batch_size": None,
    "train_micro_batch_size_per_gpu": None,
    "gradient_accumulation_steps": None,
    "gradient_clipping": 1.0,
    "bf16.enabled": None,
    "bfloat16.enabled": None,
    "fp16.enabled": None,
    f"{ZERO}.stage": None,
    f"{ZERO}.offload_optimizer.device": "none",
    f"{ZERO}.offload_param.device": "none",
    f"{ZERO}.offload_optimizer.nvme_path": None,
    f"{ZERO}.offload_param.nvme_path": None,
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": False,
    f"{ZERO}.reduce_bucket_size": None,
    f"{ZERO}.stage3_prefetch_bucket_size": None,
    f"{ZERO}.stage3_param_persistence_threshold": None,
}
TABLES = (ZERO, "bf16", "bfloat16", "fp16", "optimizer", "scheduler", "data_types", "tensor_parallel", "pipeline")
# What runs that no plan has, by the key that switches it on.
REFUSED = {
    "amp.enabled": "matrix multiplications by apex's amp are not planned: give bf16 or fp16",
    "elasticity.enabled": "the batch would be chosen by the number of devices: give train_batch_size instead",
    "hybrid_engine.enabled": "steps that generate texts are not planned",
    "progressive_layer_drop.enabled": "plans run every layer in every step",
    "curriculum_learning.enabled": "sequences would grow from step to step, and plans have one length",
    "data_efficiency.enabled": "plans run all tokens through every layer",
    "quantize_training.enabled": "matrix multiplications of quantized weights are not planned",
    "msamp.enabled": "matrix multiplications by MS-AMP are not planned",
    "autotuning.enabled": "trials choose the stage and the micro-batch: give the file that they write, ds_config_optimal.json",
    **{
        f"compile.{name}": "what DeepCompile moves to the host and back is not planned"
        for name in ("offload_parameters", "offload_opt_states", "offload_activation")
    },
    f"{ZERO}.zero_quantized_nontrainable_weights": "plans train all weights",
    "bf16.bf16_master_weights_and_grads": "master copies of plans are in float32",
    "bf16.bf16_optimizer_states": "moments of plans are in float32",
}
REFUSED_TABLES = {
    "sparse_attention": "plans have dense attention",
    "compression_training": "compressed layers are not planned",
    "weight_quantization": "matrix multiplications of quantized weights are not planned",
}
# What is in fewer bits on its way, which plans do not have.
QUANTIZED = {"weights": "parameters are gathered in 8 bits", "gradients": "gradients are reduced in 4 bits"}
MOST_PERSISTENT = 1_000_000  # elements of a parameter that is whole on all ranks: of norms, and of no matrix
RECOMPUTED = "whether layers are recomputed is decided by the model's own code: taken as none; --recompute full changes it"
NO_STAGE = "write 0, 1, 2 or 3, or give the Accelerate file that names this one: transformers' Trainer fills in no stage"
HIDDEN = {"reduce_bucket_size": "reduce_elements", "stage3_prefetch_bucket_size": "prefetch_elements"}


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a JSON file of DeepSpeed. user: the settings that the user gives in addition to the file. Raises
    InputError for a key or value that is invalid or that no plan can have."""
    return read_filled(path, user, {})


def read_filled(path: Path, user: UserSettings, given: Mapping[str, tuple[Any, str]]) -> RunConfiguration:
    """The run configuration of a JSON file of DeepSpeed that a trainer completes. given: values that the trainer fills in for
    "auto", each with its source, by key. user: the settings that the user gives in addition to the file. Raises InputError for
    a key or value that is invalid or that no plan can have."""
    data, sources = read_with_settings(path, user)
    if not isinstance(data, Mapping):
        raise InputError(str(path), "", f"holds {shown(data)}", "give an object, as DeepSpeed's configurations are")
    return of_values(data, str(path), user, sources, given=given)


def of_values(
    data: Mapping[str, Any],
    where: str,
    user: UserSettings,
    sources: Mapping[str, str] | None = None,
    called: Mapping[str, str] | None = None,
    given: Mapping[str, tuple[Any, str]] | None = None,
) -> RunConfiguration:
    """The run configuration of the values in a DeepSpeed configuration, as nested tables.

    sources: file and line of each key; None to state the file alone. called: the keys' names in the file that holds these
    values, if that is another tool's file; None for DeepSpeed's own names. given: values that a trainer fills in for "auto", as
    (value, source) by key; None without a trainer; `optim` is the name of the optimizer if the file has none, `stage` the ZeRO
    stage if the file has "auto". where: the file, for errors. user: the settings that the user gives in addition to the file.
    Raises InputError for a key or value that is invalid or that no plan can have.
    """
    keys = KeyReader(where, _flat(data, where), (None, "auto"), sources, DEFAULTS, user.ignored, called, fields=FIELDS)
    filled = dict(given or {})
    brought = filled.pop("optim", (BROUGHT, BROUGHT_BY))
    stage_filled = filled.pop("stage", None)
    _fill(keys, filled)
    refuse_experts(keys)
    _refuse(keys)
    if keys.values.get(f"{ZERO}.stage") == "auto":
        if stage_filled is None:
            raise keys.error(f"{ZERO}.stage", "is 'auto'", NO_STAGE)
        keys.fill(f"{ZERO}.stage", *stage_filled)
    stage: Any = keys.whole(f"{ZERO}.stage", least=0)
    if stage > 3:
        raise keys.error(f"{ZERO}.stage", f"is {stage}", "give 0, 1, 2 or 3")
    notes, shard = list[str](), None
    if (mics := keys.whole(f"{ZERO}.mics_shard_size", least=-1)) not in (None, -1):
        stage, shard = 3, mics
    keys.refuse(f"{ZERO}.zero_hpz_partition_size", ["1", "0"], "plans keep no second shards of parameters, which take memory")
    for name, what in QUANTIZED.items():
        if keys.flag(f"{ZERO}.zero_quantized_{name}") and stage == 3:
            notes.append(f"{what} (zero_quantized_{name}): the plan's in the model's dtype; more time")
    host = tuple(_host(keys, stage, notes))
    dtype, precision = _precision(keys, stage, user, notes)
    half = dtype != "float32"
    if half and host:
        precision = PLAIN
        notes.append("master weights on the host: the plan's states there are in the model's dtype; less memory and time")
    tp, cp = _parallel(keys)
    if keys.get("activation_checkpointing.cpu_checkpointing"):
        notes.append("checkpoints on the host (cpu_checkpointing): the plan keeps them on the device; more memory")
    notes += _otherwise(keys)
    if any(key.startswith(f"{ZERO}.zenflow.") for key in keys.values):
        notes.append("updates during the steps that follow (zenflow): the plan waits for them; more time")
    recompute = user.recompute
    if recompute is None:
        keys.take("gradient_checkpointing", False, "default of transformers' Trainer")
        notes.append(RECOMPUTED)
    names = {field.says: name for name, field in FIELDS.items() if field.says} | {"dtype": "bf16.enabled"}
    batch: dict[str, Any] = {name: keys.whole(names[name]) for name in ("samples", "micro_samples", "accumulation")}
    undecided = {}
    if batch["micro_samples"] is None and any(keys.values.get(names[name]) == "auto" for name in batch):
        undecided["micro_samples"] = "per_device_train_batch_size of transformers' Trainer"
    optimizer, kernels = _optimizer(keys, stage, brought, notes)
    buffers = _buffers(keys, stage, half, half and not host and precision.gradients == "model")
    flags = ", ".join(filter(None, (kernels, _overlap(keys, stage))))
    unread, unknown = keys.left(KNOWN)
    return RunConfiguration(
        where=where, runtime="deepspeed", software="deepspeed", flags=flags, dtype=dtype, precision=precision, tp=tp, cp=cp,
        exchange="heads" if cp > 1 else "keys", shard=shard, zero=stage, host=host, cuts=(), notes=tuple(notes),
        recomputed=RecomputedLayers("full" if recompute == "full" else "none"), buffers=buffers, optimizer=optimizer,
        keys={name: keys.called.get(key, key) for name, key in names.items()}, unread=unread, unknown=unknown,
        undecided=undecided, taken=keys.taken, **batch,
    )  # fmt: skip


def _flat(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of all tables of a DeepSpeed file under keys joined by dots, such as zero_optimization.stage. data: the
    file's tables. where: the file, for errors. Raises InputError if there is a plain value where DeepSpeed has a table."""
    data = dict(data)
    if isinstance(data.get(ZERO), bool):
        data[ZERO] = {"stage": int(data[ZERO])}  # as DeepSpeed reads its oldest files
    for name in TABLES:
        value = data.get(name)
        if value is not None and not isinstance(value, Mapping):
            example = '{"stage": 3}' if name == ZERO else '{"enabled": true}' if "16" in name else "an object"
            raise InputError(where, name, f"is {shown(value)}", f"give {example}")
    return flattened(data)


def _otherwise(keys: KeyReader) -> Iterator[str]:
    """Lines on settings of a DeepSpeed file that make the run's time differ from the plan's. keys: gives the values of the
    file's keys, and records which keys have been read."""
    if keys.flag("compile.deepcompile"):
        yield "gathers and reductions placed by DeepCompile: predicted as DeepSpeed places them; less time"
    if keys.flag("fp32_allreduce"):
        yield "gradients are reduced in float32 (fp32_allreduce): the plan's in the model's dtype; more time"


def _fill(keys: KeyReader, given: Mapping[str, tuple[Any, str]]) -> None:
    """Replace the value "auto" of keys by what the trainer fills in. keys: the file's keys, whose values are changed. given:
    the trainer's values, each with its source, by key. Raises InputError if nothing fills a value in, or if the file has
    another value than the trainer."""
    for key, (value, source) in given.items():
        written = keys.values.get(key)
        if written in (None, "auto"):
            keys.fill(key, value, source)
        elif written != value:
            raise keys.error(key, f"is {shown(written)}, and {source} has {shown(value)}", 'give "auto", or the same')
    for key in [key for key, value in keys.values.items() if value == "auto"]:
        if key not in FILLED and (key.startswith(f"{ZERO}.") or key in REFUSED):
            raise keys.error(key, "is 'auto'", "give a value: neither transformers' Trainer nor Accelerate fills it in")
        if FILLED.get(key) is not None:
            keys.fill(key, FILLED[key], f"{TRAINER} ({keys.source(key)})")


def _refuse(keys: KeyReader) -> None:
    """Raises InputError for keys that turn on features that no plan has. keys: gives the values of the file's keys, and records
    which keys have been read."""
    for key, why in REFUSED.items():
        keys.refuse(key, ("false", "0"), why)
    for key, value in keys.values.items():
        table = key.split(".")[0]
        if table in REFUSED_TABLES and (table == "sparse_attention" or (key.endswith("enabled") and value is True)):
            keys.refuse(key, ("false",), REFUSED_TABLES[table])


def _precision(keys: KeyReader, stage: int, user: UserSettings, notes: list[str]) -> tuple[str, Precision]:
    """The dtype of matrix multiplications, and the dtypes of master weights and gradients. stage: the ZeRO stage. notes: a list
    to which lines on how the plan differs from the run are appended. keys: gives the values of the file's keys, and records
    which keys have been read. user: the settings that the user gives in addition to the file. Raises InputError if nothing
    states the dtype."""
    name = "bf16.enabled" if "bf16.enabled" in keys.values else "bfloat16.enabled"
    values = {"bfloat16": keys.values.get(name), "float16": keys.values.get("fp16.enabled")}
    bf16, fp16 = keys.flag(name), keys.flag("fp16.enabled")
    if bf16 and fp16:
        raise keys.error("fp16.enabled", f"is true, and so is {name}", "give one of them: DeepSpeed takes no two")
    autocast = keys.flag("torch_autocast.enabled")
    open_ = [dtype for dtype, value in values.items() if value == "auto"]
    dtype = "bfloat16" if bf16 else "float16" if fp16 else None
    if autocast:
        if stage < 3:  # where parameters are whole, in float32
            fix = "give bf16 or fp16 in its place, or stage 3: plans keep no whole parameters in float32 alongside copies"
            raise keys.error("torch_autocast.enabled", f"is true, in stage {stage}", fix)
        dtype = _width(keys, "torch_autocast.dtype") or "bfloat16"
        notes.append("matrix multiplications by torch_autocast: the plan keeps half-precision copies of float32 parameters")
    elif dtype is None and open_:
        dtype = user.dtype or (user.half if user.half in open_ else open_[0])
        flag = {"bfloat16": "--bf16", "float16": "--fp16"}.get(dtype, "neither --bf16 nor --fp16")
        source = "--dtype" if user.dtype else f"{TRAINER} from its command; taken as {flag}"
        keys.take(name if dtype == "bfloat16" else "fp16.enabled", dtype, f"{source} ({keys.source(name)})")
    elif dtype is None and values["bfloat16"] is False and values["float16"] is False:
        dtype = "float32"
    elif dtype is None and user.dtype is None:
        flag = "--bf16" if user.half == "bfloat16" else "--fp16"
        fix = f"give {user.half} ({flag} of transformers' Trainer: fp32 masters) or float32 (DeepSpeed alone)"
        raise InputError(
            COMMAND_LINE, "--dtype", f"is missing, and {keys.where} says no precision", f"{fix}, or {flag[2:]} in it"
        )
    elif dtype is None:
        dtype = str(user.dtype)
        keys.take("dtype", dtype, "--dtype")
    width = _width(keys, "data_types.grad_accum_dtype")
    keys.get("data_types.param_dtype")
    keys.refuse("fp16.fp16_master_weights_and_grads", ("false",), "master copies of plans are in float32")
    reduced = _width(keys, "communication_data_type")
    if dtype == "float32":
        return dtype, PLAIN
    if reduced == "float32" and width != "float32":
        notes.append("gradients are reduced in float32 (communication_data_type): the plan's in the model's dtype; more time")
    return dtype, Precision(master="float32", gradients="float32" if width == "float32" else "model")


def _width(keys: KeyReader, key: str) -> str | None:
    """The dtype that a key of DeepSpeed's file gives, in the planner's spelling: "fp16" -> "float16"; None if the key is not
    set. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for other values.
    """
    value = keys.get(key)
    if value is None:
        return None
    if str(value).lower() not in WIDTHS:
        raise keys.error(key, f"is {shown(value)}", "give fp32, bf16 or fp16")
    return WIDTHS[str(value).lower()]


def _parallel(keys: KeyReader) -> tuple[int, int]:
    """The degrees of tensor parallelism and of sequence parallelism (DeepSpeed-Ulysses, whose ranks exchange attention heads).
    keys: gives the values of the file's keys, and records which keys have been read. Raises InputError if the file asks for
    pipeline stages."""
    pipeline = keys.get("pipeline.stages")
    if pipeline not in (None, 1, "auto"):
        fix = "leave it out: stages are defined by the program (PipelineModule), and plans for DeepSpeed have one"
        raise keys.error("pipeline.stages", f"is {shown(pipeline)}", fix)
    tp = keys.whole("tensor_parallel.autotp_size", least=0) or 1
    inner = keys.whole("tensor_parallel.tp.tp_size") or 1
    return max(tp, inner), keys.whole("sequence_parallel_size") or 1


def _optimizer(keys: KeyReader, stage: int, brought: tuple[Any, str], notes: list[str]) -> tuple[OptimizerName, str]:
    """The optimizer, and the name of its kernels as used in tables of measured runs. DeepSpeed uses its own FusedAdam, or
    torch's AdamW if `torch_adam` is set . stage: the ZeRO stage. brought: the training program's optimizer, with its source, if
    the file has none. notes: a line is appended if the plan steps differently. keys: gives the values of the file's keys, and
    records which keys have been read. Raises InputError for optimizers with other states."""
    name = keys.get("optimizer.type")
    if name is None:
        keys.take("optimizer.type", *brought)
        return "adamw", str(brought[0])
    chosen = {word.lower(): plans for word, plans in STEPPED.items()}.get(str(name).lower())
    if chosen is None:
        *others, last = STEPPED
        fix = f"give {', '.join(others)} or {last}: plans have no other states"
        raise keys.error("optimizer.type", f"is {shown(name)}", fix)
    if stage not in (stages := OPTIMIZERS[chosen].zero):
        fix = f"give stage {' or '.join(map(str, stages))}, or AdamW"
        raise keys.error("optimizer.type", f"is {shown(name)}, in stage {stage}", fix)
    if str(name).lower() == "lamb":
        notes.append("norms of layers in Lamb's step: the plan steps by AdamW, which has as many states; more time")
    return chosen, "multi-tensor AdamW" if keys.flag("optimizer.params.torch_adam") else "FusedAdam"


def _overlap(keys: KeyReader, stage: int) -> str:
    """Words on whether gradients are reduced in parallel with the backward pass, as rows of measured runs have them: by default
    in stage 3 alone (`overlap_comm_valid` of runtime/zero/config.py); empty in stage 0, which reduces them afterwards. Without
    contiguous gradients no second bucket is held for it. keys: gives the values of the file's keys, and records which keys have
    been read."""
    overlaps = keys.flag(f"{ZERO}.overlap_comm", stage == 3)
    words = "overlap_comm" if overlaps else "no overlap_comm"
    if overlaps and stage < 3 and not keys.flag(f"{ZERO}.contiguous_gradients"):
        words += ", no contiguous_gradients"
    return words if stage else ""


def _buffers(keys: KeyReader, stage: int, half: bool, copies: bool) -> Buffers:
    """The buffers that DeepSpeed holds in addition to states and activations, by the file's sizes and DeepSpeed's defaults.

    Gradients are reduced from one bucket, whose size this is; in stages 1 and 2 there are two of this size if the reduction
    overlaps with computation (`_overlap`). If they are reduced in float32, stage 3 has float32 buckets, other stages a float32
    copy of the bucket that is reduced, which is counted with the buckets. Parameters stay gathered if their next use is within
    `max_reuse_distance`, whatever `max_live_parameters` is, which limits what is gathered ahead
    (`partitioned_param_coordinator.py`). half: whether the model is in half precision. copies: whether the optimizer's step
    copies gradients to float32. keys: gives the values of the file's keys, and records which keys have been read.
    """
    size = {
        name: _elements(keys, f"{ZERO}.{name}", default)
        for name, default in {
            "reduce_bucket_size": 500_000_000,
            "allgather_bucket_size": 500_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "sub_group_size": 1_000_000_000,
        }.items()
    }
    overlaps = keys.flag(f"{ZERO}.overlap_comm", stage == 3)
    twice = overlaps and stage in (1, 2) and keys.flag(f"{ZERO}.contiguous_gradients")
    buckets = 1
    if half and _width(keys, "communication_data_type") == "float32":
        buckets = 2 if stage == 3 or twice else 3
    if stage == 3 and (size["stage3_param_persistence_threshold"] or 0) > MOST_PERSISTENT:
        fix = f"give at most {MOST_PERSISTENT}: matrices that stay whole on all ranks are not planned"
        raise keys.error(f"{ZERO}.stage3_param_persistence_threshold", f"is {size['stage3_param_persistence_threshold']}", fix)
    ahead, live = size["stage3_prefetch_bucket_size"], size["stage3_max_live_parameters"] or 0
    by_hidden = {
        HIDDEN[name]: count
        for name, count in {"reduce_bucket_size": buckets, "stage3_prefetch_bucket_size": 0.9}.items()
        if size[name] is None and (stage == 3 or name == "reduce_bucket_size")
    }
    reduce_elements = size["reduce_bucket_size"]
    return Buffers(
        reduce_elements=None if reduce_elements is None else buckets * reduce_elements,
        gather_elements=size["allgather_bucket_size"] if stage in (1, 2) else None,
        prefetch_elements=None if ahead is None or stage < 3 else min(ahead, live),
        live_elements=size["stage3_max_reuse_distance"] if stage == 3 else None,
        step_elements=size["sub_group_size"] if stage == 3 else None,
        copies_gradients=copies,
        by_hidden=tuple(by_hidden.items()),
    )


def _elements(keys: KeyReader, key: str, default: int) -> int | None:
    """A number of elements, such as the size of a bucket, which files often write as 5e8. key: the key; its name without
    "stage3_" counts, too. default: the number if the key is missing. None if the key is "auto", since the number then follows
    from the model's hidden size. keys: gives the values of the file's keys, and records which keys have been read. Raises
    InputError for a key or value that is invalid or that no plan can have."""
    short = key.replace("stage3_", "")
    key = short if short in keys.values and key not in keys.values else key
    if keys.values.get(key) == "auto":
        keys.read.add(key)
        return None
    value = keys.number(key, default)
    if value < 0 or not value < 2**62 or value != int(value) or isinstance(keys.values.get(key), bool):
        raise keys.error(key, f"is {shown(keys.values.get(key))}", f"give a number of elements, such as {default}")
    return int(value)


def _host(keys: KeyReader, stage: int, notes: list[str]) -> list[Host]:
    """The kinds of states ("optimizer", "parameters") that are kept on the host; NVMe counts as host memory. stage: the ZeRO
    stage. notes: a list to which lines on how the plan differs from the run are appended. keys: gives the values of the file's
    keys, and records which keys have been read. Raises InputError for combinations that DeepSpeed or plans do not have."""
    optimizer = keys.text(f"{ZERO}.offload_optimizer.device")
    parameters = keys.text(f"{ZERO}.offload_param.device")
    if keys.flag(f"{ZERO}.cpu_offload"):
        optimizer = "cpu"
    if keys.flag(f"{ZERO}.cpu_offload_param"):
        parameters = "cpu"
    ratio = keys.number(f"{ZERO}.offload_optimizer.ratio")
    if optimizer != "none" and ratio != 1:
        raise keys.error(
            f"{ZERO}.offload_optimizer.ratio", f"is {ratio:g}", "give 1: plans keep all of the optimizer there, or none"
        )
    if keys.flag(f"{ZERO}.offload_optimizer.super_offload"):
        notes.append("updates on the host during the steps that follow (super_offload): the plan waits for them; more time")
    for name, device in (("optimizer", optimizer), ("param", parameters)):
        if device == "nvme":
            notes.append(f"offload_{name} to NVMe is taken for the host's memory; less time")
    if parameters != "none" and stage < 3:
        raise keys.error(f"{ZERO}.offload_param.device", f"is {shown(parameters)}, in stage {stage}", "give stage 3, or none")
    if optimizer != "none" and stage == 0:
        raise keys.error(
            f"{ZERO}.offload_optimizer.device", f"is {shown(optimizer)}, in stage 0", "give stage 1, 2 or 3, or none"
        )
    if parameters != "none" and optimizer == "none":
        fix = "give offload_optimizer the same device: plans keep parameters on the host with the optimizer's states"
        raise keys.error(f"{ZERO}.offload_param.device", f"is {shown(parameters)}, and the optimizer is on the device", fix)
    host: list[Host] = ["optimizer"] if optimizer != "none" else []
    return [*host, "parameters"] if parameters != "none" else host
