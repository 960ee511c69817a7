"""Commands that start Megatron-Bridge's scripts: `run_recipe.py` and `run_script.py --recipe NAME` with overrides of the
recipe, and its examples `pretrain_NAME.py`, which read a YAML file of overrides (`--config-file`, or one in their folder
`conf`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import read_document, written
from trainplan.execution.launch_files.lines import sources_of
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UserSettings, flattened
from trainplan.execution.launch_files.shell import Command
from trainplan.execution.runtimes.megatron.environment import refuse_environment
from trainplan.execution.runtimes.megatron_bridge import reader as megatron_bridge_reader
from trainplan.execution.runtimes.megatron_bridge.recipes import END
from trainplan.profiling.base.errors import InputError, shown

RUNNERS = ("run_recipe.py", "run_script.py")
EXAMPLE = re.compile(r"pretrain_(\w+)\.py")
OVERRIDE = re.compile(rf"[+~]{{0,2}}(?:{'|'.join(megatron_bridge_reader.SECTIONS)})\.\w[\w.]*=")
FILE = "--config-file"
BACKEND = ("model.attention_backend", "auto")  # as configurations of Megatron Core have it
OTHERWISE = {  # options by which these scripts train another model, or otherwise
    "--hf-path": "the recipe has its own model; another one's recipe is given by --set recipe=NAME",
    "--mode": "recipes of fine-tuning are not read",
    "--peft-scheme": "adapters are not planned",
}


def is_one(command: Command) -> bool:
    """Whether a command of a script starts one of Megatron-Bridge's training scripts."""
    name = command.program.rsplit("/", 1)[-1]
    overridden = FILE in command.values or any(OVERRIDE.match(word) for word in command.words)
    plain = command.tool in ("", "megatron") and "--num-layers" not in command.values
    return plain and (name in RUNNERS or (EXAMPLE.fullmatch(name) is not None and overridden))


def of_command(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration:
    """The run configuration of a command that starts one of Megatron-Bridge's scripts. where: the file of the command, for
    errors. folder: the folder of that file. user: the settings that the user gives in addition to the file. Raises InputError
    for a key or value that is invalid or that no plan can have."""
    name = command.program.rsplit("/", 1)[-1]
    refuse_environment(KeyReader(where, command.values, sources=command.sources, ignored=user.ignored), *BACKEND)
    words, own = _apart(command.words)
    for option, why in OTHERWISE.items():
        if own.get(option, "pretrain") != "pretrain":
            raise InputError(where, option, f"is {shown(own[option])}", f"leave it out: {why}")
    recipe, notes = user.variables.get("recipe", own.get("--recipe")), list[str]()
    example = EXAMPLE.fullmatch(name)
    if recipe is None:
        if example is None:
            fix = "give its recipe by --set recipe=NAME, such as llama3_8b_pretrain_config, or the log of the run"
            raise InputError(where, "--recipe", f"is missing: {name} of Megatron-Bridge takes one of its own choice", fix)
        recipe = f"{example[1]}{END}"
        notes.append(f"{name} is taken for Megatron-Bridge's own, of the recipe {recipe}; another one: --set recipe=NAME")
    values, sources = _overrides(command, own.get(FILE), where, folder, example[1] if example else "")
    run = megatron_bridge_reader.of_overrides(words, where, user, recipe, values, sources)
    return replace(run, devices=command.devices, notes=(*notes, *run.notes))


def _apart(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split the words of a command into the overrides of a recipe and the script's own options: ["--recipe", "llama3",
    "train.micro_batch_size=1"] -> (["train.micro_batch_size=1"], {"--recipe": "llama3"})."""
    kept, own, rest = list[str](), dict[str, str](), list(words)
    while rest:
        word = rest.pop(0)
        name, sign, text = word.partition("=")
        option = name.replace("_", "-")
        if option in (FILE, "--recipe", *OTHERWISE):
            own[option] = text if sign else rest.pop(0) if rest else ""
        else:
            kept.append(word)
    return kept, own


def _overrides(
    command: Command, named: str | None, where: str, folder: Path, example: str
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The values in a YAML file of overrides under keys joined by dots, and the file and line of each key; both empty if the
    command has no such file. named: the file's name as the command gives it; None if it does not. where: the file of the
    command. folder: its folder. example: the name of an example script, which has a file of its own; empty for other scripts.
    Raises InputError if the file does not exist."""
    if named is None and not example:
        return {}, {}
    own = Path(command.program).parent / "conf" / f"{example}_pretrain_override_example.yaml"
    name = str(own) if named is None else named
    file = folder / command.directory / name
    if (text := command.files.get(name)) is not None:
        data, sources = written(text), dict[str, str]()
    elif file.is_file():
        data, sources = read_document(file), dict(sources_of(file))
    else:
        what = "is not given, and the script reads" if named is None else "is"
        raise InputError(where, FILE, f"{what} {name}, which is not there", "give that file, in that place")
    if not isinstance(data, Mapping):
        raise InputError(str(file), "", "holds no sections", "give sections such as model and train")
    return flattened(data), sources
