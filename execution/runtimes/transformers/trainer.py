"""What all trainers on transformers' Trainer have in common: its arguments, and DeepSpeed, FSDP or copies beneath it.

A tool's reader says the names of its keys (`axolotl`, `llamafactory`, `transformers_arguments`); this makes of what they say a
configuration. "auto" of a DeepSpeed file is filled in by the arguments of the trainer, as transformers does it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainplan.execution.launch_files.known_keys import KnownKeys
from trainplan.execution.launch_files.run_configuration import SET, Configuration, Host, Keys, Recomputed, Said, flattened
from trainplan.execution.launch_files.settings import ACCELERATE, LAUNCHED_BY, WRITTEN, read_with_settings
from trainplan.execution.runtimes.accelerate import reader as accelerate_reader
from trainplan.execution.runtimes.accelerate.fsdp_options import WRAPS, Sharding, fsdp, refuse_denied
from trainplan.execution.runtimes.accelerate.reader import ON_HOST, beside
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.precision import MASTERS, PLAIN

ADAMW = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw_apex_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adamw",
)
PAGED = ("paged_adamw", "paged_adamw_32bit")
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
class Arguments:
    """What the arguments of a trainer say, by whatever names. micro, accumulation: of one rank, and of one step. masters:
    whether parameters are float32 where neither DeepSpeed nor FSDP widens them; widened: whether FSDP of version 2 does. mixed:
    whether products are in half precision whatever parameters are in, else no FSDP widens them. again:
    whether layers are computed again. version: of FSDP where the file has none. launched: whether what shares states may be
    said by what the program is launched with alone. words: of notes of rows, such as compile."""

    tool: str
    model: str | None
    sequence: int | None
    micro: int | None
    accumulation: int | None
    dtype: str
    masters: bool
    widened: bool = True
    mixed: bool = True
    again: bool
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


def opened(path: Path, said: Said, defaults: str) -> tuple[Mapping[str, Any], Keys]:
    """A file's tables, and its keys. Raises InputError."""
    data, sources = read_with_settings(path, said, LAUNCHED_BY)
    if not isinstance(data, Mapping):
        raise InputError(str(path), "", f"holds {shown(data)}", "give a mapping of keys")
    values = {key: value for key, value in flattened(data).items() if value != ""}
    return data, Keys(str(path), values, (None,), sources, defaults, said.ignored)


def optimizer_of(keys: Keys, key: str, default: str, notes: list[str]) -> OptimizerName:
    """What steps the parameters, by transformers' names. Raises InputError for states that no plan has."""
    name = str(keys.text(key, default)).lower()
    if name == "muon":
        return "muon"
    if name in PAGED:
        notes.append(f"{key}: {name} may move states to the host where memory is short: the plan keeps them on the device")
    elif name not in ADAMW:
        fix = "give adamw_torch: plans keep two moments of every parameter, as wide as what is stepped"
        raise keys.error(key, f"is {shown(name)}", fix)
    return "adamw"


def attention_of(value: Any) -> Literal["eager", "flash"] | None:
    """Whether scores are kept, by the name of an implementation; None where it is the model's own choice."""
    name = str(value or "").lower().rpartition("/")[2]
    if name in EAGER:
        return "eager"
    return "flash" if name.startswith(FLASH) or "flash" in name else None


def with_precision(said: Said, keys: Keys, names: Collection[str]) -> Said:
    """What is said, with the dtype of the file that Accelerate is launched with, where arguments, by these names, ask for none:
    transformers takes it then. Raises InputError."""
    launched = said.variables.get(ACCELERATE)
    asked = any(keys.values.get(name) not in (None, False) for name in names)
    if launched in (None, "none") or said.dtype is not None or asked:
        return said
    file = beside(Path(keys.where), launched, keys, f"{SET} {ACCELERATE}")
    made = accelerate_reader.read(file, replace(said, dtype="float32", variables={}))
    if made.dtype == "float32":
        return said
    keys.take(next(iter(names)), made.dtype, f"mixed_precision of {launched}")
    return replace(said, dtype=made.dtype)


def half_of(keys: Keys, bf16: tuple[str, ...], fp16: tuple[str, ...], said: Said, missing: str | None) -> str:
    """The dtype of products, by the first key that is set. missing: what the tool takes where no key is there. Raises
    InputError where that is None, and nothing says the dtype."""
    keys.read.update((*bf16, *fp16))
    asked = [next((key for key in names if keys.values.get(key) is True), None) for names in (bf16, fp16)]
    if None not in asked:
        raise keys.error(str(asked[1]), f"is true, and so is {asked[0]}", "give one of them: transformers takes no two")
    for names, dtype in ((bf16, "bfloat16"), (fp16, "float16")):
        for key in names:
            if keys.values.get(key) in ("auto", "full"):
                taken = "--dtype" if said.dtype else "bfloat16 where devices have it, else float16"
                chosen = said.dtype or (said.half if dtype == "bfloat16" else dtype)
                keys.take(key, chosen, f"{keys.values[key]!r}: {taken} ({keys.source(key)})")
                return chosen
            if keys.flag(key):
                return dtype
    if said.dtype is not None:
        return said.dtype
    if all(keys.values.get(key) is None for key in (*bf16, *fp16)):
        if missing is None:
            fix = f"give {said.half} or float32, or {'bf16' if said.half == 'bfloat16' else 'fp16'} in the file"
            raise InputError(COMMAND_LINE, "--dtype", f"is missing, and {keys.where} says no precision", fix)
        keys.take(bf16[0], missing)
        return missing
    keys.refuse("tf32", ("false", "auto"), "matrix multiplications in TF32 are not planned: plans have float32 or half")
    return "float32"


def configured(keys: Keys, data: Mapping[str, Any], path: Path, said: Said, has: Arguments, notes: list[str]) -> Configuration:
    """The configuration of a file, but for keys that were not read. Raises InputError."""
    keys.read.update(("deepspeed", "fsdp", "fsdp_config"))
    if data.get("deepspeed") is not None:
        made = _deepspeed(keys, data["deepspeed"], path, said, has)
    else:
        made = _sharded(keys, data, said, has, notes)
        if made.runtime == "accelerate" and not has.again:
            refuse_denied(made.recomputed.of == "full", said, made.where)
    if has.optimizer == "muon" and made.zero > 1:
        raise keys.error(has.names["optimizer"], f"is muon, with ZeRO stage {made.zero}", "give adamw_torch, or stage 0 or 1")
    stepped = () if made.runtime == "deepspeed" else (name for name, _ in _stepped(keys, has).values())
    synced = SYNCED.rpartition(".")[2] if SYNCED in keys.values and keys.flag(SYNCED) else ""
    flags = " ".join(filter(None, (has.words, made.flags, *stepped, synced)))
    buffers = replace(made.buffers, attention=has.attention, loss=has.loss)
    return replace(
        made, where=keys.where, tool=has.tool, model=has.model, sequence=has.sequence, micro_samples=has.micro,
        accumulation=has.accumulation, recipe=has.recipe,
        recomputed=Recomputed("full") if has.again else made.recomputed,
        tp=max(has.tp, made.tp), cp=max(has.cp, made.cp), cuts=(), buffers=buffers, notes=(*notes, *made.notes),
        optimizer="muon" if has.optimizer == "muon" else made.optimizer, flags=flags,
        keys={**made.keys, **has.names}, undecided=made.undecided,
    )  # fmt: skip


def _deepspeed(keys: Keys, named: Any, path: Path, said: Said, has: Arguments) -> Configuration:
    """DeepSpeed's part: its file, or its keys within this one. What is "auto" there, the arguments say."""
    where = keys.source("deepspeed")
    given: dict[str, tuple[Any, str]] = {
        f"{name}.enabled": (has.dtype == dtype, f"{has.tool}'s {name} ({keys.source(has.names['dtype'])})")
        for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16"))
    }
    for key, name, value in (
        ("train_micro_batch_size_per_gpu", "micro_samples", has.micro),
        ("gradient_accumulation_steps", "accumulation", has.accumulation),
    ):
        if value is not None:
            given[key] = (value, f"{has.names[name]} ({keys.source(has.names[name])})")
    given |= _stepped(keys, has)
    inner = replace(said, recompute="full" if has.again else "none", dtype=has.dtype, model=None, variables={})
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
    made = deepspeed_reader.read_filled(beside(path, named, keys, "deepspeed"), inner, given)
    return replace(made, taken=(*keys.taken, *made.taken))


def _stepped(keys: Keys, has: Arguments) -> dict[str, tuple[str, str]]:
    """The trainer's name for what steps the parameters, with its source, by the name `optim`; empty where nothing says it."""
    taken = next((each for each in keys.taken if each.key == has.names["optimizer"]), None)
    return {} if taken is None else {"optim": (str(taken.value), taken.source)}


def _sharded(keys: Keys, data: Mapping[str, Any], said: Said, has: Arguments, notes: list[str]) -> Configuration:
    """FSDP's part, by its keys or by the file that Accelerate is launched with; or copies of everything. Raises InputError."""
    launched = said.variables.get(ACCELERATE)
    if launched not in (None, "none"):
        text = said.variables.get(WRITTEN)
        file = Path(launched) if text is not None else beside(Path(keys.where), launched, keys, f"{SET} {ACCELERATE}")
        inner = replace(said, dtype=has.dtype, recompute="full" if has.again else "none", variables={})
        made = accelerate_reader.read(file, inner, _stepped(keys, has), text)
        if made.accumulation not in (None, has.accumulation):
            problem, fix = f"is {has.accumulation}, and {made.accumulation} in {launched}", "give the same in both"
            raise keys.error(has.names["accumulation"], problem, fix)
        if made.runtime == "deepspeed":  # which widens what it steps
            return made
        dtype = made.dtype if has.dtype == "float32" else has.dtype
        masters = _masters(has, made.zero > 0, has.version, notes)
        return replace(made, dtype=dtype, precision=MASTERS if dtype != "float32" and masters and not made.host else PLAIN)
    words = _words(keys)
    table = data.get("fsdp_config")
    if table is not None and not isinstance(table, Mapping):
        raise keys.error("fsdp_config", f"is {shown(table)}", "write out what that file holds")
    asked = bool(words) or bool(table)
    if not asked and has.sizes.get("dp_shard", 1) > 1:
        fix = f"give fsdp_config, too: {has.tool} shares no states without it"
        raise keys.error(has.names.get("shard", "parallelism_config.dp_shard_size"), f"is {has.sizes['dp_shard']}", fix)
    shared, version = Sharding(0, None, None), 1
    if asked:
        find = _fsdp_key(keys)
        strategy = next((word for word in FSDP_WORDS[:5] if word in words), None)
        version = keys.whole(find("version"), has.version) or has.version
        version = 1 if strategy in FSDP_WORDS[2:5] else version  # which version 2 does not have
        if strategy is not None and keys.values.get(find("sharding_strategy")) is None:
            value = strategy.upper() if version == 1 else strategy == "full_shard"
            keys.values.setdefault(find("reshard_after_forward"), value)
        if words and "auto_wrap" not in words and keys.values.get(find("auto_wrap_policy")) is None:
            notes.append(NOT_WRAPPED)
        if "offload" in words:
            keys.values.setdefault(find("cpu_offload"), True)
        shared = fsdp(keys, find, has.sizes, None, version, notes, WRAPS[0])
    elif has.tp > 1 or has.cp > 1:
        raise keys.error("fsdp_config", "is missing", "give it: tensor and context parallelism go with FSDP")
    half = has.dtype != "float32"
    masters = _masters(has, asked, version, notes)
    host: tuple[Host, ...] = ("optimizer", "parameters") if shared.offloads else ()
    if host and half and masters:
        notes.append(ON_HOST)
    return Configuration(
        where=keys.where, runtime="accelerate", software="PyTorch FSDP (Accelerate)" if asked else "PyTorch DDP (Accelerate)",
        dtype=has.dtype, precision=MASTERS if half and masters and not host else PLAIN, zero=shared.zero, host=host,
        copies=shared.copies, shard=shared.shard, within_nodes=shared.within_nodes,
        recomputed=Recomputed("full" if has.again or shared.again else "none"),
        taken=keys.taken, undecided={} if asked or launched or not has.launched else {"zero": LAUNCHED},
    )  # fmt: skip


def _masters(has: Arguments, shared: bool, version: int, notes: list[str]) -> bool:
    """Whether what is stepped is in float32: as it is loaded, or widened by Accelerate for FSDP in mixed precision
    (`fsdp2_prepare_model`, and `prepare_model` for version 1)."""
    masters = has.masters or (shared and has.mixed and (version == 1 or has.widened))
    if has.dtype != "float32" and not masters:
        notes.append("parameters and moments are in half precision, as they are loaded: no float32 masters")
    return masters


def _words(keys: Keys) -> list[str]:
    """The words of transformers' `fsdp`, a list or a text; true is all of it. Raises InputError."""
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


def _fsdp_key(keys: Keys) -> Any:
    """Where an option of FSDP stands: within `fsdp_config`, or alone, with or without `fsdp_`."""

    def find(name: str) -> str:
        indices = (f"fsdp_config.fsdp_{name}", f"fsdp_config.{name}", f"fsdp_{name}")
        return next((index for index in indices if index in keys.values), indices[0])

    return find


def finished(made: Configuration, keys: Keys, known: KnownKeys) -> Configuration:
    """The configuration, with the keys that were not read. Raises InputError for one that bears on what runs."""
    unread, unknown = keys.left(known)
    own = {each.key for each in keys.taken}
    taken = (*keys.taken, *(each for each in made.taken if each.key not in own))
    return replace(made, unread=(*unread, *made.unread), unknown=(*unknown, *made.unknown), taken=taken)


def refuse_all(keys: Keys, refused: Mapping[str, str]) -> None:
    """Raises InputError where a key asks for what no plan has. refused: why, by key."""
    for key, why in refused.items():
        keys.refuse(key, ("false", "0", "none", "[]"), why)
    for key in list(keys.values):
        table = key.split(".")[0]
        if table != key and table in refused and table not in keys.ignored:
            raise keys.error(key, f"is {shown(keys.values[key])}", f"leave {table} out: {refused[table]}")
