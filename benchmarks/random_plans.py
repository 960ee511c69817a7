"""Random plans over everything that programs can do: run against one process, and checked.

The first `--count` plans, of worlds 1, 2, 3, 4, 6 and 8, run three steps in float64 on each of three back-ends: losses and the
first step's gradients, relative to the largest of their unit, have to be within 1e-12 of one process, and parameters after the
last step close; every instruction of every step has to begin once, in its lane's order. That process is itself held against
`transformers`. Then `--checked` plans of worlds up to 64 are compiled, checked and analysed. Exit status 1 where one fails.

    python -m benchmarks.random_plans --count 300 --checked 1000 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.instruction_spec import STREAMS
from trainplan.execution.prediction.compiled_plan import programs_of
from trainplan.execution.program import Program
from trainplan.execution.run import ranks
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.processes import Report, run_workers

from benchmarks.mutations import predictions
from tests.helpers.any_plan import any_plan, features_of
from tests.helpers.plans import BERT, GPT2, LLAMA, UNTIED

ROOT = Path(__file__).parent.parent
WORLDS = (1, 2, 3, 4, 6, 8)
BACKENDS: tuple[Backend, ...] = ("serial", "fused", "threads")
STEPS = 3
LARGEST_DIFFERENCE = 1e-12
LARGEST_PARAMETERS = 1e-8  # AdamW divides by the root of small numbers
MOST_MEMORY = 2**40


def run_rank(rank: int, world: int, job: dict[str, Any], report: Report) -> list[dict[str, Any]]:
    """Body of one rank: `ranks.run_rank`, noting which instruction begins when; `traced` says whether that is right."""
    begun: dict[tuple[int, int], list[int]] = {}
    lock = threading.Lock()

    def begins(position: Any, number: int, step: int, index: int) -> None:
        position.set(number, step, index + 1)
        with lock:
            begun.setdefault((number, step), []).append(index)

    ranks._begins = begins
    results = ranks.run_rank(rank, world, job, report)
    for number, result in enumerate(results):
        program = job["jobs"][number]["programs"][rank]
        result["traced"] = all(_in_order(program, begun[number, step]) for step in range(1, STEPS + 1))
    return results


def _in_order(program: Program, begun: list[int]) -> bool:
    """Whether every instruction began once, in the order of its lane."""
    lanes = {stream: [index for index in begun if program.instructions[index].stream == stream] for stream in STREAMS}
    return sorted(begun) == list(range(len(program.instructions))) and all(lane == sorted(lane) for lane in lanes.values())


def ran(plans: list[Plan], backend: Backend) -> list[list[str]]:
    """Faults of the runs of plans of one world: none, as a rule."""
    job: dict[str, Any] = {"jobs": [{"programs": programs_of(plan, backend)} for plan in plans], "backend": backend, "seed": 3}
    job |= {"steps": STEPS, "gpus": None, "compare": True, "memory": False, "record": False}
    faults = [[str(fault) for fault in check(entry["programs"])] for entry in job["jobs"]]
    ranks = run_workers("benchmarks.random_plans:run_rank", plans[0].world, job, timeout=600.0)
    for number, wrong in enumerate(faults):
        first = ranks[0][number]
        for name, most in (("gradient", LARGEST_DIFFERENCE), ("loss", LARGEST_DIFFERENCE), ("parameter", LARGEST_PARAMETERS)):
            if not first[f"{name}_difference"] <= most:
                wrong.append(f"{name}s are {first[f'{name}_difference']:.2g} from one process")
        wrong += ["an instruction did not begin once, in order"] * (not all(rank[number]["traced"] for rank in ranks))
    return faults


def reference_faults() -> list[str]:
    """Where the one process is not what transformers computes."""
    import torch
    import transformers
    from trainplan.execution.training.single_process import Reference, batch_tokens

    from tests.helpers.huggingface import as_huggingface, float64_throughout

    wrong = []
    for model in (GPT2, UNTIED, BERT, LLAMA):
        reference, tokens = Reference(model, 3), batch_tokens(model, 4, 3)
        other = as_huggingface(transformers, reference)
        with float64_throughout():
            logits = other(tokens[:, :-1]).logits
        apart = float((logits - reference.logits(tokens[:, :-1])).abs().max().detach())
        if not apart <= 1e-10 or not torch.isfinite(logits).all():
            wrong.append(f"{model.name}: logits are {apart:.2g} from transformers")
    return wrong


def checked(rng: random.Random) -> tuple[str, Plan, list[str]]:
    """A plan of any world up to 64, and what its checks and analyses find wrong."""
    world = rng.choice([*range(1, 17), 24, 32, 48, 64])
    name, plan = any_plan(rng, world)
    backend: Backend = rng.choice(BACKENDS)
    programs = programs_of(plan, backend)
    wrong = [str(fault) for fault in check(programs)]
    if not wrong:
        predictions(programs)
        peak = max(memory_walk(program, backend).peak_bytes for program in programs)
        step = time_walk(programs, lambda _, instruction: 1 + instruction.message_bytes, backend).step_ns
        wrong += [] if 0 < peak < MOST_MEMORY and step > 0 else [f"walks to {peak} bytes, {step} ns"]
    return name, plan, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=300, help="plans that run (default 300)")
    parser.add_argument("--checked", type=int, default=1000, help="plans that are checked and walked (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are small, ranks many
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    console, rng, started = Console(width=160, soft_wrap=True), random.Random(options.seed), time.perf_counter()
    failed = reference_faults() if options.count else []
    drawn = [any_plan(rng, WORLDS[number % len(WORLDS)]) for number in range(options.count)]
    kinds, traits = Counter(name for name, _ in drawn), Counter(entry for _, plan in drawn for entry in features_of(plan))
    for world in WORLDS:
        plans = [(name, plan) for name, plan in drawn if plan.world == world]
        for backend in BACKENDS if plans else ():
            for (name, plan), wrong in zip(plans, ran([plan for _, plan in plans], backend), strict=True):
                failed += [f"{name}, {plan!r}, {backend}: {fault}" for fault in wrong]
            took = time.perf_counter() - started
            console.print(f"{took:5.0f} s  {len(plans)} plans of world {world} ran on {backend}; {len(failed)} faults so far")
    if drawn:
        console.print(f"{len(drawn)} plans ran on {len(BACKENDS)} back-ends, {time.perf_counter() - started:.0f} s")
    numbers = range(options.checked)
    for _ in track(numbers, "checking", console=console, disable=not console.is_terminal):
        name, plan, wrong = checked(rng)
        kinds[name] += 1
        traits.update(features_of(plan))
        failed += [f"{name}, {plan!r}: {fault}" for fault in wrong]
    table = Table("plans", "count", title="what the plans are about")
    for what, count in [*kinds.most_common(), *traits.most_common()]:
        table.add_row(what, str(count))
    console.print(table)
    for line in failed:
        console.print(line, markup=False)
    console.print(f"{len(failed)} faults, {time.perf_counter() - started:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
