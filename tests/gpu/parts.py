"""The parts of a command: run one after the other while there is time, with a JSON line for each result as it comes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.launch.processes import sound_programs
from trainplan.execution.run.executor import Executor
from trainplan.execution.run.ranks import make_executor
from trainplan.execution.run.settings import Device
from trainplan.formulations.plan.plan import Plan

STORED = Path(__file__).with_name("measured")
BUDGET_S = 520.0  # of a command, whose limit is nine minutes
SEED = 3

Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """device: where to run; `quick`: as little of each part as shows that it works, for machines without a GPU."""

    device: Device
    quick: bool = False

    @property
    def lanes(self) -> Backend:
        """The back-end on which lanes run in parallel."""
        return "streams" if self.device == "cuda" else "threads"

    @property
    def torch_device(self) -> torch.device:
        """As torch names it."""
        return torch.device("cuda", 0) if self.device == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class Part:
    """Something that a command finds out. run: gives results, each with `right` where it can be right or wrong; least_s: no
    less time has to be left; on_cpu: whether it can be had without a GPU."""

    name: str
    run: Callable[[Settings], Iterator[Result]]
    least_s: float = 30.0
    on_cpu: bool = True


def run_parts(parts: Sequence[Part], settings: Settings, out: TextIO, budget_s: float = BUDGET_S) -> bool:
    """Run parts in order; whether all ran that can run here, and all was right."""
    end, right = time.monotonic() + budget_s, True

    def write(part: str, result: Result) -> None:
        line = json.dumps({"part": part, **result})
        for file in (out, sys.stdout):
            print(line, file=file, flush=True)

    write("machine", machine(settings))
    for part in parts:
        if settings.device == "cpu" and not part.on_cpu:
            write(part.name, {"not run": "needs a GPU"})
            continue
        if (left := end - time.monotonic()) < part.least_s:
            write(part.name, {"not run": f"{left:.0f} s are left of {budget_s:.0f}"})
            right = False
            continue
        began = time.monotonic()
        try:
            for result in part.run(settings):
                right &= result.get("right", True)
                write(part.name, result)
        except Exception as error:
            traceback.print_exc()
            write(part.name, {"failed": f"{type(error).__name__}: {error}"})
            right = False
        write(part.name, {"seconds": round(time.monotonic() - began, 1)})
    return right


def machine(settings: Settings) -> Result:
    """The machine and software that the results are of."""
    found: Result = {"date": date.today().isoformat(), "torch": torch.__version__, "device": name_of(settings.device)}
    if settings.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"cuda": torch.version.cuda, "memory_bytes": properties.total_memory, "gpus": torch.cuda.device_count()}
        found |= {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def name_of(device: Device) -> str:
    """The name that a device gives itself."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def command(name: str, parts: Sequence[Part], arguments: Sequence[str] | None = None) -> int:
    """A command of these parts; its exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.gpu.{name}")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="as little of each part as shows that it works")
    parser.add_argument("--part", choices=[part.name for part in parts], action="append", help="may be repeated (default: all)")
    parser.add_argument("--output", type=Path, help="file of results (default: in tests/gpu/measured, by GPU and date)")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no GPU: nothing was run; --device cpu runs what needs none")
        return 0
    if options.device == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # of ranks: threads that wait for each other on a busy machine wait long
        torch.set_num_threads(1)
    chosen = [part for part in parts if part.name in (options.part or [part.name])]
    gpu = "-".join(name_of(options.device).lower().split())
    path = options.output or STORED / f"{name}-{gpu}-{date.today().isoformat()}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as out:
        right = run_parts(chosen, Settings(options.device, options.quick), out)
    print(f"written to {path}")
    return int(not right)


def alone(plan: Plan, backend: Backend, settings: Settings) -> Executor:
    """The executor of a plan of one rank, in this process."""
    assert plan.world == 1
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if settings.device == "cuda":
        torch.cuda.set_device(settings.torch_device)
    executor: Executor = make_executor(sound_programs(plan, None, backend)[0], {}, SEED, settings.torch_device)
    return executor


def finish(settings: Settings) -> None:
    """Wait until the device has done all that it was given."""
    if settings.device == "cuda":
        torch.cuda.synchronize()
