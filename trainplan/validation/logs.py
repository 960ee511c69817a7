"""Logs of training runs as Megatron-LM, torchtitan, DeepSpeed, NeMo and transformers print them: step times, tokens/s, memory;
beside a prediction.

A line of each, other fields left out:

    iteration       10/     100 | elapsed time per iteration (ms): 1234.5 | global batch size:   256 |       Megatron-LM
    [Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2345.6 | reserved: 3.0       Megatron-LM, MiB
    step: 10  loss:  8.12  memory: 40.12GiB(50.68%)  tps: 7,123  tflops: 400.10  mfu: 40.2%                  torchtitan
    epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.5, MaxMemAllocated=10.5GB
    Epoch 0: : 9/100 [01:42<55:37, global_step=9.0, train_step_timing in s=4.615]                       NeMo
    {'train_runtime': 1234.5, 'train_samples_per_second': 1.2, 'train_steps_per_second': 0.3}   transformers

torchtitan's tps is tokens/s of one device, and its memory what torch's allocator has reserved at most; DeepSpeed's samples are
of all ranks, its memory in GiB. The first lines of a run (compilation, allocation) do not count: WARMUP of them, if others are
left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainplan.formulations.plan import Plan
from trainplan.profiling.base.errors import InputError

WARMUP = 3
MOST_BYTES = 2**28
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?\d+)?)"
MEGATRON = re.compile(rf"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\):\s*{NUMBER}")
MEGATRON_BATCH = re.compile(r"global batch size:\s*(\d+)")
MEGATRON_MEMORY = re.compile(rf"\[Rank (\d+)\].*?memory \(MB\).*?max allocated:\s*{NUMBER}")
TITAN = re.compile(rf"step:\s*(\d+)\s.*?memory:\s*{NUMBER}GiB.*?tps:\s*{NUMBER}")
DEEPSPEED = re.compile(rf"global_step=(\d+).*?CurrSamplesPerSec={NUMBER}")
NEMO = re.compile(rf"train_step_timing in s(?:=|: ){NUMBER}")
TRAINER = re.compile(rf"['\"]train_steps_per_second['\"]: ?['\"]?{NUMBER}")
# What tools print of their configuration, before the steps of a run.
CONFIGURATION = re.compile(
    r"-{3,} ?arguments ?-{3,}|print_user_config\]|Running with (?:args|configs?):|TrainingArguments\(|Distributed environment: "
    r"|Configuration Summary \(Non-Default|\*{8,} Experiment configuration"
    r"|megatron\.bridge\.training\.config\.ConfigContainer$",
    re.MULTILINE,
)
DEEPSPEED_MEMORY = re.compile(rf"MaxMemAllocated={NUMBER}GB")


@dataclass(frozen=True)
class Log:
    """What a log says. runtime: whose it is; steps: their numbers; step_s: seconds of each, or seconds per sample or token
    where `per` says so; peak_bytes: by rank, where ranks are named, else under None; reserved: whether peaks are what an
    allocator reserves. batch: samples of a step, where said."""

    runtime: str
    steps: tuple[int, ...]
    step_s: tuple[float, ...]
    per: str
    peak_bytes: dict[int | None, int]
    reserved: bool
    batch: int | None

    def seconds(self, plan: Plan) -> float:
        """The median step behind the warm-up, of a plan's batch."""
        kept = self.step_s[WARMUP:] or self.step_s
        tokens = plan.batch.global_samples * plan.planned_model().tokens
        return (
            median(kept)
            * {"step": 1.0, "sample": plan.batch.global_samples, "token of a device": tokens / plan.world}[self.per]
        )


def text_of_log(path: Path) -> str:
    """The text of a log without the colours of terminals. Raises InputError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(str(path), "", f"is larger than {MOST_BYTES >> 20} MiB", "give the log of one rank")
        return COLOURS.sub("", path.read_text(errors="replace"))
    except OSError as error:
        raise InputError(str(path), "", f"cannot be read ({error.strerror})", "name a readable log") from None


def read_log(path: Path) -> Log:
    """The log in a file, of whichever of these runtimes. Raises InputError."""
    text = text_of_log(path)
    begins = [match.start() for match in CONFIGURATION.finditer(text)]
    for part in (text[begins[-1] :], text) if begins else (text,):  # of several runs in one file the last
        for reader in (_megatron, _torchtitan, _deepspeed, _nemo, _trainer):
            if (log := reader(part)) is not None:
                return log
    fix = "give a log with Megatron-LM's iterations, torchtitan's steps, DeepSpeed's samples or transformers' steps a second"
    raise InputError(str(path), "", "has no line of a training step", fix)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _megatron(text: str) -> Log | None:
    lines = [(match, MEGATRON_BATCH.search(text, match.start(), text.find("\n", match.end()) % (len(text) + 1)))
             for match in MEGATRON.finditer(text)]  # fmt: skip
    last = next((int(batch[1]) for _, batch in reversed(lines) if batch), None)  # steps of smaller batches come before
    rows = [(int(match[1]), _number(match[2]) / 1e3) for match, batch in lines if not batch or int(batch[1]) == last]
    peaks: dict[int | None, int] = {}
    for match in MEGATRON_MEMORY.finditer(text):
        peaks[int(match[1])] = max(peaks.get(int(match[1]), 0), round(_number(match[2]) * 2**20))
    return _log("megatron", rows, "step", peaks, False, last)


def _torchtitan(text: str) -> Log | None:
    matches = list(TITAN.finditer(text))
    rows = [(int(match[1]), 1 / max(_number(match[3]), 1e-9)) for match in matches]
    peak = max((_number(match[2]) for match in matches), default=0.0)
    return _log("torchtitan", rows, "token of a device", {None: round(peak * 2**30)}, True, None)


def _deepspeed(text: str) -> Log | None:
    rows = [(int(match[1]), 1 / max(_number(match[2]), 1e-9)) for match in DEEPSPEED.finditer(text)]
    peaks = [_number(match[1]) for match in DEEPSPEED_MEMORY.finditer(text)]
    return _log("deepspeed", rows, "sample", {None: round(max(peaks) * 2**30)} if peaks else {}, False, None)


def _nemo(text: str) -> Log | None:
    rows = [(number, _number(match[1])) for number, match in enumerate(NEMO.finditer(text))]
    return _log("megatron", rows, "step", {}, False, None)


def _trainer(text: str) -> Log | None:
    rows = [(number, 1 / max(_number(match[1]), 1e-9)) for number, match in enumerate(TRAINER.finditer(text))]
    return _log("accelerate", rows, "step", {}, False, None)


def _log(
    runtime: str, rows: list[tuple[int, float]], per: str, peaks: dict[int | None, int], reserved: bool, batch: int | None
) -> Log | None:
    if not rows:
        return None
    steps, seconds = zip(*rows, strict=True)
    return Log(runtime, steps, seconds, per, peaks, reserved, batch)


@dataclass(frozen=True)
class LoggedRun:
    """A log beside a plan's prediction. step_s: the median measured step; predicted_s: the plan's; lines: steps in the log;
    peaks: measured and predicted bytes by rank, or of the fullest device (None)."""

    log: Log
    step_s: float
    predicted_s: float
    tokens_per_s: float
    lines: int
    peaks: tuple[tuple[int | None, int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "runtime": self.log.runtime,
            "steps": self.lines,
            "step_s": self.step_s,
            "predicted_s": self.predicted_s,
            "step_error": self.predicted_s / self.step_s - 1,
            "tokens_per_s": self.tokens_per_s,
            "reserved": self.log.reserved,
            "peaks": [{"rank": rank, "measured_bytes": a, "predicted_bytes": b} for rank, a, b in self.peaks],
        }


def beside(plan: Plan, log: Log, where: str) -> LoggedRun:
    """A log beside what its plan predicts. Raises InputError where the plan predicts nothing, or the log is of another batch or
    of ranks that the plan lacks."""
    predicted = plan.predicted
    if predicted is None:
        raise InputError(
            where, "predicted", "is missing", "give a plan of `plan -o` or `import-run -o`, which carry a prediction"
        )
    if log.batch not in (None, plan.batch.global_samples):
        problem = f"is {plan.batch.global_samples}, and the log's steps have {log.batch} samples"
        raise InputError(where, "batch.global_samples", problem, "give the plan that ran")
    peaks = []
    for rank, measured in sorted(log.peak_bytes.items(), key=lambda item: -1 if item[0] is None else item[0]):
        if rank is not None and rank >= plan.world:
            raise InputError(where, "world", f"is {plan.world}, and the log has rank {rank}", "give the plan that ran")
        peaks.append((rank, measured, predicted.most_bytes if rank is None else predicted.peak_bytes[rank]))
    seconds = log.seconds(plan)
    tokens = plan.batch.global_samples * plan.planned_model().tokens / seconds
    return LoggedRun(log, seconds, predicted.step_ns / 1e9, tokens, len(log.steps), tuple(peaks))
