"""Fault runs: what `trainplan run` does where a rank is killed, stopped or slowed, raises, or has no more memory.

Each fault meets ten runs, of worlds 2 and 4, on three back-ends, at an instruction of a rank in the third of five steps. A run
must end by itself; its last line must name the rank, the step, the instruction and the cause, its exit code must be 3, and no
process may outlive it. A rank that is only slowed, for longer than the stall timeout, must finish, with exit code 0.

    python -m benchmarks.faults --json results.json

The exit code is 1 where any run hangs, leaves a process running, or does not say what it must.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.table import Table
from trainplan.execution.prediction.compiled_plan import programs_of
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.switches import ALL_ON

from benchmarks.faulty_ranks import FAULT, STALL_S, TOKEN
from tests.helpers.plans import BERT, GPT2, LLAMA, pipeline, plan_of
from tests.helpers.switch_plans import switch_plan

ROOT = Path(__file__).parents[1]
STEPS, STEP = 5, 3
HANGS_S = 180.0  # a run that has not ended by then hangs
CAUSES = {
    "killed": "was killed (SIGKILL), by hand or by the system for lack of memory",
    "stopped": f"was stopped for {STALL_S:g} s",
    "slowed": "",
    "exception": "ArithmeticError: a fault made on purpose",
    "memory": "memory",
}


def _plain(strategy: str, world: int, *, stages: int = 1, micro_batches: int = 1) -> Plan:
    cuts = [stage * len(GPT2.units) // stages for stage in range(1, stages)]
    return plan_of(GPT2, [strategy] * len(GPT2.units), world, 8, micro_batches, cuts)


RUNS: dict[str, tuple[str, Plan]] = {
    "dp2": ("serial", _plain("dp2", 2)),
    "tp2": ("fused", _plain("tp2", 2, micro_batches=2)),
    "sdp2": ("threads", _plain("sdp2-ckpt", 2)),
    "2 stages": ("serial", pipeline(BERT, 2, 4)),
    "2 stages, gpipe": ("threads", pipeline(LLAMA, 2, 3, "gpipe")),
    "switches": ("threads", switch_plan(GPT2, 2, [ALL_ON] * len(GPT2.units), True, 4)),
    "dp2-tp2": ("fused", _plain("dp2-tp2", 4)),
    "sdp4": ("serial", _plain("sdp4", 4)),
    "4 stages, sliced": ("serial", pipeline(GPT2, 4, 4, sliced=1)),
    "2 stages of dp2": ("threads", _plain("dp2", 4, stages=2, micro_batches=2)),
}


def run(fault: str, name: str, rng: random.Random) -> dict[str, Any]:
    """One run with a fault, and what is wrong with how it ended."""
    backend, plan = RUNS[name]
    programs = programs_of(plan, backend)
    rank = rng.randrange(plan.world)
    index = rng.randrange(len(programs[rank].instructions))
    with TemporaryDirectory() as folder:
        path, note, token = Path(folder, "plan.json"), Path(folder, "note"), uuid4().hex
        path.write_text(plan.model_dump_json())
        words = [
            "run",
            str(path),
            "--steps",
            str(STEPS),
            "--no-compare",
            "--backend",
            backend,
            "--stall-timeout",
            f"{STALL_S:g}",
        ]
        reported = json.dumps({"fault": fault, "rank": rank, "step": STEP, "place": index, "note": str(note)})
        command = [sys.executable, "-m", "benchmarks.faulty_ranks", *words]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), FAULT: reported, TOKEN: token},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        hangs = False
        try:
            _, errors = process.communicate(timeout=HANGS_S)
        except subprocess.TimeoutExpired:
            hangs = True
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate()
        ended = time.monotonic()
        begun = float(note.read_text()) if note.exists() else None
    last = (errors.strip().splitlines() or [""])[-1]
    row = {"fault": fault, "run": name, "world": plan.world, "backend": backend, "code": process.returncode, "line": last}
    row |= {"seconds": None if begun is None else ended - begun, "orphans": len(list(_alive(token)))}
    expected = [] if fault == "slowed" else [f"process {rank} of {plan.world}", f"in step {STEP}", CAUSES[fault]]
    instructions = programs[rank].instructions
    possible = [instructions[index]]
    if fault in ("killed", "stopped") and backend != "serial":  # another lane may begin one before the signal is met
        possible = list(instructions)
    wrong = ["hangs"] if hangs else []
    wrong += ["no fault came about"] if begun is None else []
    wrong += [f"lacks {text!r}" for text in expected if text not in last]
    if fault not in ("slowed", "memory") and not any(f"at {entry}" in last for entry in possible):
        wrong.append(f"lacks 'at {instructions[index]}'")  # memory may end only where the rank next allocates some
    wrong += ["exit code"] if process.returncode != (0 if fault == "slowed" else 3) else []
    wrong += ["orphans"] if row["orphans"] else []
    return {**row, "wrong": wrong}


def _alive(token: str) -> Iterator[int]:
    """Processes of a run that have not ended."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and token in (folder / "environ").read_text():
                yield int(folder.name)
        except (OSError, UnicodeDecodeError):
            continue


def main() -> None:
    """Print a row for each run, and what is wrong with any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=CAUSES, default=list(CAUSES), metavar="FAULT")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    rng, console, rows = random.Random(0), Console(width=200), list[dict[str, Any]]()
    for name in arguments.runs:
        for fault in arguments.faults:
            row = run(fault, name, rng)
            rows.append(row)
            took = "-" if row["seconds"] is None else f"{row['seconds']:.1f} s"
            text = f"{fault:<9} {name:<16} {row['backend']:<7} {took:>7}  exit {row['code']}  orphans {row['orphans']}  "
            console.print(
                text + row["line"] + "".join(f"  WRONG: {entry}" for entry in row["wrong"]), soft_wrap=True, markup=False
            )
    table = Table(title="fault runs")
    for column in ("fault", "runs", "right", "ended after, median", "longest"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for fault in arguments.faults:
        of_fault = [row for row in rows if row["fault"] == fault]
        seconds = [row["seconds"] for row in of_fault if row["seconds"] is not None] or [float("nan")]
        right = sum(not row["wrong"] for row in of_fault)
        table.add_row(fault, str(len(of_fault)), str(right), f"{median(seconds):.1f} s", f"{max(seconds):.1f} s")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


if __name__ == "__main__":
    main()
