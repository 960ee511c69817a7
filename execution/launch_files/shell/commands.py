"""Selects the command that trains from all commands that a script may reach: its program, its words, and which of them are
undecided."""

from __future__ import annotations

import json
import os.path
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from trainplan.execution.launch_files.run_configuration import UndecidedValue
from trainplan.execution.launch_files.shell.arguments import undecided_argument, values_of
from trainplan.execution.launch_files.shell.evaluate import Evaluator
from trainplan.execution.launch_files.shell.launchers import MEGATRON, PYTHON, TOOLS
from trainplan.execution.launch_files.shell.marks import MARK, Choice, Unknown
from trainplan.execution.launch_files.shell.state import ReachedCommand
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.families.fields import names

LAUNCHES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
)
STARTED = ("torchrun", "deepspeed", "accelerate-launch", "accelerate")  # as programs, which Python may run, too
# Options of launchers that take no value.
FLAGS = names(
    """
    --standalone --no-python --module -m --use-env --run-path --no-local-rank --force-multi --bind-cores-to-rank
    --multi-gpu --cpu --use-deepspeed --use-fsdp --use-megatron-lm --tpu --same-network --debug --quiet -q
    --main-training-function --fp16 --bf16 --elastic-training --enable-each-rank-log --use-parallelism-config
    """
)
CONFIGURED = ("axolotl", "llamafactory-cli")  # tools whose commands name a file, and what overrides it
# Programs alongside those that train: they prepare, convert or try out.
PREPARES = re.compile(
    r"(?:^|/)(?:tools|tasks)/|(?:^|/)(?:eval|preprocess|convert|inference|generate|test)(?:_\w+|uate\w*)?\.py$"
)
TRAINS = re.compile(r"(?:^|[/_.-])(?:pretrain|train|finetune|sft|run_clm|run_mlm|fine_tune|posttrain)", re.IGNORECASE)


PERFORMANCE = "setup_experiment.py"  # of Megatron-Bridge's scripts/performance


@dataclass(frozen=True)
class Command:
    """A command of a script that starts training.

    program: its script, module or tool. tool: the tool that the program belongs to: megatron, torchtitan, or another's name;
    empty if unknown. words: the words after the program. launcher: the words before it, such as those of torchrun. where: file
    and line. devices: number of devices that the launcher starts, if known. sources: file and line by argument. values:
    arguments by name. open: by name, arguments whose value is not known, and why. files: files that the script writes, content
    by path. environment: variables of the command's environment. directory: the folder in which it runs. blank: by name,
    arguments without a value because their variable is empty.
    """

    program: str
    tool: str
    words: tuple[str, ...]
    launcher: tuple[str, ...]
    where: str
    devices: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    open: Mapping[str, UndecidedValue] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "."
    blank: Mapping[str, UndecidedValue] = field(default_factory=dict)

    def held(self, path: str) -> str | None:
        """The content of a file that the script has written or edited; None for other files. path: as seen from the folder
        in which the command runs."""
        return self.files.get(os.path.normpath(os.path.join(self.directory, path)))

    @property
    def kind(self) -> tuple[str, str]:
        """The tool and the file name of the program. Commands that different branches of a script reach can be treated as
        one only if they are of one kind, so that they differ in their arguments alone."""
        return self.tool, self.program.rsplit("/", 1)[-1]


def training_command(shell: Evaluator, founds: Sequence[ReachedCommand], path: str) -> Command:
    """The one command of a script that trains. shell: the script's evaluator, after it. founds: all commands that the script
    may reach, with the conditions on the way. path: the script, for errors. Arguments that differ between the sides of
    undecided conditions are noted as open. Raises InputError if there is no such command, if there are several, or if which
    one runs depends on a value that nobody has given."""
    numbers = sorted({number for found in founds for number in _decisions(shell, found)})
    runs: list[tuple[dict[int, bool], list[Command]]] = []
    result: dict[tuple[int, frozenset[tuple[int, bool]]], Command | None] = {}
    own = {found.serial: _decisions(shell, found) for found in founds}
    for sides in product((False, True), repeat=len(numbers)):
        known = dict(zip(numbers, sides, strict=True))
        reached = []
        for found in founds:
            if all(known[number] == side for number, side in found.guards):
                run = (found.serial, frozenset((number, known[number]) for number in own[found.serial]))
                if run not in result:
                    result[run] = _command(shell, found, dict(run[1]))
                reached.append(result[run])
        commands = _training(reached)
        if commands:
            runs.append((known, commands))
    if not runs:
        raise _nothing(shell, founds, path)
    every = [command for _, commands in runs for command in commands]
    first = every[0]
    other = next((command for command in every if command.kind != first.kind), None)
    if other is not None:
        for _, commands in runs:
            if any(command.kind != commands[0].kind for command in commands):
                raise _several(path, commands)
        decision = _deciding(shell, runs, lambda commands: commands[0].kind)
        raise undecided_run(path, decision[0], decision[1], shell.marks.shown(f"starts {first.program} or {other.program}"))
    for _, commands in runs:
        for command in commands:
            file = next((n + 1 for n, word in enumerate(command.words) if word.endswith((".yaml", ".yml", ".json"))), 0)
            words = command.words[file if command.tool in CONFIGURED else 0 :]  # those after the file that they override
            loosely = command.tool in ("megatron", "") or (file and command.tool in CONFIGURED)
            if loosely and (cause := undecided_argument(words, shell.marks)) is not None:
                error = undecided_run(path, cause, "", "may hold arguments", empty=True)
                error.program = shell.marks.shown(command.program)
                raise error
    return _joined(shell, runs, path)


def _joined(shell: Evaluator, runs: list[tuple[dict[int, bool], list[Command]]], path: str) -> Command:
    """Join the commands that may run into one command, in which arguments that differ between them are undecided (`open`).
    shell: the script's evaluator. runs: for every combination of undecided conditions (by number, whether the condition is
    assumed to hold), the commands that train. path: the script, for errors."""
    every = [command for _, commands in runs for command in commands]
    first, values, opened, sources = every[0], dict(every[0].values), dict[str, UndecidedValue](), dict[str, str]()
    for command in reversed(every):
        values, sources = {**command.values, **values}, {**sources, **command.sources}
    for key in values:
        texts = list(dict.fromkeys(str(command.values.get(key, "not given")) for command in every))
        if len(texts) == 1:
            if (cause := shell.marks.cause(texts[0])) is not None and not _written(shell, every, texts[0]):
                opened[key] = UndecidedValue(f"is '{shell.marks.shown(texts[0])}': {_about(cause)}", cause.name)
            continue
        shown = " or ".join("given" if text == "True" else shell.marks.shown(text) for text in texts[:3])
        within = next((commands for _, commands in runs if len({str(c.values.get(key)) for c in commands}) > 1), None)
        if within is not None:
            lines = ", ".join(dict.fromkeys(command.where for command in within))
            opened[key] = UndecidedValue(f"is {shown}: several commands that train are reached, at {lines}", "", "")
            continue
        cause, example = _deciding(shell, runs, lambda commands, key=key: commands[0].values.get(key))
        variable = cause.name or _variable(shell, key)
        problem = f"is {shown}, by a condition that is not decided: {_about(cause)}"
        opened[key] = UndecidedValue(
            problem, variable, (example or "VALUE") if cause.name else ""
        )  # of that, and no argument's value
    devices = {command.devices for command in every}
    values = {key: shell.marks.shown(value) if isinstance(value, str) else value for key, value in values.items()}
    return replace(first, values=values, open=opened, sources=sources, devices=devices.pop() if len(devices) == 1 else None)


def _written(shell: Evaluator, commands: Sequence[Command], path: str) -> bool:
    """Whether a path whose name is not fully known, such as `ds.$JOB.json`, is a file that the script itself writes under
    the same name, in every one of the commands. shell: the script's evaluator."""
    shown = shell.marks.shown(path)
    return shell.marks.names_one_file(path) and all(
        os.path.normpath(os.path.join(command.directory, shown)) in command.files for command in commands
    )


def _variable(shell: Evaluator, key: str) -> str:
    """The name of the variable that decides an undecided condition which names no variable itself: if all undecided values in
    the script are choices for one and the same variable, that one; otherwise an empty text. shell: the script's evaluator,
    which has the table of these choices. key: unused."""
    entries = [entry for entry in shell.marks.entries if isinstance(entry, Choice) and entry.variable]
    return entries[-1].variable if len({entry.variable for entry in entries}) == 1 else ""


def _deciding(shell: Evaluator, runs: list[tuple[dict[int, bool], list[Command]]], of: Any) -> tuple[Unknown, str]:
    """Find the undecided condition that decides a property of the run, and give the value that this condition depends on,
    with an example for it. Preferred is a condition that alone separates two runs with different values. shell: the script's
    evaluator. runs: for every combination of conditions (by number, whether the condition is assumed to hold), the commands
    that train; the property must differ among them. of: function from these commands to the property."""
    value_of_run = {tuple(known.items()): of(commands) for known, commands in runs}
    for number in runs[0][0]:
        for known, value in value_of_run.items():
            other = tuple((condition, side != (condition == number)) for condition, side in known)
            if other in value_of_run and value_of_run[other] != value:
                return shell.marks.decisions[number].cause, shell.marks.decisions[number].example
    (first, value), *rest = value_of_run.items()
    other = next(known for known, theirs in rest if theirs != value)
    number = next(number for (number, side), (_, theirs) in zip(first, other, strict=True) if side != theirs)
    return shell.marks.decisions[number].cause, shell.marks.decisions[number].example


def _about(cause: Unknown) -> str:
    """Text for messages on what is known of a value that nobody has given: "$SEQ has no value (run.sh:3)"."""
    return f"{f'${cause.name}' if cause.name else 'it'} {cause.why} ({cause.where})"


class UndecidedRun(InputError):
    """The error for a run that depends on a value which nobody has given. name: the variable that has this value; empty if
    there is none. program: the program that would start."""

    name = ""
    program = ""


def undecided_run(
    path: str, cause: Unknown, example: str = "", what: str = "decides what runs", empty: bool = False
) -> UndecidedRun:
    """Build the error for a run that depends on a value which nobody has given. path: the script. cause: the value, and what
    is known of it. example: a value that would work. what: what depends on the value, as the end of a sentence. empty:
    whether the variable may be empty, so that advice suggests the empty value."""
    if not cause.name:
        return UndecidedRun(path, "", f"{what}: it {cause.why} ({cause.where})", "give the command itself by --command")
    fix = f"say what it is: --set {cause.name}=" + ("'' where it holds nothing" if empty else example or "VALUE")
    result = UndecidedRun(path, "", f"${cause.name} {what}, and {cause.why} ({cause.where})", fix)
    result.name = cause.name
    return result


def _several(path: str, commands: Sequence[Command]) -> InputError:
    """The error for a script that starts several training runs. path: the script. commands: the commands that train."""
    started = ", ".join(f"{command.program} ({command.where})" for command in commands[:4])
    return InputError(
        path, "", f"starts several runs: {started}", "give the one that is meant by --command, or a script with it alone"
    )


def _nothing(shell: Evaluator, founds: Sequence[ReachedCommand], path: str) -> InputError:
    """The error for a script that starts no training; it says what the script starts or lacks instead. shell: the script's
    evaluator, after it. founds: all commands that the script reaches. path: the script."""
    if shell.absent:
        name, where = shell.absent[-1]
        return InputError(
            path, "", f"runs {name} ({where}), which is not here", "give that script alongside, or give it itself"
        )
    if shell.left:
        fix = "say what it asks for by --set NAME=VALUE, or 1=VALUE for a positional parameter"
        return InputError(path, "", f"leaves at {shell.left[-1]} before it starts any training", fix)
    started = (_command(shell, found, {}) for found in founds if not _decisions(shell, found))
    python = [command for command in started if command is not None and command.program.endswith(".py")]
    if python:
        command = next((command for command in python if command.program.endswith(PERFORMANCE)), python[-1])
        what, fix = (
            "with no argument of a tool that is read",
            "give its configuration, if its tool is read, or the log of the run",
        )
        if command.program.endswith(PERFORMANCE):
            what = "by which Megatron-Bridge makes up a run from tables of its own"
            fix = "give the log of that run, or its recipe and what overrides it as `run_recipe.py --recipe NAME` by --command"
        problem = f"starts {command.program} ({command.where}), {what}"
        return InputError(path, "", problem, fix)
    fix = "give the script that starts training, or a list of --arguments, or the log of the run"
    return InputError(path, "", "starts no training, and is no list of arguments", fix)


def _decisions(shell: Evaluator, found: ReachedCommand) -> set[int]:
    """The numbers of the undecided conditions that a command depends on, because they guard it or select parts of its words.
    shell: the script's evaluator. found: the command."""
    result = {number for number, _ in found.guards}
    waiting = list(MARK.findall("".join(found.words)))
    visited = set(waiting)
    while waiting:
        entry = shell.marks.entry(waiting.pop())
        if isinstance(entry, Choice):
            result.add(entry.decision.number)
            for side in (entry.yes, entry.no):
                more = set(MARK.findall(side if isinstance(side, str) else "".join(side))) - visited
                visited |= more
                waiting += more
    return result


def _training(commands: Sequence[Command | None]) -> list[Command]:
    """Select the commands that train from those that a script reaches: Megatron-LM's if there are any, otherwise those of
    other known tools, otherwise those whose name suggests training, otherwise those with a launcher and arguments. Entries
    of None are left out; the result is empty if nothing trains."""
    known = [command for command in commands if command is not None]
    for choice in (
        [command for command in known if command.tool == "megatron"],
        [command for command in known if command.tool],
        [command for command in known if TRAINS.search(command.program)],
        [command for command in known if command.launcher and any(word.startswith("--") for word in command.words)],
    ):
        if choice:
            return [command for command in choice if not PREPARES.search(command.program)] or choice
    return []


def _command(shell: Evaluator, found: ReachedCommand, known: Mapping[int, bool]) -> Command | None:
    """Turn a command that the script reaches into a Command (program, launcher, arguments), under assumptions about undecided
    conditions; None if it starts no program. shell: the script's evaluator. found: the command with the conditions on the way
    to it. known: by number of each condition, whether it is assumed to hold."""
    words = shell.marks.picked_words(found.words, known)
    position, tool = _program(words)
    if position is None:
        return None
    program, launcher, rest = words[position], tuple(words[:position]), tuple(words[position + 1 :])
    values = values_of(rest)
    tool = tool or _tool(program, values)
    batch = {name: shell.marks.picked(value, known) for name, value in found.batch.items()}
    environment = {name: shell.marks.picked(value, known) for name, value in found.environment.items()}
    if tool in ("megatron", ""):  # Transformer Engine has arguments in its environment
        values |= {name: value for name, value in environment.items() if name.startswith("NVTE_")}
    sources = {key: found.lines.get(key, found.where) for key in values}
    files = {name: shell.marks.shown(shell.marks.picked(value, known)) for name, value in found.files.items()}
    directory = shell.marks.shown(shell.marks.picked(found.directory, known))
    devices = devices_of(launcher, batch, environment, {os.path.relpath(name, directory): text for name, text in files.items()})
    return Command(program, tool, rest, launcher, found.where, devices, sources, values, {}, files, environment, directory)


def _program(words: Sequence[str]) -> tuple[int | None, str]:
    """Find the program in the words of a command: ("torchrun", "-m", "pkg.train", "--lr", "1") -> (2, ""). Returns its
    index, and the tool's name if the program is itself a tool such as axolotl (otherwise an empty text). The index is None
    if no program is started."""
    position = 0
    while position < len(words):
        word = words[position]
        name = word.rsplit("/", 1)[-1]
        if name in TOOLS:
            return position, name
        if name in (*STARTED, *LAUNCHES) and (name != "accelerate" or position + 1 < len(words)):
            position = _after_options(words, position + 1 + (name == "accelerate"), name)
            continue
        if PYTHON.match(word):
            position += 1
            while position < len(words) and words[position].startswith("-") and words[position] not in ("-m", "-c"):
                position += 2 if words[position] in ("-W", "-X") else 1
            if position < len(words) and words[position] == "-c":
                return None, ""
            if position < len(words) and words[position] == "-m":
                position += 1
            if position < len(words) and words[position].rsplit("/", 1)[-1] in (*LAUNCHES, *STARTED):
                continue
            return (position, "") if position < len(words) else (None, "")
        if word.endswith(".py") or position:
            return position, ""
        script = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
        first = next((n for n, word in enumerate(words) if word.startswith("--")), None)
        return (script, "") if script is not None else (0, "") if first else (None, "")
    return None, ""


def _after_options(words: Sequence[str], position: int, launcher: str) -> int:
    """The index of the first word after the options of a launcher and their values. position: the index at which the options
    begin. launcher: unused."""
    while position < len(words) and words[position].startswith("-"):
        name = words[position].partition("=")[0].replace("_", "-")
        alone = "=" in words[position] or name in FLAGS
        position += 1 if alone else 2
    return position


def _tool(program: str, values: Mapping[str, Any]) -> str:
    """The training tool that a program belongs to, judged by its name and its arguments; empty if unknown. values: the
    arguments by name."""
    name = program.rsplit("/", 1)[-1]
    if "torchtitan" in program or any(key.startswith("--job.config") for key in values):
        return "torchtitan"
    if len(MEGATRON & set(values)) > 1 or re.match(r"pretrain_(gpt|llama|qwen|bert|t5|mamba|mistral|deepseek|hybrid)", name):
        return "megatron"
    if {"--per-device-train-batch-size", "--output-dir", "--model-name-or-path"} & set(values):
        return "transformers"
    if "axolotl" in program:
        return "axolotl"
    if "llamafactory" in program.lower().replace("-", "").replace("_", ""):
        return "llamafactory-cli"
    if name == "deepy.py":
        return "gpt-neox"
    if name == "run_train.py" and "--config-file" in values:
        return "nanotron"
    if "nemo" in program.lower() or "megatron_gpt_pretraining" in name:
        return "nemo"
    return ""


def _slots(world: str) -> int | None:
    """Number of processes on all hosts, from the base64 table of hosts that DeepSpeed's launcher passes on (`--world_info`);
    None if the text is no such table."""
    try:
        hosts = json.loads(urlsafe_b64decode(world))
        return sum(len(slots) for slots in hosts.values())
    except (ValueError, AttributeError, TypeError):
        return None


def devices_of(
    launcher: Sequence[str], batch: Mapping[str, str], environment: Mapping[str, str], files: Mapping[str, str] | None = None
) -> int | None:
    """Number of ranks of a run, as its launcher, Slurm or MPI states it; None if nothing states it. launcher: the words before
    the program. batch: what the batch system knows about the job: counts under Slurm's names and variables that the script
    sees, such as {"nodes": "2", "SLURM_NNODES": "2"}. environment: the command's variables. files: content of files that the
    script wrote, by path from its working directory; None for none."""
    values: dict[str, str] = {}
    for index, word in enumerate(launcher):
        name, sign, value = word.partition("=")
        if name.startswith("-"):
            values[name.replace("_", "-")] = value if sign else launcher[index + 1] if index + 1 < len(launcher) else ""
    names = [word.rsplit("/", 1)[-1] for word in launcher]
    nodes = batch.get("nodes", "")
    if "--world-info" in values:  # of DeepSpeed's processes, in which its command and `ps` have it
        return _slots(values["--world-info"])
    if "deepspeed" in names:
        if "--include" in values:
            parts = values["--include"].split("@")
            given = [part.partition(":")[2].split(",") for part in parts if ":" in part]
            return sum(map(len, given)) if len(given) == len(parts) else None
        hosts = (files or {}).get(os.path.normpath(values.get("--hostfile", values.get("-H", ""))), "")
        slots = [re.fullmatch(r"\S+\s+slots=(\d{1,3})\s*", line) for line in hosts.splitlines() if line.strip()]
        if slots and all(slots) and not {"--num-gpus", "--num-nodes", "--exclude"} & set(values):
            return sum(int(line[1]) for line in slots if line)
        per, count = values.get("--num-gpus", ""), values.get("--num-nodes", "" if {"--hostfile", "-H"} & set(values) else "1")
        if "--num-gpus" not in values and count == "1" and "CUDA_VISIBLE_DEVICES" in environment:
            per = _visible(environment["CUDA_VISIBLE_DEVICES"])
        return _times(per, count)
    if "accelerate" in names or "accelerate-launch" in names:
        return _times(values.get("--num-processes", ""), "1")
    if "torchrun" in names or any(name.startswith("torch.distributed") for name in names):
        per = values.get("--nproc-per-node", "1")
        least, _, most = values.get("--nnodes", "1").partition(":")
        nnodes = least if most in ("", least) else ""  # between two numbers, nobody knows how many come
        return _times(per, nnodes)
    if batch.get("ntasks"):
        return _times(batch["ntasks"], "1")
    if batch.get("ntasks-per-node"):
        return _times(batch["ntasks-per-node"], nodes or "1")
    if batch.get("gpus-per-node"):
        return _times(batch["gpus-per-node"], nodes or "1")
    return _times(batch["gpus"], "1") if batch.get("gpus") else None


def _visible(text: str) -> str:
    """Number of devices that a value of CUDA_VISIBLE_DEVICES lists, as a text: "0,1" -> "2". Empty if it is unknown."""
    return "" if MARK.search(text) or not text else str(len(text.split(",")))


def _times(one: str, other: str) -> int | None:
    """The product of two counts that are given as texts; None if one of them is not a known number."""
    if not (re.fullmatch(r"\d{1,6}", one) and re.fullmatch(r"\d{1,6}", other)):
        return None
    return int(one) * int(other) or None
