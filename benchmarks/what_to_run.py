"""What to run: Llama-3 8B, 70B and 405B, Qwen3-8B and 32B on 8 to 16,384 GPUs of four kinds, each cell planned with a proof.

Every cell is one request to the planner with nothing fixed but what RULES says. Cells that are finished are kept in a JSON
file, and a later call goes on with those that are not; `--again` makes all of them anew. The page is written after each.

    python -m benchmarks.what_to_run
    python -m benchmarks.what_to_run --model llama3-8b --devices 64 --kind h100 --again
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, plural
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.models.precision import usual_precision

import trainplan as tp
from trainplan.planned import Planned

DOCS = Path(__file__).parent.parent / "docs"
MODELS = {
    "llama3-8b": "Llama-3 8B",
    "llama3-70b": "Llama-3 70B",
    "llama3-405b": "Llama-3 405B",
    "qwen3-8b": "Qwen3-8B",
    "qwen3-32b": "Qwen3-32B",
}
KINDS = {"a100": "A100 80 GB", "h100": "H100", "h200": "H200", "b200": "B200"}
DEVICES = (8, 64, 1024, 16384)
NODE = 8
SEQUENCE = 8192
SAMPLES = 512  # 4.2M tokens of a step
A_SAMPLE = 8  # devices for which a step has at least one sample
SECONDS, GAP = 60.0, 0.01

RULES = f"""\
A step has {SAMPLES} samples of {SEQUENCE:,} tokens (4.2M tokens), and at least one sample for every {A_SAMPLE} GPUs (16.8M
tokens on 16,384). Nodes have {NODE} GPUs, with the links and network ports of their data sheets; bf16 with fp32 states; 1F1B.
Degrees, ZeRO stages, numbers of micro-batches, cuts between sub-layers, sequence parallelism and what is recomputed are chosen
by the planner; context parallelism, interleaved stages, 8 bits and host memory are left out. Step, memory and MFU are walks
over the plan's programs on the lanes of frameworks, by efficiencies that are fitted or assumed (see
[how plans are judged](judging.md)): predictions, not measurements.

`recomputed` is the share of sub-layers whose forward pass is done again. `faster at most` is proven: no plan of this space is
predicted to be faster by more than that. It holds what the search left open (it ends at a gap of {GAP:.0%}, or after
{SECONDS:.0f} seconds a cell), and what lanes wait for each other, which the bound leaves out."""


class Cell(NamedTuple):
    """One request of the page."""

    model: str
    devices: int
    kind: str

    @property
    def name(self) -> str:
        """Its key in the file."""
        return f"{self.model} {self.devices} {self.kind}"

    @property
    def cluster(self) -> str:
        """The nodes of a kind."""
        return f"{self.kind}:{NODE}x{self.devices // NODE}"

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return max(SAMPLES, self.devices // A_SAMPLE)


def cells(models: list[str], devices: list[int], kinds: list[str]) -> Iterator[Cell]:
    """The cells in the order in which they are made: the small ones first."""
    return (Cell(model, count, kind) for count, model, kind in product(devices, models, kinds))


def made(cell: Cell, seconds: float) -> dict[str, Any]:
    """The cell's row: a plan, or why there is none."""
    model = load_model(cell.model, SEQUENCE, "bfloat16")
    if (states := state_bytes(model, cell.devices)) > load_cluster(cell.cluster).used_kinds[0].usable_bytes:
        return {"why": "does not fit", "state_bytes": states}
    try:
        answer = tp.plan(
            model=cell.model,
            cluster=cell.cluster,
            batch=cell.batch,
            sequence=SEQUENCE,
            gap=GAP,
            time_limit=seconds,
            beside=False,
        )
    except InputError as error:
        return {"why": str(error)}
    return row_of(answer)


def state_bytes(model: Model, devices: int) -> int:
    """What each GPU has of the model's states at least, where all of them share all states."""
    element, precision = model.element_bytes, usual_precision(model.element_bytes)
    each = element + precision.gradient_bytes(element) + 3 * precision.stepped_bytes(element)
    return model.total_parameters * each // devices


def row_of(answer: Planned) -> dict[str, Any]:
    """What the page says of an answer."""
    plan, performance = answer.plan, answer.performance
    if plan is None or performance is None or plan.predicted is None or plan.claim is None:
        reason = answer.result.reason
        if answer.result.status != "infeasible" or reason is None:
            return {"why": answer.result.message or answer.result.status, "open": True}
        return {"why": "does not fit", "least_bytes": reason.least_memory_bytes}
    first, ckpt = plan.units[0].strategy, sum(unit.strategy.ckpt for unit in plan.units)
    layout = {axis: first.degree(axis) for axis in ("dp", "sdp", "cp", "tp")}  # type: ignore[arg-type]
    bound = plan.claim.bound_ns
    return {
        "pp": len(plan.stages),
        **layout,
        "zero": first.zero_stage,
        "sequence_parallel": first.sequence_parallel,
        "micro_batches": plan.batch.micro_batches,
        "recomputed": ckpt / len(plan.units),
        "step_ns": performance.step_ns,
        "tokens_per_s_per_device": performance.tokens_per_s_per_device,
        "mfu": performance.mfu,
        "bubble": performance.bubble,
        "exposed_communication": performance.exposed_communication,
        "peak_bytes": plan.predicted.most_bytes,
        "limit_bytes": plan.memory_bytes,
        "bound_ns": bound,
        "search_gap": plan.claim.gap,
    }


def layout_text(row: dict[str, Any]) -> str:
    """A layout as engineers say it."""
    words = [f"pp{row['pp']}"] * (row["pp"] > 1) + [f"tp{row['tp']}" + " sp" * row["sequence_parallel"]] * (row["tp"] > 1)
    words += [f"cp{row['cp']}"] * (row.get("cp", 1) > 1)
    shared = f"dp{row['sdp']} ZeRO-{row['zero']}" if row["sdp"] > 1 else f"dp{row['dp']}"
    return f"{', '.join([*words, shared])}, {plural(row['micro_batches'], 'micro-batch')}"


def line(cell: Cell, row: dict[str, Any] | None) -> str:
    """The cell's line of the page."""
    first = [KINDS[cell.kind], f"{cell.devices:,}"]
    if row is None:
        return table_row([*first, "not run yet", *[""] * 6])
    if "why" in row:
        return table_row([*first, why_text(row), *[""] * 6])
    step, bound = row["step_ns"], row["bound_ns"]
    return table_row(
        [
            *first,
            layout_text(row),
            f"{row['recomputed']:.0%}",
            format_time(step),
            f"{row['tokens_per_s_per_device']:,.0f}",
            f"{row['mfu']:.1%}",
            format_bytes(row["peak_bytes"]),
            "not known" if not bound else f"{max(0.0, step / bound - 1):.1%}",
        ]
    )


def why_text(row: dict[str, Any]) -> str:
    """Why a cell has no plan."""
    if "least_bytes" in row:
        return f"does not fit: needs {format_bytes(row['least_bytes'])} a GPU at least"
    if "state_bytes" in row:
        return f"does not fit: its states alone are {format_bytes(row['state_bytes'])} a GPU"
    return str(row["why"])


def table_row(cells: list[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def page(rows: dict[str, Any], date: str) -> str:
    """The whole page."""
    head = ["GPUs", "count", "layout", "recomputed", "step", "tokens/s a GPU", "MFU", "memory", "faster at most"]
    made_by = f"Made by `make what-to-run`, {date}; every number is in [what-to-run.json](what-to-run.json)."
    text = ["# What to run", "", RULES, "", made_by]
    for model, name in MODELS.items():
        text += ["", f"## {name}", "", table_row(head), table_row(["---"] * len(head))]
        for kind, count in product(KINDS, DEVICES):
            cell = Cell(model, count, kind)
            text.append(line(cell, rows.get(cell.name)))
    return "\n".join(text) + "\n"


def main() -> None:
    """Make the cells that are not there yet, and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--devices", action="append", type=int, choices=DEVICES)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the search, a cell")
    parser.add_argument("--again", action="store_true", help="make cells anew that are finished")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of the page and its JSON")
    asked = parser.parse_args()
    path = asked.out / "what-to-run.json"
    kept = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    for cell in cells(asked.model or list(MODELS), asked.devices or list(DEVICES), asked.kind or list(KINDS)):
        if cell.name in kept["cells"] and not asked.again:
            continue
        kept["cells"][cell.name] = row = made(cell, asked.seconds)
        kept["date"] = datetime.now(UTC).date().isoformat()
        path.write_text(json.dumps(kept, indent=1) + "\n")
        (asked.out / "what-to-run.md").write_text(page(kept["cells"], kept["date"]))
        print(cell.name, row.get("why") or f"{layout_text(row)}: {format_time(row['step_ns'])}", flush=True)


if __name__ == "__main__":
    main()
