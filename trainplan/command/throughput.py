"""`trainplan throughput`: the best batch size of each planner, side by side."""

from __future__ import annotations

from typing import Annotated

from rich import box
from rich.table import Table
from typer import Exit, Option

from trainplan import api
from trainplan.batches import LARGEST_BATCH, MOST_MICRO_BATCHES, VARIANTS, Throughput
from trainplan.command import render
from trainplan.command.options import (
    ClusterName,
    Dtype,
    Json,
    Memory,
    ModelName,
    PictureFile,
    ScheduleName,
    Sequence,
    Space,
    check_picture,
    print_json,
    schedule_of,
    write_picture,
)

EXAMPLE = (
    "Example: trainplan throughput --model bert-huge-32 --cluster rtx-titan-8 --memory 12GiB --planner galvatron-bmw "
    "--planner optimum"
)


def throughput(
    model: ModelName,
    cluster: ClusterName,
    memory: Memory = None,
    planner: Annotated[
        list[str] | None,
        Option("--planner", help=f"{', '.join([*VARIANTS, 'optimum'])}; may be repeated. [default: all]"),
    ] = None,
    space: Space = "full",
    schedule: ScheduleName = "1f1b",
    sequence: Sequence = None,
    dtype: Dtype = None,
    step: Annotated[int, Option("--step", help="Samples between two batch sizes.")] = 8,
    largest_batch: Annotated[int, Option("--largest-batch", help="Stop here if all still fits.")] = LARGEST_BATCH,
    most_micro_batches: Annotated[int, Option("--most-micro-batches", help="Of one step.")] = MOST_MICRO_BATCHES,
    picture: PictureFile = None,
    as_json: Json = False,
) -> None:
    """Find the batch size with the largest throughput, for the paper's planners and for the proven optimum.

    --space and --schedule are those of the planner `optimum`. Costs are the paper's, from estimates.
    """
    if picture:
        check_picture(picture)
    with render.trying() as progress:
        found = api.throughput(
            model=model,
            cluster=cluster,
            memory=memory,
            planners=planner,
            space=space,
            schedule=schedule_of(schedule),
            sequence=sequence,
            dtype=dtype,
            step=step,
            largest_batch=largest_batch,
            most_micro_batches=most_micro_batches,
            progress=progress,
        )
    if picture:
        write_picture(api.draw_throughput(found), picture)
    if as_json:
        print_json([one.to_dict() for one in found])
    else:
        render.out.print(_table(found))
    raise Exit(0 if any(one.best for one in found) else 1)


def _table(found: list[Throughput]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("planner", "samples/s", "batch", "stages", "micro-batches", "layers of stages", "status", "tried", "seconds"):
        table.add_column(name, justify="left" if name in ("planner", "layers of stages", "status") else "right")
    for one in found:
        tried, seconds = str(len(one.points)), f"{one.seconds:.2f}"
        if one.best is None:
            table.add_row(one.planner.label, "OOM", "-", "-", "-", "-", "-", tried, seconds)
            continue
        seen = one.best.result.evaluation or {}
        layers = ", ".join(str(stage["last"] - stage["first"] + 1) for stage in seen["stages"])
        cells = (f"{one.best.throughput:.2f}", str(one.best.batch), str(seen["pipeline"]), str(seen["micro_batches"]), layers)
        table.add_row(one.planner.label, *cells, one.best.result.status, tried, seconds)
    return table
