"""Programs with DeepSpeed's own arguments (`deepspeed.add_config_arguments`, 0.19): `--deepspeed` has no value, and
`--deepspeed_config` names DeepSpeed's file. They differ from transformers' Trainer, whose `--deepspeed` names the file. The
file holds batch, precision and ZeRO stage; arguments give the model, its samples and whether layers are recomputed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.foreign import shares_keys
from trainplan.execution.launch_files.lines import text_sources
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UserSettings
from trainplan.execution.launch_files.shell import Command
from trainplan.execution.runtimes.accelerate.reader import find_named_file
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.execution.runtimes.megatron.programs import refuse_others
from trainplan.execution.runtimes.transformers.reader import KNOWN, REFUSED, SEQUENCES
from trainplan.execution.runtimes.transformers.trainer import refuse_all
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown

FILE = "--deepspeed-config"
OPTIMIZER = "by the program itself, as those of DeepSpeedExamples step"
LENGTHS = ("max_seq_len", *SEQUENCES)
MODELS = ("model_name_or_path", "model_name")
LOCAL = frozenset(("local_rank",))  # arguments that DeepSpeed's launcher adds
# Arguments of programs for values that DeepSpeed's file has, too, with the file's keys.
FILLING = {
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "zero_stage": "zero_optimization.stage",
}


def is_one(command: Command) -> bool:
    """Whether a command starts a program with DeepSpeed's own arguments, with `--deepspeed_config` naming DeepSpeed's JSON
    file. command: the program and its arguments, as found in the script.
    """
    flagged = command.values.get("--deepspeed") in (None, True, "true", "True")
    return command.tool in ("", "transformers") and flagged and FILE in command.values and not shares_keys(command)


def of_command(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration:
    """Read the run configuration of a program with DeepSpeed's own arguments, and of the DeepSpeed file that it names.

    where: the script, for errors. user: settings that the user adds, such as --set values. folder: the script's folder,
    from which relative paths are looked up. command: the program and its arguments, as found in the script. Raises
    InputError for values that are not read, or that plans cannot have.
    """
    refuse_others(command.program, command.values, where, command.open)
    name_of = {key: key.removeprefix("--").replace("-", "_") for key in command.values}
    values = {name: command.values[key] for key, name in name_of.items()}
    sources = {name_of[key]: source for key, source in command.sources.items() if key in name_of}
    undecided = {name_of[key]: value for key, value in command.open.items() if key in name_of}
    defaults = f"what {command.program} does without it"
    keys = KeyReader(where, values, sources=sources, defaults=defaults, ignored=user.ignored, undecided=undecided)
    keys.read.update(("deepspeed", *LOCAL))
    refuse_all(keys, REFUSED)
    recomputes = _recomputes(keys, user, where)
    given: dict[str, tuple[Any, str]] = {"optim": ("FusedAdam", OPTIMIZER)}
    for key, field in FILLING.items():
        if (number := keys.whole(key, least=0)) is not None:
            given[field] = (number, f"{key} ({keys.source(key)})")
    keys.read.update(("bf16", "fp16"))
    for key in ("bf16", "fp16"):
        if keys.values.get(key) is not None and keys.flag(key):
            given[f"{key}.enabled"] = (True, f"{key} ({keys.source(key)})")
    run = _file(command, keys, folder / Path(where).name, replace(user, recompute=recomputes, model=None), given)
    lengths = {key: length for key in LENGTHS if (length := keys.whole(key)) is not None}
    if len(set(lengths.values())) > 1:
        first, other = list(lengths)[:2]
        problem = f"is {lengths[other]}, and {first} is {lengths[first]}"
        raise keys.error(other, problem, "give one of them: what cuts samples is not known")
    model = next((keys.text(key, "") for key in MODELS if keys.values.get(key) is not None), None)
    unread, unknown = keys.left(KNOWN)
    named = {"sequence": next(iter(lengths), LENGTHS[0]), "model": MODELS[0]}
    return replace(
        run, where=where, tool="deepspeed", model=model, sequence=next(iter(lengths.values()), None), devices=command.devices,
        keys={**run.keys, **named}, unread=(*unread, *run.unread), unknown=(*unknown, *run.unknown),
        taken=(*keys.taken, *run.taken),
    )  # fmt: skip


def _recomputes(keys: KeyReader, user: UserSettings, where: str) -> str | None:
    """Whether the run recomputes activations: "full" or "none", as an argument of the program or the user's setting says; None
    if neither says so.

    keys: the program's arguments. user: settings that the user adds, such as --set values. where: the script, for errors.
    Raises InputError if both say so and differ.
    """
    flags = [key for key in ("gradient_checkpointing", "activation_checkpointing") if key in keys.values]
    if not flags:
        return user.recompute
    recomputes = "full" if any(list(map(keys.flag, flags))) else "none"
    if user.recompute not in (None, recomputes):
        problem = f"is {user.recompute}, and {where} says otherwise"
        raise InputError(COMMAND_LINE, "--recompute", problem, "leave it out, or change the file")
    return recomputes


def _file(
    command: Command, keys: KeyReader, path: Path, user: UserSettings, given: Mapping[str, tuple[Any, str]]
) -> RunConfiguration:
    """Read the run configuration of DeepSpeed's JSON file, which either the script writes itself or which lies near it.

    command: the command, which has the files that the script writes. keys: the program's arguments. path: the script. user:
    settings that the user adds, such as --set values. given: by key of DeepSpeed's file, a value that the program fills in
    and where it is from. Raises InputError for values that are not read, or that plans cannot have.
    """
    name = keys.get("deepspeed_config")
    if not isinstance(name, str):
        raise keys.error("deepspeed_config", f"is {shown(name)}", "give the name of DeepSpeed's file, such as ds_config.json")
    text = command.held(name)
    if text is None:
        return deepspeed_reader.read_filled(find_named_file(path, name, keys, "deepspeed_config"), user, given)
    try:
        data = json.loads(text)
    except ValueError:
        raise InputError(name, "", "is no JSON", "give DeepSpeed's configuration, alongside the script") from None
    if not isinstance(data, Mapping):
        raise InputError(name, "", f"holds {shown(data)}", "give an object, as DeepSpeed's configurations are")
    return deepspeed_reader.of_values(data, name, user, text_sources(text, name), given=given)
