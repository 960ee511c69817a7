"""`trainplan switch`: memory switches for every sub-layer (H3T), within the memory of a device, and the plan of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from trainplan import api
from trainplan.command import render, switches
from trainplan.command.options import (
    INFEASIBLE,
    BatchSize,
    ClusterName,
    Dtype,
    Gap,
    Json,
    Memory,
    MethodOptions,
    ModelName,
    PictureFile,
    ProfileFile,
    Seed,
    Sequence,
    Synchronisation,
    TimeLimit,
    check_picture,
    exit_code,
    method_options,
    print_json,
    write_picture,
)
from trainplan.profiling.base.files import check_different, check_writable, write_whole

EXAMPLE = "Example: trainplan switch --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --memory 700MB -o plan.json"

SwitchMethod = Annotated[str, Option("--method", help="A name from `trainplan methods memory-switches`.")]
Measure = Annotated[bool, Option("--measure", help="Measure the model on this machine, on as many processes.")]


def switch(
    model: ModelName,
    cluster: ClusterName,
    batch: BatchSize,
    memory: Memory = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the plan here.")] = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    profile: ProfileFile = None,
    measure: Measure = False,
    synchronisation: Synchronisation = "forced",
    method: SwitchMethod = "exact",
    option: MethodOptions = None,
    backend: Annotated[
        str,
        Option("--backend", help="On which of `run` the plan fits; streams takes more memory than serial."),
    ] = "streams",
    picture: PictureFile = None,
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Decide for every sub-layer what is recomputed, offloaded, partitioned and prefetched, for the shortest step (H3T).

    All devices are one sharded-data group; parameters, gradients and the optimizer are on the host. The plan's programs are
    compiled, checked and walked for memory before it is written.
    """
    check_different(output, picture)
    if output:
        check_writable(output)
    if picture:
        check_picture(picture)
    with render.searching(method) as progress, render.working("measuring") as measuring:
        found = api.switch(
            model=model,
            cluster=cluster,
            batch=batch,
            memory=memory,
            sequence=sequence,
            dtype=dtype,
            profile=profile,
            measure=measure,
            synchronisation=synchronisation,
            method=method,
            backend=backend,
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            progress=progress,
            measuring=measuring if measure else None,
            **method_options(option),
        )
    if output and found.plan:
        write_whole(output, found.plan.model_dump_json(indent=2) + "\n")
    if picture and found.result.solution:
        write_picture(api.draw_switches(found.instance, found.result.solution), picture)
    if as_json:
        print_json(found.to_dict())
    else:
        switches.planned(found)
        if found.plan:
            render.pairs([("written", str(target)) for target in (output, picture) if target])
    raise Exit(exit_code(found.result) if found.needed_bytes is None else INFEASIBLE)
