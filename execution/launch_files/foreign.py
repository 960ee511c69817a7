"""Error messages for commands of tools other than Megatron-LM: which tool it is, and which of its files says what the command
runs."""

from __future__ import annotations

import shlex

from trainplan.execution.launch_files.shell import Command
from trainplan.execution.launch_files.shell.launchers import MEGATRON
from trainplan.profiling.base.errors import InputError

DOCUMENTS = (".yaml", ".yml", ".json")
LOG = "the log of the run"
# What to give for each tool, and the option of its command that names the file.
FILES = {
    "torchtitan": ("its configuration in TOML", ("--job.config-file", "--config-file")),
    "transformers": ("its DeepSpeed configuration in JSON, or that of Accelerate in YAML, with --model", ("--deepspeed",)),
    "axolotl": ("its configuration in YAML", ()),
    "llamafactory-cli": ("its configuration in YAML", ()),
    "nanotron": (LOG, ("--config-file",)),
    "gpt-neox": (LOG, ()),
    "nemo": ("the log of the run, or the YAML that it ran with (.hydra/config.yaml)", ("--config-name",)),
}


def shares_keys(command: Command) -> bool:
    """Whether a command has at least one of the arguments that identify Megatron-LM: sizes of a model, a batch or a parallel
    layout."""
    return not set(command.values).isdisjoint(MEGATRON)


def file_of(command: Command) -> str | None:
    """The YAML or JSON file of a trainer that a command names, as its first word or by --config; None if it names none.
    Example: `axolotl train run.yaml` -> run.yaml."""
    words = command.words[command.words[:1] == ("train",) :]
    if words and words[0].endswith(DOCUMENTS) and "=" not in words[0]:
        return words[0]
    named = command.values.get("--config")
    return named if isinstance(named, str) and named.endswith(DOCUMENTS) else None


def overrides(command: Command) -> dict[str, tuple[str, str]]:
    """The keys of a trainer's configuration file that a command's arguments override. Returns by key the argument's spelling
    and its value: `--micro-batch-size 2 --no-bf16` -> {"micro_batch_size": ("--micro-batch-size", "2"), "bf16":
    ("--no-bf16", "false")}."""
    result = {}
    for spelt, value in command.values.items():
        key = spelt.lstrip("-").replace("-", "_")
        if value is True and key.startswith("no_"):
            result[key.removeprefix("no_")] = spelt, "false"
        elif spelt != "--config" and key:
            result[key] = spelt, "true" if value is True else str(value)
    return result


def as_settings(given: dict[str, tuple[str, str]]) -> str:
    """Write arguments that override keys of a file as --set options of the command `import-run`: {"lr": ("--lr", "1e-4")} ->
    "--set lr=1e-4". given: by key, the argument's spelling and its value."""
    return " ".join(f"--set {key}={shlex.quote(text)}" for key, (_, text) in given.items())


def foreign(command: Command, where: str) -> InputError:
    """The error for a command that starts another tool than Megatron-LM: it names the tool and the file or log to give
    instead. where: the file that contains the command."""
    fix, options = FILES.get(command.tool, ("the tool's own configuration, or the log of the run", ()))
    file = next((str(command.values[name]) for name in options if isinstance(command.values.get(name), str)), None)
    words = (file_of(command) or "", *command.words, *(word.rpartition("=")[2] for word in command.launcher))
    named = file or next((word for word in words if word.endswith((".yaml", ".yml", ".toml", ".json"))), None)
    given = as_settings(overrides(command)) if named and named == file_of(command) else ""
    given = f" with {given}" if given else ""
    if not command.tool:
        problem = f"starts {command.program} ({command.where}), with no argument of a tool that is read"
        return InputError(
            where, "", problem, f"give {named or 'its configuration, if the tool is read'}{given}, or the log of the run"
        )
    problem = f"starts {command.program} ({command.where}), a run of {command.tool}, and no script of Megatron-LM"
    return InputError(where, "", problem, f"give {named}{given}: {fix}" if named and (file or fix != LOG) else f"give {fix}")
