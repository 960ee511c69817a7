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
AXOLOTL = ("--launcher", "--num-processes", "--main-process-port", "--accelerate", "--cloud")  # of its launch, and no keys


def is_one(command: Command) -> bool:
    """Whether a command names a trainer's configuration file."""
    return command.tool in TOOLS and (bool(command.tool) or not shares_keys(command)) and file_of(command) is not None


def of_command(command: Command, where: str, user: UserSettings, folder: Path, launched: str | None) -> RunConfiguration:
    """The run configuration of such a command. where: the script, for errors. folder: its folder. launched: the file that
    Accelerate is launched with; "none" for other launchers, None if unknown. Raises InputError."""
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
    made_by = user.variables.get(ACCELERATE, launched)
    own = {
        key: text
        for key, text in overrides(command).items()
        if tool != "axolotl" or f"--{key.replace('_', '-')}" not in AXOLOTL
    }
    sources = {key: command.sources.get(spelt, command.where) for key, (spelt, _) in own.items()}
    variables = {key: text for key, (_, text) in own.items()}
    if made_by is not None:
        variables[ACCELERATE] = made_by
        if (text := command.held(made_by)) is not None:
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
    """A variable by which LLaMA-Factory's command counts nodes or processes of a node; None if it is not given."""
    text = command.environment.get(name, "")
    return int(text) if text.isdecimal() and command.tool == "llamafactory-cli" else None
