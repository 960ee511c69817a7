"""Fault runs of training with checkpoints: whatever ends a run, it ends, and every checkpoint that is left can be gone on from.

`--runs` runs of a small GPT on 4 processes (every other one on 2), with a checkpoint after every step, meet one of these
faults in turn, at a random moment after the second step:

  killed     SIGKILL of a rank
  orphaned   SIGKILL of the command itself, so that nobody is left to end the ranks
  stopped    SIGSTOP of a rank, for good, with a stall timeout of some seconds
  asked      SIGTERM of the command: it ends after its step, with exit code 4 and that step's checkpoint
  full       no file of a rank may grow beyond a few KiB any more, as on a full disk

A run has to end by itself with the exit code that is documented, no process may outlive it by 30 s, and each folder named
`step-` has to load whole, with finite numbers. Exit status 1 where one does not.

    python -m benchmarks.training_faults --runs 20
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from benchmarks.training_runs import (
    begin,
    descendants,
    finish,
    lines_of,
    mixed_on_four,
    other_on_two,
    ranks_of,
    small_gpt,
    wait_for_step,
    write_tokens,
)

CODES = {"killed": 3, "orphaned": -signal.SIGKILL, "stopped": 3, "asked": 4, "full": 3}
HANGS_S, OUTLIVES_S, STALL_S = 900.0, 30.0, 5.0
FULL_BYTES = 4096


def faults_of(checkpoint: Path) -> list[str]:
    """Faults of a checkpoint, of which all tensors are read."""
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    state: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is but one process
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return [f"{checkpoint.name}: {name} is not finite" for name, value in state.items() if not value.isfinite().all()]


def meet(fault: str, process: Any, rng: random.Random) -> list[int]:
    """Have a run meet a fault; the processes that it had."""
    ranks, everyone = ranks_of(process), list(descendants(process.pid))
    rank = rng.choice(ranks)
    if fault == "killed":
        os.kill(rank, signal.SIGKILL)
    elif fault == "orphaned":
        process.kill()
    elif fault == "stopped":
        os.kill(rank, signal.SIGSTOP)
    elif fault == "asked":
        process.send_signal(signal.SIGTERM)
    else:
        for one_rank in ranks:
            resource.prlimit(one_rank, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
    return everyone


def run(fault: str, number: int, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    """One run with a fault: how it ended, and what is wrong with that."""
    model, kept, metrics = small_gpt("float32"), folder / "kept", folder / "metrics.jsonl"
    train, _ = write_tokens(folder.parent)
    words = ["--steps", 100000, "--data", train, "--metrics", metrics, "--checkpoint", kept, "--checkpoint-every", 1]
    plan = (other_on_two if number % 2 else mixed_on_four)(model)
    process = begin(plan, folder, "plan", *words, "--stall-timeout", STALL_S, stdout=-3)
    if not wait_for_step(process, metrics, 3):
        return finish(process, 1.0)[1], ["ended before its fault"]
    time.sleep(rng.random())
    everyone = meet(fault, process, rng)
    code, line = finish(process, HANGS_S)
    wrong = [] if code == CODES[fault] else [f"exit code {code}"]
    deadline = time.monotonic() + OUTLIVES_S
    while (left := [entry for entry in everyone if Path(f"/proc/{entry}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    wrong += [f"{len(left)} processes outlive it"] * bool(left)
    for entry in left:
        os.kill(entry, signal.SIGKILL)
    whole = sorted(kept.glob("step-*"))
    wrong += [] if whole else ["no checkpoint"]
    for checkpoint in whole:
        wrong += faults_of(checkpoint)
    wrong += ["does not say what"] * (fault == "full" and "checkpoint of step" not in line)
    if fault == "asked" and whole[-1].name != f"step-{lines_of(metrics)[-1]['step']:08d}":
        wrong.append(f"the last checkpoint is {whole[-1].name}, and the last step {lines_of(metrics)[-1]['step']}")
    return f"exit code {code}, {len(whole)} checkpoints load; {line}", wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--faults", nargs="+", choices=CODES, default=list(CODES), metavar="FAULT")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, console, failed = random.Random(options.seed), Console(width=160, soft_wrap=True), 0
    with TemporaryDirectory() as scratch:
        for number in range(options.runs):
            fault, folder = options.faults[number % len(options.faults)], Path(scratch, str(number))
            folder.mkdir()
            reported, wrong = run(fault, number // len(options.faults), folder, rng)
            failed += bool(wrong)
            console.print(f"{number + 1:3d} {fault:<9} {reported}", *(f" WRONG: {entry}" for entry in wrong), markup=False)
    console.print(f"{options.runs} runs, {failed} with faults")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
