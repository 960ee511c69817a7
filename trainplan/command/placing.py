"""`trainplan place` and `trainplan trial`: strategies on a cluster, mixed or not, and a few real steps of the best ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich import box
from rich.table import Table
from typer import Exit, Option

from trainplan import api
from trainplan.command import render
from trainplan.command.options import (
    BatchSize,
    ClusterName,
    Dtype,
    Gap,
    Granularity,
    IgnoreMemory,
    Json,
    Memory,
    MethodOptions,
    ModelName,
    PictureFile,
    ProfileFile,
    Recompute,
    RunBackend,
    RunDevice,
    Seed,
    Sequence,
    TimeLimit,
    UnevenShares,
    by_unit_of,
    check_picture,
    exit_code,
    method_options,
    print_json,
    write_picture,
)
from trainplan.placing import PlacedPlan
from trainplan.profiling.base.files import check_different, check_writable, write_whole
from trainplan.profiling.base.quantities import format_bytes, format_time, plural
from trainplan.trials import Trials

PLACE_EXAMPLE = (
    "Example: trainplan place --model amp-gpt2 --cluster amp-heterogeneous-16 --batch 32 --dtype float16 --uneven-shares "
    "-o plan.json --picture placement.png"
)
TRIAL_EXAMPLE = (
    "Example: trainplan trial --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --scale-down 8 --top 3 -o plan.json"
)

Output = Annotated[Path | None, Option("--output", "-o", help="Write the plan here.")]
Measure = Annotated[bool, Option("--measure", help="Measure the model on this machine, on as many processes.")]
StrategyMethod = Annotated[str, Option("--method", help="A name from `trainplan methods cluster-strategy`.")]


def place(
    model: ModelName,
    cluster: ClusterName,
    batch: BatchSize,
    memory: Memory = None,
    output: Output = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    profile: ProfileFile = None,
    measure: Measure = False,
    method: StrategyMethod = "exact",
    option: MethodOptions = None,
    uneven_shares: UnevenShares = False,
    recompute: Recompute = False,
    granularity: Granularity = "layer",
    ignore_memory: IgnoreMemory = False,
    picture: PictureFile = None,
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find degrees, placement, micro-batches and layer assignment on a cluster of mixed devices, with a certificate.

    One (pp, dp, tmp) holds for all layers, as in AMP; `plan` decides for every layer, on equal devices. dp and tmp are powers
    of two, as plans have them; `solve` on an instance of `build cluster-strategy` takes any dp.
    """
    check_different(output, picture)
    if output:
        check_writable(output)
    if picture:
        check_picture(picture)
    with render.searching(method) as progress, render.working("measuring") as measuring:
        found = api.place(
            model=model,
            cluster=cluster,
            batch=batch,
            memory=memory,
            sequence=sequence,
            dtype=dtype,
            profile=profile,
            measure=measure,
            method=method,
            uneven_shares=uneven_shares,
            recompute=recompute,
            by_unit=by_unit_of(granularity),
            ignore_memory=ignore_memory,
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
        write_picture(api.draw_placement(found.instance, found.result.solution), picture)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)
        written = [target for target, made in ((output, found.plan), (picture, found.result.solution)) if target and made]
        render.pairs([("written", str(target)) for target in written])
    raise Exit(exit_code(found.result))


def _show(found: PlacedPlan) -> None:
    render.strategy(found.instance, found.result)
    render.certificate(found.result)
    render.candidates(found.result)
    if found.walk_bytes:
        render.pairs([("memory walk", f"{format_bytes(max(found.walk_bytes))} at most on any rank compiled, by its program")])


def trial(
    model: ModelName,
    cluster: ClusterName,
    batch: BatchSize,
    memory: Memory = None,
    output: Output = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    profile: ProfileFile = None,
    measure: Measure = False,
    method: StrategyMethod = "amp",
    top: Annotated[int, Option("--top", help="Strategies to run: the best predicted ones.")] = 5,
    steps: Annotated[int, Option("--steps", help="Timed training steps of each.")] = 10,
    warmup: Annotated[int, Option("--warmup", help="Steps before those that are timed.")] = 3,
    scale_down: Annotated[int, Option("--scale-down", help="Run the same chain about this many times smaller.")] = 1,
    run_dtype: Annotated[str | None, Option("--run-dtype", help="float32 or float64. [default: that of --dtype]")] = None,
    backend: RunBackend = "serial",
    device: RunDevice = "cpu",
    timeout: Annotated[float, Option("--timeout", help="Seconds for each strategy, without the start of processes.")] = 600.0,
    uneven_shares: UnevenShares = False,
    recompute: Recompute = False,
    granularity: Granularity = "layer",
    ignore_memory: IgnoreMemory = False,
    option: MethodOptions = None,
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the best predicted strategies for a few steps on this machine, and pick the fastest (AMP, Algorithm 1).

    One that fails, runs out of memory or out of time is a result like others.
    """
    if output:
        check_writable(output)
    with render.trials("running") as running:
        found = api.trial(
            model=model,
            cluster=cluster,
            batch=batch,
            memory=memory,
            sequence=sequence,
            dtype=dtype,
            profile=profile,
            measure=measure,
            method=method,
            top=top,
            steps=steps,
            warmup=warmup,
            scale_down=scale_down,
            run_dtype=run_dtype,
            backend=backend,
            device=device,
            timeout=timeout,
            uneven_shares=uneven_shares,
            recompute=recompute,
            by_unit=by_unit_of(granularity),
            ignore_memory=ignore_memory,
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            running=running,
            **method_options(option),
        )
    best = found.best
    if output and best is not None:
        write_whole(output, found.plans[best].model_dump_json(indent=2) + "\n")
    if as_json:
        print_json(found.to_dict())
    else:
        _show_trials(found, scale_down)
        if output and best is not None:
            render.pairs([("written", str(output))])
    raise Exit(0 if best is not None else exit_code(found.result) or 3)


def _show_trials(found: Trials, scale_down: int) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    left = ("strategy", "units of stages", "status")
    for name in ("rank", "strategy", "units of stages", "predicted", "measured", "spread", "status"):
        table.add_column(name, justify="left" if name in left else "right")
    for one in found.trials:
        plan = found.plans[one.place]
        units = ", ".join(str(stage.last_unit - stage.first_unit + 1) for stage in plan.stages)
        shares = plan.batch.shares or [plan.batch.micro_batches]
        gas = plural(shares[0], "micro-batch") if len(shares) == 1 else f"{'/'.join(map(str, shares))} micro-batches"
        told = f"{len(plan.stages)} x {plan.units[0].strategy}, {gas}"
        timed = ("-", "-") if one.step_ns is None else (format_time(one.step_ns), f"{one.spread:.1%}")
        mark = " <- fastest" if one.place == found.best else ""
        row = (str(one.place + 1), told, units, format_time(one.predicted_step_ns or 0), *timed, one.status + mark)
        table.add_row(*row)
    render.out.print(table)
    rows = (
        [
            (
                "predicted",
                f"for the whole model; what ran is about {scale_down} times smaller, so that another may be its fastest",
            )
        ]
        if scale_down > 1
        else []
    )
    rows += [(f"rank {one.place + 1}", one.message) for one in found.trials if one.message]
    render.pairs(rows)
