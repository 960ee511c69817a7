"""Commands of scripts that start a run: Megatron-LM's with its arguments, torchtitan's with a TOML file and overrides,
Megatron-Bridge's with a recipe and overrides, programs of transformers' Trainer with its arguments."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import written
from trainplan.execution.launch_files.foreign import foreign, shares_keys
from trainplan.execution.launch_files.lines import sources_of
from trainplan.execution.launch_files.run_configuration import KeyReader, RunConfiguration, UserSettings, example_of, flattened
from trainplan.execution.launch_files.settings import ACCELERATE, WRITTEN
from trainplan.execution.launch_files.shell import Command, UndecidedRun, command_of
from trainplan.execution.launch_files.shell.marks import MARK
from trainplan.execution.runtimes.accelerate import reader as accelerate_reader
from trainplan.execution.runtimes.megatron import reader as megatron_reader
from trainplan.execution.runtimes.megatron.programs import refuse_others
from trainplan.execution.runtimes.megatron_bridge import commands as megatron_bridge_commands
from trainplan.execution.runtimes.torchtitan import reader as torchtitan_reader
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.imported_runs import deepspeed_programs, exported, trainer_commands
from trainplan.profiling.base.errors import COMMAND_LINE, InputError

FILES = ("--job.config-file", "--job.config_file", "--job.config")
LAUNCHERS = {"accelerate", "accelerate-launch", "accelerate.commands.launch"}
REGISTRY = ("--module", "--config")
# What programs of TRL and others train by, where that is no next-token prediction, in their names.
OTHER_STEPS = re.compile(r"(?:^|[_-])(dpo|kto|ppo|grpo|rloo|orpo|cpo|bco|gkd|prm|reward)(?:[_.-]|$)")


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """Read the run configuration of the training command that a file starts. path: a script, or a file with a list of
    arguments. user: settings that the user adds, such as --set values. Raises InputError for values that are not read, or
    that plans cannot have.
    """
    try:
        command = command_of(path, user.variables)
    except UndecidedRun as error:
        refuse_others(error.program, {}, str(path), {})  # nobody is asked for values of a run that is refused
        raise
    return of_command(command, str(path), user, path.parent)


def of_command(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration:
    """Read the run configuration of a command that starts training, by the tool that it uses.

    command: the program and its arguments, as found in a script. where: the script, for errors. user: settings that the
    user adds, such as --set values. folder: the script's folder, from which relative paths are looked up. Raises InputError
    for tools and values that are not read.
    """
    try:
        return _of_command(command, where, user, folder)
    except InputError as error:
        key = f"--{error.command_field.lstrip('-').replace('_', '-')}"
        if (empty := command.blank.get(key)) is None:
            raise
        fix = f"say what the variable is: --set {empty.name}={example_of(key, empty.name)}"
        raise InputError(where, key, empty.problem, fix) from None


def _of_command(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration:
    """Read the run configuration of a command that starts training, by the tool that it uses; errors are as the tool's reader
    words them.

    where: the script, for errors. user: settings that the user adds, such as --set values. folder: the script's folder,
    from which relative paths are looked up. command: the program and its arguments, as found in the script. Raises
    InputError for values that are not read, or that plans cannot have.
    """
    if (run := exported.of_command(command, where, user, folder)) is not None:
        return run
    if deepspeed_programs.is_one(command):
        return deepspeed_programs.of_command(command, where, user, folder)
    if trainer_commands.is_one(command):
        _next_token(command, where)
        _closed(command, where)
        user = replace(user, launched=_launch_options(command, where))
        return trainer_commands.of_command(command, where, user, folder, _accelerate(command, where))
    if command.tool == "transformers":
        return _transformers(command, where, user, folder)
    unknown_program = command.program and not command.tool and not shares_keys(command)
    if unknown_program and not megatron_bridge_commands.is_one(command):
        refuse_others(command.program, command.values, where, command.open)
        raise foreign(command, where)
    if user.recompute is not None:
        fix = f"leave it out: arguments of {command.tool or 'megatron'} say what is recomputed"
        raise InputError(COMMAND_LINE, "--recompute", f"is {user.recompute!r}", fix)
    if command.tool == "torchtitan":
        return _torchtitan(command, where, user, folder)
    if megatron_bridge_commands.is_one(command):
        _closed(command, where)
        return megatron_bridge_commands.of_command(command, where, user, folder)
    return megatron_reader.of_command(command, where, user)


def _closed(command: Command, where: str) -> None:
    """Raise InputError if an argument of a command depends on a shell variable whose value is not known from the script.
    command: the program and its arguments. where: the script, for errors.
    """
    for key, open_ in command.open.items():
        raise InputError(where, key, open_.problem, f"say it: --set {open_.name or 'NAME'}={open_.example or 'VALUE'}")


def _next_token(command: Command, where: str) -> None:
    """Raise InputError if the name of a command's program shows that it trains otherwise than by next-token prediction, such
    as by DPO. command: the program and its arguments. where: the script, for errors.
    """
    if (kind := OTHER_STEPS.search(command.program.rsplit("/", 1)[-1].lower())) is not None:
        fix = "give a run of next-token prediction: steps with other models, or that generate texts, are not planned"
        raise InputError(where, "", f"starts {command.program} ({command.where}), a run of {kind[1].upper()}", fix)


def _transformers(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration:
    """Read the run configuration of a command with arguments of transformers' Trainer, and of the file that Accelerate is
    launched with.

    where: the script, for errors. user: settings that the user adds, such as --set values. folder: the script's folder,
    from which relative paths are looked up. command: the program and its arguments, as found in the script. Raises
    InputError for values that are not read, or that plans cannot have.
    """
    _next_token(command, where)
    names = {key: key.removeprefix("--").replace("-", "_") for key in command.values}
    values = {name: written(command.values[key]) for key, name in names.items()}
    sources = {names[key]: source for key, source in command.sources.items() if key in names}
    undecided = {names[key]: value for key, value in command.open.items() if key in names}
    engine = command.held(str(values.get("deepspeed")))
    if engine is not None:
        values["deepspeed"] = written(engine)
    keys = KeyReader(
        where, flattened(values), (None,), sources, transformers_reader.DEFAULTS, user.ignored, undecided=undecided
    )
    options = _launch_options(command, where)
    user = replace(user, launched=options)
    if ACCELERATE not in user.variables and (launched_by := _accelerate(command, where)) is not None:
        text = command.held(launched_by)
        user = replace(user, variables={**user.variables, ACCELERATE: launched_by} | ({} if text is None else {WRITTEN: text}))
    run = transformers_reader.of_keys(values, keys, folder / Path(where).name, user)
    if run.devices is not None and command.devices not in (None, run.devices):
        raise InputError(
            where, "", f"starts {command.devices} processes, and its file says {run.devices}", "give the same in both"
        )
    return replace(run, devices=run.devices or command.devices)


def _accelerate(command: Command, where: str) -> str | None:
    """The name of the configuration file that `accelerate launch` reads in a command: "none" if another launcher is used; None
    if no file is named, so that it may be Accelerate's default file.

    command: the program and its arguments. where: the script, for errors. Raises InputError if options of the launcher say
    how states are sharded although no file is named.
    """
    words = [word.rsplit("/", 1)[-1] for word in command.launcher]
    if not LAUNCHERS & set(words):
        return "none"
    given = _options(command.launcher)
    if "config_file" in given:
        return given["config_file"]
    shares = sorted(name for name in given if name.startswith(("use_deepspeed", "use_fsdp", "fsdp_", "zero")))
    if shares:
        fix = "write it into a file, and give that by --config_file: without one it may be of Accelerate's own default"
        raise InputError(where, f"--{shares[0]}", "is given to accelerate launch", fix)
    return None


def _options(words: Sequence[str]) -> dict[str, str]:
    """The options among a launcher's words, by name with underscores: ["accelerate", "launch", "--num-processes", "8",
    "--use_fsdp"] -> {"num_processes": "8", "use_fsdp": ""}."""
    given = dict[str, str]()
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name.startswith("--"):
            next_word = words[index + 1] if index + 1 < len(words) else ""
            given[name[2:].replace("-", "_")] = value if sign else "" if next_word.startswith("--") else next_word
    return given


def _launch_options(command: Command, where: str) -> dict[str, tuple[Any, str]]:
    """The values of Accelerate's configuration file that options of `accelerate launch` override, as {key of the file: (value,
    source)}. A value is None if a number of processes or machines depends on an unknown variable; the cluster's number is
    then used.

    command: the command, with the launcher's words. where: the script, for errors. Raises InputError for any other option
    with an unknown variable.
    """
    if not LAUNCHERS & {word.rsplit("/", 1)[-1] for word in command.launcher}:
        return {}
    options = dict[str, tuple[Any, str]]()
    for name, value in _options(command.launcher).items():
        if (key := accelerate_reader.key_of_option(name)) is None:
            continue
        option_value: Any = accelerate_reader.KIND_OPTIONS.get(name) or (
            written(value) if key.startswith("deepspeed") else value or True
        )
        if MARK.search(value):
            if name not in accelerate_reader.COUNTS:
                fix = "say what its variable is: --set NAME=VALUE"
                raise InputError(where, f"--{name}", "of accelerate launch is not decided", fix)
            option_value = None  # the cluster's number, whatever the file has
        options[key] = (option_value, f"--{name} of accelerate launch ({command.where})")
    return options


def _torchtitan(command: Command, where: str, user: UserSettings, folder: Path) -> RunConfiguration:
    """Read the run configuration of torchtitan's TOML file, with the command's arguments that override it.

    where: the script, for errors. user: settings that the user adds, such as --set values. folder: the script's folder,
    from which relative paths are looked up. command: the program and its arguments, as found in the script. Raises
    InputError for values that are not read, or that plans cannot have.
    """
    _closed(command, where)
    name = next((str(command.values[key]) for key in FILES if isinstance(command.values.get(key), str)), None)
    if name is None:
        named = command.values.get("--config")
        fix = "give its TOML file, or config_registry.py" + (f" with --set config={named}" if isinstance(named, str) else "")
        raise InputError(where, "", f"starts {command.program} ({command.where}), a run of torchtitan, without a file", fix)
    file = folder / command.directory / name
    text = command.held(name)
    if text is None and not file.is_file():
        fix = "give that file, and what overrides it by --set section.key=VALUE"
        raise InputError(where, "--job.config_file", f"is {name}, which is not there", fix)
    try:
        tables = tomllib.loads(file.read_text() if text is None else text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(str(file), "", f"cannot be read ({error})", "give a TOML file of torchtitan") from None
    sources = sources_of(file) if text is None else {}
    for key, value in command.values.items():
        if key in FILES or "." not in key:
            continue
        section, _, field = key.removeprefix("--").partition(".")
        field = field.replace("-", "_")
        off = field.startswith("no_")  # as tyro spells false
        field = field.removeprefix("no_")
        tables.setdefault(section.replace("-", "_"), {})[field] = not off if value is True else written(value)
        sources[f"{section.replace('-', '_')}.{field}"] = command.sources.get(key, where)
    run = torchtitan_reader.of_tables(tables, str(file) if text is None else where, user, sources)
    return replace(run, devices=command.devices)
