"""Commands of scripts that start a run: Megatron-LM's with its arguments, torchtitan's with a TOML file and what overrides it,
Megatron-Bridge's with a recipe and what overrides it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from trainplan.configurations import megatron, megatron_bridge, torchtitan
from trainplan.configurations.configuration import Configuration, Said
from trainplan.configurations.documents import written
from trainplan.configurations.lines import sources_of
from trainplan.configurations.shell import Command, command_of
from trainplan.profiling.base.errors import InputError

FILES = ("--job.config-file", "--job.config_file", "--job.config")
REGISTRY = ("--module", "--config")


def read(path: Path, said: Said) -> Configuration:
    """The configuration of a script or a list of arguments. Raises InputError."""
    return of_command(command_of(path, said.variables), str(path), said, path.parent)


def of_command(command: Command, where: str, said: Said, folder: Path) -> Configuration:
    """The configuration that a command stands for. folder: of the script, by which paths are found. Raises InputError."""
    if command.tool == "torchtitan":
        return _torchtitan(command, where, said, folder)
    if command.tool in ("", "megatron") and command.program.endswith("run_recipe.py") and "--recipe" in command.values:
        _closed(command, where)
        made = megatron_bridge.of_overrides(command.words, where, said)
        return replace(made, devices=command.devices)
    return megatron.of_command(command, where, said)


def _closed(command: Command, where: str) -> None:
    """Raises InputError where an argument is not decided."""
    for key, open_ in command.open.items():
        raise InputError(where, key, open_.problem, f"say it: --set {open_.name or 'NAME'}={open_.example or 'VALUE'}")


def _torchtitan(command: Command, where: str, said: Said, folder: Path) -> Configuration:
    """torchtitan's TOML file, with the arguments that override it."""
    _closed(command, where)
    name = next((str(command.values[key]) for key in FILES if isinstance(command.values.get(key), str)), None)
    if name is None:
        named = command.values.get("--config")
        fix = "give its TOML file, or config_registry.py" + (f" with --set config={named}" if isinstance(named, str) else "")
        raise InputError(where, "", f"starts {command.program} ({command.where}), a run of torchtitan, without a file", fix)
    file = folder / command.directory / name
    text = command.files.get(name)
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
    made = torchtitan.of_tables(tables, str(file) if text is None else where, said, sources)
    return replace(made, devices=command.devices)
