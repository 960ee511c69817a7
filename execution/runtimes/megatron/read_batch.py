"""Batch sizes of Megatron-LM that grow during a run: the batch that they end with, and what Megatron-LM's assertions allow.

`--rampup-batch-size` as of `megatron/core/num_microbatches_calculator.py` up to core 0.17, `--step-batch-size-schedule` as of
core 0.18 (2026), which ignores the former.
"""

from __future__ import annotations

from trainplan.execution.launch_files.run_configuration import KeyReader
from trainplan.profiling.base.errors import shown

BATCH, RAMP, SCHEDULE = "--global-batch-size", "--rampup-batch-size", "--step-batch-size-schedule"
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def batch_of(keys: KeyReader, notes: list[str]) -> int | None:
    """Samples per step, over all ranks; for a batch that grows during training, the last size; None if it is not given. notes:
    a list to which lines on how the plan differs from the run are appended. keys: gives the values of the file's keys, and
    records which keys have been read. Raises InputError for arguments with which Megatron-LM does not start."""
    samples, ramp, schedule = keys.whole(BATCH), keys.get(RAMP), keys.get(SCHEDULE)
    ramped = ramp not in (None, "none", "None")
    if schedule is not None:
        if ramped:
            notes.append(f"{RAMP} is given, and {SCHEDULE}: the first has no effect")
        return _scheduled(keys, str(schedule), samples, notes)
    return _ramped(keys, str(ramp), samples, notes) if ramped else samples


def _scheduled(keys: KeyReader, schedule: str, samples: int | None, notes: list[str]) -> int:
    """Samples of the last batch of a schedule such as `0:64 1B:256`: the size at the highest threshold (in tokens), wherever it
    stands in the text. samples: the value of `--global-batch-size`; None if not given. notes: a line is appended that the plan
    has only this batch. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for
    a key or value that is invalid or that no plan can have."""
    steps = dict[int, int]()
    parts = schedule.replace(",", " ").split()
    length = keys.whole("--seq-length", 1) or 1
    for part in parts:
        threshold, _, size = part.partition(":")
        try:
            steps[_number(threshold) // length] = _number(size)
        except (ValueError, OverflowError):
            steps[0] = 0  # no batch
    if not steps or min(steps.values()) < 1:
        raise keys.error(SCHEDULE, f"is {shown(schedule)}", 'give thresholds and sizes, such as "0:64 1B:256"')
    if 0 not in steps or len(steps) < len(parts):
        what = "two sizes of one threshold" if 0 in steps else "no threshold 0"
        raise keys.error(SCHEDULE, f"is {shown(schedule)}, with {what}", "let thresholds start with 0, and grow")
    sizes = [size for _, size in sorted(steps.items())]
    if samples not in (None, sizes[-1]):
        fix = f"leave one of the two out: with both Megatron-LM does not start ({SCHEDULE} alone ends with {sizes[-1]})"
        raise keys.error(BATCH, f"is {samples}, and {SCHEDULE} ends with {sizes[-1]}", fix)
    notes.append(f"batches of {', '.join(map(str, sizes))} in turn ({SCHEDULE}): the plan's are the last")
    if samples is not None:
        notes.append(f"{BATCH} is given, too, with which Megatron-LM does not start: read as without it")
    return sizes[-1]


def _number(text: str) -> int:
    """A number with a suffix for thousands (K), millions (M) and so on: "1.5B" -> 1500000000. Raises ValueError or
    OverflowError."""
    text = text.strip().upper()
    factor = SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)


def _ramped(keys: KeyReader, ramp: str, samples: int | None, notes: list[str]) -> int:
    """Samples of the batch that a ramp such as `32 32 100000` (start, increment, samples over which it grows) ends with.
    samples: the value of `--global-batch-size`; None if it is not given. notes: a line is appended that the plan has only the
    last batch. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for a key or
    value that is invalid or that no plan can have."""
    parts = ramp.replace("_", "").split()  # as Python's int() reads 2_000_000
    if len(parts) != 3 or not all(part.isdecimal() for part in parts) or "0" in parts[:2]:
        fix = "give where it starts, by how much it grows, and over how many samples, such as 32 32 100000"
        raise keys.error(RAMP, f"is {shown(ramp)}", fix)
    if samples is None:
        raise keys.error(BATCH, "is missing", f"give the batch that {RAMP} ends with")
    start, more = int(parts[0]), int(parts[1])
    if samples <= start or (samples - start) % more:
        works = start + max(1, (samples - start) // more) * more
        problem = f"is {shown(ramp)}, and from {start} by {more} no batch is {samples}: Megatron-LM does not start"
        raise keys.error(RAMP, problem, f"give {BATCH} {works}, or leave it out")
    if keys.values.get("--train-iters") is not None:
        problem = f"is {shown(ramp)}, with --train-iters: Megatron-LM does not start"
        raise keys.error(RAMP, problem, "give --train-samples in its place, or leave it out")
    notes.append(f"batches that grow from {start} by {more} ({RAMP}): the plan's is the last, {samples}")
    return samples
