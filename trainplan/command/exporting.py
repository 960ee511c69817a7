"""`trainplan export`: a plan for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from trainplan import api
from trainplan.command import render
from trainplan.command.options import Json, print_json
from trainplan.exporting import TARGETS, write

EXAMPLE = "Example: trainplan export plan.json --to megatron -o megatron_args.sh"


def export(
    plan: Annotated[Path, Argument(help="A plan file.")],
    to: Annotated[str, Option("--to", help=f"The runtime: {', '.join(TARGETS)}.")],
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Write here: a folder, or a file if there is but one. [default: standard output]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a plan's pipeline for another runtime.

    torch (torch.distributed.pipelining): names of each stage's modules, split points, the schedule as CSV, and a script that
    trains GPT-2, BERT or Llama so; cuts within layers, data parallelism and recomputation too. Refused: tensor parallelism.

    torchtitan (Llama): its settings as TOML and as Python. Refused: cuts within layers, tied heads.

    megatron (Megatron-LM; GPT-2, Llama, BERT): arguments with the stages as a layout; cuts within layers as the pattern of its
    HybridModel. Refused: GPipe, cuts within BERT's layers.

    Both of these also refuse units with different strategies, and all three uneven shares and plans without a pipeline. What
    costs only time or memory is left out, and named: sliced forward passes, data that would be sharded or recomputed
    otherwise, the order of ranks, and the devices' placement.
    """
    found = api.export(plan, to)
    written = [str(path) for path in write(found, output)] if output else []
    if as_json:
        print_json({**found.to_dict(), "written": written})
        return
    if output is None:
        for name, text in found.files.items():
            if len(found.files) > 1:
                print(f"==> {name} <==")
            print(text, end="")
    notes = [("left out", line) for line in found.left_out]
    if output is None:
        for label, line in notes:
            render.err.print(f"{label}  {line}", markup=False)
    else:
        render.pairs([*(("written", path) for path in written), *notes])
