"""How many harmful programs the checks let through: mutations of the programs of random plans, over all kinds of fields.

Each mutant is checked. What the checks let through is run for two steps on each of two back-ends, and held against one process:
it is equivalent (the same results and predictions), another sound program (the same results, other predictions, which are its
own), wrong without a word, or it crashes or hangs. Exit status 1 where a mutant makes the checks raise or is wrong without a
word, or where fewer than 99 % of the harmful ones are refused.

    python -m benchmarks.mutations --count 1000 --seed 0
    python -m benchmarks.mutations --refused 30      # run as many of those that are refused, too: are they harmful?
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from trainplan.execution.analysis.memory.peak import Backend, memory_walk
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.program import Instruction, Program
from trainplan.execution.run import ranks
from trainplan.profiling.base.processes import Reporter, WorkerError, run_workers

from tests.helpers.mutations import KINDS, Mutant, mutants

ROOT = Path(__file__).parent.parent
BACKENDS: tuple[Backend, ...] = ("serial", "threads")
SETTINGS = {"steps": 2, "gpus": None, "seed": 0, "compare": True, "memory": False, "record": False}
LARGEST_DIFFERENCE = 1e-10
HANG_S = 30.0  # for two steps that take a fraction of a second
TIMED_OUT = 77
LEAST_REFUSED = 0.99
OUTCOMES = ("equivalent", "other predictions", "wrong", "crash", "hang")
HARMFUL = OUTCOMES[2:]


def run_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> None:
    """Body of one rank: all mutants one after the other, on all back-ends, until one fails."""
    for number, programs in enumerate(job["mutants"]):
        worst = 0.0
        for backend in BACKENDS:
            watch = threading.Timer(HANG_S, lambda: os._exit(TIMED_OUT))
            watch.daemon = True
            watch.start()
            settings = {**SETTINGS, "jobs": [{"programs": programs}], "backend": backend}
            result = ranks.run_rank(rank, world, settings, Reporter(None, report.position))[0]
            watch.cancel()
            if rank == 0:
                parts = [result[f"{name}_difference"] for name in ("gradient", "parameter", "loss")]
                worst = max(worst, *(part if part == part else float("inf") for part in parts))
        report({"number": number, "difference": worst})


def outcomes(made: Sequence[Mutant], console: Console) -> list[tuple[str, str]]:
    """The outcome of running each mutant: one of OUTCOMES, and more in words."""
    results: dict[int, tuple[str, str]] = {}
    for world in sorted({len(mutant.programs) for mutant in made}):
        waiting = [index for index, mutant in enumerate(made) if len(mutant.programs) == world]
        while waiting:
            done: list[float] = []
            job = {"mutants": [made[index].programs for index in waiting]}
            error: WorkerError | None = None
            try:
                run_workers("benchmarks.mutations:run_rank", world, job, progress=lambda e, d=done: d.append(e["difference"]))  # type: ignore[misc]
            except WorkerError as failure:
                error = failure
            for index, difference in zip(waiting, done, strict=False):
                results[index] = _compared(made[index], difference)
            waiting = waiting[len(done) :]
            if error is not None and waiting:
                hangs = error.code == TIMED_OUT
                results[waiting[0]] = ("hang", "") if hangs else ("crash", str(error).splitlines()[0][:160])
                waiting = waiting[1:]
    return [results[index] for index in range(len(made))]


def _compared(mutant: Mutant, difference: float) -> tuple[str, str]:
    if difference > LARGEST_DIFFERENCE:
        return "wrong", f"{difference:.2g} apart"
    try:
        same = predictions(mutant.programs) == predictions(mutant.sound)
    except Exception as error:  # of one that the checks refuse: the analyses rely on them
        return OUTCOMES[1], f"cannot be walked: {error!r}"
    return OUTCOMES[0 if same else 1], ""


def predictions(programs: Sequence[Program]) -> tuple[Any, ...]:
    """Peaks of all ranks and a step, at a price for each instruction and each byte."""
    peaks = [memory_walk(program, backend).peak_bytes for program in programs for backend in BACKENDS]

    def price(_: Program, instruction: Instruction) -> int:
        return 1000 + instruction.message_bytes

    return (*peaks, *(time_walk(programs, price, backend).step_ns for backend in BACKENDS))


def show(made: Sequence[Mutant], refused: Sequence[bool], ran: dict[int, tuple[str, str]], console: Console) -> None:
    """A row for each kind of mutation, and the survivors."""
    table = Table("mutation", "mutants", "refused", *OUTCOMES, title="what the checks refuse, and what the rest does")
    rows: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for index, mutant in enumerate(made):
        rows[mutant.kind]["refused" if refused[index] else ran[index][0]] += 1
    for kind, row in [*rows.items(), ("all", sum(rows.values(), Counter[str]()))]:
        numbers = [row.total(), row["refused"], *(row[name] for name in OUTCOMES)]
        table.add_row(kind, *map(str, numbers), style="bold" if kind == "all" else None)
    console.print(table)
    for index, mutant in enumerate(made):
        if not refused[index]:
            console.print(f"{mutant.kind}: {mutant.what}: {' '.join(ran[index])}", markup=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=1000, help="mutants (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="may be repeated (default: all)")
    parser.add_argument("--refused", type=int, default=0, metavar="COUNT", help="run so many of the refused, too")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are small, ranks many
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    console, rng, started = Console(width=160), random.Random(options.seed), time.perf_counter()
    made = mutants(rng, options.count, options.kind or ())
    refused, raised = list[bool](), 0
    for mutant in track(made, "checking", console=console, disable=not console.is_terminal):
        try:
            refused.append(bool(check(mutant.programs)))
        except Exception as error:
            raised += 1
            refused.append(True)
            console.print(f"the checks raise {error!r}: {mutant.kind}: {mutant.what}", markup=False, soft_wrap=True)
    survivors = [index for index, stopped in enumerate(refused) if not stopped]
    ran = dict(zip(survivors, outcomes([made[index] for index in survivors], console), strict=True))
    show(made, refused, ran, console)
    harmful = Counter(outcome for outcome, _ in ran.values() if outcome in HARMFUL)
    rate = sum(refused) / max(1, sum(refused) + harmful.total())
    console.print(
        f"{sum(refused)} refused, {harmful.total()} harmful survivors ({harmful['wrong']} silent): {rate:.2%} refused"
    )
    if options.refused:
        sample = rng.sample([index for index, stopped in enumerate(refused) if stopped], min(options.refused, sum(refused)))
        counts = Counter(outcome for outcome, _ in outcomes([made[index] for index in sample], console))
        console.print(f"of {len(sample)} refused: " + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES))
    console.print(f"{time.perf_counter() - started:.0f} s")
    return int(raised > 0 or harmful["wrong"] > 0 or rate < LEAST_REFUSED)


if __name__ == "__main__":
    sys.exit(main())
