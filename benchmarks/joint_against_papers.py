"""How much each paper's planner loses against the joint optimum, on the papers' models and clusters of equal devices, and
Llama-3.

All plans are judged by the simulations on the serial back-end, whose step the joint problem minimises. A cell is wrong where a
planner's plan takes less than the joint one, unless it is one that the joint problem here does not contain: with states on the
host, or with micro-batches in halves. The last row of a case is the joint optimum begun from the planners' plans: in brackets
its seconds with theirs. Models whose plans become no programs (T5, ViT, Swin, TransGAN) have no cells.

    python benchmarks/joint_against_papers.py --json results.json
    python benchmarks/joint_against_papers.py --case gpt2-345m --seconds 60
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.profiling.base.quantities import format_bytes, format_time

import trainplan as tp

HALF: dict[str, Any] = {"dtype": "float16"}
LLAMA: dict[str, Any] = {"dtype": "bfloat16", "sequence": 8192}
CASES: dict[str, dict[str, Any]] = {
    "bert-huge-32": {"model": "bert-huge-32", "cluster": "rtx-titan-8", "batch": 64, "memory": "12GiB"},
    "bert-huge-48": {"model": "bert-huge-48", "cluster": "rtx-titan-8", "batch": 64, "memory": "12GiB"},
    "bert-xhuge": {"model": "bert-xhuge", "cluster": "a100-64", "batch": 256},
    "amp-gpt2": {"model": "amp-gpt2", "cluster": "amp-homogeneous-16", "batch": 32, **HALF},
    "gpt2-345m": {"model": "gpt2-345m", "cluster": "autopipe-3090-16", "batch": 128},
    "gpt2-762m": {"model": "gpt2-762m", "cluster": "autopipe-3090-16", "batch": 128},
    "gpt2-1.3b": {"model": "gpt2-1.3b", "cluster": "autopipe-3090-16", "batch": 128},
    "bert-large": {"model": "bert-large", "cluster": "autopipe-3090-16", "batch": 512},
    "bert-1.8b": {"model": "bert-1.8b", "cluster": "h3t-a100-8", "batch": 128, **HALF},
    "bert-6b": {"model": "bert-6b", "cluster": "h3t-a100-8", "batch": 64, **HALF},
    "llama3-8b": {"model": "llama3-8b", "cluster": "h100-8", "batch": 64, **LLAMA},
    "llama3-70b": {"model": "llama3-70b", "cluster": "h100-64", "batch": 256, **LLAMA},
    "llama3-405b": {"model": "llama3-405b", "cluster": "h100-1024", "batch": 2048, **LLAMA},
}


def case(name: str, gap: float, seconds: float) -> list[dict[str, Any]]:
    """The rows of one request; says which planner is begun."""

    def begun(planner: str) -> None:
        print(f"{name}: {planner}", flush=True)

    return [
        one_planner.to_dict() for one_planner in tp.compare_planners(**CASES[name], gap=gap, time_limit=seconds, progress=begun)
    ]


def worse(row: dict[str, Any]) -> bool:
    """Whether a planner has a plan that the joint problem contains, and that is shorter than its own."""
    return row["above"] is not None and row["above"] < 0 and row["outside"] is None


def main() -> int:
    """Print the table; exit status 1 where some cell is the wrong way round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--case", choices=tuple(CASES), action="append", help="only this one; may be given again")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each planner")
    parser.add_argument("--gap", type=float, default=1e-4, help="gap asked of the joint problem")
    options = parser.parse_args()
    table = Table(title="the papers' planners beside the joint optimum", title_justify="left")
    for name in ("case", "planner", "step", "above", "gap to bound", "memory", "seconds", "why"):
        table.add_column(name, justify="left" if name in ("case", "planner", "why") else "right")
    console, numbers, wrong = Console(width=170), {}, []
    for name in options.case or CASES:
        numbers[name] = case(name, options.gap, options.seconds)
        for index, row in enumerate(numbers[name]):
            wrong += [f"{name}, {row['planner']}"] * worse(row)
            cells = ["-" if row["step_ns"] is None else format_time(row["step_ns"])]
            cells += ["-" if row[share] is None else f"{row[share]:.3%}" for share in ("above", "gap")]
            seconds = f"{row['seconds']:.1f}" + (f" ({row['whole_seconds']:.1f})" if row["whole_seconds"] else "")
            cells += ["-" if row["peak_bytes"] is None else format_bytes(row["peak_bytes"]), seconds]
            table.add_row("" if index else name, row["planner"], *cells, (row["why"] or row["outside"] or "")[:60])
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(f"the wrong way round: {'; '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
