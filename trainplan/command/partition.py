"""`trainplan partition` and `trainplan simulate`: pipelines cut at sub-layers, and any pipeline's step pass by pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from trainplan import api
from trainplan.command import pipelines, render
from trainplan.command.options import (
    BatchSize,
    ClusterName,
    Dtype,
    Gap,
    IgnoreMemory,
    Json,
    Memory,
    MethodOptions,
    MicroBatches,
    ModelName,
    PictureFile,
    Pipeline,
    ProfileFile,
    Recompute,
    Seed,
    Sequence,
    TimeLimit,
    by_unit_of,
    check_picture,
    exit_code,
    method_options,
    print_json,
    write_picture,
)
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_different, check_writable, write_whole

PARTITION_EXAMPLE = (
    "Example: trainplan partition --model gpt2-345m --cluster autopipe-3090-16 --batch 128 --pipeline 4 --micro-batches 8 "
    "-o plan.json --picture timeline.png"
)
SIMULATE_EXAMPLE = "Example: trainplan simulate plan.json --trace trace.json --picture timeline.png"

PartitionMethod = Annotated[str, Option("--method", help="A name from `trainplan methods pipeline-partition`.")]
Measure = Annotated[bool, Option("--measure", help="Measure the model on this machine, on as many processes.")]


def partition(
    model: ModelName,
    cluster: ClusterName,
    batch: BatchSize,
    memory: Memory = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the plan here.")] = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    profile: ProfileFile = None,
    measure: Measure = False,
    pipeline: Pipeline = None,
    micro_batches: MicroBatches = None,
    dp: Annotated[
        int | None, Option("--dp", help="Pipelines side by side. [default: as many as there are devices for]")
    ] = None,
    tp: Annotated[int, Option("--tp", help="Tensor-parallel devices of a stage.")] = 1,
    sliced: Annotated[int | None, Option("--sliced", help="Micro-batches to cut in two. [default: the fewest that do]")] = None,
    slicing: Annotated[
        bool, Option("--slice/--no-slice", help="Cut the first micro-batches in two for a shorter start.")
    ] = True,
    recompute: Recompute = False,
    ignore_memory: IgnoreMemory = False,
    granularity: Annotated[str, Option("--granularity", help="Cut between any 'unit' (sub-layer) or each 'layer'.")] = "unit",
    objective: Annotated[
        str, Option("--objective", help="Of the exact method: the whole 'step', or the 'iteration' alone, which is proven.")
    ] = "step",
    method: PartitionMethod = "exact",
    option: MethodOptions = None,
    picture: PictureFile = None,
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Cut a model into pipeline stages at sub-layers for the shortest simulated step, with a certificate (AutoPipe).

    All sub-layers are laid out alike: dp pipelines of tensor-parallel groups, both powers of two. Depth and micro-batches that
    are not given are tried, and the shortest whole step counts, gradients and optimizer included.
    """
    check_different(output, picture)
    if output:
        check_writable(output)
    if picture:
        check_picture(picture)
    if sliced and not slicing:
        raise InputError("command line", "--sliced", f"is {sliced}, with --no-slice", "leave one of them out")
    with render.searching(method) as progress, render.working("measuring") as measuring:
        found = api.partition(
            model=model,
            cluster=cluster,
            batch=batch,
            memory=memory,
            sequence=sequence,
            dtype=dtype,
            profile=profile,
            measure=measure,
            pipeline=pipeline,
            micro_batches=micro_batches,
            dp=dp,
            tp=tp,
            sliced=slicing if sliced is None else sliced,
            recompute=recompute,
            ignore_memory=ignore_memory,
            by_unit=by_unit_of(granularity),
            objective=objective,
            method=method,
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            progress=progress,
            measuring=measuring if measure else None,
            **method_options(option),
        )
    if output and found.plan:
        write_whole(output, found.plan.model_dump_json(indent=2) + "\n")
    if picture and found.timeline:
        write_picture(api.draw_timeline(found.timeline, title=found.best.instance.name), picture)
    if as_json:
        print_json(found.to_dict())
    else:
        pipelines.partitioned(found)
        if found.plan:
            render.pairs([("written", str(target)) for target in (output, picture) if target])
    raise Exit(exit_code(found.result))


def simulate(
    source: Annotated[Path, Argument(help="A plan file, or a pipeline-partition instance.")],
    solution: Annotated[Path | None, Option("--solution", help="Of an instance: a solution file. [default: solve it]")] = None,
    schedule: Annotated[
        str | None, Option("--schedule", help="1f1b, gpipe or interleaved-1f1b. [default: the plan's; 1f1b]")
    ] = None,
    chunks: Annotated[int, Option("--chunks", help="interleaved-1f1b: stages on each device of an instance.")] = 1,
    sliced: Annotated[
        str | None,
        Option("--sliced", help="Micro-batches cut in two: a number, least, or algorithm-2. [default: the plan's; none]"),
    ] = None,
    cluster: Annotated[
        str | None, Option("--cluster", help="Of a plan: times estimated anew on this cluster. [default: the plan's own]")
    ] = None,
    profile: Annotated[Path | None, Option("--profile", help="Of a plan: a profile with its times.")] = None,
    measure: Measure = False,
    method: Annotated[
        str | None, Option("--method", help="Without --solution. [default: exact; algorithm-1 for --chunks]")
    ] = None,
    option: MethodOptions = None,
    time_limit: Annotated[float | None, Option("--time-limit", help="Seconds of the method.")] = None,
    trace: Annotated[Path | None, Option("--trace", help="Write a Chrome trace here, which Perfetto opens.")] = None,
    picture: PictureFile = None,
    as_json: Json = False,
) -> None:
    """Simulate one training step pass by pass: its time, start-up, bubble, critical path and master stage.

    Of a plan with data parallelism one pipeline is simulated, for they do the same.
    """
    check_different(trace, picture)
    if trace:
        check_writable(trace)
    if picture:
        check_picture(picture)
    with render.working("measuring") as measuring:
        found = api.simulate(
            source,
            solution=solution,
            schedule=schedule,
            chunks=chunks,
            sliced=sliced,
            cluster=cluster,
            profile=profile,
            measure=measure,
            method=method,
            time_limit=time_limit,
            measuring=measuring if measure else None,
            **method_options(option),
        )
    if trace:
        write_whole(trace, json.dumps(api.chrome_trace(found.timeline, name=found.name, stages=found.stages)) + "\n")
    if picture:
        write_picture(api.draw_timeline(found.timeline, title=found.name, stages=found.stages), picture)
    if as_json:
        print_json(found.to_dict())
    else:
        pipelines.simulated(found)
        render.pairs([("written", str(target)) for target in (trace, picture) if target])
    raise Exit(0)
