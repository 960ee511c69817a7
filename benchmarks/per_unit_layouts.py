"""What a layout of its own for every sub-layer gains over one layout for all, under overlap, on ten real models, and where.

Each model is planned twice for one cluster, by `plan --layouts one` and by `plan --layouts unit`. Cells that are finished are
kept in a JSON file, and a later call goes on with those that are not; `--again` makes all of them anew. The page is written
after each.

    python -m benchmarks.per_unit_layouts
    python -m benchmarks.per_unit_layouts --model gpt2-xl --again
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.profiling.base.quantities import format_time, plural, span
from trainplan.profiling.models.model import load_model

import trainplan as tp
from benchmarks.pages import DOCS, fill, table_row


class Cell(NamedTuple):
    """One request: a model, a cluster, samples per step, tokens per sample, and the memory of a device (None: all of it)."""

    model: str
    cluster: str
    batch: int
    tokens: int
    memory: str | None = None

    @property
    def name(self) -> str:
        """Its key in the file."""
        return f"{self.model} {self.cluster}" + f" {self.memory}" * (self.memory is not None)


CELLS = (
    Cell("gpt2", "l40s:4", 64, 1024),
    Cell("gpt2-xl", "a100:8", 64, 1024),
    Cell("llama3.2-1b", "l40s:8", 64, 4096),
    Cell("phi3-mini", "a100:8", 64, 4096),
    Cell("mistral-7b", "h100:8", 64, 8192),
    Cell("llama3-8b", "h100:8x2", 64, 8192),
    Cell("gemma2-9b", "h100:8x2", 64, 8192),
    Cell("gpt-neox-20b", "a100:8x4", 256, 2048),
    Cell("falcon-40b", "h100:8x4", 128, 2048),
    Cell("llama3-70b", "h100:8x8", 128, 8192),
)
SECONDS, GAP = 120.0, 1e-3
HEAD = ["model", "GPUs", "one layout", "step", "unlike layouts", "step", "gain", "left at most", "seconds"]
RULES = f"""\
Each model is planned for one layout, and with a layout of its own for every sub-layer (`plan --layouts unit`), in bf16 with
fp32 states and 1F1B. Steps are simulations with overlap of the plans' programs, which trainplan's executor runs: predictions,
not measurements. `left at most` is by how much a plan of the space may be faster still, by the lower bound of all of them. A
search ends at a gap of {GAP:.1%} or after {SECONDS:.0f} seconds; `seconds` are those of both. Plans whose steps differ by less
than a thousandth count as equal; of these, the one that changes layout least often is taken."""


def parts_of(plan: Plan) -> list[list[str]]:
    """For every run of units with equal strategies, their names and the strategy."""
    names = [unit.name for unit in plan.planned_model().units]
    rows, begin = [], 0
    for strategy, group in groupby(str(unit.strategy) for unit in plan.units):
        count = len(list(group))
        rows.append([span(names[begin], names[begin + count - 1]), strategy])
        begin += count
    return rows


def plan_of(answer: Any) -> dict[str, Any]:
    """What the page shows of a plan."""
    plan = answer.plan
    return {
        "step_ns": answer.step_ns,
        "stages": plan.depth,
        "micro_batches": plan.batch.micro_batches,
        "parts": parts_of(plan),
        "peak_bytes": plan.predicted.most_bytes,
        "seconds": answer.spent.seconds,
    }


def made(cell: Cell, seconds: float) -> dict[str, Any]:
    """The cell's row: both plans, the gain and the bound."""
    asked: dict[str, Any] = {"cluster": cell.cluster, "batch": cell.batch, "memory": cell.memory, "comparisons": False}
    asked |= {"model": load_model(cell.model, cell.tokens, "bfloat16"), "gap": GAP, "time_limit": seconds}
    one = tp.plan(**asked)
    unlike = tp.plan(**asked, layouts="unit", incumbents=[] if one.plan is None else [one.plan])
    if one.plan is None or unlike.plan is None:
        return {"why": "does not fit in one layout"}
    return {"one": plan_of(one), "unlike": plan_of(unlike), "bound_ns": unlike.answer.bound_ns}


def said(row: dict[str, Any]) -> str:
    """What is printed of a row."""
    return f"{row['one']['step_ns'] / 1e6:.3f} ms, unlike {row['unlike']['step_ns'] / 1e6:.3f} ms: {words(row['unlike'])}"


def words(plan: dict[str, Any], most: int = 3) -> str:
    """A plan's strategies as engineers say them, with the units that have them. most: runs of units that are named."""
    alone = len(plan["parts"]) == 1
    texts = [in_words(strategy) + f" ({names})" * (not alone) for names, strategy in plan["parts"]]
    more = f", and {plural(len(texts) - most, 'more run')}" * (len(texts) > most)
    shape = f"{plan['stages']} stages, " * (plan["stages"] > 1) + plural(plan["micro_batches"], "micro-batch")
    return f"{'; '.join(texts[:most])}{more}; {shape}"


def line(cell: Cell, row: dict[str, Any] | None) -> str:
    """The cell's line of the page."""
    machine = f"{cell.cluster}" + f", {cell.memory}" * (cell.memory is not None)
    if row is None or "why" in row:
        return table_row([cell.model, machine, "not run yet" if row is None else row["why"], *[""] * (len(HEAD) - 3)])
    one, unlike = row["one"], row["unlike"]
    gain, left = 1 - unlike["step_ns"] / one["step_ns"], 1 - row["bound_ns"] / unlike["step_ns"]
    same = unlike["parts"] == one["parts"] and unlike["micro_batches"] == one["micro_batches"]
    return table_row(
        [
            cell.model,
            machine,
            words(one),
            format_time(one["step_ns"]),
            "the same" if same else words(unlike),
            format_time(unlike["step_ns"]),
            f"{gain:.1%}",
            f"{max(0.0, left):.1%}",
            f"{one['seconds']:.0f}, {unlike['seconds']:.0f}",
        ]
    )


def page(rows: dict[str, Any], date: str) -> str:
    """The whole page."""
    made_by = f"Made by `python -m benchmarks.per_unit_layouts`, {date}; every number is in "
    text = ["# Layouts of their own", "", RULES, "", f"{made_by}[unit-layouts.json](unit-layouts.json).", ""]
    text += [table_row(HEAD), table_row(["---"] * len(HEAD)), *(line(cell, rows.get(cell.name)) for cell in CELLS)]
    return "\n".join(text) + "\n"


def main() -> None:
    """Make the cells that are not there yet, and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=[cell.model for cell in CELLS])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the search, a plan")
    parser.add_argument("--again", action="store_true", help="make cells anew that are finished")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of the page and its JSON")
    requested = parser.parse_args()
    cells = (cell for cell in CELLS if requested.model is None or cell.model in requested.model)
    path = requested.out / "unit-layouts.json"
    fill(path, ((cell.name, partial(made, cell, requested.seconds)) for cell in cells), page, requested.again, said)


if __name__ == "__main__":
    main()
