"""The text of a log file, and the last of the runs in it.

A run consists of the configuration that a tool prints and the steps after it. If jobs are restarted into one file, or one
script tries several layouts, the last configuration and the steps after it are the run to read.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainplan.profiling.base.errors import InputError

MOST_BYTES = 2**28
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b\x07]*(?:\x1b\\|\x07)|\x00")  # colours, moves, links, padding
PACKED = {
    b"\x1f\x8b": "gunzip -k",
    b"\xfd7zXZ": "unxz -k",
    b"BZh": "bunzip2 -k",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"PK\x03\x04": "unzip",
}
WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
TENSORBOARD, WANDB = "events.out.tfevents.", ".wandb"
WHOLE = "give the log that the run prints, as text"


class Mark(NamedTuple):
    """A pattern that recognises one kind of line in a log. part: a text that every such line contains, by which lines are
    found quickly. pattern: a regular expression for the line."""

    part: str
    pattern: re.Pattern[str]

    def all(self, text: str, begin: int = 0) -> Iterator[re.Match[str]]:
        """The match of every line of a text that this pattern recognises, in order. begin: the position in the text to start
        from."""
        at = text.find(self.part, begin)
        while at >= 0:
            begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            end = len(text) if end < 0 else end
            if (match := self.pattern.search(text, begin, end)) is not None:
                yield match
            at = text.find(self.part, max(end, at + 1))


def mark(part: str, pattern: str) -> Mark:
    """Build a Mark, which recognises one kind of line in a log. part: a text that every such line contains. pattern: a
    regular expression for the line, as text."""
    return Mark(part, re.compile(pattern))


# What tools print of their configuration, before the steps of a run.
ARGUMENTS = mark("rguments -", r"-{3,} ?(?!end of)(?:[\w.-]+ )?[Aa]rguments ?-{3,}")  # Megatron-LM, its forks, GPT-NeoX
ARGUMENTS_END = mark("end of ", r"-{3,} ?end of (?:[\w.-]+ )?[Aa]rguments ?-{3,}")
ENGINE = mark("json = {", r"config\.py:\d+:print(?:_user_config)?\]\s+json = (\{.*)")  # DeepSpeed
JOB = mark("Running with ", r"Running with (?:args|configs?): ?(\{.*)")  # torchtitan
# transformers and TRL print what a program calls; in a program itself a name or `return` stands before it.
CALLED = r"(?<!= )(?<!return )(?<![=.(\w])"
TRAINER = mark("Arguments(", CALLED + r"\w*TrainingArguments\(\s*$")
TRL = mark("Config(", CALLED + r"(?:SFT|DPO|KTO|ORPO|CPO|Reward|GRPO)Config\(\s*$")
STATE = mark("Distributed environment: ", r"Distributed environment: (?:DistributedType\.)?(\w+)")  # Accelerate
SUMMARY = mark("Configuration Summary (", r"Configuration Summary \(Non-Default Values vs Megatron Core\)")  # Megatron-Bridge
CONTAINER = mark("_target_: ", r"_target_: megatron\.bridge\.training\.config\.ConfigContainer\s*$")
EXPERIMENT = mark("* Experiment configuration *", r"\*{8,} Experiment configuration \*{8,}")  # NeMo 1
CONFIGURATIONS = (ARGUMENTS, ARGUMENTS_END, ENGINE, JOB, TRAINER, TRL, STATE, SUMMARY, CONTAINER, EXPERIMENT)
# Lines of steps.
STEPS = {
    "Megatron-LM": mark("elapsed time per iteration", r"iteration\s+\d+/.*elapsed time per iteration \(ms\):"),
    "torchtitan": mark("step:", r"step:\s*\d+\s.*memory:.*(?:tps|wps):"),
    "DeepSpeed": mark("SamplesPerSec=", r"SamplesPerSec=\d"),
    "DeepSpeed's pipelines": mark("iter time (s):", r"steps: \d+ loss: .*iter time \(s\):"),
    "NeMo": mark("train_step_timing in s", r"train_step_timing in s(?:=|: )\d"),
    "transformers": mark("train_steps_per_second", r"train_steps_per_second['\"]?\s*[:=]\s*['\"]?\d"),
}


def text_of_log(path: Path) -> str:
    """The text of a log file without terminal colours, with lines that end with a single line feed. Raises InputError for a
    folder, and for files that are unreadable, too large, compressed or in a format of TensorBoard or Weights & Biases."""
    where = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            logs = sorted(file.name for file in path.iterdir() if file.suffix in (".log", ".out", ".txt"))
            example = f", such as {path / logs[0]}" if logs else ""
            raise InputError(where, "", "is a folder", f"give one file, the log of a run or what starts it{example}")
        if status.st_size > MOST_BYTES:
            raise InputError(where, "", f"is larger than {MOST_BYTES >> 20} MiB", "give the log of one rank, or its last run")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(where, "", f"cannot be read ({error.strerror})", "name a readable file") from None
    if path.name.startswith(TENSORBOARD) or path.suffix == WANDB:
        whose = "TensorBoard" if path.suffix != WANDB else "Weights & Biases"
        raise InputError(where, "", f"is a record of {whose}, which has no configuration that is read", WHOLE)
    for start, command in PACKED.items():
        if data.startswith(start):
            raise InputError(where, "", "is compressed", f"unpack it (`{command} {path.name}`), and give what comes of it")
    return text_of_bytes(data)


def text_of_bytes(data: bytes) -> str:
    """Decode the bytes of a log, which are UTF-8 or, as Windows writes it, UTF-16. Terminal colours and null characters are
    removed, and every line ends with a single line feed."""
    coding = WIDE.get(data[:2])
    if coding is None and len(data) > 3 and data[1::2][:200].count(0) > 0.9 * len(data[1::2][:200]):
        coding = "utf-16-le"
    text = data.decode(coding or "utf-8-sig", errors="replace")
    if "\x1b" in text or "\x00" in text:
        text = CONTROL.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


class Run(NamedTuple):
    """Where the last run of a log stands, as positions (character offsets) in its text. after: the end of the last training
    step of the run before it; 0 if there is none. begin: where the configuration that the run prints begins. steps: the end
    of the line of its first training step."""

    after: int
    begin: int
    steps: int


def last_run(text: str) -> Run:
    """Locate the last run in the text of a log that may hold several. The whole text counts as one run if no tool prints its
    configuration in it."""
    marks = sorted(match.start() for line_mark in CONFIGURATIONS for match in line_mark.all(text))
    if not marks:
        return Run(0, 0, len(text))
    before = max(_last(step, text, marks[-1]) for step in STEPS.values())
    begin = next(position for position in marks if position > before)
    begin = text.rfind("\n", 0, begin) + 1
    steps = (next((match.endpos for match in step.all(text, begin)), len(text)) for step in STEPS.values())
    return Run(0 if before < 0 else text.find("\n", before) + 1, begin, min(steps))


def _last(step: Mark, text: str, end: int) -> int:
    """The position of the last line before the position `end` that a pattern recognises; -1 if there is none. step: the
    pattern."""
    at = text.rfind(step.part, 0, end)
    while at >= 0:
        begin = text.rfind("\n", 0, at) + 1
        stop = text.find("\n", at)
        if step.pattern.search(text, begin, len(text) if stop < 0 else stop):
            return at
        at = text.rfind(step.part, 0, begin)
    return -1


def has_steps(text: str) -> str | None:
    """The name of the tool whose training steps a log contains; None if it contains no steps of a known tool. text: the log."""
    return next((tool for tool, step in STEPS.items() if next(step.all(text), None) is not None), None)
