"""Plans to run: Llama-3 8B, 70B and 405B, Qwen3-8B and 32B on 8 to 16,384 GPUs of four kinds, each cell planned with a proof.

Every cell is one request to the planner with nothing fixed but what RULES says. Cells that are finished are kept in a JSON
file, and a later call goes on with those that are not; `--again` makes all of them anew. The page is written after each.

    python -m benchmarks.what_to_run
    python -m benchmarks.what_to_run --model llama3-8b --devices 64 --kind h100 --again
    python -m benchmarks.what_to_run --before old.json  # and say on the page what has changed since an earlier file
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trainplan.profiling.models.model import load_model

from benchmarks.pages import DOCS, PLAN_HEAD, fill, plan_cells, planned_row, table_row

MODELS = {
    "llama3-8b": "Llama-3 8B",
    "llama3-70b": "Llama-3 70B",
    "llama3-405b": "Llama-3 405B",
    "qwen3-8b": "Qwen3-8B",
    "qwen3-32b": "Qwen3-32B",
}
KINDS = {"a100": "A100 80 GB", "h100": "H100", "h200": "H200", "b200": "B200"}
DEVICES = (8, 64, 512, 1024, 4096, 16384)
NODE = 8
SEQUENCE = 8192
SAMPLES = 512  # 4.2M tokens of a step
A_SAMPLE = 8  # devices for which a step has at least one sample
SECONDS, GAP = 60.0, 0.01

RULES = f"""\
A step has {SAMPLES} samples of {SEQUENCE:,} tokens (4.2M tokens), and at least one sample for every {A_SAMPLE} GPUs (16.8M
tokens on 16,384). Nodes have {NODE} GPUs, with the links and network ports of their data sheets; bf16 with fp32 states.
Degrees, ZeRO stages, numbers of micro-batches, cuts between sub-layers, schedules (1F1B, GPipe, and interleaved 1F1B with two
stages on each group of GPUs, `vpp2`: `--schedule all`), sequence parallelism and what is recomputed are chosen by the planner;
context parallelism, 8 bits and host memory are left out. Step, memory and MFU are predicted by simulating the plan's programs
with the overlap of frameworks, by efficiencies that are fitted or assumed (see [how plans are judged](judging.md)):
predictions, not measurements.

`recomputed` is the share of sub-layers whose forward pass is done again. `faster at most` is proven: no plan of this space is
predicted to be faster by more than that. It holds what the search left open (it ends at a gap of {GAP:.0%}, or after
{SECONDS:.0f} seconds a cell), and what streams wait for each other, which the bound leaves out."""
LAYOUT = ("pp", "vpp", "dp", "sdp", "cp", "tp", "zero", "micro_batches")  # the fields of a row that name its layout""


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
    return planned_row(model, cell.cluster, cell.batch, schedule="all", gap=GAP, time_limit=seconds)


def line(cell: Cell, row: dict[str, Any] | None) -> str:
    """The cell's line of the page."""
    return table_row([KINDS[cell.kind], f"{cell.devices:,}", *plan_cells(row)])


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The table of what has changed since an earlier file of cells, as lines of the page: by kind of GPU, how much
    predicted steps have changed, and in how many cells the layout is another, sequence parallelism and recomputation apart."""
    head = ["GPUs", "steps: least", "median", "most", "another layout"]
    text = ["", f"## What has changed since {before['date']}", "", table_row(head), table_row(["---"] * len(head))]
    for kind, name in KINDS.items():
        keys = [cell.name for cell in cells(list(MODELS), list(DEVICES), [kind])]
        pairs = [
            (before["cells"][key], after["cells"][key]) for key in keys if key in before["cells"] and key in after["cells"]
        ]
        planned = [(old, new) for old, new in pairs if "step_ns" in old and "step_ns" in new]
        ratios = [new["step_ns"] / old["step_ns"] - 1 for old, new in planned]
        other = sum(any(old[field] != new[field] for field in LAYOUT) for old, new in planned)
        shares = [f"{share:+.1%}" for share in (min(ratios), statistics.median(ratios), max(ratios))]
        text.append(table_row([name, *shares, f"{other} of {len(planned)}"]))
    return text


def page(rows: dict[str, Any], date: str, changed: list[str]) -> str:
    """The whole page. changed: the lines on what has changed."""
    head = ["GPUs", "count", *PLAN_HEAD]
    made_by = f"Made by `make what-to-run`, {date}; every number is in [what-to-run.json](what-to-run.json)."
    text = ["# What to run", "", RULES, "", made_by]
    for model, name in MODELS.items():
        text += ["", f"## {name}", "", table_row(head), table_row(["---"] * len(head))]
        for kind, count in product(KINDS, DEVICES):
            cell = Cell(model, count, kind)
            text.append(line(cell, rows.get(cell.name)))
    text += changed
    return "\n".join(text) + "\n"


def main() -> None:
    """Make the cells that are not there yet, and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--devices", action="append", type=int, choices=DEVICES)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the search, a cell")
    parser.add_argument("--again", action="store_true", help="make cells anew that are finished")
    parser.add_argument("--before", type=Path, help="an earlier what-to-run.json: say on the page what has changed since")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of the page and its JSON")
    requested = parser.parse_args()
    wanted = cells(requested.model or list(MODELS), requested.devices or list(DEVICES), requested.kind or list(KINDS))
    path = requested.out / "what-to-run.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    work = ((entry.name, partial(made, entry, requested.seconds)) for entry in wanted)
    fill(path, work, partial(page, changed=kept.get("changed", [])), requested.again)
    if requested.before:
        kept = json.loads(path.read_text())
        kept["changed"] = changes(json.loads(requested.before.read_text()), kept)
        path.write_text(json.dumps(kept, indent=1) + "\n")
        path.with_suffix(".md").write_text(page(kept["cells"], kept["date"], kept["changed"]))


if __name__ == "__main__":
    main()
