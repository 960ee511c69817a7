"""Step times, tokens/s and memory from logs of Megatron-LM, torchtitan, DeepSpeed, NeMo and transformers, and their comparison
with a prediction.

One line of each log (other fields left out):

    iteration       10/     100 | elapsed time per iteration (ms): 1234.5 | global batch size:   256 |       Megatron-LM
    [Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2345.6 | reserved: 3.0       Megatron-LM, MiB
    step: 10  loss:  8.12  memory: 40.12GiB(50.68%)  tps: 7,123  tflops: 400.10  mfu: 40.2%                  torchtitan
    epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.5, MaxMemAllocated=10.5GB
    steps: 10 loss: 8.1234 iter time (s): 1.234 samples/sec: 51.8                                DeepSpeed's pipelines
    Epoch 0: : 9/100 [01:42<55:37, global_step=9.0, train_step_timing in s=4.615]                       NeMo
    {'train_runtime': 1234.5, 'train_samples_per_second': 1.2, 'train_steps_per_second': 0.3}   transformers

torchtitan's tps (wps in 2024) is tokens/s of one device, and its memory the most that torch's allocator has reserved;
DeepSpeed's samples are those of all ranks, its memory is that of rank 0 in GiB. transformers gives the time of the whole run
only, and the number of its steps; its progress bar shows how far the run came and a smoothed time of its last steps. The first
lines of a run (compilation, allocation) do not count: WARMUP of them, or half of the lines of a shorter log. Of several runs in
one file the last is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainplan.execution.launch_files.logs.text import STEPS, last_run, mark, text_of_log
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import plural

WARMUP = 3
FIRST = (0, 1)  # a run's first step: NeMo's and DeepSpeed's pipelines count from 0
OF_ALL = "the mean of the whole run, with its evaluation and checkpoints"
OF_BAR = "the progress bar's, smoothed over its last steps"
LEAST_BAR_S = 30  # of a progress bar, which says whole seconds
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?\d+)?)"
MEGATRON = mark("elapsed time per iteration", rf"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\):\s*{NUMBER}")
MEGATRON_BATCH = re.compile(r"global batch size:\s*(\d+)")
MEGATRON_MEMORY = mark("memory (MB)", rf"(?:\[Rank (\d+)\].*?)?memory \(MB\).*?max allocated:\s*{NUMBER}")
TITAN = mark("memory:", rf"(?:\[rank(\d+)\]:.*?)?step:\s*(\d+)\s.*?memory:\s*{NUMBER}GiB.*?(?:tps|wps):\s*{NUMBER}")
DEEPSPEED = mark("CurrSamplesPerSec=", rf"global_step=(\d+).*?CurrSamplesPerSec={NUMBER}")
DEEPSPEED_MEMORY = mark("MaxMemAllocated=", rf"MaxMemAllocated={NUMBER}GB")
PIPELINE = mark("iter time (s):", rf"steps: (\d+) loss: .*?iter time \(s\):\s*{NUMBER}")
NEMO = mark("train_step_timing in s", rf"train_step_timing in s(?:=|: ){NUMBER}")
NEMO_BATCH = re.compile(r"global_batch_size[:=]\s*(\d+)")
TRAINER = re.compile(rf"['\"]train_runtime['\"]: ?['\"]?{NUMBER}['\"]?,.*?['\"]train_steps_per_second['\"]: ?['\"]?{NUMBER}")
TRAINER_STEPS = re.compile(r"Total optimization steps = ([\d,]+)")
TRAINER_BAR = re.compile(r"(?:^|[\n\r}])\s*\d+%\|[^|\n]*\| (\d+)/(\d+) \[[\d:]+<[\d:]+, *([\d.]+)(s/it|it/s)")
TRAINER_FROM = re.compile(r"Continuing training from global step (\d+)")
OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory\.\s+Tried to allocate ([\d.]+) ([KMGT]i?B)")
ALLOCATED = re.compile(
    r"([\d.]+) ([KMGT]i?B) already allocated|allocated memory\s+([\d.]+) ([KMGT]i?B)\s+is\s+allocated by PyTorch"
)
CAPACITY = re.compile(r"([\d.]+) ([KMGT]i?B) total capacity|total capacity of\s+([\d.]+) ([KMGT]i?B)")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class RanOut:
    """The end of a run because a device ran out of memory. tried_bytes: size of the allocation that failed. allocated_bytes:
    memory of the run's tensors at that time. capacity_bytes: memory of the device. The last two are None if the message does
    not say them."""

    tried_bytes: int
    allocated_bytes: int | None
    capacity_bytes: int | None


@dataclass(frozen=True)
class Log:
    """The measurements in the log of a run.

    runtime: the name of the runtime that wrote the log. steps: the step numbers of the lines with a time. step_s: the seconds
    of these lines, per step, per sample or per token of a device, as `per` says. per: "step", "sample" or "token of a device".
    peak_bytes: peak memory by rank; the key is None if ranks are not named. reserved: whether peaks are memory that an
    allocator has reserved. batch: samples per step, if stated. mean: whether there is only one time, the mean of the whole run.
    bar: whether there is only one time, the rate that a progress bar shows.
    """

    runtime: str
    steps: tuple[int, ...]
    step_s: tuple[float, ...]
    per: str
    peak_bytes: dict[int | None, int]
    reserved: bool
    batch: int | None
    mean: bool = False
    bar: bool = False

    @property
    def warmup(self) -> int:
        """Number of lines with a time at the beginning of the log that are left out of the median, because they measure the
        warm-up."""
        return min(WARMUP, len(self.step_s) // 2)

    def of(self, noun: str, form: str = "{}") -> str:
        """A text that says which lines of the log the measured step is taken from, such as ``2 lines after the first 2``. noun:
        what such a line is called, in the singular, such as "line". form: a template in which {} stands for the number and the
        noun; it has no effect if the log has only one time for the whole run."""
        if self.mean or self.bar:
            return OF_BAR if self.bar else OF_ALL
        if len(self.steps) == 1 and self.steps[0] in FIRST:
            return "the first step alone, with its warm-up"
        text = form.format(plural(len(self.steps) - self.warmup, noun))
        return text + f" after the first {self.warmup if self.warmup > 1 else ''}".rstrip() * bool(self.warmup)

    def seconds(self, plan: Plan) -> float:
        """The median time of one whole step in seconds, without the warm-up. plan: its batch size, sequence length and
        number of devices convert times per sample or per token to times per step."""
        kept = self.step_s[self.warmup :]
        tokens = plan.batch.global_samples * plan.planned_model().tokens
        return (
            median(kept)
            * {"step": 1.0, "sample": plan.batch.global_samples, "token of a device": tokens / plan.world}[self.per]
        )


def read_log(path: Path) -> Log:
    """The measurements in a log file of a training run, whichever of the known tools wrote it (Megatron-LM, torchtitan,
    DeepSpeed, NeMo, transformers); of several runs in the file, the last one. Raises InputError if it has no line of a
    training step."""
    text = text_of_log(path)
    begin = last_run(text).begin
    if (log := log_of(text[begin:])) is not None:
        return log
    if begin and log_of(text[:begin]) is not None:
        fix = "give the part of the log that has the run before it"
        raise InputError(str(path), "", "has no line of a training step of its last run", fix)
    fix = "give a log with Megatron-LM's iterations, torchtitan's steps, DeepSpeed's samples or transformers' steps a second"
    raise InputError(str(path), "", "has no line of a training step", fix)


def log_of(text: str) -> Log | None:
    """The measurements (step times, peak memory) in the log of one run, whichever of the known tools wrote it; None if it
    has no line of a training step. text: the log."""
    readers = {"Megatron-LM": _megatron, "torchtitan": _torchtitan, "DeepSpeed": _deepspeed}
    readers |= {"DeepSpeed's pipelines": _pipeline, "NeMo": _nemo}
    for tool, reader in readers.items():
        if STEPS[tool].part in text and (log := reader(text)) is not None:
            return log
    return _trainer(text)


def ran_out(text: str) -> RanOut | None:
    """How a run ended because a device ran out of memory. text: the log of one run. None if no such message is in it, or if
    training steps follow the message."""
    message_start = next(OUT_OF_MEMORY.finditer(text), None)
    if message_start is None or any(next(step.all(text[message_start.end() :]), None) for step in STEPS.values()):
        return None
    message = text[message_start.start() : message_start.start() + 1500]
    allocated, capacity = (_bytes(pattern.search(message)) for pattern in (ALLOCATED, CAPACITY))
    return RanOut(_bytes(message_start) or 0, allocated, capacity)


def _bytes(size: re.Match[str] | None) -> int | None:
    """A size in bytes from the match of a pattern that has a number and a unit as its groups, such as 2.50 and GiB; None if
    there is no match."""
    if size is None:
        return None
    number, unit = (text for text in size.groups() if text is not None)
    return round(float(number.rstrip(".")) * UNITS[unit[0]])


def _number(text: str) -> float:
    """The number in a text with commas between thousands: "1,234.5" -> 1234.5."""
    return float(text.replace(",", ""))


def _megatron(text: str) -> Log | None:
    """The measurements in a log of Megatron-LM, only from steps with the final batch size, since smaller batches come before
    it while the batch size is ramped up. None if the log has no steps."""
    lines = [(match, MEGATRON_BATCH.search(text, match.end(), match.endpos)) for match in MEGATRON.all(text)]
    last = next((int(batch[1]) for _, batch in reversed(lines) if batch), None)  # steps of smaller batches come before
    rows = [(int(match[1]), _number(match[2]) / 1e3) for match, batch in lines if not batch or int(batch[1]) == last]
    peaks: dict[int | None, int] = {}
    for match in MEGATRON_MEMORY.all(text):
        rank = None if match[1] is None else int(match[1])
        peaks[rank] = max(peaks.get(rank, 0), round(_number(match[2]) * 2**20))
    return _log("megatron", rows, "step", peaks, False, last)


def _torchtitan(text: str) -> Log | None:
    """The measurements in a log of torchtitan: seconds per token of a device, from its tokens per second, and reserved
    memory. None if the log has no steps. text: the log."""
    matches = list(TITAN.all(text))
    rows = [(int(match[2]), 1 / max(_number(match[4]), 1e-9)) for match in matches]
    peaks: dict[int | None, int] = {}
    for match in matches:
        rank = None if match[1] is None else int(match[1])
        peaks[rank] = max(peaks.get(rank, 0), round(_number(match[3]) * 2**30))
    return _log("torchtitan", rows, "token of a device", peaks, True, None)


def _deepspeed(text: str) -> Log | None:
    """The measurements in a log of DeepSpeed's engine: seconds per sample, from its samples per second, and peak memory of
    rank 0. None if the log has no steps. text: the log."""
    rows = [(int(match[1]), 1 / max(_number(match[2]), 1e-9)) for match in DEEPSPEED.all(text)]
    peaks = [_number(match[1]) for match in DEEPSPEED_MEMORY.all(text)]
    return _log("deepspeed", rows, "sample", {0: round(max(peaks) * 2**30)} if peaks else {}, False, None)


def _pipeline(text: str) -> Log | None:
    """The measurements in a log of DeepSpeed's pipeline engine: seconds per step, without memory. None if the log has no
    steps. text: the log."""
    rows = [(int(match[1]), _number(match[2])) for match in PIPELINE.all(text)]
    return _log("deepspeed", rows, "step", {}, False, None)


def _nemo(text: str) -> Log | None:
    """The measurements in a log of NeMo: seconds per step, without memory. None if the log has no steps. text: the log."""
    rows = [(number, _number(match[1])) for number, match in enumerate(NEMO.all(text))]
    batch = None
    for batch in NEMO_BATCH.finditer(text, text.find("train_step_timing")):  # noqa: B007
        pass
    return _log("megatron", rows, "step", {}, False, None if batch is None else int(batch[1]))


def _trainer(text: str) -> Log | None:
    """The measurement in a log of transformers' Trainer. For a run that ended, it is the time of the whole run divided by
    its steps, which is more precise than the printed steps per second; otherwise the rate that its progress bar shows after
    the warm-up. None if the log has neither."""
    total, resumed, ended = TRAINER_STEPS.search(text), TRAINER_FROM.search(text), TRAINER.search(text)
    count = 0 if total is None else int(total[1].replace(",", ""))
    steps = count - (0 if resumed is None else int(resumed[1]))
    if ended is not None and steps > 0:
        seconds = _number(ended[1]) / steps
    elif ended is not None and resumed is None:
        seconds = 1 / max(_number(ended[2]), 1e-9)
    elif ended is None and steps > 0:
        bar = re.compile(rf"\| (\d+)/{count} \[(?:(\d+):)?(\d+):(\d\d)<")
        came = [(int(m[1]), int(m[2] or 0) * 3600 + int(m[3]) * 60 + int(m[4])) for m in bar.finditer(text)]
        came = [row for row in came if row[0] >= came[0][0] + WARMUP]
        if not came or came[-1][0] == came[0][0] or came[-1][1] - came[0][1] < LEAST_BAR_S:
            return _bar(text, count)
        steps, seconds = came[-1][0], (came[-1][1] - came[0][1]) / (came[-1][0] - came[0][0])
    else:
        return None if ended is not None else _bar(text, None)
    return Log("accelerate", (steps,), (seconds,), "step", {}, False, None, True)


def _bar(text: str, count: int | None) -> Log | None:
    """The last rate that the progress bar of training shows after the warm-up; None if there is none. count: the number of
    steps of the run, if known; None if not: then all progress bars must have the same number of steps, since those of an
    evaluation could not be distinguished."""
    bars = [match for match in TRAINER_BAR.finditer(text) if count is None or int(match[2]) == count]
    shown = [match for match in bars if int(match[1]) > WARMUP and float(match[3]) > 0]
    if not shown or len({match[2] for match in bars}) > 1:
        return None
    last = shown[-1]
    seconds = float(last[3]) if last[4] == "s/it" else 1 / float(last[3])
    return Log("accelerate", (int(last[1]),), (seconds,), "step", {}, False, None, bar=True)


def _log(
    runtime: str, rows: list[tuple[int, float]], per: str, peaks: dict[int | None, int], reserved: bool, batch: int | None
) -> Log | None:
    """Build a Log from the lines of a log file that have a time. rows: step number and seconds of each line. runtime: the name
    of the runtime that wrote the log. per: unit of the seconds: "step", "sample" or "token of a device". peaks: peak memory in
    bytes by rank; the key is None if the log names no rank. reserved: whether an allocator reserved this memory. batch: samples
    per step, if stated. None if `rows` is empty."""
    if not rows:
        return None
    steps, seconds = zip(*rows, strict=True)
    return Log(runtime, steps, seconds, per, peaks, reserved, batch)


@in_one_line
@dataclass(frozen=True)
class LoggedRun:
    """The measurements of a log compared with a plan's prediction. log: the measurements. step_s: the median measured step
    time in seconds. predicted_s: the predicted step time in seconds. tokens_per_s: measured tokens per second of all devices
    together. lines: number of steps in the log. peaks: rank, measured bytes and predicted bytes of each rank in the log; a
    rank of None stands for the fullest device."""

    log: Log
    step_s: float
    predicted_s: float
    tokens_per_s: float
    lines: int
    peaks: tuple[tuple[int | None, int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-ready values: `runtime`, `steps` (number of lines with a time), `step_s` and `predicted_s`
        (measured and predicted step), `step_error` (predicted / measured - 1), `mean` (whether the time is a mean over the
        run), `of` (which lines were used), `tokens_per_s`, `reserved` (whether peaks are reserved memory) and `peaks` (a list
        of `rank`, `measured_bytes`, `predicted_bytes`)."""
        return {
            "runtime": self.log.runtime,
            "steps": self.lines,
            "step_s": self.step_s,
            "predicted_s": self.predicted_s,
            "step_error": self.predicted_s / self.step_s - 1,
            "mean": self.log.mean,
            "of": self.log.of("line"),
            "tokens_per_s": self.tokens_per_s,
            "reserved": self.log.reserved,
            "peaks": [{"rank": rank, "measured_bytes": a, "predicted_bytes": b} for rank, a, b in self.peaks],
        }


def compared_with_log(plan: Plan, log: Log, where: str) -> LoggedRun:
    """Compare the measurements of a log with a plan's prediction. where: the plan's file, for errors. Raises InputError if
    the plan has no prediction, or if the log has another batch size or ranks that the plan lacks."""
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
