"""A small GPT trains on Python's own sources under a mixed plan on 4 processes, on one, and across a killed rank.

In float64 and in bfloat16 with fp32 masters, `--steps` steps each of

  one        one process
  mixed      4 processes: two stages, dp, sdp, tp, sequence parallelism, recomputation, ZeRO-1 and 3
  resumed    the same, until a rank is killed (SIGKILL) after the step at a third; then on, from the last checkpoint, on 2
             processes under another plan

and in bfloat16 four more on one process, which cut the batch into 2, 4 and 8 micro-batches and lay it out as `resumed` does:
with `one`, five orders in which the same numbers are added. In float64 losses have to be those of one process, and parameters
of `resumed` within 1e-9 of those of `mixed`. In bfloat16 the mean loss of the last sixth of the steps of `mixed` and `resumed`
has to be as near to the mean of the five orders as the spread of these, from the least to the largest. Exit status 1 where not.

Each run is one of its own, whose figures stay in the folder; what is there is not made again.

    python -m benchmarks.training --steps 300 --folder build/training
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import Model

from benchmarks.training_runs import (
    begin,
    finish,
    lines_of,
    mixed_on_four,
    on_one,
    other_on_two,
    ranks_of,
    small_gpt,
    wait_for_step,
    write_tokens,
)

DTYPES = ("float64", "bfloat16")
LOSSES_APART, PARAMETERS_APART = 1e-9, 1e-9  # in float64
HANGS_S = 7200.0
KILLED = 1  # the rank
ORDERS: dict[str, Callable[[Model], Plan]] = {
    "one": on_one,
    "2 micro-batches": lambda model: on_one(model, 2),
    "4 micro-batches": lambda model: on_one(model, 4),
    "8 micro-batches": lambda model: on_one(model, 8),
    "two processes": other_on_two,
}


class Runs:
    """Runs of one dtype in a folder: the lines of their metrics, and the folders of their weights."""

    def __init__(self, folder: Path, dtype: str, steps: int, console: Console) -> None:
        self.folder, self.model, self.steps, self.console = folder / f"{dtype}-{steps}", small_gpt(dtype), steps, console
        self.folder.mkdir(parents=True, exist_ok=True)
        self.train, self.held_out = write_tokens(folder)

    def words(self, name: str) -> list[Any]:
        """Options of a run."""
        words = ["--steps", self.steps, "--data", self.train, "--metrics", self.folder / f"{name}.jsonl", "--clip", 1]
        words += ["--learning-rate", 3e-3, "--rate-schedule", "cosine", "--warmup", self.steps // 10 or 1]
        words += ["--weight-decay", 0.1, "--evaluate", self.held_out, "--evaluate-every", max(1, self.steps // 3)]
        return [*words, "--save-weights", self.folder / f"{name}-weights"]

    def metrics(self, name: str, make: Callable[[], None]) -> list[dict[str, Any]]:
        """Results of a run, which is made where it is not complete yet."""
        if not (self.folder / f"{name}-weights").exists():
            (self.folder / f"{name}.jsonl").unlink(missing_ok=True)
            make()
        lines = lines_of(self.folder / f"{name}.jsonl")
        assert [line["step"] for line in lines] == list(range(1, self.steps + 1)), name
        self.console.print(f"{self.model.dtype}, {name}: {sum(line['seconds'] for line in lines):.0f} s of steps")
        return lines

    def straight(self, name: str, plan: Plan) -> list[dict[str, Any]]:
        """A run from its beginning to its end."""

        def make() -> None:
            code, line = finish(begin(plan, self.folder, name, *self.words(name), stdout=-3), HANGS_S)
            assert code == 0, (code, line)

        return self.metrics(name, make)

    def resumed(self) -> list[dict[str, Any]]:
        """A run of which a rank is killed, and that goes on elsewhere."""
        kept, name, killed_at = self.folder / "kept", "resumed", max(2, self.steps // 3)
        words = [*self.words(name), "--checkpoint", kept, "--checkpoint-every", max(1, self.steps // 15)]

        def make() -> None:
            shutil.rmtree(kept, ignore_errors=True)
            process = begin(mixed_on_four(self.model), self.folder, "killed", *words, stdout=-3)
            if wait_for_step(process, self.folder / f"{name}.jsonl", killed_at):
                os.kill(ranks_of(process)[KILLED], signal.SIGKILL)
            code, line = finish(process, HANGS_S)
            done = max(int(path.name.removeprefix("step-")) for path in kept.glob("step-*"))
            self.console.print(f"killed rank {KILLED}: exit code {code}, {line}; the last checkpoint is of step {done}")
            assert code == 3 and 0 < done < self.steps, (code, line, done)
            code, line = finish(
                begin(other_on_two(self.model), self.folder, name, *words, "--resume", kept, stdout=-3), HANGS_S
            )
            assert code == 0, (code, line)

        return self.metrics(name, make)

    def parameters(self, name: str) -> dict[str, Any]:
        """The final parameters of a run, by their names of Hugging Face."""
        from safetensors.torch import load_file

        return {k: v for path in (self.folder / f"{name}-weights").glob("*.safetensors") for k, v in load_file(path).items()}


def largest_apart(one: list[dict[str, Any]], other: list[dict[str, Any]], field: str) -> float:
    """The largest difference of a field in any step."""
    return max(abs(a[field] - b[field]) for a, b in zip(one, other, strict=True) if field in a)


def exact(runs: Runs, table: Table) -> list[str]:
    """Rows and faults of the float64 runs."""
    one, mixed = runs.straight("one", on_one(runs.model)), runs.straight("mixed", mixed_on_four(runs.model))
    resumed, faults = runs.resumed(), []
    for name, lines in (("mixed", mixed), ("resumed", resumed)):
        apart = [largest_apart(one, lines, field) for field in ("loss", "evaluation_loss", "grad_norm")]
        figures = ", ".join(f"{entry:.1e}" for entry in apart)
        table.add_row("float64", f"{name}: loss, evaluation loss, gradient norm, from one process", figures)
        faults += [f"float64 {name}: losses are {apart[0]:.1e} from one process"] * (not max(apart[:2]) <= LOSSES_APART)
    first, second = runs.parameters("mixed"), runs.parameters("resumed")
    apart_most = max(float((first[name] - second[name]).abs().max()) for name in first)
    table.add_row("float64", "parameters of resumed, from those of mixed", f"{apart_most:.1e}")
    faults += [f"float64: parameters are {apart_most:.1e} apart"] * (not apart_most <= PARAMETERS_APART)
    table.add_row("float64", "loss of one process, first and last step", f"{one[0]['loss']:.4f}, {one[-1]['loss']:.4f}")
    return faults


def rounded(runs: Runs, table: Table) -> list[str]:
    """Rows and faults of the bfloat16 runs."""
    last = max(1, runs.steps // 6)

    def tail(lines: list[dict[str, Any]]) -> float:
        return mean(line["loss"] for line in lines[-last:])

    orders = [tail(runs.straight(name.replace(" ", "-"), plan(runs.model))) for name, plan in ORDERS.items()]
    middle, spread, faults = mean(orders), max(orders) - min(orders), []
    table.add_row("bfloat16", f"five orders: mean loss of the last {last} steps, spread", f"{middle:.5f}, {spread:.1e}")
    for name, lines in (("mixed", runs.straight("mixed", mixed_on_four(runs.model))), ("resumed", runs.resumed())):
        apart = abs(tail(lines) - middle)
        table.add_row("bfloat16", f"{name}: from their mean", f"{apart:.1e}")
        faults += [f"bfloat16 {name}: {apart:.1e} from five orders with a spread of {spread:.1e}"] * (not apart <= spread)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("build/training"), help="of runs that are made, or there")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="DTYPE")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    console, faults = Console(width=140, soft_wrap=True), list[str]()
    table = Table("dtype", "what", "figure", title=f"{options.steps} steps of a small GPT on Python's sources")
    for dtype in options.dtypes:
        runs = Runs(options.folder.absolute(), dtype, options.steps, console)
        faults += (exact if dtype == "float64" else rounded)(runs, table)
    console.print(table)
    for line in faults:
        console.print(line, markup=False)
    if options.json:
        rows = list(zip(*(column.cells for column in table.columns), strict=True))
        options.json.write_text(json.dumps({"rows": rows, "faults": faults}, indent=1) + "\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
