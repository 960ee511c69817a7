"""The command that trains, of all that a script may reach: its program, its words, and what of them is undecided."""

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
from trainplan.execution.launch_files.shell.arguments import loose, values_of
from trainplan.execution.launch_files.shell.evaluate import Evaluator
from trainplan.execution.launch_files.shell.launchers import MEGATRON, PYTHON, TOOLS
from trainplan.execution.launch_files.shell.marks import MARK, Choice, Unknown
from trainplan.execution.launch_files.shell.state import Found
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
    """A command that trains. program: its script, module or tool; tool: whose it is: megatron, torchtitan, or another's name
    (empty: nobody knows); words: behind the program; launcher: in front; devices: that the launcher starts, if it says so;
    sources: file and line of arguments; values: arguments by name; open: those that are undecided, and why; files: that the
    script writes; directory: where it runs; blank: arguments that variables without a value leave without one."""

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
        """What a file holds that the script has written or edited; None for others."""
        return self.files.get(os.path.normpath(os.path.join(self.directory, path)))

    @property
    def kind(self) -> tuple[str, str]:
        """Whose program it is, and its name: commands of one kind may differ in arguments alone."""
        return self.tool, self.program.rsplit("/", 1)[-1]


def chosen(shell: Evaluator, founds: Sequence[Found], path: str) -> Command:
    """The one command that trains. Raises InputError where there is none, or where it hangs on what is not decided."""
    numbers = sorted({number for found in founds for number in _decisions(shell, found)})
    runs: list[tuple[dict[int, bool], list[Command]]] = []
    made: dict[tuple[int, frozenset[tuple[int, bool]]], Command | None] = {}
    own = {found.serial: _decisions(shell, found) for found in founds}
    for sides in product((False, True), repeat=len(numbers)):
        known = dict(zip(numbers, sides, strict=True))
        reached = []
        for found in founds:
            if all(known[number] == side for number, side in found.guards):
                each = (found.serial, frozenset((number, known[number]) for number in own[found.serial]))
                if each not in made:
                    made[each] = _command(shell, found, dict(each[1]))
                reached.append(made[each])
        commands = _training(reached)
        if commands:
            runs.append((known, commands))
    if not runs:
        raise _nothing(shell, founds, path)
    every = [command for _, commands in runs for command in commands]
    first = every[0]
    other = next((each for each in every if each.kind != first.kind), None)
    if other is not None:
        for _, commands in runs:
            if any(each.kind != commands[0].kind for each in commands):
                raise _several(path, commands)
        decision = _deciding(shell, runs, lambda commands: commands[0].kind)
        raise hangs(path, decision[0], decision[1], shell.marks.shown(f"starts {first.program} or {other.program}"))
    for _, commands in runs:
        for command in commands:
            file = next((n + 1 for n, word in enumerate(command.words) if word.endswith((".yaml", ".yml", ".json"))), 0)
            words = command.words[file if command.tool in CONFIGURED else 0 :]  # those behind the file that they override
            loosely = command.tool in ("megatron", "") or (file and command.tool in CONFIGURED)
            if loosely and (cause := loose(words, shell.marks)) is not None:
                error = hangs(path, cause, "", "may hold arguments", empty=True)
                error.program = shell.marks.shown(command.program)
                raise error
    return _joined(shell, runs, path)


def _joined(shell: Evaluator, runs: list[tuple[dict[int, bool], list[Command]]], path: str) -> Command:
    """One command of all that may run, with the arguments in which they differ as open ones."""
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
    """Whether a path that is not decided is a file which the script itself writes, by the same name."""
    shown = shell.marks.shown(path)
    return shell.marks.tells(path) and all(
        os.path.normpath(os.path.join(command.directory, shown)) in command.files for command in commands
    )


def _variable(shell: Evaluator, key: str) -> str:
    """A variable that a condition without a name gives one of two values."""
    entries = [entry for entry in shell.marks.entries if isinstance(entry, Choice) and entry.variable]
    return entries[-1].variable if len({entry.variable for entry in entries}) == 1 else ""


def _deciding(shell: Evaluator, runs: list[tuple[dict[int, bool], list[Command]]], of: Any) -> tuple[Unknown, str]:
    """The condition that decides what a function says of runs: one by which two runs differ, and no other."""
    said = {tuple(known.items()): of(commands) for known, commands in runs}
    for number in runs[0][0]:
        for known, value in said.items():
            other = tuple((each, side != (each == number)) for each, side in known)
            if other in said and said[other] != value:
                return shell.marks.decisions[number].cause, shell.marks.decisions[number].example
    (first, value), *rest = said.items()
    other = next(known for known, each in rest if each != value)
    number = next(number for (number, side), (_, theirs) in zip(first, other, strict=True) if side != theirs)
    return shell.marks.decisions[number].cause, shell.marks.decisions[number].example


def _about(cause: Unknown) -> str:
    return f"{f'${cause.name}' if cause.name else 'it'} {cause.why} ({cause.where})"


class Hangs(InputError):
    """An error of a run that hangs on a value which nobody has said. name: of its variable; program: that would start."""

    name = ""
    program = ""


def hangs(path: str, cause: Unknown, example: str = "", what: str = "decides what runs", empty: bool = False) -> Hangs:
    """Makes such an error."""
    if not cause.name:
        return Hangs(path, "", f"{what}: it {cause.why} ({cause.where})", "give the command itself by --command")
    fix = f"say what it is: --set {cause.name}=" + ("'' where it holds nothing" if empty else example or "VALUE")
    made = Hangs(path, "", f"${cause.name} {what}, and {cause.why} ({cause.where})", fix)
    made.name = cause.name
    return made


def _several(path: str, commands: Sequence[Command]) -> InputError:
    each = ", ".join(f"{command.program} ({command.where})" for command in commands[:4])
    return InputError(
        path, "", f"starts several runs: {each}", "give the one that is meant by --command, or a script with it alone"
    )


def _nothing(shell: Evaluator, founds: Sequence[Found], path: str) -> InputError:
    """What to say of a script that starts no training."""
    if shell.absent:
        name, where = shell.absent[-1]
        return InputError(
            path, "", f"runs {name} ({where}), which is not here", "give that script alongside, or give it itself"
        )
    if shell.left:
        fix = "say what it asks for by --set NAME=VALUE, or 1=VALUE for what it takes by place"
        return InputError(path, "", f"leaves at {shell.left[-1]} before it starts any training", fix)
    started = (_command(shell, found, {}) for found in founds if not _decisions(shell, found))
    python = [each for each in started if each is not None and each.program.endswith(".py")]
    if python:
        command = next((each for each in python if each.program.endswith(PERFORMANCE)), python[-1])
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


def _decisions(shell: Evaluator, found: Found) -> set[int]:
    made = {number for number, _ in found.guards}
    waiting = list(MARK.findall("".join(found.words)))
    seen = set(waiting)
    while waiting:
        entry = shell.marks.entry(waiting.pop())
        if isinstance(entry, Choice):
            made.add(entry.decision.number)
            for side in (entry.yes, entry.no):
                more = set(MARK.findall(side if isinstance(side, str) else "".join(side))) - seen
                seen |= more
                waiting += more
    return made


def _training(commands: Sequence[Command | None]) -> list[Command]:
    """Of commands, those that train: Megatron-LM's before other tools', those before what may be."""
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


def _command(shell: Evaluator, found: Found, known: Mapping[int, bool]) -> Command | None:
    """What is known of a command once conditions are decided; None for one that starts no program."""
    words = shell.marks.picked_words(found.words, known)
    place, tool = _program(words)
    if place is None:
        return None
    program, launcher, rest = words[place], tuple(words[:place]), tuple(words[place + 1 :])
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
    """The place of the program that is started, and the tool where that is one itself."""
    place = 0
    while place < len(words):
        word = words[place]
        name = word.rsplit("/", 1)[-1]
        if name in TOOLS:
            return place, name
        if name in (*STARTED, *LAUNCHES) and (name != "accelerate" or place + 1 < len(words)):
            place = _behind(words, place + 1 + (name == "accelerate"), name)
            continue
        if PYTHON.match(word):
            place += 1
            while place < len(words) and words[place].startswith("-") and words[place] not in ("-m", "-c"):
                place += 2 if words[place] in ("-W", "-X") else 1
            if place < len(words) and words[place] == "-c":
                return None, ""
            if place < len(words) and words[place] == "-m":
                place += 1
            if place < len(words) and words[place].rsplit("/", 1)[-1] in (*LAUNCHES, *STARTED):
                continue
            return (place, "") if place < len(words) else (None, "")
        if word.endswith(".py") or place:
            return place, ""
        script = next((n for n, each in enumerate(words) if each.endswith(".py")), None)
        first = next((n for n, each in enumerate(words) if each.startswith("--")), None)
        return (script, "") if script is not None else (0, "") if first else (None, "")
    return None, ""


def _behind(words: Sequence[str], place: int, launcher: str) -> int:
    """The place behind the options of a launcher."""
    while place < len(words) and words[place].startswith("-"):
        name = words[place].partition("=")[0].replace("_", "-")
        alone = "=" in words[place] or name in FLAGS
        place += 1 if alone else 2
    return place


def _tool(program: str, values: Mapping[str, Any]) -> str:
    """Whose program it is, by its name and its arguments."""
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
    """Processes on all hosts, by the table of them that DeepSpeed's launcher hands on; None where it is none."""
    try:
        hosts = json.loads(urlsafe_b64decode(world))
        return sum(len(slots) for slots in hosts.values())
    except (ValueError, AttributeError, TypeError):
        return None


def devices_of(
    launcher: Sequence[str], batch: Mapping[str, str], environment: Mapping[str, str], files: Mapping[str, str] | None = None
) -> int | None:
    """Ranks of the whole run, by its launcher, by Slurm or by MPI; None where they do not say. files: that the script wrote, by
    their names from where it runs."""
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
    return "" if MARK.search(text) or not text else str(len(text.split(",")))


def _times(one: str, other: str) -> int | None:
    if not (re.fullmatch(r"\d{1,6}", one) and re.fullmatch(r"\d{1,6}", other)):
        return None
    return int(one) * int(other) or None
