"""Thirteen models at 4k to 128k tokens, on 64 and on 1,024 H100, each planned with a proof, for an engineer's eye.

Cells that are finished are kept in a JSON file, and a later call goes on with those that are not; `--again` makes all of them
anew. The page is written after each.

    python -m benchmarks.sequence_lengths
    python -m benchmarks.sequence_lengths --model qwen3-8b --devices 64 --tokens 131072 --again
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.profiling.models.model import Model, load_model

from benchmarks.pages import DOCS, PLAN_HEAD, fill, plan_cells, planned_row, table_row

MODELS = {
    "llama3.2-1b": "Llama-3.2-1B",
    "phi3-mini": "Phi-3-mini",
    "opt-6.7b": "OPT-6.7B",
    "mistral-7b": "Mistral-7B",
    "qwen2.5-7b": "Qwen2.5-7B",
    "llama3.1-8b": "Llama-3.1-8B",
    "qwen3-8b": "Qwen3-8B",
    "gemma2-9b": "Gemma-2-9B",
    "nemotron4-15b": "Nemotron-4-15B",
    "gpt-neox-20b": "GPT-NeoX-20B",
    "falcon-40b": "Falcon-40B",
    "llama3.1-70b": "Llama-3.1-70B",
    "llama3-405b": "Llama-3.1-405B",
}
TOKENS = (4096, 8192, 32768, 131072)
STEP_TOKENS = {64: 2**22, 1024: 2**24}  # by devices
CP = {4096: "1", 8192: "1,2", 32768: "1,2,4,8", 131072: "1,2,4,8,16"}
SECONDS, GAP = 30.0, 0.01
HEAD = ["tokens", "GPUs", *PLAN_HEAD]
RULES = f"""\
A step has {STEP_TOKENS[64] / 1e6:.1f}M tokens on 64 H100, and {STEP_TOKENS[1024] / 1e6:.1f}M on 1,024, in nodes of 8; bf16 with
fp32 states; 1F1B. Context parallelism is chosen among the degrees {CP[131072]} at 128k tokens, and fewer below. Models
that were made for fewer tokens have as many positions as a sample has tokens. Step, memory and MFU are predicted by simulating
the plan's programs with the overlap of frameworks: predictions, not measurements. `faster at most` is proven of this space, as
in [what to run](what-to-run.md); a search ends at a gap of {GAP:.0%}, or after {SECONDS:.0f} seconds."""


class Cell(NamedTuple):
    """One request of the page."""

    model: str
    tokens: int
    devices: int

    @property
    def name(self) -> str:
        """Its key in the file."""
        return f"{self.model} {self.tokens} {self.devices}"


def model_of(cell: Cell) -> Model:
    """The model with at least as many positions as a sample has tokens."""
    model = load_model(cell.model, dtype="bfloat16")
    field = "max_position_embeddings"
    positions = max(int(model.config.get(field, 0)), cell.tokens)
    return model.with_fields(**{field: positions}).with_fields(sequence=cell.tokens)


def made(cell: Cell, seconds: float) -> dict[str, Any]:
    """The cell's row: a plan, or why there is none."""
    batch, cp = STEP_TOKENS[cell.devices] // cell.tokens, CP[cell.tokens]
    return planned_row(model_of(cell), f"h100:8x{cell.devices // 8}", batch, cp=cp, gap=GAP, time_limit=seconds)


def line(cell: Cell, row: dict[str, Any] | None) -> str:
    """The cell's line of the page."""
    return table_row([f"{cell.tokens // 1024}k", f"{cell.devices:,}", *plan_cells(row)])


def page(rows: dict[str, Any], date: str) -> str:
    """The whole page."""
    made_by = f"Made by `python -m benchmarks.sequence_lengths`, {date}; every number is in "
    text = ["# Lengths of sequences", "", RULES, "", f"{made_by}[sequence-lengths.json](sequence-lengths.json)."]
    for model, name in MODELS.items():
        text += ["", f"## {name}", "", table_row(HEAD), table_row(["---"] * len(HEAD))]
        text += [line(cell := Cell(model, *at), rows.get(cell.name)) for at in product(TOKENS, STEP_TOKENS)]
    return "\n".join(text) + "\n"


def main() -> None:
    """Make the cells that are not there yet, and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--tokens", action="append", type=int, choices=TOKENS)
    parser.add_argument("--devices", action="append", type=int, choices=tuple(STEP_TOKENS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the search, a cell")
    parser.add_argument("--again", action="store_true", help="make cells anew that are finished")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of the page and its JSON")
    requested = parser.parse_args()
    every = product(requested.devices or STEP_TOKENS, requested.tokens or TOKENS, requested.model or MODELS)
    cells = (Cell(model, tokens, devices) for devices, tokens, model in every)
    path = requested.out / "sequence-lengths.json"
    fill(path, ((cell.name, partial(made, cell, requested.seconds)) for cell in cells), page, requested.again)


if __name__ == "__main__":
    main()
