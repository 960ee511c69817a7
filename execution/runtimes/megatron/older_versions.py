"""Names of Megatron-LM's arguments in older versions and in Megatron-DeepSpeed, and what DeepSpeed's engine adds.

Older names as of `megatron/training/arguments.py` before core 0.4 (2023), which says what replaced them; those of
Megatron-DeepSpeed as of its `megatron/arguments.py` (2024). There, the file of `--deepspeed_config` holds ZeRO stage, precision
and batch.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.lines import text_sources
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UndecidedValue, UserSettings
from trainplan.execution.launch_files.shell import Command
from trainplan.execution.launch_files.trainer_buffers import NO_BUFFERS, Buffers
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.execution.runtimes.megatron.environment import ATTENTION, refuse_environment
from trainplan.profiling.base.errors import InputError, shown

OLDER = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--pipe-parallel-size": "--pipeline-model-parallel-size",
    "--batch-size": "--micro-batch-size",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-method": "--recompute-method",
    "--activations-checkpoint-granularity": "--recompute-granularity",
    "--layernorm-epsilon": "--norm-epsilon",
    "--rotary-position-embeddings-theta": "--rotary-base",
    "--rotary-theta": "--rotary-base",
    "--rope-theta": "--rotary-base",
    "--num-key-value-heads": "--num-query-groups",
    "--ds-sequence-parallel-size": "--context-parallel-size",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--pad-vocab-size-to": "--padded-vocab-size",
}
# What an argument that stands alone says in today's arguments.
MEANS: dict[str, dict[str, Any]] = {
    "--checkpoint-activations": {"--recompute-granularity": "full", "--recompute-method": "uniform"},
    "--fp8-hybrid": {"--fp8-format": "hybrid"},
    "--fp8-e4m3": {"--fp8-format": "e4m3"},
    "--glu-activation": {"--swiglu": True},  # of BigScience's: swiglu, geglu, liglu or reglu
    "--use-llama2-rotary-position-embeddings": {"--position-embedding-type": "rope"},  # of Pai-Megatron-Patch
    "--use-alibi-mask": {"--position-embedding-type": "alibi"},
    "--num-key-value-heads": {"--group-query-attention": True},
    "--ds-sequence-parallel-size": {"--cp-comm-type": "a2a"},
}
GONE = ("--checkpoint-activations", "--glu-activation", "--use-llama2-rotary-position-embeddings", "--use-alibi-mask")
CORE, DEEPSPEED, BEFORE = "Megatron-LM core 0.15", "Megatron-DeepSpeed of 2024", "Megatron-LM before core 0.4"
OF_DEEPSPEED = ("--deepspeed", "--deepspeed-config", "--zero-stage", "--deepspeed-activation-checkpointing")
OF_OLDER = (
    *("--checkpoint-activations", "--checkpoint-num-layers", "--DDP-impl", "--model-parallel-size", "--batch-size"),
    *("--activations-checkpoint-method", "--no-contiguous-buffers-in-local-ddp", "--distribute-checkpointed-activations"),
)
FLASH = (
    "--use-flash-attn",
    "--use-flash-attn-v1",
    "--use-flash-attn-v2",
    "--use-flash-attn-triton",
    "--use-flash-attn-builder",
)


def tool_of(values: Mapping[str, Any]) -> str:
    """The tool and version whose defaults apply to a set of arguments (Megatron-DeepSpeed, an older Megatron-LM, or today's
    Megatron Core), recognised by arguments that others lack. values: the arguments by name."""
    given = {key for key, value in values.items() if value not in (None, False)}
    return DEEPSPEED if given & set(OF_DEEPSPEED) else BEFORE if given & set(OF_OLDER) else CORE


def with_todays_names(
    values: Mapping[str, Any], sources: Mapping[str, str], undecided: Mapping[str, UndecidedValue]
) -> tuple[dict[str, Any], dict[str, str], dict[str, UndecidedValue]]:
    """Arguments of older versions of Megatron-LM under the names that today's version has. values: the arguments by name.
    sources: file and line by name. undecided: those whose value nobody has given. Returns all three under today's names. An
    argument given under today's name takes precedence over its older names."""
    result, where, left = dict(values), dict(sources), dict(undecided)
    for old, means in MEANS.items():
        if values.get(old) not in (None, False):
            for name, value in means.items():
                if name not in result:
                    result[name], where[name] = value, sources.get(old, "")
                    if old in undecided:
                        left[name] = undecided[old]
    for old, name in OLDER.items():
        if old in result:
            value = result.pop(old)
            if name not in values:
                result[name], where[name] = value, sources.get(old, "")
                if old in left:
                    left[name] = left.pop(old)
    for gone in GONE:
        result.pop(gone, None)
    where = {name: source for name, source in where.items() if source}
    return result, where, left


def engine_of(command: Command, where: str, user: UserSettings) -> RunConfiguration | None:
    """The run configuration of DeepSpeed's file, for a command of Megatron-DeepSpeed that uses DeepSpeed; None for other
    commands. where: the file of the command. user: the settings that the user gives in addition to the file. Raises InputError
    if DeepSpeed's file does not exist or is not valid."""
    name = command.values.get("--deepspeed-config")
    if not command.values.get("--deepspeed") and name is None:
        return None
    if "--deepspeed-config" in command.open:
        KeyReader(where, command.values, undecided=command.open).get("--deepspeed-config")
    text = None if not isinstance(name, str) else _text(command, where, name)
    if text is None:
        problem = f"is {shown(name)}, which is not here" if isinstance(name, str) else "is missing"
        fix = "give DeepSpeed's file alongside the script: it says ZeRO's stage, and what is on the host"
        raise InputError(where, "--deepspeed-config", problem, fix)
    try:
        data = json.loads(text)
    except ValueError:
        unknown = re.search(r"\$(?:([A-Za-z_]\w*|\d+)|\(\.\.\))", text)
        if unknown is not None:
            problem = f"is {name}, which holds {unknown[0]}, that has no value"
            fix = f"say what it is: --set {unknown[1]}=VALUE" if unknown[1] else "give that file alongside the script"
            raise InputError(where, "--deepspeed-config", problem, fix) from None
        raise InputError(str(name), "", "is no JSON", "give DeepSpeed's configuration, alongside the script") from None
    if not isinstance(data, Mapping):
        raise InputError(str(name), "", f"holds {shown(data)}", "give an object, as DeepSpeed's configurations are")
    return engine_of_values(data, str(name), user, command.values, text_sources(text, str(name)))


def engine_of_values(
    data: Mapping[str, Any],
    where: str,
    user: UserSettings,
    arguments: Mapping[str, Any],
    sources: Mapping[str, str] | None = None,
) -> RunConfiguration:
    """The run configuration of the values in DeepSpeed's file, for a run of Megatron-DeepSpeed. data: the values as nested
    tables. where: DeepSpeed's file. arguments: the run's other arguments by name. sources: file and line of the file's keys;
    None to state the file alone. user: the settings that the user gives in addition to the file. Raises InputError for a key or
    value that is invalid or that no plan can have."""
    stepped = {} if "optimizer" in data else {"optimizer.type": ("AdamW", f"{DEEPSPEED} (--optimizer)")}
    recomputes = "full" if arguments.get("--checkpoint-activations") else "none"
    return deepspeed_reader.of_values(data, where, replace(user, recompute=recomputes), sources, given=stepped)


def _text(command: Command, where: str, name: str) -> str | None:
    """The content of a file that a command names: a file that the script writes, or one in the script's folder; None if
    there is none. where: the script. name: the file as the command names it."""
    written = command.files.get(os.path.normpath(os.path.join(command.directory, name)))
    if written is not None:
        return written
    folder = Path(where).parent
    for path in (Path(command.directory) / name, folder / name, folder / Path(name).name):
        try:
            if path.is_file() and folder.resolve() in path.resolve().parents:
                return path.read_text()
        except (OSError, ValueError):
            continue
    return None


def refuse_disagreement(keys: KeyReader, engine: RunConfiguration, fields: Mapping[str, Any]) -> None:
    """Check that DeepSpeed's file and the arguments of Megatron-DeepSpeed agree on batch and dtype. engine: the run that
    DeepSpeed's file describes. fields: what the arguments give, by field of the run configuration. keys: gives the values of
    the file's keys, and records which keys have been read. Raises InputError if they disagree."""
    names = {"samples": "--global-batch-size", "micro_samples": "--micro-batch-size", "dtype": "--fp16"}
    for field, name in names.items():
        theirs, ours = getattr(engine, field), fields[field]
        if None not in (theirs, ours) and theirs != ours:
            raise keys.error(name, f"is {ours}, and {engine.where} says {theirs}", "give one of the two, in both")


def stage_of(keys: KeyReader, engine: RunConfiguration | None, notes: list[str]) -> int | None:
    """The ZeRO stage of a run of Megatron-DeepSpeed; None for other runs. engine: the run that DeepSpeed's file describes; None
    if there is no file. notes: a list to which lines on how the plan differs from the run are appended. keys: gives the values
    of the file's keys, and records which keys have been read. Raises InputError if DeepSpeed's file is missing or DeepSpeed
    would not start."""
    if not keys.flag("--deepspeed") and engine is None:
        return None
    keys.get("--deepspeed-config")
    written = keys.whole("--zero-stage", least=0)
    keys.flag("--deepspeed-activation-checkpointing")
    keys.flag("--cpu-optimizer")
    if engine is None:
        fix = "give the script that starts the run, and DeepSpeed's file alongside: it says what is on the host"
        raise keys.error("--deepspeed-config", f"is {shown(keys.get('--deepspeed-config'))}, which is not here", fix)
    stage = engine.zero
    if "--zero-stage" in keys.values and written != stage:
        notes.append(f"ZeRO's stage of {engine.where}, {stage}: --zero-stage {written} says it otherwise")
    if stage is None or stage > 3:
        raise keys.error("--zero-stage", f"is {stage}", "give 0, 1, 2 or 3")
    if stage > 1 and not keys.flag("--no-pipeline-parallel"):  # PipelineEngine of DeepSpeed asserts this
        if (keys.whole("--pipeline-model-parallel-size") or 1) > 1:
            fix = "give ZeRO's stage 0 or 1, or one stage of pipelines with --no-pipeline-parallel"
            raise keys.error("--zero-stage", f"is {stage}, with pipelines: DeepSpeed does not start such a run", fix)
        notes.append(f"no --no-pipeline-parallel: DeepSpeed starts no run of ZeRO {stage} without it; predicted as with it")
    return stage


def buffers_of(keys: KeyReader, engine: RunConfiguration | None, older: bool) -> Buffers:
    """The memory that the trainer holds in addition to states and activations, and how attention is computed if the arguments
    select it. engine: the run that DeepSpeed's file describes, if any. older: whether the version is one that fuses attention
    only on request. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for a
    key or value that is invalid or that no plan can have."""
    held = NO_BUFFERS if engine is None else engine.buffers
    backend = keys.text("--attention-backend")
    if not older:
        refuse_environment(keys, "--attention-backend", backend)
    local = keys.text("--transformer-impl") == "local"
    flash = [name for name in FLASH if keys.flag(name)]
    if backend in ("unfused", "local"):
        return replace(held, attention="eager")
    chosen = [str(keys.get(name)) for name in ATTENTION]
    if older and chosen[:2] == ["0", "0"] and not local:
        return replace(held, attention="eager")
    if flash or backend in ("flash", "fused"):
        return replace(held, attention="flash")
    return replace(held, attention="eager") if local or older else held
