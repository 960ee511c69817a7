"""The gain of posting receives one pass ahead: steps of pipelines with receives posted early, and when they are needed.

Computations are next to nothing; in their place each pass sleeps a while at random, so that a busy machine changes little and
passes are as uneven as they are on shared ones. Messages travel for real, with gloo. A round is one step of each side with the
same passes, in an order that changes; what counts is the ratio of a round, the slowest rank's steps. Without posts a sender
waits until the receiver comes to its receive: on the serial back-end with all that it has to do, on the fused one with what it
has to communicate.

    python -m benchmarks.posted --rounds 20
"""

from __future__ import annotations

import argparse
import os
import random
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.program import Program
from trainplan.execution.run import ranks
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.processes import Report, run_workers

from benchmarks.against_torch import interval
from tests.helpers.plans import GPT2, pipeline

ROOT = Path(__file__).parent.parent
WARM_UP, SEED = 2, 1
SHORTEST_S, LONGEST_S = 0.005, 0.045  # of a pass
BACKENDS: tuple[Backend, ...] = ("serial", "fused")
PLANS: dict[str, Plan] = {
    "2 stages, 1f1b": pipeline(GPT2, 2, 8),
    "4 stages, 1f1b": pipeline(GPT2, 4, 8),
    "4 stages, gpipe": pipeline(GPT2, 4, 8, "gpipe"),
}


def run_rank(rank: int, world: int, job: dict[str, Any], report: Report) -> list[dict[str, float]]:
    """Body of one rank: seconds of each side in every round."""
    import torch.distributed as dist

    device, groups, everyone = ranks.start_rank(rank, world, job)
    sides = {}
    for name, programs in zip(job["sides"], job["jobs"], strict=True):
        sides[name] = ranks.make_executor(programs["programs"][rank], groups, 0, device)
    rounds, order = list[dict[str, float]](), random.Random(SEED)
    for number in range(WARM_UP + job["rounds"]):
        seconds = {}
        for name in order.sample([*sides], len(sides)):
            sides[name].begins = partial(_sleeps, sides[name].program, number)
            dist.barrier(everyone)
            started = time.perf_counter()
            sides[name].step(name.partition(",")[0])
            seconds[name] = time.perf_counter() - started
        rounds.append(seconds)
    return rounds


def _sleeps(program: Program, number: int, index: int) -> None:
    """Before the first computation of a pass, as long as this pass of this rank takes in a round."""
    i = program.instructions[index]
    if (i.op is Op.FORWARD and i.unit == program.units[0]) or (i.op is Op.BACKWARD and i.unit == program.units[-1]):
        time.sleep(random.Random(f"{number} {program.rank} {i.op} {i.micro_batch}").uniform(SHORTEST_S, LONGEST_S))


def main() -> None:
    """Print a row for each plan and back-end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    console, table = Console(width=120), Table("plan", "back-end", "when needed", "posted", "ratio", "95 %")
    for name, plan in PLANS.items():
        early, late = compile_plan(plan, ahead=True), compile_plan(plan)
        sides = {f"{backend}, {what}": made for backend in BACKENDS for what, made in (("early", early), ("late", late))}
        job = {"jobs": [{"programs": made} for made in sides.values()], "sides": [*sides], "gpus": None}
        ranks = run_workers("benchmarks.posted:run_rank", plan.world, job | {"rounds": options.rounds}, timeout=900.0)
        rounds = [{side: max(rank[side] for rank in entry) for side in sides} for entry in zip(*ranks, strict=True)][WARM_UP:]
        for backend in BACKENDS:
            times = {what: [round_[f"{backend}, {what}"] for round_ in rounds] for what in ("late", "early")}
            ratios = [b / a for a, b in zip(times["late"], times["early"], strict=True)]
            low, high = interval(ratios, random.Random(0))
            shown = [f"{median(times[what]):.3f} s" for what in ("late", "early")]
            table.add_row(name, backend, *shown, f"{median(ratios):.3f}", f"{low:.3f} .. {high:.3f}")
    console.print(table)
    console.print(f"{options.rounds} rounds of one step each; passes of {SHORTEST_S:g} to {LONGEST_S:g} s")


if __name__ == "__main__":
    main()
