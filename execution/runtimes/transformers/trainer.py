"""Common part of the readers of tools that train with transformers' Trainer (axolotl, LLaMA-Factory, transformers and TRL).

A tool's reader translates its own keys into `TrainerSettings`; `configured` makes a run configuration of them, with the part of
DeepSpeed, of FSDP or of plain data-parallel copies. Values "auto" in a DeepSpeed file are filled in from the trainer's
arguments, as transformers does it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainplan.execution.launch_files.known_keys import KnownKeys
from trainplan.execution.launch_files.run_configuration import (
    SET,
    Host,
    KeyReader,
    RecomputedLayers,
    RunConfiguration,
    UserSettings,
    flattened,
)
from trainplan.execution.launch_files.settings import ACCELERATE, LAUNCHED_BY, WRITTEN, read_with_settings
from trainplan.execution.runtimes.accelerate import reader as accelerate_reader
from trainplan.execution.runtimes.accelerate.fsdp_options import WRAPS, Sharding, fsdp, refuse_denied
from trainplan.execution.runtimes.accelerate.reader import ON_HOST, find_named_file
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName
from trainplan.profiling.models.precision import MASTERS, PLAIN

PAGED = ("paged_adamw", "paged_adamw_32bit")
STEPPED: dict[str, OptimizerName] = {  # optimizers of plans by transformers' words
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw",
    "adamw_torch_xla": "adamw",
    "adamw_torch_npu_fused": "adamw",
    "adamw": "adamw",
    "paged_adamw": "adamw",
    "paged_adamw_32bit": "adamw",
    "muon": "muon",
}
EAGER = ("eager", "disabled")
FLASH = ("sdpa", "fa2", "fa3", "flash", "flex", "xformers", "sage")  # how the names of kernels begin that keep no scores
LAUNCHED = "give --set accelerate=FILE, what `accelerate launch` reads, or --set accelerate=none: every device has copies"
SYNCED = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"  # gradients are reduced in every micro-batch
NOT_WRAPPED = (
    "fsdp has no auto_wrap: transformers 5 wraps layers by itself, as is planned; before 5 the whole model is wrapped as "
    "one: more memory by far"
)
FSDP_WORDS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "auto_wrap", "offload")


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Settings of a run by transformers' Trainer, whichever tool uses it and whatever the tool calls them.

    tool: the tool's name. model: a name or folder; None if not given. sequence: tokens per sample. micro: samples per
    micro-batch on one rank. accumulation: micro-batches per step. dtype: the dtype of matrix multiplications. masters: whether
    parameters are in float32 unless DeepSpeed or FSDP widens them. widened: whether FSDP version 2 widens them. mixed: whether
    matrix multiplications are in half precision whatever the parameters' dtype is; without it no FSDP widens parameters.
    recomputes: whether layers are recomputed. optimizer: its name in plans. attention: eager keeps attention scores, flash does
    not; None is the model's own choice. loss: how the loss holds logits. recipe: low-precision recipe of matrix
    multiplications. tp, cp: degrees of tensor and context parallelism. sizes: sizes of dimensions of the device mesh by name.
    version: the version of FSDP if the file gives none. names: the tool's key by field of the run configuration, for errors.
    words: words for a note in tables of measured runs, such as compile. launched: whether the program that launches the run may
    be the only one that says how states are sharded.
    """

    tool: str
    model: str | None
    sequence: int | None
    micro: int | None
    accumulation: int | None
    dtype: str
    masters: bool
    widened: bool = True
    mixed: bool = True
    recomputes: bool
    optimizer: OptimizerName
    attention: Literal["eager", "flash"] | None
    loss: Literal["full", "chunked", "fused"] | None
    recipe: RecipeName | None = None
    tp: int = 1
    cp: int = 1
    sizes: Mapping[str, int]
    version: int
    names: Mapping[str, str]
    words: str = ""
    launched: bool = True


def tables_and_keys(path: Path, user: UserSettings, defaults: str) -> tuple[Mapping[str, Any], KeyReader]:
    """The values of a trainer's configuration file with the user's settings applied, as nested tables, and a reader of its
    keys. path: the file. defaults: the source to state for default values in reports. user: the settings that the user gives in
    addition to the file. Raises InputError if the file holds no table."""
    data, sources = read_with_settings(path, user, LAUNCHED_BY)
    if not isinstance(data, Mapping):
        raise InputError(str(path), "", f"holds {shown(data)}", "give a mapping of keys")
    values = {key: value for key, value in flattened(data).items() if value != ""}
    return data, KeyReader(str(path), values, (None,), sources, defaults, user.ignored)


def optimizer_of(keys: KeyReader, key: str, default: str, notes: list[str]) -> OptimizerName:
    """The plan's name of a run's optimizer. key: the file's key that holds transformers' name of it. default: the name if the
    key is missing. notes: a line is appended for paged optimizers. keys: gives the values of the file's keys, and records which
    keys have been read. Raises InputError for optimizers whose states no plan has."""
    name = str(keys.text(key, default)).lower()
    if name in PAGED:
        notes.append(f"{key}: {name} may move states to the host where memory is short: the plan keeps them on the device")
    if name not in STEPPED:
        fix = "give adamw_torch: plans keep two moments of every parameter, as wide as what is stepped"
        raise keys.error(key, f"is {shown(name)}", fix)
    return STEPPED[name]


def attention_of(value: Any) -> Literal["eager", "flash"] | None:
    """How an implementation of attention computes: eager keeps attention scores in memory, flash does not; None if its name
    leaves that to the model. value: transformers' name of it, such as sdpa or flash_attention_2."""
    name = str(value or "").lower().rpartition("/")[2]
    if name in EAGER:
        return "eager"
    return "flash" if name.startswith(FLASH) or "flash" in name else None


def with_precision(user: UserSettings, keys: KeyReader, names: Collection[str]) -> UserSettings:
    """The user's settings, with the dtype from the file that Accelerate is launched with; transformers uses that dtype if its
    own arguments request no half precision. keys: the trainer's keys. names: the keys that request half precision. user: the
    settings that the user gives in addition to the file. Raises InputError for a key or value that is invalid or that no plan
    can have."""
    launched = user.variables.get(ACCELERATE)
    half_requested = any(keys.values.get(name) not in (None, False) for name in names)
    if launched in (None, "none") or user.dtype is not None or half_requested:
        return user
    file = find_named_file(Path(keys.where), launched, keys, f"{SET} {ACCELERATE}")
    run = accelerate_reader.read(file, replace(user, dtype="float32", variables={}))
    if run.dtype == "float32":
        return user
    keys.take(next(iter(names)), run.dtype, f"mixed_precision of {launched}")
    return replace(user, dtype=run.dtype)


def half_of(keys: KeyReader, bf16: tuple[str, ...], fp16: tuple[str, ...], user: UserSettings, missing: str | None) -> str:
    """The dtype of matrix multiplications, by the first key that is set. bf16, fp16: the tool's keys that turn on each dtype.
    missing: the dtype if no such key is set; None if the tool has no default. keys: gives the values of the file's keys, and
    records which keys have been read. user: the settings that the user gives in addition to the file. Raises InputError if
    nothing states the dtype, or if both dtypes are on."""
    keys.read.update((*bf16, *fp16))
    enabled = [next((key for key in names if keys.values.get(key) is True), None) for names in (bf16, fp16)]
    if None not in enabled:
        raise keys.error(str(enabled[1]), f"is true, and so is {enabled[0]}", "give one of them: transformers takes no two")
    for names, dtype in ((bf16, "bfloat16"), (fp16, "float16")):
        for key in names:
            if keys.values.get(key) in ("auto", "full"):
                taken = "--dtype" if user.dtype else "bfloat16 where devices have it, else float16"
                chosen = user.dtype or (user.half if dtype == "bfloat16" else dtype)
                keys.take(key, chosen, f"{keys.values[key]!r}: {taken} ({keys.source(key)})")
                return chosen
            if keys.flag(key):
                return dtype
    if user.dtype is not None:
        return user.dtype
    if all(keys.values.get(key) is None for key in (*bf16, *fp16)):
        if missing is None:
            fix = f"give {user.half} or float32, or {'bf16' if user.half == 'bfloat16' else 'fp16'} in the file"
            raise InputError(COMMAND_LINE, "--dtype", f"is missing, and {keys.where} says no precision", fix)
        keys.take(bf16[0], missing)
        return missing
    keys.refuse("tf32", ("false", "auto"), "matrix multiplications in TF32 are not planned: plans have float32 or half")
    return "float32"


def configured(
    keys: KeyReader, data: Mapping[str, Any], path: Path, user: UserSettings, trainer: TrainerSettings, notes: list[str]
) -> RunConfiguration:
    """The run configuration of a trainer's file, before it is checked which keys were not read. keys, data: the file's values,
    by dotted key and as nested tables. path: the file. trainer: the settings that were read from it. notes: lines on how the
    plan differs from the run. user: the settings that the user gives in addition to the file. Raises InputError for a key or
    value that is invalid or that no plan can have."""
    keys.read.update(("deepspeed", "fsdp", "fsdp_config"))
    if data.get("deepspeed") is not None:
        run = _deepspeed(keys, data["deepspeed"], path, user, trainer)
    else:
        run = _sharded(keys, data, user, trainer, notes)
        if run.runtime == "accelerate" and not trainer.recomputes:
            refuse_denied(run.recomputed.of == "full", user, run.where)
    if run.zero not in (stages := OPTIMIZERS[trainer.optimizer].zero):
        fix = f"give adamw_torch, or stage {' or '.join(map(str, stages))}"
        raise keys.error(trainer.names["optimizer"], f"is {trainer.optimizer}, with ZeRO stage {run.zero}", fix)
    stepped = () if run.runtime == "deepspeed" else (name for name, _ in _stepped(keys, trainer).values())
    synced = SYNCED.rpartition(".")[2] if SYNCED in keys.values and keys.flag(SYNCED) else ""
    flags = " ".join(filter(None, (trainer.words, run.flags, *stepped, synced)))
    buffers = replace(run.buffers, attention=trainer.attention, loss=trainer.loss)
    return replace(
        run, where=keys.where, tool=trainer.tool, model=trainer.model, sequence=trainer.sequence, micro_samples=trainer.micro,
        accumulation=trainer.accumulation, recipe=trainer.recipe,
        recomputed=RecomputedLayers("full") if trainer.recomputes else run.recomputed,
        tp=max(trainer.tp, run.tp), cp=max(trainer.cp, run.cp), cuts=(), buffers=buffers, notes=(*notes, *run.notes),
        optimizer=run.optimizer if trainer.optimizer == "adamw" else trainer.optimizer, flags=flags,
        keys={**run.keys, **trainer.names}, undecided=run.undecided,
    )  # fmt: skip


def _deepspeed(keys: KeyReader, named: Any, path: Path, user: UserSettings, trainer: TrainerSettings) -> RunConfiguration:
    """The run configuration of the DeepSpeed part of a trainer's file. named: the name of DeepSpeed's file, or its content as a
    table within the trainer's file. path: the trainer's file. trainer: the settings that were read from it; DeepSpeed's keys
    that are "auto" get their values. keys: gives the values of the file's keys, and records which keys have been read. user:
    the settings that the user gives in addition to the file. Raises InputError for a key or value that is invalid or that no
    plan can have."""
    where = keys.source("deepspeed")
    given: dict[str, tuple[Any, str]] = {
        f"{name}.enabled": (trainer.dtype == dtype, f"{trainer.tool}'s {name} ({keys.source(trainer.names['dtype'])})")
        for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16"))
    }
    for key, name, value in (
        ("train_micro_batch_size_per_gpu", "micro_samples", trainer.micro),
        ("gradient_accumulation_steps", "accumulation", trainer.accumulation),
    ):
        if value is not None:
            given[key] = (value, f"{trainer.names[name]} ({keys.source(trainer.names[name])})")
    given |= _stepped(keys, trainer)
    inner = replace(user, recompute="full" if trainer.recomputes else "none", dtype=trainer.dtype, model=None, variables={})
    if isinstance(named, Mapping):
        for key in keys.values:
            if key.startswith("deepspeed."):
                keys.read.add(key)
        sources = {key: keys.sources.get(f"deepspeed.{key}", where) for key in flattened(named)}
        return deepspeed_reader.of_values(named, keys.where, inner, sources, given=given)
    if not isinstance(named, str):
        fix = "give the name of DeepSpeed's file, such as ds_config.json, or that of a program of its own by deepspeed_config"
        raise keys.error("deepspeed", f"is {shown(named)}", fix)
    keys.get("deepspeed")
    run = deepspeed_reader.read_filled(find_named_file(path, named, keys, "deepspeed"), inner, given)
    return replace(run, taken=(*keys.taken, *run.taken))


def _stepped(keys: KeyReader, trainer: TrainerSettings) -> dict[str, tuple[str, str]]:
    """The optimizer that a trainer fills into DeepSpeed's configuration: transformers' name of it and its source, as {"optim":
    (name, source)}; empty if the file does not say it. trainer: the settings that were read from the file. keys: gives the
    values of the file's keys, and records which keys have been read."""
    taken = next((value for value in keys.taken if value.key == trainer.names["optimizer"]), None)
    return {} if taken is None else {"optim": (str(taken.value), taken.source)}


def _sharded(
    keys: KeyReader, data: Mapping[str, Any], user: UserSettings, trainer: TrainerSettings, notes: list[str]
) -> RunConfiguration:
    """The run configuration of the FSDP part of a trainer's file, from its own keys or from the file that Accelerate is
    launched with; with data-parallel copies of all states if neither exists. data: the file's nested tables. trainer: the
    settings that were read from it. notes: a list to which lines on how the plan differs from the run are appended. keys: gives
    the values of the file's keys, and records which keys have been read. user: the settings that the user gives in addition to
    the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    launched = user.variables.get(ACCELERATE)
    if launched not in (None, "none"):
        text = user.variables.get(WRITTEN)
        file = Path(launched) if text is not None else find_named_file(Path(keys.where), launched, keys, f"{SET} {ACCELERATE}")
        inner = replace(user, dtype=trainer.dtype, recompute="full" if trainer.recomputes else "none", variables={})
        run = accelerate_reader.read(file, inner, _stepped(keys, trainer), text)
        if run.accumulation not in (None, trainer.accumulation):
            problem, fix = f"is {trainer.accumulation}, and {run.accumulation} in {launched}", "give the same in both"
            raise keys.error(trainer.names["accumulation"], problem, fix)
        if run.runtime == "deepspeed":  # which widens what it steps
            return run
        dtype = run.dtype if trainer.dtype == "float32" else trainer.dtype
        masters = _masters(trainer, run.zero > 0, trainer.version, notes)
        return replace(run, dtype=dtype, precision=MASTERS if dtype != "float32" and masters and not run.host else PLAIN)
    words = _words(keys)
    table = data.get("fsdp_config")
    if table is not None and not isinstance(table, Mapping):
        raise keys.error("fsdp_config", f"is {shown(table)}", "write out what that file holds")
    fsdp_on = bool(words) or bool(table)
    if not fsdp_on and trainer.sizes.get("dp_shard", 1) > 1:
        fix = f"give fsdp_config, too: {trainer.tool} shares no states without it"
        raise keys.error(trainer.names.get("shard", "parallelism_config.dp_shard_size"), f"is {trainer.sizes['dp_shard']}", fix)
    shared, version = Sharding(0, None, None), 1
    if fsdp_on:
        find = _fsdp_key(keys)
        strategy = next((word for word in FSDP_WORDS[:5] if word in words), None)
        version = keys.whole(find("version"), trainer.version) or trainer.version
        version = 1 if strategy in FSDP_WORDS[2:5] else version  # which version 2 does not have
        if strategy is not None and keys.values.get(find("sharding_strategy")) is None:
            value = strategy.upper() if version == 1 else strategy == "full_shard"
            keys.values.setdefault(find("reshard_after_forward"), value)
        if words and "auto_wrap" not in words and keys.values.get(find("auto_wrap_policy")) is None:
            notes.append(NOT_WRAPPED)
        if "offload" in words:
            keys.values.setdefault(find("cpu_offload"), True)
        shared = fsdp(keys, find, trainer.sizes, None, version, notes, WRAPS[0])
    elif trainer.tp > 1 or trainer.cp > 1:
        raise keys.error("fsdp_config", "is missing", "give it: tensor and context parallelism go with FSDP")
    half = trainer.dtype != "float32"
    masters = _masters(trainer, fsdp_on, version, notes)
    host: tuple[Host, ...] = ("optimizer", "parameters") if shared.offloads else ()
    if host and half and masters:
        notes.append(ON_HOST)
    return RunConfiguration(
        where=keys.where, runtime="accelerate", software="PyTorch FSDP (Accelerate)" if fsdp_on else "PyTorch DDP (Accelerate)",
        dtype=trainer.dtype, precision=MASTERS if half and masters and not host else PLAIN, zero=shared.zero, host=host,
        copies=shared.copies, shard=shared.shard, within_nodes=shared.within_nodes,
        recomputed=RecomputedLayers("full" if trainer.recomputes or shared.recomputes else "none"),
        taken=keys.taken, undecided={} if fsdp_on or launched or not trainer.launched else {"zero": LAUNCHED},
    )  # fmt: skip


def _masters(trainer: TrainerSettings, shared: bool, version: int, notes: list[str]) -> bool:
    """Whether the parameters that the optimizer updates are in float32: because they are loaded so, or because Accelerate
    widens them for FSDP in mixed precision (`fsdp2_prepare_model`; `prepare_model` for version 1). trainer: the trainer's
    settings. shared: whether FSDP shards states. version: the version of FSDP. notes: a line is appended if they are in half
    precision."""
    masters = trainer.masters or (shared and trainer.mixed and (version == 1 or trainer.widened))
    if trainer.dtype != "float32" and not masters:
        notes.append("parameters and moments are in half precision, as they are loaded: no float32 masters")
    return masters


def _words(keys: KeyReader) -> list[str]:
    """The options in transformers' key `fsdp`, which is a list, a text or true: "full_shard auto_wrap" -> ["full_shard",
    "auto_wrap"]. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for an
    unknown option."""
    value = keys.get("fsdp")
    if value in (None, False, [], "false", "False"):
        return []
    if value in (True, "true", "True"):
        return ["auto_wrap"]
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word in FSDP_WORDS for word in words):
        raise keys.error("fsdp", f"is {shown(value)}", f"give some of {', '.join(FSDP_WORDS)}")
    key = _fsdp_key(keys)("auto_wrap_policy")
    if "auto_wrap" in words and key not in keys.values:
        keys.fill(key, WRAPS[0], f"auto_wrap of fsdp ({keys.source('fsdp')})")
    return words


def _fsdp_key(keys: KeyReader) -> Any:
    """A function from the name of an FSDP option, such as `version`, to the key under which the file has it: within
    `fsdp_config` or at the top, with or without the prefix `fsdp_`; of several, `fsdp_config.fsdp_NAME` comes first, then
    `fsdp_config.NAME`; `fsdp_config.fsdp_NAME` also if the file has none. keys: gives the values of the file's keys, and
    records which keys have been read.
    """

    def find(name: str) -> str:
        indices = (f"fsdp_config.fsdp_{name}", f"fsdp_config.{name}", f"fsdp_{name}")
        return next((index for index in indices if index in keys.values), indices[0])

    return find


def finished(run: RunConfiguration, keys: KeyReader, known: KnownKeys) -> RunConfiguration:
    """A copy of the run configuration, with the keys of the file added to its lists, after all keys that decide the run have
    been read.

    The copy's `unread` begins with the keys that were not read and are known to affect no plan, or that the user ignores; its
    `unknown` with the keys that are not known; its `taken` with the keys that were read, with their values and sources, in
    place of entries of the same key. known: keys that affect no plan. keys: gives the values of the file's keys, and records
    which keys have been read. Raises InputError for an unread key that may affect the plan.
    """
    unread, unknown = keys.left(known)
    own = {value.key for value in keys.taken}
    taken = (*keys.taken, *(value for value in run.taken if value.key not in own))
    return replace(run, unread=(*unread, *run.unread), unknown=(*unknown, *run.unknown), taken=taken)


def refuse_all(keys: KeyReader, refused: Mapping[str, str]) -> None:
    """Check that no key turns on a feature that plans do not have. refused: the reason why a key, or a whole table of keys, is
    refused, by its name. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    for the first that does."""
    for key, why in refused.items():
        keys.refuse(key, ("false", "0", "none", "[]"), why)
    for key in list(keys.values):
        table = key.split(".")[0]
        if table != key and table in refused and table not in keys.ignored:
            raise keys.error(key, f"is {shown(keys.values[key])}", f"leave {table} out: {refused[table]}")
