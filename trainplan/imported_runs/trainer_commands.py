"""Commands that name a trainer's configuration file, with arguments that override its keys: LLaMA-Factory's (``llamafactory-cli
train a.yaml cutoff_len=2048``), axolotl's (``axolotl train a.yaml --micro-batch-size 2``), and programs of transformers and TRL
(``sft.py a.yaml --bf16=true``, ``sft.py --config a.yaml --bf16 true``), whatever launches them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainplan.execution.launch_files.documents import read_document
from trainplan.execution.launch_files.foreign import as_settings, file_of, foreign, overrides, shares_keys
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.launch_files.settings import ACCELERATE, WRITTEN
from trainplan.execution.launch_files.shell import Command
from trainplan.execution.runtimes.axolotl import reader as axolotl_reader
from trainplan.execution.runtimes.llama_factory import reader as llama_factory_reader
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.imported_runs.detect import reader_of
from trainplan.profiling.base.errors import COMMAND_LINE, InputError

READERS = {"axolotl": axolotl_reader.read, "llama-factory": llama_factory_reader.read, "transformers": transformers_reader.read}
TOOLS = ("", "transformers", "axolotl", "llamafactory-cli")
AXOLOTL = (
    "--launcher",
    "--num-processes",
    "--main-process-port",
    "--accelerate",
    "--cloud",
)  # options of its launcher, which are no keys of the file


def is_one(command: Command) -> bool:
    """Whether a command starts a trainer (axolotl, LLaMA-Factory or another) on a configuration file that it names. command:
    the program and its arguments, as found in the script.
    """
    return command.tool in TOOLS and (bool(command.tool) or not shares_keys(command)) and file_of(command) is not None


def of_command(command: Command, where: str, user: UserSettings, folder: Path, launched: str | None) -> RunConfiguration:
    """Read the run configuration of a command that names a trainer's configuration file, with the command's overrides.

    Args:
        command: the program and its arguments.
        where: the script that has the command, for errors.
        user: settings that the user adds, such as --set values.
        folder: the script's folder, from which relative paths are looked up.
        launched: the file that Accelerate is launched with; "none" for other launchers, None if unknown.

    Raises:
        InputError: for files and options that are not read.
    """
    name = str(file_of(command))
    named = (
        path for above in (folder / command.directory, Path(), *folder.resolve().parents) if (path := above / name).is_file()
    )
    file, given = next(named, None), as_settings(overrides(command))
    if file is None or command.held(name) is not None:
        what = "is not there" if file is None and command.held(name) is None else "the script writes"
        fix = f"give that file{f', with {given}' if given else ''}"
        raise InputError(where, "", f"starts {command.program} ({command.where}), configured by {name}, which {what}", fix)
    if file.resolve().is_relative_to(Path.cwd()):
        file = file.resolve().relative_to(Path.cwd())
    tool = reader_of(file, read_document(file))
    if tool not in READERS:
        raise foreign(command, where)
    if "--" in command.words:
        raise InputError(where, "--", "hands options to what launches the program", "leave them out, and give --cluster")
    if user.recompute is not None and tool != "transformers":
        fix = f"leave it out: files of {tool} say what is recomputed"
        raise InputError(COMMAND_LINE, "--recompute", f"is {user.recompute!r}", fix)
    launch_file = user.variables.get(ACCELERATE, launched)
    own = {
        key: text
        for key, text in overrides(command).items()
        if tool != "axolotl" or f"--{key.replace('_', '-')}" not in AXOLOTL
    }
    sources = {key: command.sources.get(spelt, command.where) for key, (spelt, _) in own.items()}
    variables = {key: text for key, (_, text) in own.items()}
    if launch_file is not None:
        variables[ACCELERATE] = launch_file
        if (text := command.held(launch_file)) is not None:
            variables[WRITTEN] = text
    run = READERS[tool](file, replace(user, variables=variables, sources=sources))
    if run.devices is not None and command.devices not in (None, run.devices):
        problem = f"starts {command.devices} processes, and its file says {run.devices}"
        raise InputError(where, "", problem, "give the same in both")
    nodes, per_node = (
        (_number(command, name) for name in ("NNODES", "NPROC_PER_NODE")) if tool == "llama-factory" else (None, None)
    )
    devices = nodes * per_node if nodes and per_node else None
    return replace(run, devices=run.devices or command.devices or devices, nodes=nodes)


def _number(command: Command, name: str) -> int | None:
    """The number of nodes, or of processes per node, that LLaMA-Factory's command takes from an environment variable that the
    script sets; None if it is not set, or for commands of other tools. command: the program and its arguments. name: the
    variable's name.
    """
    text = command.environment.get(name, "")
    return int(text) if text.isdecimal() and command.tool == "llamafactory-cli" else None
