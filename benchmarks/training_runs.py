"""Runs of `trainplan run` on text that ships with Python, for benchmarks and tests: a small GPT and plans of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainplan.formulations.plan.plan import Batch, Plan, Stage
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.plan.unit import planned_unit
from trainplan.profiling.models.model import Model, model_from_config
from trainplan.profiling.models.precision import MASTERS, PLAIN

import trainplan as tp

ROOT = Path(__file__).parents[1]
LIBRARY = Path(os.__file__).parent  # Python's standard library, as sources
TEXTS = ("argparse.py", "ast.py", "typing.py", "tarfile.py", "inspect.py", "doctest.py", "turtle.py", "subprocess.py")
HELD_OUT = ("difflib.py", "zipfile.py")
SAMPLES = 8
CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64, "vocab_size": 260}


def small_gpt(dtype: str) -> Model:
    """A GPT-2 of 3 layers whose tokens are bytes."""
    return model_from_config(CONFIG, "small-gpt", 64, dtype)


def small_plan(model: Model, strategies: Sequence[str], world: int, micro_batches: int = 1, cuts: Sequence[int] = ()) -> Plan:
    """A plan of the model: the strategy of each unit, and the first unit of each stage but the first. In half precision there
    are fp32 masters."""
    bounds = [0, *cuts, len(model.units)]
    size = world // (len(bounds) - 1)
    stages = [
        Stage(ranks=list(range(number * size, (number + 1) * size)), first_unit=first, last_unit=end - 1)
        for number, (first, end) in enumerate(pairwise(bounds))
    ]
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=world,
        memory_bytes=2**33,
        batch=Batch(global_samples=SAMPLES, micro_batches=micro_batches),
        stages=stages,
        units=[planned_unit(unit.name, parse_strategy(s), None) for unit, s in zip(model.units, strategies, strict=True)],
        precision=PLAIN if model.element_bytes >= 4 else MASTERS,
    )


def mixed_on_four(model: Model) -> Plan:
    """Two stages of two ranks, with dp, sdp, tp, sequence parallelism, recomputation, ZeRO-1 and 3."""
    return small_plan(model, ["tp2", "tp2-sp", "dp2", "sdp2-ckpt", "sdp2-zero1", "tp2-sp", "dp2", "sdp2"], 4, 4, [4])


def other_on_two(model: Model) -> Plan:
    """One stage of two ranks, laid out otherwise."""
    return small_plan(model, ["sdp2", "sdp2", "tp2", "dp2-ckpt", "tp2-sp", "sdp2-zero2", "sdp2", "tp2"], 2, 2)


def on_one(model: Model, micro_batches: int = 1) -> Plan:
    """One process."""
    return small_plan(model, ["single"] * len(model.units), 1, micro_batches)


def write_tokens(folder: Path) -> tuple[Path, Path]:
    """Files of tokens to train on and to evaluate with."""
    paths = folder / "train.bin", folder / "held-out.bin"
    for path, names in zip(paths, (TEXTS, HELD_OUT), strict=True):
        if not path.exists():
            tp.tokenize([LIBRARY / name for name in names], path)
    return paths


def begin(plan: Plan, folder: Path, name: str, *words: Any, **streams: Any) -> subprocess.Popen[str]:
    """Start `trainplan run` of a plan, which is written to the folder; each rank has one thread."""
    path = folder / f"{name}.plan.json"
    path.write_text(plan.model_dump_json())
    command = [sys.executable, "-m", "trainplan", "run", str(path), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, **streams)


def finish(process: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
    """Exit code and last line on standard error of a run; one that takes longer hangs, and is killed: code 0 - SIGALRM."""
    try:
        errors = process.communicate(timeout=seconds)[1] or ""
    except subprocess.TimeoutExpired:
        for entry in (*descendants(process.pid), process.pid):
            os.kill(entry, signal.SIGKILL)
        process.communicate()
        return -signal.SIGALRM, "hangs"
    return process.returncode, (errors.strip().splitlines() or [""])[-1]


def children(process: int) -> list[int]:
    """Processes that a process has started and that have not ended."""
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def descendants(process: int) -> Iterator[int]:
    """Those, and theirs."""
    for child in children(process):
        yield from descendants(child)
        yield child


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The ranks of a run, in order: children of the process that `trainplan run` starts them with."""
    launchers = children(process.pid)
    return children(launchers[0]) if launchers else []


def lines_of(metrics: Path) -> list[dict[str, Any]]:
    """The steps that a run has written down so far."""
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]


def wait_for_step(process: subprocess.Popen[str], metrics: Path, step: int) -> bool:
    """Wait until a run has made a step; False where it has ended before."""
    while process.poll() is None:
        lines = lines_of(metrics)
        if lines and lines[-1]["step"] >= step:
            return True
        time.sleep(0.02)
    return False
